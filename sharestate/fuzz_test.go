package sharestate

import (
	"bytes"
	"errors"
	"reflect"
	"runtime"
	"testing"
)

func FuzzDecodeOp(f *testing.F) {
	for _, g := range goldenOps {
		f.Add(EncodeOp(nil, g.op))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		op, err := decodeOp(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownKind) {
				t.Fatalf("error %v", err)
			}
			return
		}
		again, err := decodeOp(EncodeOp(nil, op))
		if err != nil || !reflect.DeepEqual(again, op) {
			t.Fatalf("%+v\nencoded decodes to\n%+v, %v", op, again, err)
		}
	})
}

func FuzzRestore(f *testing.F) {
	for seed := uint64(1); seed <= 5; seed++ {
		h := newHistory(seed)
		for range 300 {
			if _, _, err := h.p.Apply(nil, EncodeOp(nil, h.nextInStep()), h.now); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(h.p.AppendSnapshot(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := NewPartition(1, 2)
		if err := p.Restore(b); err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrSnapshotVersion) {
				t.Fatalf("error %v", err)
			}
			if p.SPSO() != 2 || p.Incarnation() != 1 {
				t.Fatal("a refused snapshot changed the state")
			}
			return
		}
		if err := invariants(p); err != nil {
			t.Fatal(err)
		}
		canonical := p.AppendSnapshot(nil)
		q := NewPartition(0, -1)
		if err := q.Restore(canonical); err != nil || !bytes.Equal(q.AppendSnapshot(nil), canonical) {
			t.Fatalf("own snapshot % x: %v", canonical, err)
		}
		exercise(t, p)
	})
}

// exercise uses a state that came from outside, however odd.
func exercise(t *testing.T, p *Partition) {
	set := goldenSettings
	f, _ := p.Fetchable(0, set)
	for _, op := range []Op{
		Acquire{Member: "a", From: f.Position, Batches: []OffsetRange{{f.Position, f.Position + 9}}, MaxRecords: 5, Settings: set},
		Acknowledge{Member: "a", Batches: []AckBatch{{f.Position, f.Position + 3, []AckType{AckRelease}}}, Settings: set},
		ReleaseReplica{1, set}, Expire{set}, ClaimArchiving{1, p.Incarnation(), 5, 5, set}, AdvanceLogStart{f.Position + 1, set},
		LeaderChange{p.LogEpoch(), p.LogEpoch() + 1, f.Position + 3},
		AcquireUnder{p.LogEpoch() + 1, Acquire{Member: "a", From: f.Position, Batches: []OffsetRange{{f.Position, f.Position + 9}}, MaxRecords: 5, Settings: set}},
	} {
		if _, _, err := p.Apply(nil, EncodeOp(nil, op), 1); err != nil {
			t.Fatalf("%T: %v", op, err)
		}
		if err := invariants(p); err != nil {
			t.Fatalf("%T: %v", op, err)
		}
	}
}

// FuzzApply reads a log out of the input: length byte, op, time step, and so on.
func FuzzApply(f *testing.F) {
	for seed := uint64(10); seed < 15; seed++ {
		h := newHistory(seed)
		var log []byte
		for range 60 {
			op := EncodeOp(nil, h.nextInStep())
			if len(op) < 256 {
				log = append(append(append(log, byte(len(op))), op...), 1)
			}
		}
		f.Add(log)
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		p, now := NewPartition(1, -1), int64(0)
		for len(log) > 1 {
			n := min(int(log[0]), len(log)-1)
			op := log[1 : 1+n]
			log = log[1+n:]
			if len(log) > 0 {
				now += int64(log[0]) << 12
				log = log[1:]
			}
			before := p.AppendSnapshot(nil)
			_, errDecode := decodeOp(op)
			_, _, err := p.Apply(nil, op, now)
			if (err == nil) != (errDecode == nil) {
				t.Fatalf("% x: apply %v, decode %v", op, err, errDecode)
			}
			if err != nil && !bytes.Equal(before, p.AppendSnapshot(nil)) {
				t.Fatalf("% x: refused, yet the state changed", op)
			}
			if err := invariants(p); err != nil {
				t.Fatalf("% x: %v", op, err)
			}
		}
	})
}

// TestLyingCountsAllocateLittle: a count is checked against the bytes that are
// there before anything is made for it.
func TestLyingCountsAllocateLittle(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}
	ops := [][]byte{
		append([]byte{kindAcquire, 0, 0, 0, 0}, huge...),
		append([]byte{kindAcknowledge, 0}, huge...),
		append([]byte{kindAcknowledge, 0, 1, 0, 0}, huge...),
		append([]byte{kindArchivingDone, 0}, huge...),
		append([]byte{kindRelease}, huge...),
	}
	snapshots := [][]byte{
		append([]byte{snapshotVersion, 0, 0, 0, 0, 0}, huge...),
		append([]byte{snapshotVersion, 0, 0, 0, 0, 0, 0}, huge...),
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, op := range ops {
		if _, err := decodeOp(op); !errors.Is(err, ErrMalformed) {
			t.Errorf("% x: %v", op, err)
		}
	}
	for _, s := range snapshots {
		if err := NewPartition(0, 0).Restore(s); !errors.Is(err, ErrMalformed) {
			t.Errorf("% x: %v", s, err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<16 {
		t.Errorf("%d bytes allocated", n)
	}
}

// TestTruncatedOpsAreMalformed cuts every golden op at every place.
func TestTruncatedOpsAreMalformed(t *testing.T) {
	for _, g := range goldenOps {
		whole := EncodeOp(nil, g.op)
		for n := range len(whole) {
			if _, err := decodeOp(whole[:n]); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut at %d: %v", g.name, n, err)
			}
			if _, _, err := NewPartition(1, 0).Apply(nil, whole[:n], 0); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut at %d, applied: %v", g.name, n, err)
			}
		}
		if _, err := decodeOp(append(whole, 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s with a byte too many: %v", g.name, err)
		}
	}
}

func TestUnknownKindsAndVersionsAreRefused(t *testing.T) {
	for _, kind := range []byte{0, 15, 255} {
		if _, err := decodeOp([]byte{kind}); !errors.Is(err, ErrUnknownKind) {
			t.Errorf("kind %d: %v", kind, err)
		}
		if _, _, err := NewPartition(1, 0).Apply(nil, []byte{kind}, 0); !errors.Is(err, ErrUnknownKind) {
			t.Errorf("kind %d applied: %v", kind, err)
		}
	}
	snapshot := NewPartition(1, 0).AppendSnapshot(nil)
	snapshot[0]++
	if err := NewPartition(1, 0).Restore(snapshot); !errors.Is(err, ErrSnapshotVersion) {
		t.Errorf("newer snapshot: %v", err)
	}
}

// TestBrokenSnapshotsAreRefused flips every byte of a real one: each result is
// refused or is a state with its invariants.
func TestBrokenSnapshotsAreRefused(t *testing.T) {
	h := newHistory(3)
	for range 500 {
		if err := h.step(h.next()); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := h.p.AppendSnapshot(nil)
	refused := 0
	for i := range snapshot {
		for bit := range 8 {
			broken := bytes.Clone(snapshot)
			broken[i] ^= 1 << bit
			p := NewPartition(1, 0)
			if err := p.Restore(broken); err != nil {
				refused++
			} else if err := invariants(p); err != nil {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
		}
	}
	if refused == 0 {
		t.Fatal("nothing refused")
	}
}
