package upstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// testBatch builds a batch header with n offsets and a few bytes that stand for records.
func testBatch(base int64, n int32, attributes byte, producer int64) Batch {
	b := make([]byte, headerBytes, headerBytes+5)
	binary.BigEndian.PutUint64(b, uint64(base))
	b[atMagic] = 2
	b[atAttributes+1] = attributes
	binary.BigEndian.PutUint32(b[atLastDelta:], uint32(n-1))
	binary.BigEndian.PutUint64(b[atProducerID:], uint64(producer))
	b = append(b, "data!"...)
	binary.BigEndian.PutUint32(b[atLength:], uint32(len(b)-lengthCounts))
	return Batch{Base: base, Last: base + int64(n) - 1, Bytes: b, Control: attributes&control != 0}
}

func join(batches ...Batch) (b []byte) {
	for _, batch := range batches {
		b = append(b, batch.Bytes...)
	}
	return b
}

func with(b []byte, at int, v byte) []byte {
	b = bytes.Clone(b)
	b[at] = v
	return b
}

func TestCut(t *testing.T) {
	one, two, three := testBatch(10, 5, 0, -1), testBatch(15, 1, control|transactional, 3), testBatch(100, 500, 0, -1)
	all := join(one, two, three)
	size := len(one.Bytes)
	for _, c := range []struct {
		name    string
		bytes   []byte
		want    int
		corrupt bool
	}{
		{"nothing", nil, 0, false},
		{"null-like", []byte{}, 0, false},
		{"three with a hole", all, 3, false},
		{"partial header at the end", all[:2*size+10], 2, false},
		{"partial batch at the end", all[:len(all)-1], 2, false},
		{"only a partial batch", all[:size-1], 0, false},
		{"magic 1 first", with(all, atMagic, 1), 0, true},
		{"magic 0 later", with(all, size+atMagic, 0), 1, true},
		{"negative length", with(all, atLength, 0x80), 0, true},
		{"length below a header", with(all, atLength+3, 48), 0, true},
		{"negative last offset delta", with(all, atLastDelta, 0x80), 0, true},
		{"offsets that go back", join(two, one), 1, true},
		{"offsets that repeat", join(one, one), 1, true},
		{"negative base offset", with(all, 0, 0xff), 0, true},
		{"offsets that overflow", with(with(with(with(with(with(with(with(all, 0, 0x7f), 1, 0xff), 2, 0xff), 3, 0xff), 4, 0xff), 5, 0xff), 6, 0xff), 7, 0xff), 0, true},
	} {
		batches, err := cut(c.bytes)
		if len(batches) != c.want || errors.Is(err, ErrCorrupt) != c.corrupt || (err != nil) != c.corrupt {
			t.Errorf("%s: %d batches, %v", c.name, len(batches), err)
		}
	}
	batches, _ := cut(all)
	for i, want := range []Batch{one, two, three} {
		got := batches[i]
		if got.Base != want.Base || got.Last != want.Last || got.Control != want.Control || !bytes.Equal(got.Bytes, want.Bytes) {
			t.Errorf("batch %d: %+v, want %+v", i, got, want)
		}
		if cap(got.Bytes) != len(got.Bytes) {
			t.Errorf("batch %d could be appended into its neighbour", i)
		}
	}
}

func FuzzCut(f *testing.F) {
	all := join(testBatch(10, 5, 0, -1), testBatch(15, 1, control|transactional, 3), testBatch(100, 500, 0, -1))
	f.Add(all, int64(12))
	f.Add(all[:len(all)-3], int64(0))
	f.Add(with(all, atMagic, 1), int64(99))
	f.Fuzz(func(t *testing.T, b []byte, first int64) {
		batches, err := cut(b)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("error of another kind: %v", err)
		}
		rest, prev := b, int64(-1)
		for _, batch := range batches {
			if batch.Base <= prev || batch.Last < batch.Base || batch.Last+1 < 0 {
				t.Fatalf("offsets %d-%d after %d", batch.Base, batch.Last, prev)
			}
			if len(batch.Bytes) < headerBytes || !bytes.HasPrefix(rest, batch.Bytes) {
				t.Fatal("batches are not the input, cut")
			}
			rest, prev = rest[len(batch.Bytes):], batch.Last
		}
		flagAborted(batches, []abortedTxn{{3, first}, {-1, first / 2}})
		for _, batch := range batches {
			if batch.Aborted && (batch.Control || batch.Last < first && batch.Last < first/2) {
				t.Fatal("a batch that cannot be of the transaction is flagged")
			}
		}
	})
}
