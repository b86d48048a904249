package serve

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"kshare/proxy/upstream"
)

const (
	// sweepEvery (and up to twice that) is the time between two looks at the checkpoints of all groups.
	sweepEvery = 4 * time.Hour
	// firstSweep (and up to twice that) is the time of the first one, for replicas that are restarted often.
	firstSweep = 5 * time.Minute
)

// sweep brings groups back that Redis has lost, and now and then looks at the checkpoints of all.
func (c *Checkpoints) sweep(ctx context.Context) {
	for !c.recoverGroups(ctx) {
		if !sleep(ctx, c.interval) {
			return
		}
	}
	for wait := firstSweep; sleep(ctx, wait+rand.N(wait)); wait = sweepEvery {
		for _, l := range c.s.o.Groups.List(ctx) {
			c.Touch(l.Group)
		}
		c.recoverGroups(ctx)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// recoverGroups restores groups with a checkpoint that Redis does not have, so that those without members come back too,
// and clears away checkpoints of groups that were deleted. It reports false where that is to be tried again.
func (c *Checkpoints) recoverGroups(ctx context.Context) bool {
	if c.s.o.Groups.Ready() != nil {
		return false
	}
	look, cancel := context.WithTimeout(ctx, flushPatience)
	defer cancel()
	names, err := c.up.ListSimpleGroups(look, c.prefix)
	if err != nil {
		if ctx.Err() == nil {
			c.trouble("", err)
		}
		if !errors.Is(err, upstream.ErrUnauthorized) {
			return false
		}
	}
	for _, name := range names {
		group := name[len(c.prefix):]
		if !c.s.o.Groups.IsShareGroup(group) {
			c.Touch(group) // asking where it stands restores it
		}
	}
	return true
}
