package upstream

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A log with holes, read in any order in any pieces through a cache of any size: what the line says is always a piece of
// that log, the index stays ordered, and the cache's account is that of the segments.
func TestLineHoldsPiecesOfTheLogWhateverIsReadWhen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log []Batch
		for offset := int64(0); len(log) < 40; {
			offset += int64(rapid.SampledFrom([]int{0, 0, 0, 1, 7}).Draw(t, "hole"))
			b := testBatch(offset, int32(rapid.IntRange(1, 5).Draw(t, "size")), 0, -1)
			log = append(log, b)
			offset = b.Last + 1
		}
		end := log[len(log)-1].Last + 1
		c := newCache(int64(rapid.SampledFrom([]int{500, 3000, 1 << 20}).Draw(t, "cache")))
		l := newLine(lineKey{})
		l.hw = end

		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			from := rapid.Int64Range(0, end-1).Draw(t, "from")
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 9:
				l.logStart = max(l.logStart, from/4)
				l.dropBelow(c, l.logStart)
			case 6, 7, 8:
				checkView(t, l, c, log, from, rapid.IntRange(1, 1000).Draw(t, "bytes"))
			default: // a fetch
				i := firstAt(log, from)
				n := rapid.IntRange(1, min(10, len(log)-i)).Draw(t, "n")
				response := rapid.SampledFrom([]int64{0, 1 << 20}).Draw(t, "response")
				l.insert(c, newRun(from, log[i:i+n:i+n], response))
			}
			checkIndex(t, l, c)
		}
	})
}

func checkView(t *rapid.T, l *line, c *cache, log []Batch, from int64, maxBytes int) {
	v, ok := l.view(c, from, maxBytes, time.Now())
	if from < l.logStart {
		if v.Err == nil || len(v.Batches) > 0 {
			t.Fatalf("below the log start: %+v", v)
		}
		return
	}
	if ok != (len(v.Batches) > 0) {
		t.Fatalf("view at %d: %v with %d batches", from, ok, len(v.Batches))
	}
	i := firstAt(log, from)
	if n := batchBytes(v.Batches); len(v.Batches) > 1 && n > int64(maxBytes) {
		t.Fatalf("%d bytes in place of at most %d", n, maxBytes)
	}
	for j, b := range v.Batches {
		if want := log[i+j]; b.Base != want.Base || b.Last != want.Last || string(b.Bytes) != string(want.Bytes) {
			t.Fatalf("view at %d, batch %d: %d-%d, the log has %d-%d", from, j, b.Base, b.Last, want.Base, want.Last)
		}
	}
	pos, ahead := l.frontier(from)
	if ok != (pos > from) || ok != (ahead > 0) || ok && pos <= v.Batches[len(v.Batches)-1].Last {
		t.Fatalf("frontier of %d is %d with %d bytes; the view has %d batches", from, pos, ahead, len(v.Batches))
	}
}

func checkIndex(t *rapid.T, l *line, c *cache) {
	var sum int64
	for i, s := range l.segs {
		sum += s.bytes
		if s.next <= s.from || i > 0 && s.from < l.segs[i-1].next || len(s.batches) == 0 || !c.lru.Contains(s) {
			t.Fatalf("segment %d: %d to %d, %d batches, cached %v", i, s.from, s.next, len(s.batches), c.lru.Contains(s))
		}
	}
	if c.bytes != sum || c.lru.Len() != len(l.segs) || c.bytes > c.limit {
		t.Fatalf("the cache counts %d bytes in %d segments, there are %d in %d, limit %d", c.bytes, c.lru.Len(), sum, len(l.segs), c.limit)
	}
}

// Fetching on from every frontier reaches the end, whatever holes and overlaps there are.
func TestFetchingOnFromTheFrontierAlwaysAdvances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := []Batch{testBatch(3, 2, 0, -1), testBatch(9, 1, 0, -1), testBatch(10, 4, 0, -1), testBatch(20, 1, 0, -1), testBatch(21, 9, 0, -1)}
		c, l := newCache(1<<20), newLine(lineKey{})
		for range rapid.IntRange(0, 5).Draw(t, "earlier reads") {
			from := rapid.Int64Range(0, 29).Draw(t, "from")
			i := firstAt(log, from)
			n := rapid.IntRange(1, len(log)-i).Draw(t, "n")
			l.insert(c, newRun(from, log[i:i+n], 0))
		}
		pos := rapid.Int64Range(0, 29).Draw(t, "start")
		for pos < 30 {
			next, _ := l.frontier(pos)
			if next == 30 {
				break
			}
			i := firstAt(log, next)
			l.insert(c, newRun(next, log[i:i+1], 0))
			if after, _ := l.frontier(pos); after <= next {
				t.Fatalf("frontier of %d stays at %d after a fetch there", pos, next)
			}
		}
	})
}

func TestSmallReadsShareASegmentAndViewsStayAsTheyWere(t *testing.T) {
	c, l := newCache(1<<20), newLine(lineKey{})
	l.insert(c, newRun(0, []Batch{testBatch(0, 1, 0, -1)}, 0))
	before := l.batchesAt(c, 0, math.MaxInt32)
	for offset := int64(1); offset < 100; offset++ {
		l.insert(c, newRun(offset, []Batch{testBatch(offset, 1, 0, -1)}, 0))
	}
	if len(l.segs) != 1 || len(before) != 1 || before[0].Last != 0 {
		t.Fatalf("%d segments, early view %v", len(l.segs), before)
	}
	if allocs := testing.AllocsPerRun(10, func() { l.batchesAt(c, 0, math.MaxInt32) }); allocs != 0 {
		t.Fatalf("a view of one segment allocates %v times", allocs)
	}
}

func TestRunOfABigResponseIsCopiedOutUnlessItIsMostOfIt(t *testing.T) {
	buf := make([]byte, 0, 1000)
	buf = append(buf, testBatch(0, 1, 0, -1).Bytes...)
	batches, err := cut(buf)
	if err != nil {
		t.Fatal(err)
	}
	if r := newRun(0, batches, 1000); &r.batches[0].Bytes[0] == &buf[0] || r.pinned > 200 {
		t.Fatalf("a small part pins its response: %d bytes", r.pinned)
	}
	if r := newRun(0, batches, 100); &r.batches[0].Bytes[0] != &buf[0] || r.pinned < 100 {
		t.Fatalf("most of a response is copied, or counted as %d", r.pinned)
	}
}

func TestEvictionForgetsTheOldestOfAllPartitions(t *testing.T) {
	c := newCache(3 * (segmentOverhead + batchOverhead + 66))
	lines := make([]*line, 4)
	for i := range lines {
		lines[i] = newLine(lineKey{tp: TP{Partition: int32(i)}})
		lines[i].insert(c, newRun(0, []Batch{testBatch(0, 1, 0, -1)}, 0))
		lines[0].batchesAt(c, 0, 1) // in use
	}
	held := ""
	for _, l := range lines {
		held += fmt.Sprint(len(l.segs))
	}
	if held != "1011" {
		t.Fatalf("segments held by partition: %s", held)
	}
}
