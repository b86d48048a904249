//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Nobody has joined the group: the share-partitions were never initialized.
func TestGroupThatWasNeverMadeGetsAnError(t *testing.T) {
	w := enter(t, setup{foreign: true})
	w.produce(w.p(0), 1)
	m := w.member()
	req := m.fetching(w.p(0))
	req.MaxWaitMillis = 3000 // a broker tries to load the state meanwhile
	f := m.do(req)
	w.code("fetch", f.failure(w.p(0)), kerr.UnknownServerError)
	noHint(f, w.p(0))
}

// Whatever the reset policy, a partition that is added to a topic that the group knows is read from its first record on
// (Kafka 4.4), also if records came before the group heard of it.
func TestAddedPartitionIsReadFromItsBeginning(t *testing.T) {
	w := enter(t, setup{reset: "latest"})
	w.produce(w.p(0), 2)
	m := w.member()
	m.getsNone(w.p(0))
	w.addPartitions(w.main, 2)
	w.produce(w.p(1), 3)
	b := w.beater(w.group)
	b.subscribes(w.main)
	added := w.member()
	w.until("records of the added partition", 30*time.Second, func() error {
		b.beats(unchanged)
		f := added.fetch(w.p(1))
		if part := f.part(w.p(1)); part != nil && part.ErrorCode != 0 {
			return kerr.ErrorForCode(part.ErrorCode) // not initialized, or not even known yet
		}
		switch got := f.acquired(w.p(1)); got {
		case "":
			return errors.New("none")
		case "0-2x1":
			return nil
		default:
			w.Fatalf("acquired %s", got)
			return nil
		}
	})
	m.getsNone()
	w.produce(w.p(0), 1)
	m.takes("2-2x1")
}

// Not the last stable offset, though what lies between is not read yet.
func TestLatestIsTheHighWatermarkUnderReadCommitted(t *testing.T) {
	w := enter(t, setup{reset: "latest", configs: map[string]string{"share.isolation.level": "read_committed"}})
	x := w.transaction()
	w.produce(w.p(0), 1) // 0
	x.produce(w.p(0), 3) // 1-3
	m := w.member()
	m.getsNone(w.p(0))
	x.end(w.p(0), true)  // 4
	w.produce(w.p(0), 1) // 5
	m.gathers("4-5x1", w.p(0))
}

func TestIsolationLevelChangesUnderway(t *testing.T) {
	w := enter(t, setup{})
	x := w.transaction()
	w.produce(w.p(0), 2) // 0-1
	x.produce(w.p(0), 3) // 2-4
	m := w.member()
	m.gathers("0-4x1", w.p(0))
	w.set(w.group, "share.isolation.level", "read_committed")
	w.set(w.group, "share.record.lock.duration.ms", "47000") // to be seen in responses, and set after the other
	w.until("new settings", 20*time.Second, func() error {
		req := m.fetching()
		req.MaxWaitMillis = 0
		if got := m.do(req).AcquisitionLockTimeoutMillis; got != 47_000 {
			return fmt.Errorf("lock duration %d", got)
		}
		return nil
	})
	w.produce(w.p(0), 1) // 5
	m.getsNone()
	m.ack(nil, w.p(0), release(2, 4))
	m.getsNone()         // nor what was handed out before
	x.end(w.p(0), false) // 6
	m.gathers("5-6x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 1), accept(5, 6))
	w.lagBecomes(w.p(0), 0)
}
