package serve

import (
	"context"
	"encoding/base64"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// A share is one share-partition as this replica serves it: its log, the upstream tail, and the fetches that wait for
// something to happen to it. One goroutine per share that is in use listens to the log, the tail and the next end of a
// lock or of a release backoff and wakes the waiting fetches, so that a hundred waiting members cost one catch-up read a
// second. It lingers a little after the last use, because clients come back at once; then it only stays for locks that
// may run out unseen (see expire).

const (
	// shareLinger is how long log and tail stay open after the last use.
	shareLinger = 5 * time.Second
	// deadlineJitter spreads the replicas that wake at one time; deadlineMargin makes up for what a replica does not know of
	// Redis' clock, as an acquisition that comes too early takes nothing.
	deadlineJitter = 20 * time.Millisecond
	deadlineMargin = 5 * time.Millisecond
	// sweepDelay (and up to twice that) is how long after a deadline that nobody waits for an Expire is appended.
	sweepDelay = 2 * time.Second
)

type shareKey struct {
	group string
	upstream.TP
}

type share struct {
	s   *Server
	key shareKey
	log *statelog.Log[*sharestate.Partition]
	// taking counts this replica's acquisitions under way.
	taking atomic.Int32
	// noted is the SPSO that was last noted for the checkpoint.
	noted atomic.Int64
	// ahead is an incarnation of the log that the group was asked about, as it is beyond what was known of the group.
	ahead  atomic.Int64
	epochs epochs

	mu      sync.Mutex
	users   int
	idle    time.Time // since when users is 0
	gone    bool      // run has ended
	tails   [2]*upstream.Tail
	waiters map[*waiter]struct{}
	set     sharestate.Settings // of the last fetch that began to wait
	kick    chan struct{}       // users, tails or waiters changed
}

// logName is the name of a share-partition's log: group/topic id/partition.
func logName(group string, tp upstream.TP) string {
	return statelog.Escape(group) + "/" + base64.RawURLEncoding.EncodeToString(tp.ID[:]) + "/" + strconv.Itoa(int(tp.Partition))
}

// use takes the share for a request; the caller calls done.
func (s *Server) use(group string, tp upstream.TP) *share {
	key := shareKey{group, tp}
	s.shareMu.Lock()
	defer s.shareMu.Unlock()
	sh := s.shares[key]
	if sh == nil {
		sh = &share{s: s, key: key, log: s.logs.Get(logName(group, tp)),
			waiters: map[*waiter]struct{}{}, kick: make(chan struct{}, 1), epochs: epochs{asking: make(chan struct{}, 1)}}
		s.shares[key] = sh
		go sh.run()
	}
	sh.mu.Lock()
	if sh.users++; sh.users == 1 {
		sh.nudge()
	}
	sh.mu.Unlock()
	return sh
}

func (sh *share) done() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.users--; sh.users == 0 {
		sh.idle = time.Now()
		if sh.gone {
			sh.shutTails()
		}
	}
}

// tail is the share's reader of upstream at the isolation level; it stays open while the share is in use.
func (sh *share) tail(iso upstream.Isolation) *upstream.Tail {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.tails[iso] == nil {
		sh.tails[iso] = sh.s.o.Upstream.Open(sh.key.TP, iso)
		sh.nudge()
	}
	return sh.tails[iso]
}

// nudge makes run look again.
func (sh *share) nudge() {
	select {
	case sh.kick <- struct{}{}:
	default:
	}
}

// wait and unwait enter a fetch into the waiting ones and take it out.
func (sh *share) wait(w *waiter, set sharestate.Settings) {
	sh.mu.Lock()
	sh.waiters[w] = struct{}{}
	sh.set = set
	sh.mu.Unlock()
	sh.nudge()
}

func (sh *share) unwait(w *waiter) {
	sh.mu.Lock()
	delete(sh.waiters, w)
	sh.mu.Unlock()
}

func (sh *share) wake() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for w := range sh.waiters {
		w.mark(sh)
	}
}

// nextDeadline is the earliest end of a lock in the cached view, by Redis' clock.
func (sh *share) nextDeadline() (at int64, ok bool) {
	sh.log.Cached(func(p *sharestate.Partition) { at, ok = p.NextDeadline() })
	return at, ok
}

// nextChange is the first time above after at which the cached view may show a waiting fetch more, by Redis' clock.
func (sh *share) nextChange(after int64) (at int64, ok bool) {
	sh.mu.Lock()
	set := sh.set
	sh.mu.Unlock()
	sh.log.Cached(func(p *sharestate.Partition) { at, ok = p.NextChange(after, set) })
	return at, ok
}

// until is how long it is to a time of Redis' clock.
func (sh *share) until(at int64) time.Duration {
	return time.Duration(at-sh.s.o.Store.Now()) * time.Microsecond
}

// run listens until the share has been unused for a while and no lock is left to run out.
func (sh *share) run() {
	for sh.listen() && sh.expire() {
	}
}

// listen wakes waiters while the share is in use. It returns false when the server drains.
func (sh *share) listen() bool {
	logs := sh.log.Watch()
	defer logs.Close()
	sh.s.o.DeadLetters.seen(sh.key, sh.log)
	var reads [2]*upstream.Watch
	defer func() {
		for _, w := range reads {
			if w != nil {
				w.Close()
			}
		}
	}()
	timer := time.NewTimer(sh.s.linger)
	defer timer.Stop()
	var woken int64 // the time that waiters were last woken for: once is enough
	for {
		waiting, idleFor := sh.state(&reads)
		if idleFor >= sh.s.linger {
			return true
		}
		next, due := sh.s.linger, int64(0)
		if woken > 0 && sh.until(woken) > 0 {
			woken = 0 // Redis' clock was set back
		}
		if at, ok := sh.nextChange(woken); ok && waiting && sh.until(at) < next {
			next, due = max(sh.until(at), 0)+deadlineMargin+rand.N(deadlineJitter), at
		}
		timer.Reset(next)
		select {
		case <-logs.C:
			sh.wake()
			sh.s.o.DeadLetters.seen(sh.key, sh.log)
		case <-watched(reads[0]):
			sh.wake()
		case <-watched(reads[1]):
			sh.wake()
		case <-timer.C:
			// Redis' clock may have turned out to be behind meanwhile: then it is too early.
			if due != 0 && sh.until(due) <= 0 {
				woken = due
				sh.wake()
			}
		case <-sh.kick:
		case <-sh.s.drain:
			sh.remove(true)
			return false
		}
	}
}

func watched(w *upstream.Watch) <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.C
}

// state opens watches for tails that have come up and tells whether fetches wait and how long the share has been unused.
func (sh *share) state(reads *[2]*upstream.Watch) (waiting bool, idleFor time.Duration) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for i, t := range sh.tails {
		if t != nil && reads[i] == nil {
			reads[i] = t.Watch()
		}
	}
	if sh.users == 0 {
		idleFor = time.Since(sh.idle)
	}
	return len(sh.waiters) > 0, idleFor
}

// expire is the part of a share's life in which nobody uses it here. Its tails are closed. Locks that run out now would
// only be noticed by the next op, so a while after such a deadline an Expire is appended, unless another replica did:
// SPSO and the waiting fetches elsewhere depend on it. It returns true when the share is in use again, false when it is
// gone.
func (sh *share) expire() bool {
	sh.closeTails()
	for {
		if sh.inUse() {
			return true
		}
		at, ok := sh.nextDeadline()
		if !ok {
			return !sh.remove(false)
		}
		// Not longer than a few seconds at a time: Redis' clock may be set, or change with a failover.
		late := max(sh.until(at), 0) + sh.s.sweepAfter + rand.N(sh.s.sweepAfter)
		timer := time.NewTimer(min(late, 5*sh.s.sweepAfter))
		select {
		case <-timer.C:
			if late <= 5*sh.s.sweepAfter && !sh.sweep() {
				return !sh.remove(false)
			}
		case <-sh.kick:
			timer.Stop()
		case <-sh.s.drain:
			timer.Stop()
			sh.remove(true)
			return false
		}
	}
}

// sweep looks at the log and appends an Expire if a deadline has passed unseen. It returns false if that is not to be
// tried again.
func (sh *share) sweep() bool {
	ctx, cancel := context.WithTimeout(context.Background(), opWait)
	defer cancel()
	late := false
	err := sh.log.View(ctx, 0, func(p *sharestate.Partition) {
		at, ok := p.NextDeadline()
		late = ok && at <= sh.s.o.Store.Now()
	})
	if err != nil || !late {
		return err == nil
	}
	set, err := sh.s.settings(ctx, sh.key.group)
	if err != nil {
		return false
	}
	p := sh.log.Submit(sharestate.EncodeOp(nil, sharestate.Expire{Settings: set}))
	res, err := p.Wait(ctx)
	if err != nil {
		return false
	}
	sh.s.o.Checkpoints.moved(sh)
	sh.s.o.DeadLetters.made(sh.key, sh.log)
	if n, err := sharestate.DecodeCountResult(res[0]); err == nil && n > 0 {
		sh.s.m.lockTimeouts.Add(float64(n))
	}
	return true
}

func (sh *share) inUse() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.users > 0
}

func (sh *share) closeTails() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.users == 0 {
		sh.shutTails()
	}
}

// shutTails closes the tails; mu is held.
func (sh *share) shutTails() {
	for i, t := range sh.tails {
		if t != nil {
			t.Close()
			sh.tails[i] = nil
		}
	}
}

// remove takes the share out of the server's table if nobody uses it, or in any case when the server drains. It reports
// whether the share is gone.
func (sh *share) remove(drain bool) bool {
	s := sh.s
	s.shareMu.Lock()
	defer s.shareMu.Unlock()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.users > 0 && !drain {
		return false
	}
	if s.shares[sh.key] == sh {
		delete(s.shares, sh.key)
	}
	sh.gone = true
	if sh.users == 0 {
		sh.shutTails()
	}
	return true
}
