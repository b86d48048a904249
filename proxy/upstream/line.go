package upstream

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

type lineKey struct {
	tp  TP
	iso Isolation
}

// line is one partition at one isolation level: what is cached of it, what is known of its ends, who is interested, and
// how it is being read. Guarded by the reader's lock.
type line struct {
	key     lineKey
	tails   map[*Tail]struct{}
	watches map[*Watch]struct{}
	demands map[*demand]struct{}

	segs []*segment // ascending, not overlapping

	// The ends, -1 where not known. They belong to the leader epoch.
	logStart, hw, lso int64
	epoch             int32

	// blocked are positions that could not be read: behind the log's end, or malformed.
	blocked map[int64]block

	// Trouble: since when, how often in a row, when to try again, and what to tell callers once it has lasted.
	since   time.Time
	fails   int
	empty   int // answers without records in a row, where there should be some
	retryAt time.Time
	err     error
	timer   *time.Timer // set for wake
	wake    time.Time

	// At the log end: the poll that the line is in, the offset that it goes on from, and whether a request of that poll
	// has carried the line yet.
	poll   *poll
	pos    int64
	joined bool

	flights map[int64]*flight
}

func newLine(key lineKey) *line {
	return &line{
		key: key, logStart: -1, hw: -1, lso: -1, epoch: -1, blocked: make(map[int64]block),
		tails: make(map[*Tail]struct{}), watches: make(map[*Watch]struct{}), demands: make(map[*demand]struct{}),
		flights: make(map[int64]*flight),
	}
}

// end is the first offset that may not be read; -1 if not known.
func (l *line) end() int64 {
	if l.key.iso == ReadCommitted {
		return l.lso
	}
	return l.hw
}

// block is why a position cannot be read, and how long that is believed.
type block struct {
	until time.Time
	err   error // nil: there is nothing to read yet
}

func (l *line) isBlocked(offset int64, now time.Time) bool {
	b, ok := l.blocked[offset]
	return ok && now.Before(b.until)
}

func (l *line) outOfRange(offset int64) error {
	return fmt.Errorf("offset %d of %v, log %d to %d: %w", offset, l.key.tp, l.logStart, l.hw, ErrOffsetOutOfRange)
}

// find returns the index of the segment that holds offset, or of the first one behind it.
func (l *line) find(offset int64) (int, bool) {
	i := sort.Search(len(l.segs), func(i int) bool { return l.segs[i].next > offset })
	return i, i < len(l.segs) && l.segs[i].from <= offset
}

// frontier returns where the cached log that goes on from an offset ends, and how many bytes it has.
func (l *line) frontier(from int64) (pos, ahead int64) {
	pos = from
	i, ok := l.find(from)
	if !ok {
		return pos, 0
	}
	first := l.segs[i]
	for j := firstAt(first.batches, from); j < len(first.batches); j++ {
		ahead += int64(len(first.batches[j].Bytes))
	}
	for pos = first.next; i+1 < len(l.segs) && l.segs[i+1].from <= pos; i++ {
		pos = l.segs[i+1].next
		ahead += l.segs[i+1].bytes
	}
	return pos, ahead
}

// needs says whether a segment was read ahead for a Tail that has not come to it yet.
func (l *line) needs(s *segment) bool {
	for t := range l.tails {
		if t.want >= 0 && t.want < s.next && s.from < t.ready {
			return true
		}
	}
	return false
}

// firstAt is the index of the first batch that ends at or behind offset.
func firstAt(batches []Batch, offset int64) int {
	return sort.Search(len(batches), func(i int) bool { return batches[i].Last >= offset })
}

// batchesAt collects contiguous batches from offset on, up to maxBytes but at least one. Batches of one segment are
// shared, not copied: segments only ever grow at their end.
func (l *line) batchesAt(c *cache, offset int64, maxBytes int) []Batch {
	var out []Batch
	left := int64(maxBytes)
	for i, ok := l.find(offset); ok; {
		s := l.segs[i]
		c.touch(s)
		start := firstAt(s.batches, offset)
		n := fitting(s.batches[start:], left, len(out) == 0)
		part := s.batches[start : start+n : start+n]
		if out == nil {
			out = part
		} else {
			out = append(out, part...)
		}
		if start+n < len(s.batches) {
			break
		}
		left -= batchBytes(part)
		offset = s.next
		i++
		ok = i < len(l.segs) && l.segs[i].from <= offset
	}
	return out
}

// fitting is how many batches from the first on stay within n bytes; the very first always does.
func fitting(batches []Batch, n int64, first bool) int {
	for i := range batches {
		n -= int64(len(batches[i].Bytes))
		if n < 0 && (i > 0 || !first) {
			return i
		}
	}
	return len(batches)
}

// view is what is known at offset without asking upstream; ok is false if nothing is.
func (l *line) view(c *cache, offset int64, maxBytes int, now time.Time) (View, bool) {
	v := View{LogStart: l.logStart, HighWatermark: l.hw, LastStable: l.lso, Epoch: l.epoch}
	switch {
	case errors.Is(l.err, ErrUnknownTopicOrPartition), errors.Is(l.err, ErrUnauthorized):
		v.Err = l.err
		return v, true
	case offset < l.logStart:
		v.Err = l.outOfRange(offset)
		return v, true
	}
	if v.Batches = l.batchesAt(c, offset, maxBytes); len(v.Batches) > 0 {
		return v, true
	}
	switch {
	case l.err != nil:
		v.Err = l.err
		return v, true
	case l.isBlocked(offset, now):
		v.Err = l.blocked[offset].err
		return v, true
	}
	return v, l.poll != nil && offset == l.end()
}

// insert adds a run to the index, leaving out what is there already.
func (l *line) insert(c *cache, r run) {
	for len(r.batches) > 0 {
		i, held := l.find(r.from)
		if held {
			r = r.after(l.segs[i].next)
			continue
		}
		piece := r
		r = run{}
		if i < len(l.segs) && l.segs[i].from < piece.next() {
			s := l.segs[i]
			piece, r = piece.before(s.from), piece.after(s.next)
			s.from = piece.next() // nothing stands between
		}
		if len(piece.batches) > 0 {
			l.put(c, i, piece)
		}
	}
	c.evict()
}

// after is what is left of a run from offset on; what is cut apart is copied, so that the parts do not pin each other.
func (r run) after(offset int64) run {
	i := firstAt(r.batches, offset)
	if i == 0 {
		r.from = max(offset, r.from)
		return r
	}
	return run{from: max(offset, r.from), batches: r.batches[i:]}.clone()
}

// before is the part of a run below offset.
func (r run) before(offset int64) run {
	i := firstAt(r.batches, offset)
	if i == len(r.batches) {
		return r
	}
	return run{from: r.from, batches: r.batches[:i]}.clone()
}

// put makes a segment of a run at index i, or lets the segment before it grow.
func (l *line) put(c *cache, i int, r run) {
	if i > 0 {
		if s := l.segs[i-1]; s.next == r.from && s.bytes+r.pinned <= mergeBytes {
			s.batches = append(s.batches, r.batches...)
			s.next = r.next()
			c.grow(s, r.pinned)
			return
		}
	}
	s := &segment{line: l, from: r.from, next: r.next(), batches: r.batches, bytes: r.pinned + segmentOverhead}
	l.segs = slices.Insert(l.segs, i, s)
	c.add(s)
}

// unlink takes a segment that the cache dropped out of the index.
func (l *line) unlink(s *segment) {
	if i, ok := l.find(s.from); ok && l.segs[i] == s {
		l.segs = slices.Delete(l.segs, i, i+1)
	}
}

// dropBelow forgets what is cached below offset; math.MaxInt64 is everything.
func (l *line) dropBelow(c *cache, offset int64) {
	n := 0
	for n < len(l.segs) && (offset == math.MaxInt64 || l.segs[n].next <= offset) {
		c.remove(l.segs[n])
		n++
	}
	l.segs = slices.Delete(l.segs, 0, n)
}
