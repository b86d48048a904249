package serve

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestCheck096_AcceptedIsNeverRedelivered(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 4)
	w.gets(a.open(topic), topic, entry{0, 3, 1})
	if code := a.ackCode(topic, 0, accept(0, 1), accept(3, 3)); code != 0 {
		t.Fatalf("code %d", code)
	}
	if spso := w.reps[1].spso("g", topic.ID); spso != 2 {
		t.Errorf("SPSO %d on the other replica", spso)
	}
	a.r.srv.ConnClosed(a.c)
	w.gets(b.open(topic, maxWait(5*time.Second)), topic, entry{2, 2, 2})
}

func TestCheck097_RejectAndGapAreFinalReleaseIsNot(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 3)
	w.gets(a.open(topic), topic, entry{0, 2, 1})
	w.gets(a.fetch(with(topic, 0, reject(0, 0), ack{1, 1, []int8{0}}, release(2, 2))), topic, entry{2, 2, 2})
	if spso := w.reps[0].spso("g", topic.ID); spso != 2 {
		t.Errorf("SPSO %d", spso)
	}
}

func TestCheck098_RangeAndPerOffsetTypes(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 6)
	w.gets(a.open(topic), topic, entry{0, 5, 1})
	if code := a.ackCode(topic, 0, ack{0, 2, []int8{1, 2, 3}}, accept(3, 5)); code != 0 {
		t.Fatalf("code %d", code)
	}
	w.gets(a.fetch(), topic, entry{1, 1, 2})
	if code := a.ackCode(topic, 0, ack{1, 1, []int8{1, 1}}); code != codeInvalidRequest {
		t.Errorf("array of wrong length: code %d", code)
	}
}

func TestCheck099And100_MalformedBatchesAreInvalid(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 6)
	w.gets(a.open(topic), topic, entry{0, 5, 1})
	for name, acks := range map[string][]ack{
		"no type":           {{0, 0, nil}},
		"type 5":            {{0, 0, []int8{5}}},
		"type -1":           {{0, 0, []int8{-1}}},
		"first after last":  {accept(3, 2)},
		"overlapping":       {accept(0, 3), accept(2, 4)},
		"descending":        {accept(4, 5), accept(0, 1)},
		"types do not fit":  {{0, 3, []int8{1, 1}}},
		"bad after a good":  {accept(0, 1), {2, 2, nil}},
		"good after a bad ": {{0, 0, []int8{9}}, accept(1, 1)},
	} {
		if code := a.ackCode(topic, 0, acks...); code != codeInvalidRequest {
			t.Errorf("%s: code %d", name, code)
		}
	}
	req := a.fetchRequest(a.epoch)
	with(topic, 0, ack{0, 0, []int8{4}})(req)
	for _, version := range []int16{1, 2} { // v1 knows no renewals, v2 wants them announced
		req.Version, req.ShareSessionEpoch = version, a.epoch
		resp := a.r.ask(w.ctx, a.c, req).(*kmsg.ShareFetchResponse)
		a.epoch++
		if p, _ := part(resp, topic.ID, 0); p.AcknowledgeErrorCode != codeInvalidRequest {
			t.Errorf("renewal in v%d: %+v", version, p)
		}
	}
	if code := a.ackCode(topic, 0, accept(0, 5)); code != 0 {
		t.Errorf("nothing should have been applied: code %d", code)
	}
}

func TestCheck101_OnlyTheHolderMayAcknowledge(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 4)
	w.gets(a.open(topic), topic, entry{0, 3, 1})
	b.open(topic)
	if code := b.ackCode(topic, 0, accept(1, 1)); code != codeInvalidState {
		t.Errorf("another member's record: code %d", code)
	}
	if code := a.ackCode(topic, 0, release(1, 1)); code != 0 {
		t.Fatalf("release: code %d", code)
	}
	if code := a.ackCode(topic, 0, accept(1, 1)); code != codeInvalidState {
		t.Errorf("a released record: code %d", code)
	}
	if code := a.ackCode(topic, 0, accept(2, 2)); code != 0 {
		t.Fatalf("accept: code %d", code)
	}
	if code := a.ackCode(topic, 0, accept(2, 2)); code != codeInvalidState {
		t.Errorf("an accepted record in the window: code %d", code)
	}
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Fatalf("accept: code %d", code)
	}
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 { // check 102
		t.Errorf("below SPSO: code %d", code)
	}
	if code := a.ackCode(topic, 0, accept(3, 9)); code != codeInvalidRequest { // check 103
		t.Errorf("past what was handed out: code %d", code)
	}
}

func TestCheck104_AcknowledgementsAreAtomicPerPartition(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 2)
	w.produce("t", 0, 2, 1)
	w.produce("t", 1, 2, 1)
	w.alter("g", "share.auto.offset.reset", "earliest")
	m := w.reps[0].member("g", "m").join("t")
	m.open(topic)
	resp := m.fetch(with(topic, 0, accept(0, 0), accept(1, 7)), with(topic, 1, accept(0, 1)))
	bad, _ := part(resp, topic.ID, 0)
	good, _ := part(resp, topic.ID, 1)
	if bad.AcknowledgeErrorCode != codeInvalidRequest || bad.ErrorCode != 0 { // check 105
		t.Errorf("%+v", bad)
	}
	if good.AcknowledgeErrorCode != 0 {
		t.Errorf("%+v", good)
	}
	if code := m.ackCode(topic, 0, accept(0, 1)); code != 0 {
		t.Errorf("offset 0 should not have been accepted: code %d", code)
	}
}

func TestCheck106_EveryPartitionWithAcksIsAnswered(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 3)
	w.produce("t", 0, 1, 1)
	w.alter("g", "share.auto.offset.reset", "earliest")
	m := w.reps[0].member("g", "m").join("t")
	m.open(topic)
	resp := m.fetch(with(topic, 0, accept(0, 0)), with(topic, 1), forget(topic, 0, 1))
	if _, ok := part(resp, topic.ID, 0); !ok {
		t.Error("the acknowledged partition is missing")
	}
	if _, ok := part(resp, topic.ID, 1); !ok {
		t.Error("the partition named without acknowledgements is missing")
	}
	if _, ok := part(resp, topic.ID, 2); ok {
		t.Error("an unnamed, unchanged partition is listed")
	}
	// When all that had batches fail their validation, only these are listed.
	resp = m.fetch(with(topic, 0, ack{0, 0, nil}), with(topic, 1), forget(topic, 0, 1))
	if p, ok := part(resp, topic.ID, 0); !ok || p.AcknowledgeErrorCode != codeInvalidRequest {
		t.Errorf("%v %+v", ok, p)
	}
	if _, ok := part(resp, topic.ID, 1); ok {
		t.Error("a partition without batches is listed")
	}
}

func TestCheck109_PartitionOutsideTheSessionTakesAcks(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	a.fetch(forget(topic, 0))
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Errorf("code %d", code)
	}
}

func renew(first, last int64) ack { return ack{first, last, []int8{4}} }

func TestCheck111_RenewRestartsTheLock(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 2)
	w.gets(a.open(topic), topic, entry{0, 1, 1})
	b.open(topic)
	w.advance(20 * time.Second)
	if code := a.ackCode(topic, 0, accept(0, 0), renew(1, 1)); code != 0 { // check 113
		t.Fatalf("renew: code %d", code)
	}
	w.advance(20 * time.Second)
	w.gets(b.fetch(), topic)
	w.alter("g", "share.renew.acknowledge.enable", "false")
	resp := a.acknowledge(a.epoch, topic, 0, renew(1, 1))
	a.epoch++
	if p := resp.Topics[0].Partitions[0]; p.ErrorCode != codeInvalidState || p.ErrorMessage == nil || *p.ErrorMessage != renewDisabled {
		t.Errorf("renew where it is off: %+v", p)
	}
	if code := a.ackCode(topic, 0, accept(1, 1)); code != 0 {
		t.Errorf("accept: code %d", code)
	}
}

func TestCheck112_RenewingFetchFetchesNothing(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 2)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	renewing := func(r *kmsg.ShareFetchRequest) { r.IsRenewAck = true }
	zero := func(r *kmsg.ShareFetchRequest) { r.MinBytes, r.MaxBytes, r.MaxRecords, r.MaxWaitMillis = 0, 0, 0, 0 }
	resp := a.send(w.ctx, a.epoch, with(topic, 0, renew(0, 0)), renewing, zero, maxRecords(1))
	if resp.ErrorCode != codeInvalidRequest {
		t.Errorf("with MaxRecords 1: code %d", resp.ErrorCode)
	}
	resp = a.fetch(with(topic, 0, renew(0, 0)), renewing, zero)
	if p, ok := part(resp, topic.ID, 0); !ok || p.AcknowledgeErrorCode != 0 || len(p.AcquiredRecords) != 0 {
		t.Errorf("%v %+v", ok, p)
	}
}

func TestCheck114_LeavingTheGroupFreesNothing(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.MemberEpoch = 1, "g", "a", -1
	if resp := a.r.ask(w.ctx, a.c, req).(*kmsg.ShareGroupHeartbeatResponse); resp.ErrorCode != 0 || resp.MemberEpoch != -1 {
		t.Fatalf("leave: %+v", resp)
	}
	w.gets(b.open(topic), topic)
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Errorf("code %d", code)
	}
}

func TestStateErrorsComeWithTheirText(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 4)
	w.gets(a.open(topic), topic, entry{0, 3, 1})
	for name, c := range map[string]struct {
		acks []ack
		text bool
	}{
		"done in the same request": {[]ack{accept(0, 1), accept(1, 2)}, true},
		"never handed out":         {[]ack{accept(2, 9)}, true},
		"malformed":                {[]ack{accept(2, 1)}, false}, // a broker tells none
	} {
		resp := a.fetch(with(topic, 0, c.acks...))
		p, ok := part(resp, topic.ID, 0)
		if !ok || p.AcknowledgeErrorCode == codeNone || (p.AcknowledgeErrorMessage != nil) != c.text {
			t.Errorf("%s: %v %+v", name, ok, p)
		}
	}
}

func TestAcknowledgeListsPartitionsWithoutBatchesOnlyInError(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 4)
	w.gets(a.open(topic), topic, entry{0, 3, 1})
	if resp := a.acknowledge(a.epoch, topic, 0); resp.ErrorCode != codeNone || len(resp.Topics) != 0 {
		t.Errorf("nothing to acknowledge: %+v", resp)
	}
	a.epoch++
	if code := a.ackCode(topic, 7); code != codeUnknownTopic {
		t.Errorf("unknown partition: code %d", code)
	}
}

func TestFetchOfNothingListsNoEmptyPartition(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 0)
	if resp := a.open(topic, maxRecords(0)); len(resp.Topics) != 0 {
		t.Errorf("opening without a fetch: %+v", resp.Topics)
	}
	if resp := a.fetch(maxWait(0)); len(resp.Topics) != 0 {
		t.Errorf("what the opening request did not try: %+v", resp.Topics)
	}
	other := w.topic("other", 1)
	a.join("t", "other")
	if resp := a.fetch(with(other, 0), maxRecords(0)); len(resp.Topics) != 0 {
		t.Errorf("added without a fetch: %+v", resp.Topics)
	}
	if _, ok := part(a.fetch(maxWait(0)), other.ID, 0); !ok {
		t.Error("the added partition is not listed by the first fetch")
	}
	if resp := a.fetch(maxWait(0)); len(resp.Topics) != 0 {
		t.Errorf("listed twice: %+v", resp.Topics)
	}
}
