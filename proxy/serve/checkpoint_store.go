package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kshare/coordinator"
	"kshare/proxy/upstream"
)

// Checkpoints keeps, outside of Redis, where every share-partition stands: as committed offsets of an upstream group
// `<prefix>.<group>` that nobody consumes by. Lag tools can read them. What goes wrong with them is logged,
// counted and tried again, and disturbs nobody; only where Redis does not know a group or a share-partition the answer
// waits for the word of its checkpoint, because without it records might be skipped.
//
// Make one with NewCheckpoints, give it to the coordinator and to the Server, keep Run going and Close it before the store.
type Checkpoints struct {
	up     *upstream.Client
	prefix string // of the groups, with its dot
	log    zerolog.Logger
	s      *Server // set by New

	commits, failures prometheus.Counter
	// interval is about how far a checkpoint is behind; coalesce is how long the first one of a share-partition waits
	// for others of its group; recommit is the age at which one is written again although nothing has changed, before
	// Kafka's offset retention takes it.
	interval, coalesce, recommit time.Duration

	kick chan struct{} // cap 1: something is due earlier

	mu      sync.Mutex
	todo    map[string]*todo // by group
	closing bool
	loads   map[string]*load
	warned  map[string]time.Time // by what went wrong
	room    int                  // bytes that upstream takes beside an offset
}

// warnEvery bounds how often one kind of trouble is logged.
const warnEvery = time.Minute

// NewCheckpoints makes Checkpoints in groups whose names begin with prefix and a dot.
func NewCheckpoints(up *upstream.Client, prefix string, log zerolog.Logger, reg prometheus.Registerer) *Checkpoints {
	c := &Checkpoints{
		up: up, prefix: prefix + ".", log: log, interval: 3 * time.Second, coalesce: 100 * time.Millisecond, recommit: 8 * time.Hour,
		kick: make(chan struct{}, 1), todo: map[string]*todo{}, loads: map[string]*load{}, warned: map[string]time.Time{},
		room: coordinator.NoteBytes,
		commits: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_checkpoint_commits_total",
			Help: "Share-partition start offsets committed upstream as checkpoints."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_checkpoint_failures_total",
			Help: "Checkpoint requests that failed upstream; they are tried again."}),
	}
	if reg != nil {
		reg.MustRegister(c.commits, c.failures)
	}
	return c
}

// Hides tells whether an upstream group is a checkpoint, which is listed only for who asks for it.
func (c *Checkpoints) Hides(group, protocolType string) bool {
	return c != nil && protocolType == "" && strings.HasPrefix(group, c.prefix)
}

// trouble counts a failure and logs it, once a minute at most for each kind.
func (c *Checkpoints) trouble(group string, err error) {
	c.failures.Inc()
	kind := "upstream does not take or tell them at present"
	switch {
	case errors.Is(err, upstream.ErrUnauthorized):
		kind = "the service account needs READ, DESCRIBE and DELETE on groups " + c.prefix + "* and READ on the topics"
	case errors.Is(err, upstream.ErrGroupNotEmpty):
		kind = "somebody consumes by a group that is kept for checkpoints, " + c.prefix + "*"
	}
	c.warn(kind, func(e *zerolog.Event) {
		e.Err(err).Str("group", group).Msg("checkpoints of share groups fail, serving goes on and they are tried again: " + kind)
	})
}

func (c *Checkpoints) warn(kind string, say func(*zerolog.Event)) {
	c.mu.Lock()
	quiet := time.Since(c.warned[kind]) < warnEvery
	if !quiet {
		c.warned[kind] = time.Now()
	}
	c.mu.Unlock()
	if !quiet {
		say(c.log.Warn())
	}
}

// Load implements coordinator.Checkpoints.
func (c *Checkpoints) Load(ctx context.Context, group string) ([]coordinator.Checkpoint, error) {
	all, err := c.fetch(ctx, group, nil)
	switch {
	case err == nil:
		return all, nil
	case errors.Is(err, upstream.ErrUnauthorized), errors.Is(err, upstream.ErrGroupNotEmpty):
		c.trouble(group, err)
		return nil, nil
	}
	c.trouble(group, err)
	return nil, err
}

// fetch reads the checkpoints on the named partitions, or all with nil.
func (c *Checkpoints) fetch(ctx context.Context, group string, of []upstream.GroupOffset) ([]coordinator.Checkpoint, error) {
	offsets, err := c.up.GroupOffsets(ctx, c.prefix+group, of)
	if err != nil {
		return nil, err
	}
	var all []coordinator.Checkpoint
	for _, o := range offsets {
		if errors.Is(o.Err, upstream.ErrUnknownTopicOrPartition) {
			continue // of a topic that is gone
		}
		if o.Err != nil {
			return nil, fmt.Errorf("checkpoint of group %q on %s/%d: %w", group, o.Topic.Name, o.Partition, o.Err)
		}
		note, err := coordinator.DecodeNote(o.Metadata)
		if err != nil {
			c.warn("note", func(e *zerolog.Event) {
				e.Err(err).Str("group", group).Str("topic", o.Topic.Name).Int32("partition", o.Partition).
					Msg("a committed offset of a checkpoint group is no checkpoint that this replica can read")
			})
			continue
		}
		all = append(all, coordinator.Checkpoint{Topic: o.Topic.Name, Partition: o.Partition, Offset: o.Offset,
			LeaderEpoch: o.LeaderEpoch, CheckpointNote: note})
	}
	return all, nil
}

// commitBytes bounds the notes of one commit: brokers write it as one batch.
const commitBytes = 256 << 10

// commit writes checkpoints, in one request unless there are very many. It returns those that were not taken, but for
// partitions that are gone.
func (c *Checkpoints) commit(ctx context.Context, group string, all []coordinator.Checkpoint) (failed []coordinator.Checkpoint, first error) {
	for len(all) > 0 {
		var offsets []upstream.GroupOffset
		for bytes := 0; len(offsets) < len(all) && bytes < commitBytes; {
			p := &all[len(offsets)]
			o := upstream.GroupOffset{Topic: upstream.Topic{ID: p.ID, Name: p.Topic}, Partition: p.Partition, Offset: p.Offset,
				LeaderEpoch: p.LeaderEpoch, Metadata: p.Encode()}
			bytes += len(o.Metadata) + 64
			offsets = append(offsets, o)
		}
		err := c.up.CommitGroupOffsets(ctx, c.prefix+group, offsets)
		for i, o := range offsets {
			if err != nil {
				o.Err = err
			}
			switch {
			case o.Err == nil:
				c.commits.Inc()
			case errors.Is(o.Err, upstream.ErrUnknownTopicOrPartition):
			default:
				if errors.Is(o.Err, upstream.ErrMetadataTooLarge) {
					c.shrink(len(o.Metadata) - 1)
				}
				failed = append(failed, all[i])
				if first == nil {
					first = o.Err
				}
			}
		}
		all = all[len(offsets):]
	}
	return failed, first
}

func (c *Checkpoints) shrink(room int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room = min(c.room, room)
}

// Remove implements coordinator.Checkpoints.
func (c *Checkpoints) Remove(ctx context.Context, group string) {
	ctx, cancel := context.WithTimeout(ctx, removePatience)
	defer cancel()
	if err := c.up.DeleteGroup(ctx, c.prefix+group); err != nil {
		c.trouble(group, err)
		c.Touch(group) // finds the group deleted and sees to it
	}
}

// removePatience is how long the deletion of a group waits for that of its checkpoint; after that the latter goes on in
// the background.
const removePatience = time.Second

// remove deletes the checkpoint of a group that does not exist any more, or where that is not possible puts delete marks
// in its place.
func (c *Checkpoints) remove(ctx context.Context, group string, last int64) error {
	err := c.up.DeleteGroup(ctx, c.prefix+group)
	if err == nil || !errors.Is(err, upstream.ErrUnauthorized) && !errors.Is(err, upstream.ErrGroupNotEmpty) {
		return err
	}
	all, ferr := c.fetch(ctx, group, nil)
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	var marks []coordinator.Checkpoint
	for _, p := range all {
		if !p.Deleted || p.Incarnation < last {
			p.CheckpointNote = coordinator.CheckpointNote{ID: p.ID, Incarnation: last, At: c.s.o.Store.Now(), Deleted: true}
			marks = append(marks, p)
		}
	}
	if _, ferr = c.commit(ctx, group, marks); ferr != nil {
		return errors.Join(err, ferr)
	}
	return nil
}

// load is one look at a group's checkpoint that those who start its share-partitions share.
type load struct {
	done chan struct{}
	at   time.Time
	all  []coordinator.Checkpoint
	err  error
}

// loadAge is how long a look at a checkpoint is good for the starts that come together.
const loadAge = time.Second

// startFrom is where a share-partition that Redis does not have starts: where its checkpoint of this very life says, and
// under the leader epoch of that, else as it was initialized.
func (c *Checkpoints) startFrom(ctx context.Context, group string, tp upstream.TP, init coordinator.Initialized) (offset int64, epoch int32, err error) {
	if c == nil {
		return init.StartOffset, -1, nil
	}
	all, err := c.shared(ctx, group)
	if err != nil {
		if init.StartOffset >= 0 {
			return init.StartOffset, -1, nil // at worst records come again
		}
		return -1, -1, fmt.Errorf("where share-partition %s starts: %w", logName(group, tp), err)
	}
	for _, p := range all {
		if p.ID == tp.ID && p.Partition == tp.Partition && p.Incarnation == init.Incarnation && !p.Deleted && p.Offset >= init.StartOffset {
			return p.Offset, p.LeaderEpoch, nil
		}
	}
	return init.StartOffset, -1, nil
}

func (c *Checkpoints) shared(ctx context.Context, group string) ([]coordinator.Checkpoint, error) {
	c.mu.Lock()
	l := c.loads[group]
	if l == nil || time.Since(l.at) > loadAge {
		l = &load{done: make(chan struct{}), at: time.Now()}
		c.loads[group] = l
		go c.loadFor(context.WithoutCancel(ctx), group, l)
	}
	c.mu.Unlock()
	select {
	case <-l.done:
		return l.all, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *Checkpoints) loadFor(ctx context.Context, group string, l *load) {
	ctx, cancel := context.WithTimeout(ctx, flushPatience)
	defer cancel()
	l.all, l.err = c.Load(ctx, group)
	close(l.done)
	time.AfterFunc(loadAge, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.loads[group] == l {
			delete(c.loads, group)
		}
	})
}
