package serve

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// Who writes dead letters (KIP-1191), and when. Where a group has a dead letter topic, a record that is rejected or has
// reached the delivery limit is Archiving until its dead letter is written or given up; so long SPSO does not pass it. A
// replica that sees such records, first of all the one whose op made them so, claims them in the log, writes the letters and
// appends ArchivingDone. Others leave claimed records alone until the claim runs out, or until the claimant is found dead,
// which frees its claims at once (ReleaseReplica). So a death costs a dead letter that may come twice, never one that does
// not come. Share-partitions that no replica uses are looked at now and then (sweep). No request waits for any of this.

const (
	// deadLetterWriters bounds the share-partitions that are worked on at a time: one topic that does not take its letters
	// must not keep the others waiting.
	deadLetterWriters = 32
	// claimRecords bounds the records of one claim.
	claimRecords = 500
	// claimMargin is how much longer than a Write a claim lasts.
	claimMargin = 15 * time.Second
	// letterGoodbye bounds Close.
	letterGoodbye = time.Second
	// othersDelay (and up to twice that) is how long a replica leaves records alone that another one's op made Archiving.
	othersDelay = 500 * time.Millisecond
	// claimRetry (and up to twice that) is the pause after trouble with Redis.
	claimRetry = 2 * time.Second
	// firstLetterSweep (and up to twice that) is when the share-partitions that nobody uses are first looked at, and
	// letterSweepEvery (likewise) the time between two looks.
	firstLetterSweep = 10 * time.Second
	letterSweepEvery = 5 * time.Minute
)

// DeadLetters writes the dead letters of one replica. Make one with NewDeadLetters, give it to the Server, keep Run going
// and Close it before the store.
type DeadLetters struct {
	up  *upstream.Client
	log zerolog.Logger
	s   *Server // set by New

	written, lost, requests, failures prometheus.Counter

	// The times above, but for tests.
	claim, others, retry, firstSweep, sweepEvery time.Duration

	kick chan struct{} // cap 1: something is due earlier, or a writer is free

	mu      sync.Mutex
	due     map[shareKey]time.Time
	busy    map[shareKey]struct{}
	closing bool
	stop    context.CancelFunc   // ends the writing under way; nil before Run
	idle    chan struct{}        // closed when closing and nobody is busy
	warned  map[string]time.Time // by what went wrong
}

// NewDeadLetters makes DeadLetters. They cost nothing until a group has a dead letter topic.
func NewDeadLetters(up *upstream.Client, log zerolog.Logger, reg prometheus.Registerer) *DeadLetters {
	d := &DeadLetters{
		up: up, log: log, claim: upstream.WritePatience + claimMargin, others: othersDelay, retry: claimRetry, firstSweep: firstLetterSweep,
		sweepEvery: letterSweepEvery, kick: make(chan struct{}, 1), due: map[shareKey]time.Time{}, busy: map[shareKey]struct{}{},
		idle: make(chan struct{}), warned: map[string]time.Time{},
		written: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_dead_letters_total",
			Help: "Records written to dead letter topics."}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_dead_letters_lost_total",
			Help: "Records that were archived although their dead letter could not be written."}),
		requests: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_dead_letter_produce_requests_total",
			Help: "Produce requests to dead letter topics."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_dead_letter_produce_failures_total",
			Help: "Produce requests to dead letter topics that failed; most are tried again."}),
	}
	if reg != nil {
		reg.MustRegister(d.written, d.lost, d.requests, d.failures)
	}
	return d
}

// made notes the share-partition if an op of this replica has left records that want a dead letter. Cheap enough for
// every op.
func (d *DeadLetters) made(key shareKey, log *statelog.Log[*sharestate.Partition]) {
	d.look(key, log, 0)
}

// seen is made for what may well be another replica's doing.
func (d *DeadLetters) seen(key shareKey, log *statelog.Log[*sharestate.Partition]) {
	if d != nil {
		d.look(key, log, d.others)
	}
}

func (d *DeadLetters) look(key shareKey, log *statelog.Log[*sharestate.Partition], delay time.Duration) {
	if d == nil {
		return
	}
	at, ok := int64(0), false
	log.Cached(func(p *sharestate.Partition) { at, ok = p.NextClaim() })
	if ok {
		d.note(key, d.wait(at, delay))
	}
}

// wait is how long to leave alone what may be claimed from at on (by Redis' clock, 0 = at any time): spread, so that not
// all replicas come at once, where others may come too.
func (d *DeadLetters) wait(at int64, delay time.Duration) time.Duration {
	if at > 0 {
		left := time.Duration(at-d.s.o.Store.Now()) * time.Microsecond
		delay = max(left, 0) + d.others
	}
	if delay <= 0 {
		return 0
	}
	return delay + rand.N(d.others+1)
}

// note has the share-partition looked at within the time.
func (d *DeadLetters) note(key shareKey, in time.Duration) {
	due := time.Now().Add(in)
	d.mu.Lock()
	old, ok := d.due[key]
	sooner := !ok || due.Before(old)
	if sooner {
		d.due[key] = due
	}
	d.mu.Unlock()
	if sooner {
		d.nudge()
	}
}

func (d *DeadLetters) nudge() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// Run writes dead letters until ctx ends.
func (d *DeadLetters) Run(ctx context.Context) error {
	writing, stop := context.WithCancel(ctx)
	defer stop()
	d.mu.Lock()
	d.stop = stop
	d.mu.Unlock()
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { d.sweep(ctx) })
	for {
		keys, wait := d.takeDue(time.Now())
		for _, key := range keys {
			working.Go(func() { d.work(writing, key) })
		}
		next := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			next.Stop()
			return ctx.Err()
		case <-d.kick:
		case <-next.C:
		}
		next.Stop()
	}
}

// takeDue takes out what is due, as far as there are writers, and tells for how long there is nothing more.
func (d *DeadLetters) takeDue(now time.Time) (keys []shareKey, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait = time.Minute
	if d.closing {
		return nil, wait
	}
	for key, due := range d.due {
		if _, busy := d.busy[key]; busy || len(d.busy) >= deadLetterWriters {
			continue // the end of the work under way nudges
		}
		if left := due.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		delete(d.due, key)
		d.busy[key] = struct{}{}
		keys = append(keys, key)
	}
	return keys, wait
}

// work writes the dead letters of one share-partition, and notes when to look again.
func (d *DeadLetters) work(ctx context.Context, key shareKey) {
	again, more := d.clear(ctx, key)
	d.mu.Lock()
	delete(d.busy, key)
	if d.closing && len(d.busy) == 0 {
		d.closeIdle()
	}
	d.mu.Unlock()
	if more {
		d.note(key, again)
	}
	d.nudge()
}

// clear claims and writes until nothing is left to be claimed; more tells that there will be, after that time.
func (d *DeadLetters) clear(ctx context.Context, key shareKey) (again time.Duration, more bool) {
	log := d.s.logs.Get(logName(key.group, key.TP))
	trouble := d.retry + rand.N(d.retry)
	for ctx.Err() == nil {
		var at, incarnation int64
		waiting := false
		err := log.View(ctx, 0, func(p *sharestate.Partition) {
			at, waiting = p.NextClaim()
			incarnation = p.Incarnation()
		})
		switch {
		case errors.Is(err, statelog.ErrMissing):
			return 0, false
		case err != nil:
			return trouble, true
		case !waiting:
			return 0, false
		case at > d.s.o.Store.Now():
			return d.wait(at, 0), true
		}
		l, err := d.take(ctx, key, log, incarnation)
		if err != nil {
			d.log.Debug().Err(err).Str("partition", log.Name()).Msg("dead letters not claimed yet")
			return trouble, true
		}
		if len(l.claimed) == 0 {
			return d.others, true // another replica was faster, or its clock is
		}
		if err := l.deliver(ctx); err != nil {
			d.log.Debug().Err(err).Str("partition", log.Name()).Msg("dead letters not all written yet")
			l.giveUp(ctx)
			return trouble, true
		}
	}
	return trouble, true
}

// Close lets the writing under way come to an end, and gives back what does not. Redis and upstream must still be there.
func (d *DeadLetters) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, letterGoodbye)
	defer cancel()
	d.mu.Lock()
	if d.closing = true; len(d.busy) == 0 {
		d.closeIdle()
	}
	stop := d.stop
	d.mu.Unlock()
	grace, cancel := context.WithTimeout(ctx, letterGoodbye/2)
	defer cancel()
	select {
	case <-d.idle:
		return
	case <-grace.Done():
	}
	if stop != nil {
		stop()
	}
	select {
	case <-d.idle:
	case <-ctx.Done():
	}
}

// closeIdle closes idle once; mu is held.
func (d *DeadLetters) closeIdle() {
	select {
	case <-d.idle:
	default:
		close(d.idle)
	}
}

// sweep now and then looks for dead letters of share-partitions that nobody uses, in the groups that have a topic for them.
func (d *DeadLetters) sweep(ctx context.Context) {
	for wait := d.firstSweep; sleep(ctx, wait+rand.N(wait)); {
		if d.s.o.Groups.Ready() != nil {
			continue
		}
		wait = d.sweepEvery
		for _, group := range d.s.o.Groups.ConfiguredGroups() {
			d.sweepGroup(ctx, group)
		}
	}
}

func (d *DeadLetters) sweepGroup(ctx context.Context, group string) {
	cfg, err := d.s.config(ctx, group)
	if err != nil || cfg.DeadLetterTopic == "" {
		return
	}
	parts, err := d.s.initializedParts(ctx, group)
	if err != nil {
		return
	}
	for _, tp := range parts {
		log := d.s.logs.Get(logName(group, tp))
		if log.View(ctx, d.sweepEvery, func(*sharestate.Partition) {}) == nil {
			d.seen(shareKey{group, tp}, log)
		}
	}
}

// warn logs one kind of trouble, once a minute at most for each group.
func (d *DeadLetters) warn(kind string, say func(*zerolog.Event)) {
	d.mu.Lock()
	quiet := time.Since(d.warned[kind]) < warnEvery
	if !quiet {
		if len(d.warned) > 1000 {
			clear(d.warned)
		}
		d.warned[kind] = time.Now()
	}
	d.mu.Unlock()
	if !quiet {
		say(d.log.Warn())
	}
}
