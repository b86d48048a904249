package statelog

import (
	"context"
	"sync/atomic"
	"time"
)

// Pending is what [Log.Submit] returns: ops on their way.
type Pending struct {
	core     *core
	ops      [][]byte
	size     int
	at       time.Time
	deadline time.Time
	over     atomic.Bool
	done     chan struct{}
	results  [][]byte
	err      error

	// What became of the ops in the end, perhaps long after done.
	known   atomic.Bool
	settled chan struct{}
	outcome [][]byte    // nil: not applied, or never to be known
	wanted  atomic.Bool // somebody waits in Outcome
}

func (c *core) submit(ops [][]byte) *Pending {
	now := time.Now()
	p := &Pending{core: c, ops: ops, at: now, deadline: now.Add(c.store.opt.Timeout),
		done: make(chan struct{}), settled: make(chan struct{})}
	for _, op := range ops {
		p.size += len(op) + 4
	}
	if len(ops) == 0 {
		p.finish(nil, nil)
		return p
	}
	c.family.touch(c)
	if c.store.outage.downFor(c.store.opt.Timeout) {
		p.finish(nil, c.fail(c.store.unavailable(c.store.outage.cause())))
		return p
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stillStopped() {
		p.finish(nil, c.stopError())
		return p
	}
	c.waiting = append(c.waiting, p)
	c.pump()
	return p
}

// Wait returns the results of the ops, one each (not to be changed), when they are applied. An error wraps [ErrMissing], [ErrStopped] or
// [ErrFull] (the ops were not applied) or [ErrUnavailable] (not known). If ctx ends first the ops go on their way all
// the same.
func (p *Pending) Wait(ctx context.Context) (results [][]byte, err error) {
	if p.finished() {
		<-p.done
		return p.results, p.err
	}
	p.core.store.pipe.kick()
	timer := time.NewTimer(time.Until(p.deadline))
	defer timer.Stop()
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, p.core.fail(context.Cause(ctx))
	case <-timer.C:
		// Not removed from the queue here: what has not been sent by now is dropped when its turn comes.
		p.answer(nil, p.core.fail(p.core.store.unavailable(p.core.store.outage.cause())))
		<-p.done
	}
	return p.results, p.err
}

// Outcome waits for what became of ops whose Wait has ended without telling: their results if they were applied after all.
// Redis is asked for it once it answers again; without somebody who waits here it would not be. ok is false if they were
// not applied and never will be, if that cannot be learned any more, or if ctx ends first.
func (p *Pending) Outcome(ctx context.Context) (results [][]byte, ok bool) {
	p.wanted.Store(true)
	defer p.wanted.Store(false)
	select {
	case <-p.settled:
		return p.outcome, p.outcome != nil
	case <-ctx.Done():
		return nil, false
	}
}

// finish tells the outcome, and answers who still waits. Only the first time counts.
func (p *Pending) finish(results [][]byte, err error) {
	p.answer(results, err)
	if p.known.CompareAndSwap(false, true) {
		p.outcome = results
		close(p.settled)
	}
}

// answer ends Wait.
func (p *Pending) answer(results [][]byte, err error) {
	if p.over.CompareAndSwap(false, true) {
		p.results, p.err = results, err
		close(p.done)
	}
}

func (p *Pending) finished() bool { return p.over.Load() }
