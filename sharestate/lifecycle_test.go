package sharestate

import (
	"bytes"
	"testing"
)

// Two replicas resolve `latest` at once, and records come between. Whichever Start is
// first in the log decides; its result tells both where to read, so with the lower
// offset first nothing is lost, and with the higher first both agree.
func TestFirstStartInTheLogWins(t *testing.T) {
	for _, order := range [][]int64{{100, 120}, {120, 100}} {
		b := newBench(t, 10)
		b.p = NewPartition(1, -1)
		for _, offset := range order {
			res, _ := b.apply(Start{Offset: offset})
			if got := res.(startResult).Offset; got != order[0] {
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

// Check 93.
func TestDeletedRecordsAreSkippedAndTheirAcksSucceed(t *testing.T) {
	b := newBench(t, 10)
	b.acquire("a", 20)
	b.apply(AdvanceLogStart{50, b.set})
	b.wantCode(b.ack("a", 0, 19, AckAccept), AckOK)
	b.want(b.acquire("a", 5), Acquired{50, 59, 1})
}

func TestPartitionMadeUnderALeaderEpochIsAsIfToldOfIt(t *testing.T) {
	for _, offset := range []int64{-1, 0, 7} {
		for _, epoch := range []int32{-1, 0, 3} {
			told := NewPartition(5, offset)
			mustApply(t, told, nil, EncodeOp(nil, LeaderChange{From: -1, Epoch: epoch, End: -1}), 0)
			made := NewPartitionUnder(5, offset, epoch)
			if !bytes.Equal(made.AppendSnapshot(nil), told.AppendSnapshot(nil)) {
				t.Errorf("start offset %d: made under epoch %d it is at %d, told of that at %d", offset, epoch, made.LogEpoch(), told.LogEpoch())
			}
		}
	}
}
