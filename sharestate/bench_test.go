package sharestate

import "testing"

// BenchmarkAcquireAndAckBatch is the common cycle: acquire one record batch of 500
// and accept it.
func BenchmarkAcquireAndAckBatch(b *testing.B) {
	p := NewPartition(1, 0)
	var op, dst []byte
	batches := make([]OffsetRange, 1)
	acks := []AckBatch{{Types: []AckType{AckAccept}}}
	b.ReportAllocs()
	for i := range b.N {
		first := int64(i) * 500
		batches[0] = OffsetRange{first, first + 499}
		op = EncodeOp(op[:0], Acquire{Member: "Tm9uZSBvZiB5b3VyIGJ1cw", Session: SessionNonce{1, 1}, From: first,
			Batches: batches, MaxRecords: 500, BatchSize: 500, Settings: goldenSettings})
		dst = mustApply(b, p, dst[:0], op, int64(i))
		acks[0].First, acks[0].Last = first, first+499
		op = EncodeOp(op[:0], Acknowledge{Member: "Tm9uZSBvZiB5b3VyIGJ1cw", Batches: acks, Settings: goldenSettings})
		dst = mustApply(b, p, dst[:0], op, int64(i))
	}
}

// BenchmarkSingleAckInWideWindow acknowledges and releases single records in a
// window of 2000 ranges.
func BenchmarkSingleAckInWideWindow(b *testing.B) {
	p := wideWindow(b)
	var op, dst []byte
	acks := []AckBatch{{Types: []AckType{AckRenew}}}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		off := 2 * (int64(i) * 7 % 1000)
		acks[0].First, acks[0].Last = off, off
		op = EncodeOp(op[:0], Acknowledge{Member: "a", Batches: acks, Settings: goldenSettings})
		dst = mustApply(b, p, dst[:0], op, int64(i%1000))
	}
}

// BenchmarkSingleAcksInOrder acquires 2000 single-record batches and accepts them one
// op at a time, as a consumer with explicit acknowledgement does. One op per
// iteration.
func BenchmarkSingleAcksInOrder(b *testing.B) {
	p := NewPartition(1, 0)
	var op, dst []byte
	batches := make([]OffsetRange, 2000)
	acks := []AckBatch{{Types: []AckType{AckAccept}}}
	b.ReportAllocs()
	for i := range int64(b.N) {
		if i%2000 == 0 {
			for j := range batches {
				batches[j] = OffsetRange{i + int64(j), i + int64(j)}
			}
			op = EncodeOp(op[:0], Acquire{Member: "a", Session: SessionNonce{1, 1}, From: i,
				Batches: batches, MaxRecords: 2000, BatchSize: 1, Settings: goldenSettings})
			dst = mustApply(b, p, dst[:0], op, i)
		}
		acks[0].First, acks[0].Last = i, i
		op = EncodeOp(op[:0], Acknowledge{Member: "a", Batches: acks, Settings: goldenSettings})
		dst = mustApply(b, p, dst[:0], op, i)
	}
}

// BenchmarkFiveHundredAcksInOneOp is the widest explicit acknowledgement.
func BenchmarkFiveHundredAcksInOneOp(b *testing.B) {
	p := wideWindow(b)
	snapshot := p.AppendSnapshot(nil)
	acks := make([]AckBatch, 500)
	for i := range acks {
		acks[i] = AckBatch{int64(4 * i), int64(4 * i), []AckType{AckRenew}}
	}
	op := EncodeOp(nil, Acknowledge{Member: "a", Batches: acks, Settings: goldenSettings})
	if err := p.Restore(snapshot); err != nil {
		b.Fatal(err)
	}
	var dst []byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		dst = mustApply(b, p, dst[:0], op, int64(i%1000))
	}
}

func BenchmarkSnapshotOfWideWindow(b *testing.B) {
	p := wideWindow(b)
	var dst []byte
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		dst = p.AppendSnapshot(dst[:0])
	}
	b.ReportMetric(float64(len(dst)), "bytes")
}

// wideWindow holds 2000 single-record ranges, every other one Acquired by a.
func wideWindow(b *testing.B) *Partition {
	p := NewPartition(1, 0)
	batches := make([]OffsetRange, 2000)
	for i := range batches {
		batches[i] = OffsetRange{int64(i), int64(i)}
	}
	mustApply(b, p, nil, EncodeOp(nil, Acquire{Member: "a", Session: SessionNonce{1, 1}, Batches: batches,
		MaxRecords: 2000, BatchSize: 1, Settings: goldenSettings}), 0)
	var acks []AckBatch
	for i := int64(1); i < 2000; i += 2 {
		acks = append(acks, AckBatch{i, i, []AckType{AckAccept}})
	}
	mustApply(b, p, nil, EncodeOp(nil, Acknowledge{Member: "a", Batches: acks, Settings: goldenSettings}), 0)
	if len(p.spans) != 2000 {
		b.Fatalf("%d ranges", len(p.spans))
	}
	return p
}

func mustApply(b testing.TB, p *Partition, dst, op []byte, now int64) []byte {
	dst, _, err := p.Apply(dst, op, now)
	if err != nil {
		b.Fatal(err)
	}
	return dst
}

// TestHotPathAllocatesNothing: acquire and acknowledge run for every fetch.
func TestHotPathAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	p := NewPartition(1, 0)
	next := int64(0)
	var op, dst []byte
	batches, acks := make([]OffsetRange, 1), []AckBatch{{Types: []AckType{AckAccept}}}
	cycle := func() {
		batches[0] = OffsetRange{next, next + 9}
		acks[0].First, acks[0].Last = next, next+9
		a := Acquire{Member: "m", Session: SessionNonce{1, 1}, From: next, Batches: batches, MaxRecords: 500, BatchSize: 500, Settings: goldenSettings}
		op = a.appendBody(append(op[:0], kindAcquire))
		dst, _, _ = p.Apply(dst[:0], op, next)
		k := Acknowledge{Member: "m", Batches: acks, Settings: goldenSettings}
		op = k.appendBody(append(op[:0], kindAcknowledge))
		dst, _, _ = p.Apply(dst[:0], op, next)
		next += 10
	}
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n > 0 {
		t.Fatalf("%v allocations", n)
	}
	if p.SPSO() != next {
		t.Fatalf("SPSO %d, want %d", p.SPSO(), next)
	}
}
