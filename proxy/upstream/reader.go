package upstream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
	"time"
)

const (
	// retryMin and retryMax bound the time between two tries at a partition in trouble.
	retryMin = 50 * time.Millisecond
	retryMax = time.Second
	// least is the least that is read ahead, however many partitions are read.
	least = 64 << 10
)

// patience is how the reader bears trouble; shorter in tests.
type patience struct {
	// show is how long trouble that may pass is waited out before callers are told.
	show time.Duration
	// slow is the time between two tries where only somebody's action upstream can help, or that has lasted for slowAfter.
	slow, slowAfter time.Duration
	// beyond is how long a position behind the log's end is not asked for again.
	beyond time.Duration
}

// Stats counts what the reader does.
type Stats struct {
	// Hits and Misses: Peeks and Reads that memory answered, and Reads that had to ask upstream.
	Hits, Misses int64
	// Polls, Bridges and CatchUps are the fetches sent: at the log end, for partitions that wait to join a poll, and
	// everywhere else.
	Polls, Bridges, CatchUps int64
	// FetchedBytes of records came in all.
	FetchedBytes int64
	// CacheBytes are pinned by the cache now.
	CacheBytes int64
	// Lines are the partitions (per isolation level) known now.
	Lines int
}

// reader owns all lines, the cache and the polls, under one lock.
type reader struct {
	c *Client

	mu      sync.Mutex
	ctx     context.Context // of Run
	running bool
	ended   bool
	wg      sync.WaitGroup // fetches and polls; grows under mu while running
	cache   *cache
	lines   map[lineKey]*line
	byTopic map[[16]byte]map[*line]struct{}
	polls   map[pollKey]*poll
	busy    int // Tails that hold something read ahead
	stats   Stats
	patient patience
	warned  time.Time

	urgent, ahead []*flight // queued catch-up fetches
	inFlight      int       // of them sent
	inFlightBytes int64     // that they may bring
}

func newReader(c *Client) *reader {
	return &reader{
		c: c, cache: newCache(c.cfg.CacheBytes), patient: patience{2 * time.Second, 5 * time.Second, 30 * time.Second, time.Second},
		lines: make(map[lineKey]*line), byTopic: make(map[[16]byte]map[*line]struct{}), polls: make(map[pollKey]*poll),
	}
}

// Stats returns the counts so far.
func (c *Client) Stats() Stats {
	c.reader.mu.Lock()
	defer c.reader.mu.Unlock()
	s := c.reader.stats
	s.CacheBytes, s.Lines = c.reader.cache.bytes, len(c.reader.lines)
	return s
}

// run reads until ctx ends, and returns when all that it started has ended.
func (r *reader) run(ctx context.Context) {
	r.mu.Lock()
	r.ctx, r.running = ctx, true
	for _, l := range r.lines {
		r.schedule(l)
	}
	r.mu.Unlock()

	<-ctx.Done()

	r.mu.Lock()
	r.running, r.ended = false, true
	for _, l := range r.lines {
		l.stopTimer()
		for d := range l.demands {
			d.err = ErrClosed
			l.satisfy(d, unread)
		}
	}
	r.urgent, r.ahead = nil, nil
	r.mu.Unlock()
	r.wg.Wait()
}

// line returns the line of that key, made if need be.
func (r *reader) line(key lineKey) *line {
	l := r.lines[key]
	if l == nil {
		l = newLine(key)
		r.lines[key] = l
		if r.byTopic[key.tp.ID] == nil {
			r.byTopic[key.tp.ID] = make(map[*line]struct{})
		}
		r.byTopic[key.tp.ID][l] = struct{}{}
	}
	return l
}

// topics are the ids of all topics that are read.
func (r *reader) topics() (ids [][16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.byTopic {
		ids = append(ids, id)
	}
	return ids
}

// drop forgets a line that nobody wants and nothing is cached of.
func (r *reader) drop(l *line) {
	if len(l.tails)+len(l.demands)+len(l.segs)+len(l.flights) > 0 || l.poll != nil || r.lines[l.key] != l {
		return
	}
	l.stopTimer()
	delete(r.lines, l.key)
	delete(r.byTopic[l.key.tp.ID], l)
	if len(r.byTopic[l.key.tp.ID]) == 0 {
		delete(r.byTopic, l.key.tp.ID)
	}
}

// budget is how many bytes one Tail may have read ahead: less when many do, so that together they stay within half of
// the cache and nobody's read-ahead pushes out another's. A power of two, so that it changes seldom.
func (r *reader) budget() int64 {
	share := r.c.cfg.CacheBytes / 2 / int64(r.busy+1)
	n := max(least, min(r.c.cfg.PrefetchBytes, share))
	return 1 << (bits.Len64(uint64(n)) - 1)
}

// schedule decides how a line is read now. It is called after everything that may change the answer: a position wanted,
// a fetch answered, a leader moved, a retry due.
func (r *reader) schedule(l *line) {
	if !r.running {
		return
	}
	now := time.Now()
	if now.Before(l.retryAt) {
		l.leave()
		r.wakeAt(l, l.retryAt)
		return
	}
	for d := range l.demands {
		r.scheduleDemand(l, d)
	}
	at := int64(-1)
	for t := range l.tails {
		at = max(at, r.scheduleTail(l, t, now))
	}
	if at < 0 {
		l.leave()
		return
	}
	leader, ok := r.c.topics.leader(l.key.tp)
	if !ok {
		r.fail(l, fmt.Errorf("%w: the partition has no known leader", ErrNotLeader))
		return
	}
	r.follow(l, leader, at)
}

// scheduleDemand has a waiting Read's position fetched. Where a fetch of something before it is under way, that is waited
// for first: it may well cover the position.
func (r *reader) scheduleDemand(l *line, d *demand) {
	if f := l.flights[d.from]; f != nil {
		r.promote(f)
		return
	}
	if d.after == nil {
		for from, f := range l.flights {
			if from < d.from && (d.after == nil || from > d.after.from) {
				d.after = f
			}
		}
	}
	if d.after != nil && l.flights[d.after.from] == d.after {
		r.promote(d.after)
		return
	}
	size := int64(r.c.cfg.FetchPartitionBytes)
	if d.tail.want == d.from { // who reads on faster than it is read ahead gets larger pieces
		size = max(size, min(d.tail.window, r.budget()))
		d.tail.fetched = true
	}
	r.startFlight(l, d.from, int32(min(size, int64(r.c.cfg.FetchMaxBytes))), true)
}

// scheduleTail has a Tail's position read ahead. It returns the log's end if the Tail has arrived there, else -1.
func (r *reader) scheduleTail(l *line, t *Tail, now time.Time) int64 {
	if t.want < 0 || t.want < l.logStart {
		t.setAhead(0)
		return -1
	}
	pos, ahead := l.frontier(t.want)
	t.ready = pos
	t.setAhead(ahead)
	if l.isBlocked(pos, now) {
		r.wakeAt(l, l.blocked[pos].until)
		return -1
	}
	budget := r.budget()
	end := l.end()
	if l.poll != nil && pos == l.pos || end >= 0 && pos == end {
		if ahead >= budget {
			return -1
		}
		return pos
	}
	if window := min(t.window, budget); ahead <= window/2 && l.flights[pos] == nil {
		r.startFlight(l, pos, int32(min(window-ahead, int64(r.c.cfg.FetchMaxBytes))), false)
		t.fetched = true
	}
	return -1
}

// wakeAt schedules a line again at that time, or earlier if something happens.
func (r *reader) wakeAt(l *line, at time.Time) {
	if len(l.tails)+len(l.demands) == 0 || l.timer != nil && l.wake.Before(at) {
		return
	}
	l.stopTimer()
	l.wake = at
	l.timer = time.AfterFunc(time.Until(at), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.running && r.lines[l.key] == l && !l.wake.After(at) {
			l.timer = nil
			r.schedule(l)
		}
	})
}

func (l *line) stopTimer() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// succeed ends a line's trouble.
func (r *reader) succeed(l *line) {
	l.since, l.fails, l.retryAt = time.Time{}, 0, time.Time{}
	if l.err != nil {
		l.err = nil
		r.notify(l)
	}
}

// fail notes trouble with a line: it leaves its poll, so that an error does not make every long poll return at once, and
// is tried again later and later. Callers are told at once what time will not heal, else when it has lasted.
func (r *reader) fail(l *line, err error) {
	now := time.Now()
	if l.since.IsZero() {
		l.since = now
	}
	lasted := now.Sub(l.since)
	wait := min(retryMin<<min(l.fails, 10), retryMax)
	l.fails++
	denied := errors.Is(err, ErrUnauthorized)
	if denied || lasted >= r.patient.show || errors.Is(err, errNoSuch) {
		if l.err == nil && now.Sub(r.warned) >= time.Second { // one of the many that a lost node has
			r.warned = now
			line := r.c.log.Warn().Err(err).Stringer("partition", l.key.tp)
			if e := r.c.topics.cachedID(l.key.tp.ID); e != nil {
				line.Str("topic", e.Name) // grants are given by name
			}
			line.Msg("partition cannot be read")
		}
		l.err = err
		switch {
		case denied || lasted >= r.patient.slowAfter:
			wait = r.patient.slow
		case errors.Is(err, errNoSuch):
			wait = retryMax
		}
		r.notify(l)
	}
	if retriable(err) {
		r.c.topics.join(nil, [][16]byte{l.key.tp.ID})
	}
	l.retryAt = now.Add(wait)
	l.leave()
	r.wakeAt(l, l.retryAt)
}

// block keeps a position from being asked for again for a while, and says what to tell of it meanwhile: nil is that
// there is nothing to read yet.
func (r *reader) block(l *line, offset int64, d time.Duration, err error) {
	now := time.Now()
	for at, b := range l.blocked {
		if !now.Before(b.until) {
			delete(l.blocked, at)
		}
	}
	l.blocked[offset] = block{until: now.Add(d), err: err}
	if l.pos == offset {
		l.leave()
	}
	r.notify(l)
}

// later has a line tried again soon, without that being trouble: a broker may answer empty to keep its quotas. It is
// less soon each time until records come.
func (r *reader) later(l *line) {
	l.retryAt = time.Now().Add(min(retryMin<<min(l.empty, 10), retryMax))
	l.empty++
	l.leave()
	r.wakeAt(l, l.retryAt)
}

// topicChanged takes newer metadata: leaders may have moved, and what was in trouble is tried at once.
func (r *reader) topicChanged(e *topicEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.byTopic[e.ID] {
		leader, ok := e.leader(l.key.tp.Partition)
		if !ok || !r.newEpoch(l, leader.epoch) && !errors.Is(l.err, ErrUnknownTopicOrPartition) {
			continue
		}
		l.retryAt = time.Time{}
		r.schedule(l)
	}
}

// newEpoch takes a leader epoch, and says whether it is newer. What was cached is dropped then: an unclean election may
// have cut the log, and brought back one that begins earlier.
func (r *reader) newEpoch(l *line, epoch int32) bool {
	if epoch <= l.epoch {
		return false
	}
	if l.epoch >= 0 {
		l.dropBelow(r.cache, math.MaxInt64)
		l.logStart, l.hw, l.lso = -1, -1, -1
		clear(l.blocked)
	}
	l.epoch = epoch
	l.leave()
	return true
}

// topicGone takes the news that a topic was deleted.
func (r *reader) topicGone(id [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.byTopic[id] {
		r.gone(l)
	}
}

func (r *reader) gone(l *line) {
	l.dropBelow(r.cache, math.MaxInt64)
	l.leave()
	l.err = fmt.Errorf("partition %v: %w", l.key.tp, ErrUnknownTopicOrPartition)
	if l.since.IsZero() {
		l.since = time.Now()
	}
	l.retryAt = time.Now().Add(retryMax)
	r.notify(l)
	if r.running {
		r.wakeAt(l, l.retryAt)
	}
	r.drop(l)
}
