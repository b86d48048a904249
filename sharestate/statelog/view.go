package statelog

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// View calls f with the machine after catching up with Redis, unless the copy is at most maxAge old already (0 = what was
// in Redis when View was called is in it). f runs under the log's lock: it must not block or keep references.
func (l *Log[M]) View(ctx context.Context, maxAge time.Duration, f func(M)) error {
	return l.core.view(ctx, maxAge, func(m Machine) { f(m.(M)) })
}

// Cached calls f with the machine as it is known here, without asking Redis. It reports how long ago it was surely up
// to date, and false, without calling f, if nothing is known.
func (l *Log[M]) Cached(f func(M)) (age time.Duration, ok bool) {
	c := l.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st == nil {
		return 0, false
	}
	f(c.st.m.(M))
	return time.Since(c.freshAt), true
}

// reader waits for a copy that is not older than want.
type reader struct {
	at   time.Time // of asking; only a flight that began later can tell of an error
	want time.Time // how old the copy may be
	done chan error
}

func (r *reader) finish(err error) { r.done <- err } // holds one; a reader is finished once

func (c *core) view(ctx context.Context, maxAge time.Duration, f func(Machine)) error {
	c.family.touch(c)
	now := time.Now()
	deadline := now.Add(c.store.opt.Timeout)
	want := now.Add(-maxAge)
	var timer *time.Timer
	for {
		c.mu.Lock()
		if c.stillStopped() {
			defer c.mu.Unlock()
			return c.stopError()
		}
		if c.freshSince(want) {
			defer c.mu.Unlock()
			f(c.st.m)
			return nil
		}
		if c.store.outage.downFor(c.store.opt.Timeout) {
			defer c.mu.Unlock()
			return c.fail(c.store.unavailable(c.store.outage.cause()))
		}
		r := &reader{at: now, want: want, done: make(chan error, 1)}
		c.readers = append(c.readers, r)
		c.pump()
		c.mu.Unlock()
		c.store.pipe.kick()
		if timer == nil {
			timer = time.NewTimer(time.Until(deadline))
			defer timer.Stop()
		}
		select {
		case err := <-r.done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			c.forget(r)
			return c.fail(context.Cause(ctx))
		case <-timer.C:
			c.forget(r)
			return c.fail(c.store.unavailable(c.store.outage.cause()))
		}
	}
}

// freshSince reports whether the copy holds everything that was in Redis at t, and all that a wake-up told of. c.mu is
// held.
func (c *core) freshSince(t time.Time) bool {
	return c.st != nil && !c.reload && !c.reseed && !c.freshAt.Before(t) && !c.freshAt.Before(c.staleAt)
}

func (c *core) forget(r *reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.readers {
		if other == r {
			c.readers = append(c.readers[:i], c.readers[i+1:]...)
			return
		}
	}
}

// finishReaders answers those whom a flight that began at start serves. c.mu is held.
func (c *core) finishReaders(start time.Time, err error) {
	live := c.readers[:0]
	for _, r := range c.readers {
		since := r.want
		if err != nil {
			since = r.at
		}
		if start.Before(since) || (err == nil && start.Before(c.staleAt)) {
			live = append(live, r)
			continue
		}
		r.finish(err)
	}
	clear(c.readers[len(live):])
	c.readers = live
}

// Watch tells of changes. C holds one token at most: a token means that something changed since the last one was taken.
type Watch struct {
	C      <-chan struct{}
	ch     chan struct{}
	closed atomic.Bool
	stop   func()
}

func newWatch() *Watch {
	ch := make(chan struct{}, 1)
	return &Watch{C: ch, ch: ch}
}

// Close ends the watch; C gets no more tokens.
func (w *Watch) Close() {
	if w.closed.CompareAndSwap(false, true) {
		w.stop()
	}
}

func (w *Watch) tell() {
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// Watch gives a token on every change of the log that this replica learns of, errors included. While any watch is open
// the replica keeps its copy up to date: at once on a wake-up, and about every Options.CatchUp.
func (l *Log[M]) Watch() *Watch {
	c := l.core
	w := newWatch()
	w.stop = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watches, w)
		if len(c.watches) == 0 && c.timer != nil {
			c.timer.Stop()
			c.timer = nil
		}
	}
	c.family.touch(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches == nil {
		c.watches = make(map[*Watch]struct{})
	}
	c.watches[w] = struct{}{}
	if c.timer == nil {
		c.timer = time.AfterFunc(c.catchUpIn(), c.catchUp)
	}
	return w
}

// catchUpIn returns how long the copy is good enough for a watcher. c.mu is held.
func (c *core) catchUpIn() time.Duration {
	if c.st == nil || c.freshAt.Before(c.staleAt) {
		return 0
	}
	period := c.store.opt.CatchUp
	period += rand.N(period/4 + 1) // so that replicas and keys do not march in step
	return time.Until(c.freshAt.Add(period))
}

// catchUp reads a watched log that nothing was heard of for a while.
func (c *core) catchUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil || len(c.watches) == 0 {
		return
	}
	if time.Since(c.freshAt) >= c.store.opt.CatchUp || c.freshAt.Before(c.staleAt) {
		if !c.stillStopped() {
			c.wantRead = true
			c.pump()
		}
		c.timer.Reset(c.store.opt.CatchUp + rand.N(c.store.opt.CatchUp/4+1))
		return
	}
	c.timer.Reset(max(c.catchUpIn(), time.Millisecond))
}

// woken takes a wake-up from another replica: a watched copy catches up at once, another one when it is next used.
func (c *core) woken() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.staleAt = time.Now()
	if len(c.watches) > 0 && c.stopped == nil {
		c.wantRead = true
		c.pump()
	}
}

// notify tells the watchers. c.mu is held.
func (c *core) notify() {
	for w := range c.watches {
		w.tell()
	}
}
