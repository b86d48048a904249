//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestCheck096_AcceptedRecordsAreDone(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 2, 10)
	if start, lag := w.described(w.p(0)); start != -1 || lag != -1 {
		t.Fatalf("start offset %d, lag %d before the first acknowledgement, want -1 for both", start, lag)
	}
	m, other := w.member(), w.member()
	m.takes("0-19x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 4), accept(8, 9))
	m.ack(nil, w.p(0), accept(15, 15))
	start, lag := w.described(w.p(0))
	if start != 5 || lag != 12 {
		t.Fatalf("start offset %d, lag %d, want 5 and 12", start, lag)
	}
	m.ack(nil, w.p(0), accept(5, 7))
	want := int64(10)
	if allowed().startLags {
		want = 5
	}
	if start, lag = w.described(w.p(0)); start != want || lag != 9 {
		t.Fatalf("start offset %d, lag %d, want %d and 9", start, lag, want)
	}
	m.close()
	other.gathers("10-14x2 16-19x2", w.p(0))
}

func TestCheck097_EachTypeDoesItsPart(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 5, 4)
	m, other := w.member(), w.member()
	m.takes("0-19x1", w.p(0))
	m.ack(nil, w.p(0), reject(0, 3), release(4, 7), gap(8, 11), accept(12, 15))
	other.takes("4-7x2", w.p(0))
	m.close()
	other.gathers("16-19x2", w.p(0))
	other.getsNone()
	w.lagBecomes(w.p(0), 8)
}

func TestCheck098_OneTypeOrOnePerOffset(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 10)
	m := w.member()
	m.takes("0-9x1", w.p(0))
	for _, types := range [][]int8{{1, 1}, {1, 1, 1, 1}, {2, 2, 2, 2, 2, 2}} {
		m.ack(kerr.InvalidRequest, w.p(0), ack{0, 4, types})
	}
	m.ack(nil, w.p(0), ack{0, 4, []int8{1, 2, 0, 3, 2}}, accept(5, 9))
	m.takes("1-1x2 4-4x2")
	w.lagBecomes(w.p(0), 2)
}

func TestCheck099_TypesMustBeKnown(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 3)
	m := w.member()
	m.takes("0-2x1", w.p(0))
	for _, c := range []struct {
		version int16
		renew   bool
		types   []int8
	}{
		{2, false, nil}, {2, false, []int8{}}, {2, false, []int8{5}}, {2, true, []int8{5}}, {2, false, []int8{-1}},
		{1, false, []int8{4}}, {2, false, []int8{4}}, {2, false, []int8{1, 4, 1}}, {2, true, []int8{1, 4, 5}},
	} {
		what := fmt.Sprintf("v%d, IsRenewAck %v, types %v", c.version, c.renew, c.types)
		req := m.acknowledging()
		req.Version, req.IsRenewAck = c.version, c.renew
		carry(req, w.p(0), ack{0, 2, c.types})
		w.code("ShareAcknowledge "+what, m.doAck(req).result(w.p(0)), kerr.InvalidRequest)
		fetch := m.fetching()
		fetch.Version, fetch.IsRenewAck, fetch.MaxWaitMillis = c.version, c.renew, 0
		if c.renew {
			fetch.MinBytes, fetch.MaxBytes, fetch.MaxRecords = 0, 0, 0
		}
		carry(fetch, w.p(0), ack{0, 2, c.types})
		f := m.do(fetch)
		w.code("ShareFetch "+what, f.ackFailure(w.p(0)), kerr.InvalidRequest)
		w.code("ShareFetch "+what, f.failure(w.p(0)), nil)
	}
	m.ack(nil, w.p(0), accept(0, 2))
}

func TestCheck100_BatchesMustAscend(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 10)
	m := w.member()
	m.takes("0-9x1", w.p(0))
	m.ack(kerr.InvalidRequest, w.p(0), accept(4, 3))
	m.ack(kerr.InvalidRequest, w.p(0), accept(0, 4), accept(3, 6))
	m.ack(kerr.InvalidRequest, w.p(0), accept(5, 9), accept(0, 4))
	m.ack(kerr.InvalidRecordState, w.p(0), accept(0, 4), accept(4, 6)) // passes the order's check, finds 4 done
	m.ack(nil, w.p(0), accept(0, 4), accept(5, 6), accept(8, 9))
}

func TestCheck101_OnlyTheHolderMayAcknowledge(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.record.lock.duration.ms": fmt.Sprint(shortLock)}})
	w.keepLoaded()
	w.produce(w.p(0), 10)
	m, other := w.member(), w.member()
	m.takes("0-9x1", w.p(0))
	other.fetch()
	other.ack(kerr.InvalidRecordState, w.p(0), accept(0, 9))
	m.ack(nil, w.p(0), release(2, 3), accept(5, 5))
	m.ack(kerr.InvalidRecordState, w.p(0), accept(2, 2))
	m.ack(kerr.InvalidRecordState, w.p(0), accept(5, 5))
	other.takes("2-3x2", w.p(0))
	m.ack(kerr.InvalidRecordState, w.p(0), accept(2, 3))
	other.ack(nil, w.p(0), accept(2, 3))
	third := w.member()
	third.gathers("0-1x2 4-4x2 6-9x2", w.p(0)) // at the locks' end
	m.ack(kerr.InvalidRecordState, w.p(0), accept(0, 1))
	third.ack(nil, w.p(0), accept(0, 1), accept(4, 4), accept(6, 9))
}

func TestCheck102_AcknowledgingWhatIsBelowTheStartIsNoError(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 2, 5)
	m := w.member()
	m.takes("0-9x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 4))
	for _, a := range []ack{accept(0, 4), release(2, 2), reject(0, 1)} {
		m.ack(nil, w.p(0), a)
	}
	m.getsNone()
	m.ack(nil, w.p(0), accept(3, 6)) // the part above counts
	m.ack(nil, w.p(0), renew(0, 4), accept(6, 7))
	w.lagBecomes(w.p(0), 2)
}

func TestCheck103_AcknowledgingWhatWasNotHandedOut(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 2, 5)
	m := w.member()
	w.is("acquired", m.takeBy(maxRecords(1), w.p(0)), "0-4x1")
	m.ack(kerr.InvalidRequest, w.p(0), accept(5, 9))
	m.ack(kerr.InvalidRequest, w.p(0), accept(3, 7))
	m.ack(kerr.InvalidRequest, w.p(0), accept(0, 4), accept(9, 9))
	m.ack(nil, w.p(0), accept(0, 4))
	m.ack(kerr.InvalidRecordState, w.p(0), accept(5, 9)) // with nothing in the window
}

func TestCheck104_OneBadBatchUndoesItsPartitionOnly(t *testing.T) {
	w := start(t, setup{partitions: 2})
	w.produce(w.p(0), 10)
	w.produce(w.p(1), 10)
	m, other := w.member(), w.member()
	m.takes("0-9x1", w.p(0))
	m.takes("0-9x1", w.p(1))
	m.ack(nil, w.p(0), accept(7, 7))
	req := m.acknowledging()
	carry(req, w.p(0), accept(0, 2), release(3, 5), accept(6, 8))
	carry(req, w.p(1), accept(0, 9))
	a := m.doAck(req)
	w.code("bad", a.result(w.p(0)), kerr.InvalidRecordState)
	w.code("good", a.result(w.p(1)), nil)
	other.getsNone(w.p(0))
	w.lagBecomes(w.p(1), 0)
	fetch := m.fetching()
	carry(fetch, w.p(0), accept(0, 2), accept(8, 20))
	f := m.do(fetch)
	w.code("bad by fetch", f.ackFailure(w.p(0)), kerr.InvalidRequest)
	m.ack(nil, w.p(0), accept(0, 6), accept(8, 9)) // all still held
}

func TestCheck105_WhereErrorsStand(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 5)
	m := w.member()
	m.takes("0-4x1", w.p(0))
	w.produce(w.p(0), 5)
	req := m.fetching()
	req.MaxWaitMillis = 5000
	carry(req, w.p(0), accept(2, 1))
	f := m.do(req)
	w.code("acknowledgement", f.ackFailure(w.p(0)), kerr.InvalidRequest)
	w.code("fetch", f.failure(w.p(0)), nil)
	w.is("acquired beside it", f.acquired(w.p(0)), "5-9x1")
	if msg := f.part(w.p(0)).AcknowledgeErrorMessage; msg != nil {
		t.Fatalf("message %q, want none", *msg)
	}
	m.ack(kerr.InvalidRequest, w.p(0), accept(2, 1))
	req = m.fetching()
	carry(req, w.p(0), accept(5, 5), accept(5, 6))
	f = m.do(req)
	w.code("acknowledgement", f.ackFailure(w.p(0)), kerr.InvalidRecordState)
	w.code("fetch", f.failure(w.p(0)), nil)
	if f.part(w.p(0)).AcknowledgeErrorMessage == nil {
		t.Fatal("no message beside a state error")
	}
}

func TestCheck106_EveryAcknowledgedPartitionIsListed(t *testing.T) {
	w := start(t, setup{partitions: 3})
	m := w.member()
	for p := range int32(3) {
		w.produce(w.p(p), 4)
		m.takes("0-3x1", w.p(p))
	}
	req := m.fetching()
	req.MaxWaitMillis = 0
	carry(req, w.p(0), accept(0, 1))
	carry(req, w.p(1), accept(0, 1))
	w.is("fetch", m.do(req).listed(w.main), "0/0 0/1")
	req = m.fetching()
	req.MaxWaitMillis = 0
	carry(req, w.p(0), accept(2, 2))
	carry(req, w.p(2)) // none for this one
	w.is("fetch with one of two", m.do(req).listed(w.main), "0/0 0/2")
	ack := m.acknowledging()
	carry(ack, w.p(0), accept(3, 3))
	carry(ack, w.p(1), accept(2, 3))
	carry(ack, w.p(2), accept(0, 3))
	a := m.doAck(ack)
	for p := range int32(3) {
		w.code("acknowledge", a.result(w.p(p)), nil)
	}
	ack = m.acknowledging()
	carry(ack, w.p(0)) // none: no entry, unless the partition is unknown
	carry(ack, w.p(9))
	a = m.doAck(ack)
	w.code("unknown partition", a.result(w.p(9)), kerr.UnknownTopicOrPartition)
	if n := len(a.Topics[0].Partitions); n != 1 {
		t.Fatalf("%d partitions listed, want the unknown one only", n)
	}
}

func TestCheck109_AcknowledgingNeedsNoSessionPartition(t *testing.T) {
	w := start(t, setup{})
	w.keepLoaded()
	w.produce(w.p(0), 5)
	m, other := w.member(), w.member()
	m.takes("0-4x1", w.p(0))
	m.epoch = 0
	m.fetch() // a new session without partitions
	m.ack(nil, w.p(0), accept(0, 1), release(2, 4))
	m.getsNone()
	other.takes("2-4x2", w.p(0))
}

func TestCheck110_AcknowledgingUnknownOrDeniedTopics(t *testing.T) {
	states.record(t)
	t.Parallel()
	t.Run("unknown", func(t *testing.T) {
		w := start(t, setup{})
		w.produce(w.p(0), 2)
		m := w.member()
		m.takes("0-1x1", w.p(0))
		unknown := topic{"unknown", [16]byte{4, 5, 6}}
		m.ack(kerr.UnknownTopicID, unknown.at(0), accept(0, 1))
		m.ack(kerr.UnknownTopicOrPartition, w.p(99), accept(0, 1))
		m.ack(nil, w.p(0), accept(0, 1))
	})
	t.Run("denied", func(t *testing.T) {
		w := start(t, setup{guarded: true})
		w.produce(w.p(0), 3)
		m := w.member()
		m.takes("0-2x1", w.p(0))
		m.ack(nil, w.p(0), accept(0, 0))
		w.deny(kmsg.ACLResourceTypeTopic, w.main.name)
		w.until("denial", 20*time.Second, func() error {
			req := m.acknowledging()
			carry(req, w.p(0), accept(0, 0)) // without effect while it is allowed
			if m.doAck(req).result(w.p(0)) == 0 {
				return errors.New("still allowed")
			}
			return nil
		})
		m.ack(kerr.TopicAuthorizationFailed, w.p(0), accept(1, 2))
		req := m.fetching()
		carry(req, w.p(0), accept(1, 2))
		f := m.do(req)
		w.code("acknowledgement", f.ackFailure(w.p(0)), kerr.TopicAuthorizationFailed)
		w.code("fetch", f.failure(w.p(0)), kerr.TopicAuthorizationFailed)
	})
}

func TestCheck111_RenewExtendsTheLock(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.record.lock.duration.ms": fmt.Sprint(shortLock)}})
	w.produce(w.p(0), 4)
	m, other := w.member(), w.member()
	m.takes("0-3x1", w.p(0))
	began := time.Now()
	<-time.After(shortLock * time.Millisecond / 2) // half the lock, which is then lengthened
	m.ack(nil, w.p(0), renew(0, 1))
	renewed := time.Now()
	other.gathers("2-3x2", w.p(0))
	if held := time.Since(began); held < (shortLock-500)*time.Millisecond {
		t.Fatalf("free after %v", held)
	}
	m.ack(nil, w.p(0), accept(0, 0))
	other.gathers("1-1x2", w.p(0))
	if held := time.Since(renewed); held < (shortLock-500)*time.Millisecond {
		t.Fatalf("free %v after its renewal", held)
	}
	w.set(w.group, "share.renew.acknowledge.enable", "false")
	w.until("renewal to be off", 20*time.Second, func() error {
		req := other.acknowledging()
		req.IsRenewAck = true
		carry(req, w.p(0), renew(1, 3))
		if code := other.doAck(req).result(w.p(0)); code != kerr.InvalidRecordState.Code {
			return fmt.Errorf("error %d", code)
		}
		return nil
	})
	other.ack(nil, w.p(0), accept(1, 3))
}

func TestCheck112_RenewingFetchTakesNothing(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 4)
	m := w.member()
	m.takes("0-3x1", w.p(0))
	w.produce(w.p(0), 4)
	renewing := func(set func(*kmsg.ShareFetchRequest)) *kmsg.ShareFetchRequest {
		req := m.fetching()
		req.IsRenewAck = true
		req.MaxBytes, req.MinBytes, req.MaxRecords, req.MaxWaitMillis = 0, 0, 0, 0
		set(req)
		carry(req, w.p(0), renew(0, 3))
		return req
	}
	m.refused(renewing(func(r *kmsg.ShareFetchRequest) { r.MaxRecords = 1 }), kerr.InvalidRequest)
	m.refused(renewing(func(r *kmsg.ShareFetchRequest) { r.MaxBytes = 1 }), kerr.InvalidRequest)
	m.refused(renewing(func(r *kmsg.ShareFetchRequest) { r.MinBytes = 1 }), kerr.InvalidRequest)
	m.refused(renewing(func(r *kmsg.ShareFetchRequest) { r.MaxWaitMillis = 1 }), kerr.InvalidRequest)
	f := m.do(renewing(func(r *kmsg.ShareFetchRequest) {}))
	w.code("acknowledgement", f.ackFailure(w.p(0)), nil)
	w.is("acquired", f.acquired(w.p(0)), "")
	if f.took > 2*time.Second || f.AcquisitionLockTimeoutMillis != 30_000 {
		t.Fatalf("answered after %v, lock %d", f.took, f.AcquisitionLockTimeoutMillis)
	}
	m.takes("4-7x1", w.p(0))
}

func TestCheck113_RenewAndAcceptMix(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 6)
	m, other := w.member(), w.member()
	m.takes("0-5x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 1), renew(2, 3), release(4, 4))
	m.ack(nil, w.p(0), ack{2, 3, []int8{typeRenew, typeAccept}})
	other.takes("4-4x2", w.p(0))
	m.ack(nil, w.p(0), accept(2, 2), accept(5, 5))
	w.lagBecomes(w.p(0), 1)
}

func TestCheck114_LeavingTheGroupFreesNothing(t *testing.T) {
	w := start(t, setup{configs: map[string]string{"share.record.lock.duration.ms": fmt.Sprint(shortLock)}})
	w.produce(w.p(0), 5)
	j := w.join(w.group, w.main)
	m, other := w.member(), w.member()
	m.id = j.id
	m.takes("0-4x1", w.p(0))
	began := time.Now()
	j.leaves()
	other.getsNone(w.p(0))
	m.ack(nil, w.p(0), accept(0, 0))
	other.gathers("1-4x2", w.p(0))
	if held := time.Since(began); held < (shortLock-500)*time.Millisecond {
		t.Fatalf("free after %v", held)
	}
}
