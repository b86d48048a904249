package sharestate

import (
	"reflect"
	"testing"
)

// Checks 96, 97.
func TestAcceptRejectAndGapAreFinalReleaseIsNot(t *testing.T) {
	b := newBench(t, 4)
	b.end = 4
	b.acquire("a", 4)
	b.wantCode(b.ack("a", 0, 3, AckAccept, AckReject, AckGap, AckRelease), AckOK)
	b.want(b.acquire("a", 4), Acquired{3, 3, 2})
	b.wantCode(b.ack("a", 3, 3, AckAccept), AckOK)
	if s := b.p.Summary(); s.StartOffset != 4 || s.InFlight != 0 {
		t.Fatalf("%+v", s)
	}
}

// Check 91.
func TestGapAcksLetStartOffsetPassHolesAndMarkers(t *testing.T) {
	b := newBench(t, 10)
	op := b.op("a", 1, 100)
	op.Batches = []OffsetRange{{0, 9}, {15, 24}, {25, 25}}
	res, _ := b.apply(op)
	b.want(res.(AcquireResult).Acquired, Acquired{0, 25, 1})
	res, _ = b.apply(Acknowledge{Member: "a", Settings: b.set, Batches: []AckBatch{
		{0, 9, []AckType{AckAccept}}, {10, 14, []AckType{AckGap}}, {15, 24, []AckType{AckAccept}}, {25, 25, []AckType{AckGap}}}})
	b.wantCode(res.(AcknowledgeResult).Code, AckOK)
	if b.p.SPSO() != 26 {
		t.Fatalf("SPSO %d", b.p.SPSO())
	}
}

// Checks 98, 99, 100, 103: what is refused as a request.
func TestMalformedAcknowledgementsAreInvalidRequests(t *testing.T) {
	cases := map[string][]AckBatch{
		"wrong number of types":   {{0, 4, []AckType{AckAccept, AckAccept}}},
		"no types":                {{0, 4, nil}},
		"type 5":                  {{0, 4, []AckType{5}}},
		"type -1":                 {{0, 4, []AckType{-1}}},
		"first above last":        {{4, 0, []AckType{AckAccept}}},
		"negative offset":         {{-1, 0, []AckType{AckAccept}}},
		"second before first end": {{0, 4, []AckType{AckAccept}}, {3, 6, []AckType{AckAccept}}},
		"past what is handed out": {{8, 10, []AckType{AckAccept}}},
		"far past":                {{50, 60, []AckType{AckAccept}}},
		"good, then past":         {{0, 4, []AckType{AckAccept}}, {10, 10, []AckType{AckAccept}}},
	}
	for name, batches := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 10)
			b.acquire("a", 10)
			before := b.p.AppendSnapshot(nil)
			res, _ := b.apply(Acknowledge{Member: "a", Batches: batches, Settings: b.set})
			b.wantCode(res.(AcknowledgeResult).Code, AckInvalidRequest)
			if after := b.p.AppendSnapshot(nil); !reflect.DeepEqual(before, after) {
				t.Fatal("something changed")
			}
		})
	}
}

// Check 101.
func TestAcksOfWhatIsNotHeldAreInvalidRecordState(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 10)
	b.wantCode(b.ack("b", 0, 9, AckAccept), AckInvalidRecordState)
	b.wantCode(b.ack("a", 2, 2, AckRelease), AckOK)
	b.wantCode(b.ack("a", 2, 2, AckAccept), AckInvalidRecordState)
	b.wantCode(b.ack("a", 4, 4, AckAccept), AckOK)
	b.wantCode(b.ack("a", 4, 4, AckAccept), AckInvalidRecordState)
	b.now += 30_000_000
	b.wantCode(b.ack("a", 7, 7, AckAccept), AckInvalidRecordState)
}

// Check 102.
func TestAckBelowStartOffsetHasNoEffect(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 20)
	b.wantCode(b.ack("a", 0, 9, AckAccept), AckOK)
	before := b.p.AppendSnapshot(nil)
	b.wantCode(b.ack("a", 0, 9, AckReject), AckOK)
	b.wantCode(b.ack("stranger", 3, 4, AckRelease), AckOK)
	if !reflect.DeepEqual(before, b.p.AppendSnapshot(nil)) {
		t.Fatal("something changed")
	}
	b.wantCode(b.ack("a", 5, 12, AckAccept), AckOK)
	if b.p.SPSO() != 13 {
		t.Fatalf("SPSO %d", b.p.SPSO())
	}
}

// Check 104.
func TestOneBadBatchUndoesAllOfThePartition(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 10)
	b.acquire("b", 10)
	before := b.p.AppendSnapshot(nil)
	res, _ := b.apply(Acknowledge{Member: "a", Settings: b.set, Batches: []AckBatch{
		{0, 3, []AckType{AckAccept}}, {4, 6, []AckType{AckRelease}}, {9, 10, []AckType{AckAccept}}}})
	b.wantCode(res.(AcknowledgeResult).Code, AckInvalidRecordState)
	if !reflect.DeepEqual(before, b.p.AppendSnapshot(nil)) {
		t.Fatal("something changed")
	}
}

// Checks 111, 113.
func TestRenewExtendsTheLockFromNow(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 10)
	b.now += 20_000_000
	b.wantCode(b.ack("a", 0, 2, AckRenew, AckAccept, AckRenew), AckOK)
	b.now += 29_999_999
	b.want(b.acquire("b", 1), Acquired{3, 9, 2})
	b.wantCode(b.ack("a", 0, 0, AckAccept), AckOK)
	b.set.RenewEnabled = false
	b.wantCode(b.ack("a", 2, 2, AckRenew), AckRenewDisabled)
	b.wantCode(b.ack("a", 2, 2, AckAccept), AckOK)
}
