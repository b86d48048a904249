package sharestate

import (
	"reflect"
	"testing"
)

// The checks of the conformance list (spec 12) that this package decides, each by
// its number. The stories in testdata go through the same rules at length.

// bench is a share-partition with an upstream of equal record batches.
type bench struct {
	t    *testing.T
	p    *Partition
	set  Settings
	size int64 // of upstream's record batches
	end  int64 // of upstream's log
	now  int64
	mode AcquireMode
}

func newBench(t *testing.T, size int64) *bench {
	return &bench{t: t, p: NewPartition(1, 0), size: size, end: 100_000, now: 1_000_000,
		set: Settings{DeliveryLimit: 5, LockDurationMs: 30_000, MaxRecordLocks: 2000, RenewEnabled: true}}
}

func (b *bench) apply(op Op) (any, bool) {
	b.t.Helper()
	raw, wake, err := b.p.Apply(nil, EncodeOp(nil, op), b.now)
	if err != nil {
		b.t.Fatal(err)
	}
	res, err := decodeResult(op, raw)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := invariants(b.p); err != nil {
		b.t.Fatal(err)
	}
	return res, wake
}

func (b *bench) op(member string, session int64, max int32) Acquire {
	f, _ := b.p.Fetchable(b.now, b.set)
	return b.opFrom(f.Position, member, session, max)
}

func (b *bench) opFrom(from int64, member string, session int64, max int32) Acquire {
	op := Acquire{Member: member, Session: SessionNonce{session, 1}, From: from, MaxRecords: max,
		BatchSize: 500, Mode: b.mode, Settings: b.set}
	for off := from - from%b.size; off < b.end && len(op.Batches) < 3000; off += b.size {
		op.Batches = append(op.Batches, OffsetRange{off, off + b.size - 1})
	}
	return op
}

func (b *bench) acquire(member string, max int32) []Acquired {
	b.t.Helper()
	res, _ := b.apply(b.op(member, 1, max))
	return res.(AcquireResult).Acquired
}

func (b *bench) ack(member string, first, last int64, types ...AckType) AckCode {
	b.t.Helper()
	res, _ := b.apply(Acknowledge{Member: member, Batches: []AckBatch{{first, last, types}}, Settings: b.set})
	return res.(AcknowledgeResult).Code
}

func (b *bench) want(got []Acquired, want ...Acquired) {
	b.t.Helper()
	if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
		b.t.Fatalf("acquired %v, want %v", got, want)
	}
}

func (b *bench) wantCode(got, want AckCode) {
	b.t.Helper()
	if got != want {
		b.t.Fatalf("code %d, want %d", got, want)
	}
}

// Check 71.
func TestAcquiredRecordIsNotDeliveredToAnother(t *testing.T) {
	b := newBench(t, 10)
	b.end = 10
	b.want(b.acquire("a", 10), Acquired{0, 9, 1})
	b.want(b.acquire("b", 10))
	b.wantCode(b.ack("a", 0, 9, AckRelease), AckOK)
	b.want(b.acquire("b", 10), Acquired{0, 9, 2})
}

// Check 72.
func TestDeliveryCountRisesAfterReleaseAndAfterExpiry(t *testing.T) {
	b := newBench(t, 10)
	b.want(b.acquire("a", 1), Acquired{0, 9, 1})
	b.wantCode(b.ack("a", 0, 4, AckRelease), AckOK)
	b.want(b.acquire("b", 1), Acquired{0, 4, 2})
	b.now += 30_000_000
	b.want(b.acquire("c", 1), Acquired{0, 4, 3}, Acquired{5, 9, 2})
}

// Check 76.
func TestBatchOptimizedTakesWholeRecordBatches(t *testing.T) {
	b := newBench(t, 25)
	b.want(b.acquire("a", 10), Acquired{0, 24, 1})
}

// Check 77.
func TestRecordLimitNeverTakesMoreThanMaxRecords(t *testing.T) {
	b := newBench(t, 25)
	b.mode = RecordLimit
	b.want(b.acquire("a", 10), Acquired{0, 9, 1})
	b.want(b.acquire("a", 10), Acquired{10, 19, 1})
	b.want(b.acquire("a", 10), Acquired{20, 24, 1}, Acquired{25, 29, 1})
}

// Checks 78, 79.
func TestBatchSizeCutsEntriesAtRecordBatches(t *testing.T) {
	b := newBench(t, 1)
	op := b.op("a", 1, 100)
	op.BatchSize = 10
	res, _ := b.apply(op)
	got := res.(AcquireResult).Acquired
	if len(got) != 10 {
		t.Fatalf("%d entries: %v", len(got), got)
	}
	for i, a := range got {
		if want := (Acquired{int64(10 * i), int64(10*i + 9), 1}); a != want {
			t.Errorf("entry %d is %v, want %v", i, a, want)
		}
	}
}

// Check 80.
func TestFullWindowFlowsAgainAfterTheFrontIsAcknowledged(t *testing.T) {
	b := newBench(t, 100)
	b.acquire("a", 2000)
	b.want(b.acquire("b", 500))
	if _, ok := b.p.Fetchable(b.now, b.set); ok {
		t.Fatal("fetchable with a full window")
	}
	res, wake := b.apply(Acknowledge{Member: "a", Batches: []AckBatch{{0, 499, []AckType{AckAccept}}}, Settings: b.set})
	if res.(AcknowledgeResult).Code != AckOK || !wake {
		t.Fatalf("%v, wake %v", res, wake)
	}
	b.want(b.acquire("b", 1000), Acquired{2000, 2499, 1})
}

// Check 81.
func TestStuckRecordStopsThePartitionAtTheLimit(t *testing.T) {
	b := newBench(t, 7)
	b.acquire("a", 1)
	for {
		got := b.acquire("b", 500)
		if len(got) == 0 {
			break
		}
		for _, g := range got {
			b.wantCode(b.ack("b", g.First, g.Last, AckAccept), AckOK)
		}
	}
	if s := b.p.Summary(); s.StartOffset != 0 || s.InFlight < 2000 || s.InFlight > 2006 {
		t.Fatalf("%+v", s)
	}
	b.wantCode(b.ack("a", 0, 6, AckAccept), AckOK)
	if got := b.acquire("b", 7); len(got) != 1 {
		t.Fatalf("after the stuck records are finished: %v", got)
	}
}

// Check 82.
func TestReleasedRecordsComeBeforeNewOnes(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 20)
	b.wantCode(b.ack("a", 10, 12, AckRelease), AckOK)
	b.want(b.acquire("b", 4), Acquired{10, 12, 2}, Acquired{20, 29, 1})
}

// Checks 87, 114: the lock alone frees records, at its end and not before.
func TestLockExpiryFreesRecordsNotBefore(t *testing.T) {
	b := newBench(t, 10)
	b.end = 10
	b.acquire("a", 10)
	b.now += 30_000_000 - 1
	b.want(b.acquire("b", 10))
	b.now++
	b.want(b.acquire("b", 10), Acquired{0, 9, 2})
}

// Check 88, by all three ways.
func TestDeliveryLimitArchivesAndStartOffsetPasses(t *testing.T) {
	ways := map[string]func(b *bench){
		"release": func(b *bench) { b.wantCode(b.ack("a", 0, 0, AckRelease), AckOK) },
		"timeout": func(b *bench) { b.now += 30_000_000; b.apply(Expire{b.set}) },
		"close":   func(b *bench) { b.apply(Release{"a", SessionNonce{1, 1}, b.set}) },
	}
	for name, giveBack := range ways {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1)
			b.end = 1
			for delivery := int16(1); delivery <= 5; delivery++ {
				b.want(b.acquire("a", 1), Acquired{0, 0, delivery})
				giveBack(b)
			}
			b.want(b.acquire("a", 1))
			if b.p.SPSO() != 1 {
				t.Fatalf("SPSO %d", b.p.SPSO())
			}
		})
	}
}

// Check 89, trap 13.
func TestReleasedBatchShrinksNearTheLimitAndLastAttemptsAreAlone(t *testing.T) {
	b := newBench(t, 500)
	for delivery := int16(1); delivery <= 3; delivery++ {
		b.want(b.acquire("a", 500), Acquired{0, 499, delivery})
		b.wantCode(b.ack("a", 0, 499, AckRelease), AckOK)
	}
	b.want(b.acquire("a", 500), Acquired{0, 249, 4})
	b.wantCode(b.ack("a", 0, 249, AckRelease), AckOK)
	for off := int64(0); off < 3; off++ {
		b.want(b.acquire("a", 500), Acquired{off, off, 5})
	}
}

// Check 90.
func TestChangedSettingsCountFromTheNextOp(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 10)
	b.set.LockDurationMs, b.set.DeliveryLimit, b.set.MaxRecordLocks = 1000, 2, 15
	b.want(b.acquire("b", 100), Acquired{10, 19, 1})
	b.want(b.acquire("b", 100))
	if deadline, _ := b.p.NextDeadline(); deadline != b.now+1_000_000 {
		t.Fatalf("deadline %d at %d", deadline, b.now)
	}
	b.now += 1_000_000
	b.want(b.acquire("b", 100), Acquired{10, 19, 2})
	b.wantCode(b.ack("b", 10, 19, AckRelease), AckOK)
	b.want(b.acquire("b", 100))
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

// Check 92.
func TestAbortedRecordsAreNeverHandedOut(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 10)
	b.wantCode(b.ack("a", 0, 9, AckRelease), AckOK) // redelivered, found aborted now
	op := b.op("b", 1, 40)
	op.Aborted = []OffsetRange{{0, 9}, {20, 29}}
	res, _ := b.apply(op)
	b.want(res.(AcquireResult).Acquired, Acquired{10, 19, 1}, Acquired{30, 39, 1})
}

// Check 93.
func TestDeletedRecordsAreSkippedAndTheirAcksSucceed(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 20)
	b.apply(AdvanceLogStart{50, b.set})
	b.wantCode(b.ack("a", 0, 19, AckAccept), AckOK)
	b.want(b.acquire("a", 5), Acquired{50, 59, 1})
}

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

// An acquire judged after a rollback of Redis or after a reset was made for another
// state. Its read began above the position, so it proves nothing about what lies
// between: no record there may be lost to "compacted away".
func TestAcquireJudgedAfterRollbackOrResetArchivesNothing(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 10)
	b.wantCode(b.ack("a", 0, 9, AckRelease), AckOK)
	rollback := b.p.AppendSnapshot(nil) // what Redis will fall back to: 0-9 Available
	b.acquire("a", 10)
	b.wantCode(b.ack("a", 0, 9, AckAccept), AckOK)
	late := b.op("b", 2, 10) // read at 10
	late.Aborted = []OffsetRange{{10, 19}}

	check := func(name string, first int64) {
		t.Helper()
		before := b.p.Ranges()
		res, _ := b.apply(late)
		if r := res.(AcquireResult); !r.Stale || len(r.Acquired) > 0 {
			t.Fatalf("%s: %+v", name, r)
		}
		if !reflect.DeepEqual(before, b.p.Ranges()) {
			t.Fatalf("%s: %v became %v", name, before, b.p.Ranges())
		}
		if f, ok := b.p.Fetchable(b.now, b.set); !ok || f.Position != first {
			t.Fatalf("%s: fetchable %+v", name, f)
		}
	}
	if err := b.p.Restore(rollback); err != nil {
		t.Fatal(err)
	}
	check("rollback", 0)
	b.apply(Reset{5, 2})
	check("reset to an offset", 5)
	b.want(b.acquire("b", 1), Acquired{5, 9, 1})

	// What is tracked at its offsets is handed out but for what it takes for aborted, which it may be wrong about: those stay.
	b.acquire("b", 10)
	b.acquire("b", 10)
	b.apply(Release{"b", SessionNonce{1, 1}, b.set})
	res, _ := b.apply(late)
	if r := res.(AcquireResult); !r.Stale {
		t.Fatalf("tracked: %+v", r)
	}
	for _, r := range b.p.Ranges() {
		if r.State == StateArchived || r.State == StateAcquired && r.First < 20 {
			t.Fatalf("tracked: %+v", b.p.Ranges())
		}
	}
	b.apply(Release{"b", SessionNonce{1, 1}, b.set})
	if f, ok := b.p.Fetchable(b.now, b.set); !ok || f.Position != 5 {
		t.Fatalf("tracked: fetchable %+v", f)
	}
	b.apply(Reset{-1, 3})
	res, _ = b.apply(late)
	if r := res.(AcquireResult); !r.Stale || len(r.Acquired) > 0 || b.p.Started() {
		t.Fatalf("reset to the policy: %+v", r)
	}
}

// Two replicas resolve `latest` at once, and records come between. Whichever Start is
// first in the log decides; its result tells both where to read, so with the lower
// offset first nothing is lost, and with the higher first both agree.
func TestFirstStartInTheLogWins(t *testing.T) {
	for _, order := range [][]int64{{100, 120}, {120, 100}} {
		b := newBench(t, 10)
		b.p = NewPartition(1, -1)
		for _, offset := range order {
			res, _ := b.apply(Start{Offset: offset})
			if got := res.(StartResult).Offset; got != order[0] {
				t.Fatalf("start %v: result %d", order, got)
			}
		}
		// The replica that lost has read at its own offset meanwhile.
		res, _ := b.apply(b.opFrom(order[1], "b", 1, 10))
		if r := res.(AcquireResult); r.Stale != (order[1] > order[0]) {
			t.Fatalf("start %v: %+v", order, r)
		}
		if b.p.SPSO() != order[0] {
			t.Fatalf("start %v: SPSO %d", order, b.p.SPSO())
		}
	}
}

// A late close of an old session must not touch what the member's new one acquired.
func TestReleaseUnderOlderSessionSparesNewerOne(t *testing.T) {
	b := newBench(t, 10)
	b.apply(b.op("a", 5, 10))
	b.apply(b.op("a", 6, 10))
	res, _ := b.apply(Release{"a", SessionNonce{5, 1}, b.set})
	if res.(int64) != 10 {
		t.Fatalf("released %v", res)
	}
	if got := b.p.heldBy("a"); !reflect.DeepEqual(got, []OffsetRange{{10, 19}}) {
		t.Fatalf("held %v", got)
	}
	b.wantCode(b.ack("a", 10, 19, AckAccept), AckOK) // acks ask for the member only
	if res, _ := b.apply(Release{"b", SessionNonce{9, 1}, b.set}); res.(int64) != 0 {
		t.Fatalf("released %v of another member", res)
	}
}

// Time stamps that go back (a failed-over Redis) neither revive nor end a lock.
func TestClockIsMonotonic(t *testing.T) {
	b := newBench(t, 10)
	b.end = 10
	b.acquire("a", 10)
	b.now -= 900_000
	b.apply(Fence{})
	b.now += 900_000 + 29_999_999
	b.want(b.acquire("b", 10))
	b.now++
	b.apply(Fence{})
	b.now -= 5_000_000
	b.want(b.acquire("b", 10), Acquired{0, 9, 2})
	if deadline, _ := b.p.NextDeadline(); deadline != 1_000_000+60_000_000 {
		t.Fatalf("deadline %d", deadline)
	}
}

// Sessions come and go for months; only those that hold something are remembered.
func TestPassedSessionsAreForgotten(t *testing.T) {
	b := newBench(t, 10)
	b.end, b.set.MaxRecordLocks = 1_000_000, 1_000_000
	b.apply(b.op("holder", 1, 10))
	for session := range int64(300) {
		op := b.opFrom(10*(session+1), "a", session, 10)
		op.Batches = op.Batches[:1]
		b.apply(op)
		held := b.p.heldBy("a")
		b.wantCode(b.ack("a", held[0].First, held[0].Last, AckAccept), AckOK)
		if got := b.p.heldBy("holder"); len(got) != 1 || got[0] != (OffsetRange{0, 9}) {
			t.Fatalf("session %d: holder has %v", session, got)
		}
	}
	if n := len(b.p.holders.list); n > minSweep {
		t.Fatalf("%d sessions remembered", n)
	}
}

func TestNextClaimIsWhenDeadLettersMayBeTaken(t *testing.T) {
	b := newBench(t, 10)
	b.set.DeadLetters = true
	want := func(at int64, ok bool) {
		t.Helper()
		if got, has := b.p.NextClaim(); got != at || has != ok {
			t.Fatalf("next claim at %d %v, want %d %v", got, has, at, ok)
		}
	}
	b.acquire("a", 20)
	want(0, false)
	b.wantCode(b.ack("a", 0, 9, AckReject), AckOK)
	want(0, true)
	b.apply(ClaimArchiving{7, 1, 5, 100, b.set})
	want(0, true) // half of them is left
	b.apply(ClaimArchiving{7, 1, 5, 200, b.set})
	want(b.now+100_000, true)
	b.apply(ArchivingDone{1, []OffsetRange{{0, 4}}, b.set})
	want(b.now+200_000, true)
	b.apply(ReleaseReplica{7, b.set})
	want(0, true)
	b.apply(ArchivingDone{1, []OffsetRange{{5, 9}}, b.set})
	want(0, false)
}

// The same for replicas that claimed dead letters and died.
func TestPassedClaimsAreForgotten(t *testing.T) {
	b := newBench(t, 10)
	b.set.DeadLetters = true
	b.acquire("a", 10)
	b.wantCode(b.ack("a", 0, 9, AckReject), AckOK)
	for replica := range uint64(300) {
		res, _ := b.apply(ClaimArchiving{replica, 1, 100, 100, b.set})
		if got := res.(ClaimResult).Ranges; len(got) != 1 || got[0] != (ArchivingRange{0, 9, 1, true}) {
			t.Fatalf("replica %d claimed %v", replica, got)
		}
		b.now += 100_000
	}
	if n := len(b.p.holders.list); n > minSweep {
		t.Fatalf("%d claimants remembered", n)
	}
}
