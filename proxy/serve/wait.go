package serve

import (
	"context"
	"sync"
	"time"
)

// waiter is one waiting fetch; shares mark themselves in it.
type waiter struct {
	c     chan struct{}
	mu    sync.Mutex
	dirty map[*share]struct{}
}

func newWaiter() *waiter {
	return &waiter{c: make(chan struct{}, 1), dirty: map[*share]struct{}{}}
}

// mark notes that something has happened to the share.
func (w *waiter) mark(sh *share) {
	w.mu.Lock()
	w.dirty[sh] = struct{}{}
	w.mu.Unlock()
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// wakes moves the marks into the set.
func (w *waiter) wakes(set map[*share]struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for sh := range w.dirty {
		set[sh] = struct{}{}
	}
	clear(w.dirty)
}

// run serves the fetch from the first round to the last: it returns when there is something to answer. It reports
// whether the client is still there.
func (f *fetch) run(ctx context.Context, maxWait time.Duration) (present bool) {
	deadline := time.Now().Add(maxWait)
	w := newWaiter()
	waits := f.take && maxWait > 0
	placed := waits && f.s.places.try()
	if placed {
		defer f.s.places.free()
		defer f.enlist(w)()
	}
	if f.take {
		f.planWithin(ctx, f.items, f.firstPlan())
	}
	if !f.take || waits && !f.worth() {
		f.drop()
	}
	f.round(ctx)
	if f.take && f.refused == codeNone && f.outage() {
		f.s.pause(ctx, f.cs, time.Until(deadline)) // else clients would ask again at once
	}
	if !f.take || f.refused != codeNone || f.took() || f.allFailed() || f.broken() {
		return !clientGone(ctx)
	}
	if waits && !placed && f.awaitPlace(ctx, deadline) {
		defer f.s.places.free()
		defer f.enlist(w)()
		f.retry = true // whatever happened meanwhile was not marked
	}
	return f.await(ctx, w, deadline)
}

// enlist enters the fetch at its shares.
func (f *fetch) enlist(w *waiter) (leave func()) {
	for _, it := range f.items {
		if it.fetchable() {
			it.sh.wait(w, f.set)
		}
	}
	f.s.m.waiting.Inc()
	return func() {
		f.s.m.waiting.Dec()
		for _, it := range f.items {
			if it.sh != nil {
				it.sh.unwait(w)
			}
		}
	}
}

const (
	// planWait bounds one look at Redis and upstream; ackPlanWait is shorter, for acknowledgements wait behind it.
	planWait    = 1500 * time.Millisecond
	ackPlanWait = 500 * time.Millisecond
	// staleTries bounds how often a fetch plans again at once because its view was stale.
	staleTries = 3
)

func (f *fetch) firstPlan() time.Duration {
	if f.acks.any {
		return ackPlanWait
	}
	return planWait
}

func (f *fetch) planWithin(ctx context.Context, items []*fetchItem, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	f.prepare(ctx, items)
}

// await tries again whenever something happens to a partition, until something is acquired or the time is over.
func (f *fetch) await(ctx context.Context, w *waiter, deadline time.Time) (present bool) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	dirty := map[*share]struct{}{}
	again := time.NewTimer(f.nextTry(dirty))
	defer again.Stop()
	for tries := 0; ; {
		last := false
		if !f.retry || tries >= staleTries {
			select {
			case <-w.c:
			case <-again.C:
			case <-timer.C:
				last = true
			case <-ctx.Done():
				return !clientGone(ctx)
			case <-f.cs.gone:
				return false
			case <-f.visit.ss.ended:
				return true
			case <-f.s.drain:
				return true
			}
			tries = 0
		} else {
			tries++
		}
		w.wakes(dirty)
		f.attempt(ctx, dirty, last)
		if f.took() && f.orphaned(ctx) {
			f.refused = codeSessionNotFound
			return true
		}
		if last || f.took() || f.allFailed() || f.broken() {
			return !clientGone(ctx)
		}
		again.Reset(f.nextTry(dirty))
	}
}

// attempt plans the partitions that something happened to, all of them in the last attempt or when the view was stale,
// and acquires if that is worth it.
func (f *fetch) attempt(ctx context.Context, dirty map[*share]struct{}, last bool) {
	all := last || f.retry || f.minBytes > 1
	f.retry = false
	now := time.Now()
	todo := make([]*fetchItem, 0, len(f.items))
	for _, it := range f.items {
		_, marked := dirty[it.sh]
		if !it.fetchable() || !(all || marked || it.trouble != nil) {
			it.plan = nil
			continue
		}
		if it.hold.After(now) && !last {
			it.plan = nil
			continue // stays marked
		}
		if last {
			it.hold = time.Time{}
		}
		delete(dirty, it.sh)
		todo = append(todo, it)
	}
	f.planWithin(ctx, todo, planWait)
	if !last {
		f.yield(todo, dirty)
	}
	if !last && !f.worth() {
		f.drop()
		return
	}
	f.round(ctx)
	if f.took() && f.visit.ss.over() {
		f.giveBack(ctx) // the session was closed while this fetch waited
	}
}

// orphaned tells whether the session ended elsewhere while the fetch waited; the release may then have come before what was
// acquired now. A session of this very connection ends after this request, so only others are asked for.
func (f *fetch) orphaned(ctx context.Context) bool {
	key, opened := f.visit.ss.key, f.visit.nonce.Opened
	if f.cs.owns(key, opened, f.s) {
		return false
	}
	ctx, cancel := storeContext(ctx)
	defer cancel()
	got, ok, err := f.s.o.Store.LoadSession(ctx, key)
	return err == nil && (!ok || got.Opened != opened)
}

// yield leaves partitions alone that another fetch here is acquiring from at this moment: a record that wakes a hundred
// waiting members must not put a hundred acquisitions into the log. What is left is seen right after.
func (f *fetch) yield(items []*fetchItem, dirty map[*share]struct{}) {
	for _, it := range items {
		if it.plan.takes() && it.sh.taking.Load() > 0 {
			it.plan = nil
			it.hold = time.Now().Add(yieldPause)
			dirty[it.sh] = struct{}{}
		}
	}
}

// yieldPause is about what an acquisition takes.
const yieldPause = 3 * time.Millisecond

// nextTry is when a partition that is on hold or in trouble is tried again without being woken.
func (f *fetch) nextTry(dirty map[*share]struct{}) time.Duration {
	next := time.Hour
	for _, it := range f.items {
		if !it.fetchable() {
			continue
		}
		if it.trouble != nil {
			next = min(next, troublePause)
		}
		if _, marked := dirty[it.sh]; marked {
			next = min(next, max(time.Until(it.hold), time.Millisecond))
		}
	}
	return next
}

// troublePause is how long Redis or upstream is left alone after it failed a waiting fetch.
const troublePause = 500 * time.Millisecond
