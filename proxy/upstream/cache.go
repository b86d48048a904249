package upstream

import (
	"bytes"
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// segmentOverhead and batchOverhead are what a segment and a Batch cost besides the record bytes.
	segmentOverhead = 256
	batchOverhead   = 56
	// mergeBytes is how far small reads at the log end are gathered into one segment.
	mergeBytes = 256 << 10
	// spareTries is how many segments that are still needed are passed over in one go.
	spareTries = 256
)

// segment is a stretch of one line's log: the offsets from up to next hold these batches and nothing else.
type segment struct {
	line       *line
	from, next int64
	batches    []Batch
	// bytes is the memory that the segment keeps alive.
	bytes int64
}

// cache holds the segments of all lines, bounded by the memory that they pin; what was not read for longest goes first, except for what is still to be read.
// The lines hold the index by offset. Guarded by the reader's lock.
type cache struct {
	lru          *simplelru.LRU[*segment, struct{}]
	bytes, limit int64
}

func newCache(limit int64) *cache {
	lru, err := simplelru.NewLRU[*segment, struct{}](math.MaxInt, nil)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &cache{lru: lru, limit: limit}
}

func (c *cache) add(s *segment) {
	c.lru.Add(s, struct{}{})
	c.bytes += s.bytes
}

// grow accounts for n more bytes in s.
func (c *cache) grow(s *segment, n int64) {
	s.bytes += n
	c.bytes += n
	c.touch(s)
}

func (c *cache) touch(s *segment) { c.lru.Get(s) }

func (c *cache) remove(s *segment) {
	if c.lru.Remove(s) {
		c.bytes -= s.bytes
	}
}

// evict drops the oldest segments until the rest fits, sparing those that were read ahead and are still to be read: a
// fast reader must not push out what the slow ones need.
func (c *cache) evict() {
	for spared := 0; c.bytes > c.limit; {
		s, _, ok := c.lru.GetOldest()
		if !ok {
			return
		}
		if spared < spareTries && s.line.needs(s) {
			c.touch(s)
			spared++
			continue
		}
		c.remove(s)
		s.line.unlink(s)
	}
}

// run is a contiguous piece of the log as one fetch returned it, from the offset that was asked for.
type run struct {
	from    int64
	batches []Batch
	// pinned is the memory that the batches keep alive. A batch aliases the whole response, so unless the run is most of
	// its response it is copied out.
	pinned int64
}

func (r run) next() int64 {
	if n := len(r.batches); n > 0 {
		return r.batches[n-1].Last + 1
	}
	return r.from
}

// newRun decides what keeping the batches costs: they stay in the response's buffer where that wastes little, else they
// get a buffer of their own.
func newRun(from int64, batches []Batch, response int64) run {
	if len(batches) > 0 {
		from = min(from, batches[0].Base)
	}
	r := run{from: from, batches: batches}
	if size := batchBytes(batches); size*2 >= response {
		r.pinned = max(response, size) + int64(len(batches))*batchOverhead
		return r
	}
	return r.clone()
}

// clone copies the batches into one buffer of exactly their size.
func (r run) clone() run {
	size := batchBytes(r.batches)
	buf := bytes.NewBuffer(make([]byte, 0, size))
	batches := make([]Batch, len(r.batches))
	for i, b := range r.batches {
		at := buf.Len()
		buf.Write(b.Bytes)
		b.Bytes = buf.Bytes()[at:buf.Len():buf.Len()]
		batches[i] = b
	}
	return run{from: r.from, batches: batches, pinned: size + int64(len(batches))*batchOverhead}
}

func batchBytes(batches []Batch) (n int64) {
	for i := range batches {
		n += int64(len(batches[i].Bytes))
	}
	return n
}
