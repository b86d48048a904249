package statelog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Log is one machine's log in Redis and this replica's copy of it. Safe for concurrent use.
type Log[M Machine] struct{ core *core }

// Name returns the name that the log was got by.
func (l *Log[M]) Name() string { return l.core.name }

// Create makes the log in Redis with initial as its state. It reports false if the key is there already.
func (l *Log[M]) Create(ctx context.Context, initial M) (created bool, err error) {
	return l.core.create(ctx, initial)
}

// Submit queues ops to be applied in this order, in one frame, and returns at once. They go out with the store's next
// pipeline, or, while an append of this log is under way, with the frame after it. The ops must not be changed
// afterwards.
func (l *Log[M]) Submit(ops ...[]byte) *Pending { return l.core.submit(ops) }

// Delete removes the log from Redis. Where logs are put back ([Reseed]), bring the machine into a state first in which it
// is not, and let all replicas learn of it.
func (l *Log[M]) Delete(ctx context.Context) error { return l.core.remove(ctx) }

// core is a Log without its type parameter. All that Redis is asked about one key goes one after the other (a flight),
// so replies are never folded out of order.
type core struct {
	store  *Store
	family *family
	name   string
	key    string

	mu        sync.Mutex
	st        *state // nil: not loaded
	stopped   error  // why the key is stopped here
	stoppedAt time.Time
	freshAt   time.Time // the copy holds everything that was in Redis then
	staleAt   time.Time // a wake-up said then that there is more
	flight    *flight   // under way
	unsettled *flight   // an append without an answer
	waiting   []*Pending
	readers   []*reader
	wantRead  bool // a catch-up is due though nobody waits for it
	reload    bool // the copy is known to be of another log: read all of it
	compact   bool // the log has outgrown its snapshot
	reseed    bool // the key is gone and is to be put back
	parked    bool // waits for Redis to answer
	watches   map[*Watch]struct{}
	timer     *time.Timer  // catch-up of a watched log
	touched   atomic.Int64 // for the LRU
}

type flightKind uint8

const (
	flightAppend flightKind = iota
	flightFence
	flightRead    // what follows the known position
	flightLoad    // the whole log
	flightCompact // replace what is folded by a snapshot
	flightReseed  // put a lost key back
)

// flight is one command about the key on its way.
type flight struct {
	kind     flightKind
	token    token // of the frame that it writes
	pendings []*Pending
	start    time.Time
	frame    []byte // of compact and reseed
	settled  bool
}

// stopRetry is how long a stopped key is left alone before it is looked at again: an operator may have mended it.
const stopRetry = 30 * time.Second

// frameBytes bounds the ops that share a frame.
const frameBytes = 256 << 10

// pump starts the next flight. c.mu is held.
func (c *core) pump() {
	for c.flight == nil && !c.parked {
		f, call := c.next()
		if f == nil {
			return
		}
		f.start = time.Now()
		call.unsent = f.start.Add(c.store.opt.Timeout)
		call.done = func(v any, err error) { c.landed(f, v, err) }
		c.flight = f
		if c.store.pipe.add(call) {
			c.count(f)
			return
		}
		c.flight = nil
		c.undo(f)
		c.park()
	}
}

func (c *core) count(f *flight) {
	n := &c.store.stats
	switch f.kind {
	case flightAppend:
		n.appends.Add(1)
		for _, p := range f.pendings {
			n.ops.Add(int64(len(p.ops)))
		}
	case flightFence:
		n.fences.Add(1)
	case flightRead, flightLoad:
		n.reads.Add(1)
	}
}

// park waits for Redis to answer again. c.mu is held.
func (c *core) park() {
	if !c.parked {
		c.parked = true
		c.store.outage.park(c)
	}
}

// resume goes on after an outage.
func (c *core) resume() {
	c.mu.Lock()
	c.parked = false
	c.pump()
	c.mu.Unlock()
	c.store.pipe.kick()
}

// undo takes back a flight that did not take off or that certainly changed nothing. c.mu is held.
func (c *core) undo(f *flight) {
	switch f.kind {
	case flightAppend:
		c.requeue(f.pendings)
	case flightRead, flightLoad:
		c.wantRead = c.wantRead || len(c.watches) > 0
	}
}

// requeue puts ops that were not applied back to the front, unless their callers have given up. c.mu is held.
func (c *core) requeue(ps []*Pending) {
	var live []*Pending
	for _, p := range ps {
		if !p.finished() && time.Now().Before(p.deadline) {
			live = append(live, p)
		} else {
			p.finish(nil, c.fail(ErrUnavailable))
		}
	}
	c.waiting = append(live, c.waiting...)
}

// next decides what to ask Redis next; nil = nothing. c.mu is held.
func (c *core) next() (*flight, *call) {
	c.dropLate()
	c.dropUnsettled()
	switch {
	case c.stopped != nil:
		c.failAll(c.stopError())
		return nil, nil
	case c.reseed:
		return c.nextReseed()
	case c.unsettled != nil:
		return c.nextAppend(flightFence, nil)
	case c.st == nil || c.reload:
		if len(c.waiting) == 0 && len(c.readers) == 0 && !c.wantRead {
			return nil, nil
		}
		return c.nextRead(flightLoad)
	case c.compact:
		return c.nextCompact()
	case len(c.waiting) > 0:
		if c.full() {
			return c.next()
		}
		return c.nextAppend(flightAppend, c.takeWaiting())
	case len(c.readers) > 0 || c.wantRead:
		return c.nextRead(flightRead)
	}
	return nil, nil
}

// dropLate gives up ops that could not be sent in time, so that nothing is applied long after its caller was told that
// Redis is not available. c.mu is held.
func (c *core) dropLate() {
	now := time.Now()
	live := c.waiting[:0]
	for _, p := range c.waiting {
		switch {
		case p.finished():
		case now.After(p.deadline):
			p.finish(nil, c.fail(c.store.unavailable(c.store.outage.cause())))
		default:
			live = append(live, p)
		}
	}
	clear(c.waiting[len(live):])
	c.waiting = live
}

// dropUnsettled gives up asking for an outcome that nobody waits for any more: whatever is appended next voids the frame
// if it has not arrived by then. c.mu is held.
func (c *core) dropUnsettled() {
	if c.unsettled == nil {
		return
	}
	for _, p := range c.unsettled.pendings {
		if p.wanted.Load() || !p.finished() && time.Now().Before(p.deadline) {
			return
		}
	}
	u := c.unsettled
	c.unsettled = nil
	c.failUnsettled(u, c.store.outage.cause())
}

// full keeps the log below its cap: compact, and if that does not help refuse. c.mu is held.
func (c *core) full() bool {
	if c.st.pos <= int64(c.store.opt.MaxLog) {
		return false
	}
	if c.st.pos > c.st.base {
		c.compact = true
		return true
	}
	if c.store.mayComplain() {
		c.store.log.Error().Str("key", c.key).Int64("bytes", c.st.pos).Int("max", c.store.opt.MaxLog).
			Msg("log is too large even when compacted; its ops are refused")
	}
	for _, p := range c.waiting {
		p.finish(nil, c.fail(ErrFull))
	}
	c.waiting = nil
	return true
}

func (c *core) takeWaiting() []*Pending {
	bytes, n := 0, 0
	for n < len(c.waiting) && (n == 0 || bytes+c.waiting[n].size <= frameBytes) {
		bytes += c.waiting[n].size
		n++
	}
	ps := c.waiting[:n:n]
	c.waiting = c.waiting[n:]
	return ps
}

// position returns the first two arguments of the append and compact scripts. c.mu is held.
func (c *core) position() (from int64, known []byte) {
	if c.st == nil {
		return 0, nil
	}
	return c.st.pos - tokenLen, c.st.token.append(nil)
}

func (c *core) nextAppend(kind flightKind, ps []*Pending) (*flight, *call) {
	f := &flight{kind: kind, token: c.store.nextToken(), pendings: ps}
	var ops [][]byte
	for _, p := range ps {
		ops = append(ops, p.ops...)
	}
	from, known := c.position()
	head := appendHead(nil, kindOps, appendOps(nil, ops))
	c.wantRead = false
	return f, &call{script: appendScript, args: []any{c.key, from, known, head, f.token.append(nil)}}
}

func (c *core) nextRead(kind flightKind) (*flight, *call) {
	c.wantRead = false
	if kind == flightLoad {
		return &flight{kind: kind}, &call{args: []any{"GET", c.key}}
	}
	return &flight{kind: kind}, &call{args: []any{"GETRANGE", c.key, c.st.pos - tokenLen, -1}}
}

func (c *core) nextCompact() (*flight, *call) {
	c.compact = false
	f := &flight{kind: flightCompact, token: c.store.nextToken()}
	f.frame = c.st.snapshot(c.family.semantics, c.st.token, f.token)
	from, known := c.position()
	return f, &call{script: compactScript, args: []any{c.key, from, known, f.frame}}
}

func (c *core) nextReseed() (*flight, *call) {
	c.reseed = false
	f := &flight{kind: flightReseed, token: c.store.nextToken()}
	f.frame = c.st.snapshot(c.family.semantics, c.st.token, f.token)
	return f, &call{args: []any{"SET", c.key, f.frame, "NX"}}
}

// create is Log.Create.
func (c *core) create(ctx context.Context, initial Machine) (bool, error) {
	f := &flight{token: c.store.nextToken()}
	st := &state{m: initial}
	f.frame = st.snapshot(c.family.semantics, token{}, f.token)
	start := time.Now()
	values, err := c.store.roundTrip(ctx, []any{"SET", c.key, f.frame, "NX"})
	if err != nil {
		return false, c.fail(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.staleAt = time.Now() // what was known before says nothing now
	if values[0] == nil {
		return false, nil
	}
	if c.flight == nil && c.st == nil {
		c.rebuild(nil, f.frame)
		c.freshAt, c.staleAt = start, time.Time{}
		c.notify()
	}
	return true, nil
}

// remove is Log.Delete.
func (c *core) remove(ctx context.Context) error {
	if _, err := c.store.roundTrip(ctx, []any{"DEL", c.key}); err != nil {
		return c.fail(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flight == nil {
		c.st = nil // on purpose: it is not to be put back
	}
	c.staleAt = time.Now()
	return nil
}

// stop refuses the key from now on. c.mu is held.
func (c *core) stop(err error) {
	c.stopped, c.stoppedAt = err, time.Now()
	c.st, c.compact, c.reload, c.reseed = nil, false, false, false
	c.store.stats.stops.Add(1)
	c.store.log.Error().Err(err).Str("key", c.key).
		Msg("log holds something that this replica does not understand; it serves this key no more, others may")
	if u := c.unsettled; u != nil {
		c.unsettled = nil
		c.failUnsettled(u, errors.Join(ErrStopped, err))
	}
	c.failAll(c.stopError())
}

func (c *core) stopError() error { return c.fail(fmt.Errorf("%w: %w", ErrStopped, c.stopped)) }

// stillStopped looks at a stopped key anew now and then. c.mu is held.
func (c *core) stillStopped() bool {
	if c.stopped != nil && time.Since(c.stoppedAt) > stopRetry {
		c.stopped = nil
	}
	return c.stopped != nil
}

// failUnsettled answers callers whose ops may have been applied.
func (c *core) failUnsettled(f *flight, why error) {
	for _, p := range f.pendings {
		p.finish(nil, c.fail(c.store.unavailable(errors.Join(errors.New("outcome not known"), why))))
	}
	f.settled = true
}

// failAll answers everything that waits. c.mu is held.
func (c *core) failAll(err error) {
	for _, p := range c.waiting {
		p.finish(nil, err)
	}
	for _, r := range c.readers {
		r.finish(err)
	}
	c.waiting, c.readers, c.wantRead = nil, nil, false
	c.notify()
}

// fail names the log in an error.
func (c *core) fail(err error) error { return fmt.Errorf("log %q: %w", c.name, err) }
