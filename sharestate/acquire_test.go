package sharestate

import (
	"reflect"
	"testing"
)

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
