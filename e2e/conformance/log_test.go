//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

func TestCheck091_HolesAndMarkersDoNotStall(t *testing.T) {
	states.record(t)
	t.Parallel()
	t.Run("compaction", func(t *testing.T) {
		w := start(t, setup{topic: map[string]string{"cleanup.policy": "compact", "segment.ms": "200",
			"min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "200"}})
		w.put(w.p(0), batch{n: 1, key: "a"})      // 0, gone later
		w.put(w.p(0), batch{n: 1, key: "b"})      // 1
		w.put(w.p(0), batch{n: 3, key: "a"})      // 2-4, of which 4 stays
		w.put(w.p(0), batch{n: 1, key: "c"})      // 5
		had := w.anotherGroup("-had", "earliest") // has had the records before they go
		before := had.memberAt(0)
		before.takes("0-5x1", w.p(0))
		before.ack(nil, w.p(0), release(0, 5))
		// The active segment is not compacted; it ends when something is appended after segment.ms.
		w.until("compaction", 60*time.Second, func() error {
			w.put(w.p(0), batch{n: 1, key: "end"})
			if got := w.stored(w.p(0), 0); got[0].first == 0 {
				return fmt.Errorf("batches %v", got)
			}
			return nil
		})
		end := w.endOffset(w.p(0))
		m := w.member()
		for next := int64(0); next < end; {
			var first, last int64
			got := m.take(w.p(0))
			fmt.Sscanf(got, "%d-%dx1", &first, &last)
			// Compaction goes on meanwhile: what is passed over must be gone by now.
			if batches := w.stored(w.p(0), next); first < next || first > next && batches[0].first < first {
				t.Fatalf("acquired %s, next is %d, batches from there on %v", got, next, batches)
			}
			last = lastOf(t, got)
			m.ack(nil, w.p(0), gap(first, last))
			next = last + 1
		}
		w.lagBecomes(w.p(0), 0)
		more := w.put(w.p(0), batch{n: 1, key: "more"})
		m.takes(fmt.Sprintf("%d-%dx1", more, more), w.p(0))
		// There what comes before the first batch that is left is finished, and comes no more. (The replica that had read it
		// may still have it.)
		after := had.memberAt(1)
		for last := int64(-1); last < more; {
			gone := w.stored(w.p(0), 0)[0].first
			got := offsets(after.take(w.p(0)))
			if left := w.stored(w.p(0), 0)[0].first; last < 0 && (got[0] < gone || got[0] > left) {
				t.Fatalf("acquired %v, the log began with %d before and with %d after", got, gone, left)
			}
			last = got[len(got)-1]
			after.ack(nil, w.p(0), accept(got[0], last))
		}
		had.lagBecomes(w.p(0), 0)
	})
	t.Run("transaction markers", func(t *testing.T) {
		w := start(t, setup{})
		x := w.transaction()
		x.produce(w.p(0), 3)
		x.end(w.p(0), true)
		w.produce(w.p(0), 1)
		m := w.member()
		m.takes("0-4x1", w.p(0)) // 3 is the marker
		m.ack(nil, w.p(0), accept(0, 2), gap(3, 3), accept(4, 4))
		w.lagBecomes(w.p(0), 0)
		w.produce(w.p(0), 1)
		m.takes("5-5x1")
	})
}

// lastOf is the last offset of "0-9x1 10-19x2".
func lastOf(t *testing.T, acquired string) (last int64) {
	t.Helper()
	var first, count int64
	for i := len(acquired) - 1; i >= 0; i-- {
		if i == 0 || acquired[i-1] == ' ' {
			if _, err := fmt.Sscanf(acquired[i:], "%d-%dx%d", &first, &last, &count); err != nil {
				t.Fatal(err)
			}
			return last
		}
	}
	t.Fatal("nothing acquired")
	return 0
}

func TestCheck092_ReadCommitted(t *testing.T) {
	states.record(t)
	t.Parallel()
	scene := func(w *world) (open *txn) {
		x := w.transaction()
		w.produce(w.p(0), 2)  // 0-1
		x.produce(w.p(0), 3)  // 2-4
		x.end(w.p(0), false)  // 5
		x.produce(w.p(0), 2)  // 6-7
		x.end(w.p(0), true)   // 8
		x.produce(w.p(0), 2)  // 9-10, open
		w.produce(w.p(0), 10) // 11-20
		return x
	}
	t.Run("committed", func(t *testing.T) {
		w := start(t, setup{configs: map[string]string{"share.isolation.level": "read_committed"}})
		x := scene(w)
		m := w.member()
		m.gathers("0-1x1 5-8x1", w.p(0))
		m.getsNone()
		m.ack(kerr.InvalidRecordState, w.p(0), accept(2, 4))
		m.ack(nil, w.p(0), accept(0, 1), gap(5, 5), accept(6, 7), gap(8, 8))
		m.getsNone()
		x.end(w.p(0), false) // 21
		m.gathers("11-21x1", w.p(0))
		m.ack(nil, w.p(0), accept(11, 21))
		w.lagBecomes(w.p(0), 0)
	})
	t.Run("uncommitted", func(t *testing.T) {
		w := start(t, setup{})
		scene(w)
		w.member().gathers("0-20x1", w.p(0))
	})
}

// The log start is at a batch's border here. From a batch that it cuts, a broker acquires the deleted offsets too.
func TestCheck093_DeletedRecordsAreSkipped(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 8, 5)
	m := w.member()
	w.is("first", m.takeBy(maxRecords(10), w.p(0)), "0-9x1")
	m.ack(nil, w.p(0), accept(0, 2), release(5, 9))
	w.deleteRecords(w.p(0), 20)
	var got string
	w.until("records from the new log start", 30*time.Second, func() error {
		f := m.fetch()
		if part := f.part(w.p(0)); part != nil {
			w.code("fetch", part.ErrorCode, nil)
		}
		if got = f.acquired(w.p(0)); got == "" {
			return errors.New("none")
		}
		return nil
	})
	w.is("acquired", got, "20-39x1")
	m.ack(nil, w.p(0), accept(3, 4)) // of what is gone: no error, no effect
	m.ack(nil, w.p(0), accept(20, 39))
	w.lagBecomes(w.p(0), 0)
}

// As by DeleteRecords, but the log start moves to the border of a segment, by itself.
func TestRecordsThatRetentionTakesAreSkipped(t *testing.T) {
	w := enter(t, setup{topic: map[string]string{"segment.ms": "600000", "retention.ms": "-1"}})
	old := time.Now().Add(-2 * time.Hour)
	w.put(w.p(0), batch{n: 5, at: old})
	w.put(w.p(0), batch{n: 5, at: old})
	w.produce(w.p(0), 5) // 10-14, in a segment of its own
	m := w.memberAt(0)
	w.is("first", m.takeBy(maxRecords(10), w.p(0)), "0-9x1")
	m.ack(nil, w.p(0), accept(0, 2), release(5, 7))
	end := w.anotherGroup("-end", "latest").memberAt(0)
	end.getsNone(w.p(0))
	w.setTopic(w.main, "retention.ms", "3600000")
	w.until("retention", 60*time.Second, func() error {
		if start := w.startOffset(w.p(0)); start != 10 {
			return fmt.Errorf("log start %d", start)
		}
		return nil
	})
	// What is read ahead of fetches hears of the new log start with the next records.
	w.produce(w.p(0), 1)
	end.takes("15-15x1")
	m.gathers("10-15x1", w.p(0))
	m.ack(nil, w.p(0), accept(3, 4), accept(8, 9)) // of what is gone: no error, no effect
	m.ack(nil, w.p(0), accept(10, 15))
	w.lagBecomes(w.p(0), 0)
}

func TestCheck094_RecreatedTopicStartsFresh(t *testing.T) {
	w := start(t, setup{})
	old := w.p(0)
	w.produce(old, 5)
	m := w.member()
	m.takes("0-4x1", old)
	m.ack(nil, old, accept(0, 2))
	w.deleteTopic(old.topic)
	var again topic
	w.until("the name to be free", 20*time.Second, func() (err error) {
		again, err = w.tryCreateTopic(old.name, 1, nil)
		return err
	})
	w.join(w.group, again)
	w.produce(again.at(0), 2)
	other := w.member()
	other.takes("0-1x1", again.at(0))
	for range 3 {
		f := m.fetch()
		if f.failure(old) == 0 {
			t.Fatal("no error for the old topic id")
		}
		if n := len(f.part(old).AcquiredRecords); n != 0 {
			t.Fatalf("%d ranges acquired of the old topic id", n)
		}
	}
	m.ack(kerr.UnknownTopicID, old, accept(3, 4))
}

func TestCheck095_GroupsAreIndependent(t *testing.T) {
	w := start(t, setup{})
	second := w.group + "-2"
	w.set(second, "share.auto.offset.reset", "earliest")
	w.join(second, w.main)
	w.produce(w.p(0), 10)
	a, b := w.member(), w.member()
	b.group = second
	a.takes("0-9x1", w.p(0))
	a.ack(nil, w.p(0), accept(0, 9))
	b.takes("0-9x1", w.p(0))
	a.getsNone()
	b.ack(nil, w.p(0), release(0, 9))
	b.takes("0-9x2")
	a.getsNone()
}
