package sharestate

import "testing"

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
