//go:build e2e

package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestCheck071_AcquiredRecordIsTheMembersAlone(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.record.lock.duration.ms": fmt.Sprint(shortLock)}})
	w.produceEach(w.p(0), 3, 5)
	m, other := w.member(), w.member()
	m.takes("0-14x1", w.p(0))
	other.getsNone(w.p(0))
	m.ack(nil, w.p(0), release(0, 4))
	other.gathers("0-4x2", w.p(0))
	other.ack(nil, w.p(0), accept(0, 4))
	m.getsNone()
	m.ack(nil, w.p(0), accept(10, 14))
	other.gathers("5-9x2", w.p(0)) // at the lock's end
	third := w.member()
	third.getsNone(w.p(0))
	other.ack(nil, w.p(0), renew(5, 9))
	other.close()
	third.gathers("5-9x3", w.p(0))
}

func TestCheck072_DeliveryCountCountsAcquisitions(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.record.lock.duration.ms": fmt.Sprint(shortLock)}})
	w.produce(w.p(0), 4)
	m, other := w.member(), w.member()
	m.takes("0-3x1", w.p(0))
	m.ack(nil, w.p(0), release(0, 1), accept(2, 2))
	m.takes("0-1x2", w.p(0))
	other.gathers("0-1x3 3-3x2", w.p(0))
}

func TestCheck073_LatestStartsAtTheFirstFetch(t *testing.T) {
	w := start(t, setup{reset: "latest"})
	w.produce(w.p(0), 3)
	m := w.member()
	m.getsNone(w.p(0))
	w.produce(w.p(0), 2)
	m.takes("3-4x1")
	m.getsNone()
}

func TestCheck074_EarliestAndByDuration(t *testing.T) {
	states.record(t)
	t.Parallel()
	t.Run("earliest", func(t *testing.T) {
		w := start(t, setup{})
		w.produceEach(w.p(0), 3, 2)
		w.deleteRecords(w.p(0), 2)
		w.member().takes("2-5x1", w.p(0))
	})
	t.Run("by duration", func(t *testing.T) {
		w := start(t, setup{reset: "by_duration:PT1H"})
		now := time.Now()
		w.put(w.p(0), batch{n: 3, at: now.Add(-2 * time.Hour)})
		w.put(w.p(0), batch{n: 2, at: now.Add(-30 * time.Minute)})
		w.put(w.p(0), batch{n: 2, at: now})
		w.member().takes("3-6x1", w.p(0))
	})
}

func TestCheck075_ByDurationWithoutYoungRecordIsNotAvailable(t *testing.T) {
	w := start(t, setup{reset: "by_duration:PT1H"})
	w.put(w.p(0), batch{n: 3, at: time.Now().Add(-2 * time.Hour)})
	m := w.member()
	for range 2 {
		w.code("fetch", m.fetch(w.p(0)).failure(w.p(0)), kerr.OffsetNotAvailable)
	}
	w.produce(w.p(0), 2)
	m.takes("3-4x1")
}

func TestCheck076_BatchOptimizedTakesWholeBatches(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 3, 25)
	m := w.member()
	w.is("MaxRecords 10", m.takeBy(maxRecords(10), w.p(0)), "0-24x1")
	w.is("MaxRecords 26", m.takeBy(maxRecords(26), w.p(0)), "25-74x1")
}

func TestCheck077_RecordLimitCutsBatches(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 2, 25)
	m := w.member()
	limit := func(req *kmsg.ShareFetchRequest) { req.MaxRecords, req.ShareAcquireMode, req.BatchSize = 10, 1, 3 }
	for _, want := range []string{"0-9x1", "10-19x1", "20-24x1 25-29x1", "30-39x1", "40-49x1"} {
		w.is("acquired", m.takeBy(limit, w.p(0)), want)
	}
	m.getsNone()
	m.ack(nil, w.p(0), release(7, 22))
	w.is("released", m.takeBy(limit, w.p(0)), "7-16x2")
}

func TestCheck078_BatchSizeCutsAtBatchBorders(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 100, 1)
	w.produceEach(w.p(0), 5, 7)
	m := w.member()
	want := ""
	for i := range 10 {
		want += fmt.Sprintf("%d-%dx1 ", i*10, i*10+9)
	}
	size := func(req *kmsg.ShareFetchRequest) { req.BatchSize = 10 }
	w.is("acquired", m.takeBy(size, w.p(0)), want+"100-113x1 114-127x1 128-134x1")
}

func TestCheck079_AcquiredRangesAscendAndHaveTheirRecords(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 10, 5)
	m, other := w.member(), w.member()
	w.is("first half", m.takeBy(maxRecords(25), w.p(0)), "0-24x1")
	// Every state stands between what is to come next; acquired() looks at order and records.
	m.ack(nil, w.p(0), release(1, 3), accept(4, 6), release(7, 7), reject(8, 9), release(12, 18))
	w.is("acquired", other.take(w.p(0)), "1-3x2 7-7x2 12-18x2 25-49x1")
	m.getsNone(w.p(0))
}
