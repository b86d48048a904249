//go:build e2e

package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestCheck080_FullWindowWaitsForItsPrefix(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 30, 100)
	m := w.member()
	for i := range 4 {
		w.is("acquired", m.take(w.p(0)), fmt.Sprintf("%d-%dx1", i*500, i*500+499))
	}
	m.getsNone()
	m.getsNone()
	m.ack(nil, w.p(0), accept(0, 499))
	m.takes("2000-2499x1")
	m.getsNone()
	m.ack(nil, w.p(0), accept(1000, 1499)) // not the prefix
	m.getsNone()
}

func TestCheck081_StuckRecordStopsAtTheLimit(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.partition.max.record.locks": "100"}})
	w.produce(w.p(0), 1)
	w.produceEach(w.p(0), 30, 7)
	m := w.member()
	w.is("stuck", m.takeBy(maxRecords(1), w.p(0)), "0-0x1")
	for next, end := int64(1), int64(105); next <= end; {
		var first, last int64
		got := m.takeBy(maxRecords(20), w.p(0))
		fmt.Sscanf(got, "%d-%dx1", &first, &last)
		if first != next || last > end { // 0-99, and the rest of the batch 99-105
			t.Fatalf("acquired %s, next is %d", got, next)
		}
		m.ack(nil, w.p(0), accept(first, last))
		next = last + 1
	}
	m.getsNone()
	m.getsNone()
	m.ack(nil, w.p(0), accept(0, 0))
	w.is("after", m.takeBy(maxRecords(1), w.p(0)), "106-112x1")
}

func TestCheck082_ReleasedRecordsComeBeforeNewOnes(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 10)
	m := w.member()
	m.takes("0-9x1", w.p(0))
	w.produce(w.p(0), 10)
	m.ack(nil, w.p(0), release(3, 5))
	w.is("released", m.takeBy(maxRecords(3), w.p(0)), "3-5x2")
	w.is("new", m.takeBy(maxRecords(3), w.p(0)), "10-19x1")
}

func TestCheck083_WaitEndsWithDataOrAtMaxWait(t *testing.T) {
	w := start(t, setup{})
	m, other := w.member(), w.member()
	m.getsNone(w.p(0))
	req := m.fetching()
	req.MaxWaitMillis = 1500
	if f := m.do(req); f.took < 1450*time.Millisecond || f.took > 3500*time.Millisecond {
		t.Fatalf("no data: answered after %v, MaxWait is 1.5s", f.took)
	}
	w.is("produced", waitingFetch(m, func() { w.produce(w.p(0), 3) }), "0-2x1")
	other.getsNone(w.p(0))
	if allowed().sleepsThroughRelease {
		m.ack(nil, w.p(0), release(0, 2))
		other.takes("0-2x2")
		return
	}
	w.is("released", waitingFetch(other, func() { m.ack(nil, w.p(0), release(0, 2)) }), "0-2x2")
	w.is("closed", waitingFetch(m, func() { other.close() }), "0-2x3")
}

// waitingFetch sends a fetch of the session that may wait 20 s, does something when one of another member that was sent
// later has waited in vain, and returns what the first got by that.
func waitingFetch(m *member, then func()) string {
	m.w.Helper()
	req := m.fetching()
	req.MaxWaitMillis = 20_000
	if err := m.c.send(req); err != nil {
		m.w.Fatal(err)
	}
	m.w.member().getsNone(m.w.p(0))
	began := time.Now()
	then()
	got, err := m.c.receive(req)
	if err != nil {
		m.w.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		m.w.Fatalf("woken after %v", took)
	}
	resp := got.(*kmsg.ShareFetchResponse)
	m.w.code("ShareFetch", resp.ErrorCode, nil)
	m.advance(req.ShareSessionEpoch)
	return fetched{m.w, resp, 0}.acquired(m.w.p(0))
}

func TestCheck084_MinBytesWaitsUntilMaxWait(t *testing.T) {
	w := start(t, setup{})
	m := w.member()
	m.fetch(w.p(0))
	w.produce(w.p(0), 3)
	req := m.fetching()
	req.MinBytes, req.MaxWaitMillis = 1<<20, 1500
	f := m.do(req)
	if f.took < 1450*time.Millisecond || f.took > 3500*time.Millisecond {
		t.Fatalf("answered after %v, MaxWait is 1.5s", f.took)
	}
	w.is("acquired", f.acquired(w.p(0)), "0-2x1")
}

func TestCheck085_FirstBatchComesWhateverItsSize(t *testing.T) {
	w := start(t, setup{})
	for range 6 {
		w.put(w.p(0), batch{n: 2, size: 1000})
	}
	m := w.member()
	for i, c := range []struct {
		bytes int32
		want  string
	}{{1, "0-1x1"}, {100, "2-3x1"}, {2000, "4-5x1"}, {5000, "6-9x1"}, {1, "10-11x1"}} {
		var parts []tp
		if i == 0 {
			parts = []tp{w.p(0)}
		}
		w.is(fmt.Sprintf("MaxBytes %d", c.bytes), m.takeBy(func(req *kmsg.ShareFetchRequest) { req.MaxBytes = c.bytes }, parts...), c.want)
	}
}

// A broker moves a partition that gave records to the end of the session's order before it rotates that by the epoch, so
// from the third request on its order is not simply in turn. What matters holds for any such order.
func TestCheck086_MaxRecordsIsSharedAndPartitionsRotate(t *testing.T) {
	const partitions = 3
	w := start(t, setup{partitions: partitions})
	for p := range int32(partitions) {
		w.produceEach(w.p(p), 8, 10)
		w.is("loading", w.member().takeBy(maxRecords(1), w.p(p)), "0-9x1")
	}
	m := w.member()
	next := [partitions]int{10, 10, 10}
	served, before := [partitions]int{}, -1
	for epoch := range 9 {
		req := m.fetching()
		if epoch == 0 {
			req = m.fetching(w.p(0), w.p(1), w.p(2))
		}
		req.MaxRecords, req.MaxWaitMillis = 10, 5000
		f := m.do(req)
		now := -1
		for p := range partitions {
			got := f.acquired(w.p(int32(p)))
			if got == "" {
				continue
			}
			w.is("acquired", got, fmt.Sprintf("%d-%dx1", next[p], next[p]+9))
			if now >= 0 {
				t.Fatalf("epoch %d: partitions %d and %d share 10 records", epoch, now, p)
			}
			next[p] += 10
			now = p
		}
		if now < 0 || now == before || epoch < 2 && now != epoch {
			t.Fatalf("epoch %d: partition %d after %d", epoch, now, before)
		}
		served[now]++
		before = now
	}
	for p, n := range served {
		if n < 2 {
			t.Errorf("partition %d was served %d times of 9", p, n)
		}
	}
}

func TestCheck087_LockEndsNoSoonerNorMuchLater(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.record.lock.duration.ms": fmt.Sprint(shortLock)}})
	m, other := w.member(), w.member()
	other.getsNone(w.p(0))
	w.produce(w.p(0), 5)
	before := time.Now()
	m.takes("0-4x1", w.p(0))
	after := time.Now()
	req := other.fetching()
	req.MaxWaitMillis = 3 * shortLock
	f := other.do(req) // the end of the lock must wake it
	w.is("acquired", f.acquired(w.p(0)), "0-4x2")
	if held := time.Since(before); held < (shortLock-100)*time.Millisecond {
		t.Fatalf("free after %v", held)
	}
	if held := time.Since(after); held > (shortLock+2500)*time.Millisecond {
		t.Fatalf("free only after %v", held)
	}
}

func TestCheck088_DeliveryLimitArchives(t *testing.T) {
	states.record(t)
	t.Parallel()
	part := func(name string, limit, deliveries int, end func(w *world, m *member, last int)) {
		t.Run(name, func(t *testing.T) {
			w := start(t, setup{configs: map[string]string{
				"share.record.lock.duration.ms": fmt.Sprint(shortLock), "share.delivery.count.limit": fmt.Sprint(limit)}})
			w.keepLoaded()
			w.produce(w.p(0), 1)
			for i := 1; i <= deliveries; i++ {
				m := w.member()
				m.gatherOne(i, w.p(0))
				end(w, m, i)
			}
			w.lagBecomes(w.p(0), 0)
			m := w.member()
			m.getsNone(w.p(0))
			w.produce(w.p(0), 1)
			m.takes("1-1x1")
			m.ack(nil, w.p(0), accept(1, 1))
			w.lagBecomes(w.p(0), 0)
		})
	}
	part("release", 5, 5, func(w *world, m *member, _ int) { m.ack(nil, w.p(0), release(0, 0)) })
	part("close", 5, 5, func(w *world, m *member, _ int) { m.close() })
	part("disconnect", 3, 3, func(w *world, m *member, _ int) { m.c.Close() })
	part("timeout", 2, 2, func(w *world, m *member, _ int) {})
}

// gatherOne takes one record at offset 0 with the given delivery count, waiting for it to become free.
func (m *member) gatherOne(count int, p tp) {
	m.w.Helper()
	m.w.until("offset 0", 30*time.Second, func() error {
		req := m.fetching(p)
		req.MaxRecords, req.MaxWaitMillis = 1, 100
		switch got := m.do(req).acquired(p); got {
		case fmt.Sprintf("0-0x%d", count):
			return nil
		case "":
			return fmt.Errorf("nothing yet")
		default:
			m.w.Fatalf("acquired %s, want delivery %d of offset 0", got, count)
			return nil
		}
	})
}

func TestCheck089_BatchesShrinkNearTheLimit(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 500)
	m := w.member()
	for i := 1; i <= 3; i++ {
		w.is("whole", m.take(w.p(0)), fmt.Sprintf("0-499x%d", i))
		m.ack(nil, w.p(0), release(0, 499))
	}
	w.is("fourth", m.take(), "0-249x4")
	m.ack(nil, w.p(0), release(0, 249))
	w.is("fifth, alone", m.take(), "0-0x5")
	m.ack(nil, w.p(0), accept(0, 0))
	w.is("fifth, alone", m.take(), "1-1x5")
	m.ack(nil, w.p(0), release(1, 1))
	w.is("fifth, alone", m.take(), "2-2x5")
	w.lagBecomes(w.p(0), 498)
}

func TestCheck090_GroupSettingsChangeUnderway(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.partition.max.record.locks": "100"}})
	w.produceEach(w.p(0), 30, 10)
	m := w.member()
	w.is("100 locks", m.takeBy(maxRecords(200), w.p(0)), "0-99x1")
	m.getsNone()
	w.set(w.group, "share.partition.max.record.locks", "150")
	w.is("150 locks", m.takeBy(maxRecords(200)), "100-149x1")
	m.getsNone()

	w.set(w.group, "share.record.lock.duration.ms", "47000")
	w.until("lock duration", 20*time.Second, func() error {
		req := m.fetching()
		req.MaxWaitMillis = 0
		if got := m.do(req).AcquisitionLockTimeoutMillis; got != 47_000 {
			return fmt.Errorf("%d", got)
		}
		return nil
	})

	w.set(w.group, "share.delivery.count.limit", "2")
	w.until("delivery limit", 20*time.Second, func() error {
		// Release one record after the other, twice each, until one does not come a third time.
		m.ack(nil, w.p(0), release(0, 0))
		got := m.takeBy(maxRecords(1))
		if got == "150-159x1" || got == "1-1x1" {
			return nil
		}
		var first, last, count int64
		fmt.Sscanf(got, "%d-%dx%d", &first, &last, &count)
		if first != 0 || last != 0 {
			w.Fatalf("acquired %s", got)
		}
		if count > 4 {
			w.Fatalf("delivery %d under a limit of 2", count)
		}
		return fmt.Errorf("delivered %s", got)
	})
}
