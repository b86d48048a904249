package sharestate

import (
	"reflect"
	"testing"
)

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
