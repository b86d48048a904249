package serve

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// Who checkpoints what, and when. The replica whose op moved an SPSO notes the share-partition, and some seconds later
// looks what is committed for it. What another replica has committed that recently is left for the next look, and what is
// committed already is done with; so of many replicas that serve one share-partition about one commits per interval, and
// one that does not move costs nothing. A note stays until the commit is seen upstream: lost answers, and commits that
// overtook one another, are put right by the look that follows.

const (
	// flushPatience bounds the work on one group.
	flushPatience = 5 * time.Second
	// flushes bounds the groups that are worked on at a time.
	flushes = 8
	// closePatience bounds Close, which must leave time for what ends after it.
	closePatience = 2 * time.Second
	// slowest is the longest pause after failures.
	slowest = time.Minute
)

// todo is what a group's checkpoint lacks.
type todo struct {
	parts map[upstream.TP]struct{}
	// all: look at every share-partition, and at what is committed for others.
	all bool
	// committed: this replica has committed and not yet seen it. If the group is deleted meanwhile, it clears away.
	committed bool
	due       time.Time
	failures  int
	busy      chan struct{} // closed when the work under way ends
}

// moved notes the share-partition if its SPSO is not where it was when last noted. Cheap enough for every op.
func (c *Checkpoints) moved(sh *share) {
	if c == nil {
		return
	}
	spso := int64(-1)
	sh.log.Cached(func(p *sharestate.Partition) { spso = p.SPSO() })
	if spso >= 0 && sh.noted.Swap(spso) != spso {
		c.later(sh.key.group, sh.key.TP)
	}
}

// started notes a share-partition whose start offset was just fixed: its first checkpoint is made at once, since a wipe
// before it would have the reset policy decide anew.
func (c *Checkpoints) started(sh *share) {
	if c != nil {
		c.note(sh.key.group, sh.key.TP, c.coalesce)
	}
}

// later notes a share-partition whose SPSO may have moved.
func (c *Checkpoints) later(group string, tp upstream.TP) {
	if c != nil {
		c.note(group, tp, c.interval/2+rand.N(c.interval))
	}
}

// Touch implements coordinator.Checkpoints.
func (c *Checkpoints) Touch(group string) {
	c.change(group, c.coalesce, func(t *todo) { t.all = true })
}

func (c *Checkpoints) note(group string, tp upstream.TP, in time.Duration) {
	c.change(group, in, func(t *todo) { t.parts[tp] = struct{}{} })
}

// change adds to what is to be done for a group, within the time.
func (c *Checkpoints) change(group string, in time.Duration, add func(*todo)) {
	due := time.Now().Add(in)
	c.mu.Lock()
	t := c.todo[group]
	sooner := t == nil || t.failures == 0 && due.Before(t.due)
	if t == nil {
		t = &todo{parts: map[upstream.TP]struct{}{}}
		c.todo[group] = t
	}
	add(t)
	if sooner {
		t.due = due
	}
	c.mu.Unlock()
	if sooner {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
}

// Run keeps the checkpoints until ctx ends.
func (c *Checkpoints) Run(ctx context.Context) error {
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { c.sweep(ctx) })
	slots := make(chan struct{}, flushes)
	for {
		next := time.NewTimer(c.untilDue())
		select {
		case <-ctx.Done():
			next.Stop()
			return ctx.Err()
		case <-c.kick:
		case <-next.C:
		}
		next.Stop()
		for group, t := range c.takeDue(time.Now(), cap(slots)-len(slots)) {
			slots <- struct{}{}
			working.Go(func() {
				defer func() { <-slots }()
				c.work(ctx, group, t, false)
			})
		}
	}
}

// untilDue is how long there is nothing to do.
func (c *Checkpoints) untilDue() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := time.Minute
	for _, t := range c.todo {
		if t.busy == nil {
			wait = min(wait, time.Until(t.due))
		}
	}
	return max(wait, 5*time.Millisecond)
}

// takeDue takes out the work that is due, for n groups at most.
func (c *Checkpoints) takeDue(now time.Time, n int) map[string]*todo {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := map[string]*todo{}
	if c.closing {
		return taken
	}
	for group, t := range c.todo {
		if t.busy == nil && !t.due.After(now) && len(taken) < n {
			taken[group] = t.take()
		}
	}
	return taken
}

// take empties t for somebody to work on it; what comes meanwhile is noted in t. The lock is held.
func (t *todo) take() *todo {
	taken := *t
	*t = todo{parts: map[upstream.TP]struct{}{}, busy: make(chan struct{}), due: time.Now().Add(time.Hour), failures: t.failures}
	return &taken
}

// work does a group's work and puts back what is left of it.
func (c *Checkpoints) work(ctx context.Context, group string, t *todo, final bool) {
	ctx, cancel := context.WithTimeout(ctx, flushPatience)
	defer cancel()
	left, err := c.bringUp(ctx, group, t, final)
	if err != nil && !errors.Is(err, statelog.ErrUnavailable) && !errors.Is(err, coordinator.ErrUnavailable) {
		c.trouble(group, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.todo[group]
	close(now.busy)
	now.busy = nil
	noted := len(now.parts) > 0 || now.all
	if left != nil {
		for tp := range left.parts {
			now.parts[tp] = struct{}{}
		}
		now.all, now.committed = now.all || left.all, left.committed
	}
	switch {
	case !noted && left == nil:
		delete(c.todo, group)
		return
	case err != nil:
		now.failures++
		now.due = time.Now().Add(min(c.interval<<min(now.failures, 6), slowest)/2 + rand.N(c.interval))
	default:
		now.failures = 0
		if due := time.Now().Add(c.interval/2 + rand.N(c.interval)); due.Before(now.due) {
			now.due = due
		}
	}
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Close writes what is not written yet. Redis and upstream must still be there.
func (c *Checkpoints) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	c.mu.Lock()
	c.closing = true
	var groups []string
	for group := range c.todo {
		groups = append(groups, group)
	}
	c.mu.Unlock()
	inParallel(len(groups), func(i int) {
		group := groups[i]
		for ctx.Err() == nil {
			c.mu.Lock()
			t := c.todo[group]
			if t == nil {
				c.mu.Unlock()
				return
			}
			if t.busy == nil {
				t = t.take()
				c.mu.Unlock()
				c.work(ctx, group, t, true)
				return
			}
			busy := t.busy
			c.mu.Unlock()
			select {
			case <-busy:
			case <-ctx.Done():
			}
		}
	})
}
