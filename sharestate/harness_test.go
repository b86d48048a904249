package sharestate

import (
	"reflect"
	"testing"
)

// What the tests of single rules have in common. Those that are called checks are in the conformance list (spec 12), each by its
// number; the stories in testdata go through the same rules at length, and the property test through all of them at once.

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
