package upstream

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Where the fields of a record batch of magic 2 stand. Everything that kshare needs is in these 61 bytes; the records
// behind them are looked at for Copies alone.
const (
	atLength      = 8
	atMagic       = 16
	atChecksum    = 17 // of all from atAttributes on
	atAttributes  = 21
	atLastDelta   = 23
	atProducerID  = 43
	headerBytes   = 61
	lengthCounts  = 12 // the length field counts what comes after it
	transactional = 0x10
	control       = 0x20
)

// cut splits the records of a fetch response into batches that alias b. A partial batch at the end is ignored: a broker
// cuts its answer at the byte limit. What stands before a malformed batch is returned, with an error that wraps
// ErrCorrupt for the rest.
func cut(b []byte) ([]Batch, error) {
	var batches []Batch
	for prev := int64(-1); len(b) > atMagic; {
		length := int32(binary.BigEndian.Uint32(b[atLength:]))
		base := int64(binary.BigEndian.Uint64(b))
		if magic := b[atMagic]; magic != 2 {
			return batches, fmt.Errorf("batch at offset %d has magic %d: %w", base, magic, ErrCorrupt)
		}
		if length < headerBytes-lengthCounts {
			return batches, fmt.Errorf("batch at offset %d has length %d: %w", base, length, ErrCorrupt)
		}
		size := int64(length) + lengthCounts
		if size > int64(len(b)) {
			break
		}
		delta := int32(binary.BigEndian.Uint32(b[atLastDelta:]))
		if base <= prev || delta < 0 || base > math.MaxInt64-1-int64(delta) {
			return batches, fmt.Errorf("batch at offset %d after %d spans %d offsets: %w", base, prev, int64(delta)+1, ErrCorrupt)
		}
		prev = base + int64(delta)
		batches = append(batches, Batch{
			Base: base, Last: prev, Bytes: b[:size:size],
			Control: b[atAttributes+1]&control != 0,
		})
		b = b[size:]
	}
	return batches, nil
}

// abortedTxn is an aborted transaction as a fetch at read_committed reports it.
type abortedTxn struct{ producer, first int64 }

// flagAborted marks the batches of aborted transactions, walking the log as a read_committed consumer does: a
// transaction counts from its first offset to its producer's next marker. The list must cover all transactions that
// overlap the batches; not every broker sends it sorted.
func flagAborted(batches []Batch, txns []abortedTxn) {
	if len(txns) == 0 {
		return
	}
	slices.SortFunc(txns, func(a, b abortedTxn) int { return cmp.Compare(a.first, b.first) })
	open := make(map[int64]bool)
	for i := range batches {
		b := &batches[i]
		for len(txns) > 0 && txns[0].first <= b.Last {
			open[txns[0].producer] = true
			txns = txns[1:]
		}
		producer := int64(binary.BigEndian.Uint64(b.Bytes[atProducerID:]))
		if b.Control {
			delete(open, producer)
		} else if b.Bytes[atAttributes+1]&transactional != 0 {
			b.Aborted = open[producer]
		}
	}
}
