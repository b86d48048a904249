//go:build e2e

package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// batch is one record batch as it is to stand in the log.
type batch struct {
	n     int
	key   string    // of each record; null if empty
	size  int       // of each value, 8 if 0
	at    time.Time // of each record, now if zero
	txn   *txn
	first int32 // sequence of a transactional batch

	records []kmsg.Record // instead of n, key and size
	gzip    bool
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode builds the stored form: one batch of magic 2, uncompressed unless told.
func (b batch) encode() []byte {
	if b.at.IsZero() {
		b.at = time.Now()
	}
	if b.size == 0 {
		b.size = 8
	}
	records := b.records
	for range b.n {
		r := kmsg.Record{Value: make([]byte, b.size)}
		if b.key != "" {
			r.Key = []byte(b.key)
		}
		records = append(records, r)
	}
	b.n = len(records)
	rb := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(b.n - 1),
		FirstTimestamp: b.at.UnixMilli(), MaxTimestamp: b.at.UnixMilli(),
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(b.n),
	}
	if b.txn != nil {
		rb.Attributes = 0x10
		rb.ProducerID, rb.ProducerEpoch, rb.FirstSequence = b.txn.id, b.txn.epoch, b.first
	}
	for i, r := range records {
		r.OffsetDelta = int32(i)
		body := r.AppendTo(nil)[1:] // without the length, which is a one-byte zero so far
		rb.Records = binary.AppendVarint(rb.Records, int64(len(body)))
		rb.Records = append(rb.Records, body...)
	}
	if b.gzip {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		z.Write(rb.Records)
		z.Close()
		rb.Attributes, rb.Records = rb.Attributes|1, packed.Bytes()
	}
	const afterLength, afterCRC = 12, 21
	out := rb.AppendTo(nil)
	binary.BigEndian.PutUint32(out[8:], uint32(len(out)-afterLength))
	binary.BigEndian.PutUint32(out[afterCRC-4:], crc32.Checksum(out[afterCRC:], castagnoli))
	return out
}

// put appends one batch to a partition and returns its base offset.
func (w *world) put(p tp, b batch) int64 {
	w.Helper()
	var base int64
	w.until("produce", 30*time.Second, func() error {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = 9, -1, 10_000
		if b.txn != nil {
			req.TransactionID = &b.txn.name
		}
		part := kmsg.NewProduceRequestTopicPartition()
		part.Partition, part.Records = p.p, b.encode()
		topic := kmsg.NewProduceRequestTopic()
		topic.Topic, topic.Partitions = p.name, append(topic.Partitions, part)
		req.Topics = append(req.Topics, topic)
		got := ask[*kmsg.ProduceResponse](w, w.leaderOf(p), req).Topics[0].Partitions[0]
		base = got.BaseOffset
		return kerr.ErrorForCode(got.ErrorCode)
	})
	return base
}

// produce appends one batch of n records.
func (w *world) produce(p tp, n int) int64 {
	w.Helper()
	return w.put(p, batch{n: n})
}

// produceEach appends n batches of size records.
func (w *world) produceEach(p tp, n, size int) {
	w.Helper()
	for range n {
		w.produce(p, size)
	}
}

// txn is a transactional producer; its batches get running sequence numbers.
type txn struct {
	w     *world
	name  string
	id    int64
	epoch int16
	next  map[int32]int32
}

func (w *world) transaction() *txn {
	w.Helper()
	x := &txn{w: w, name: w.main.name + "-" + w.unique(), next: map[int32]int32{}}
	w.until("transactional id", 30*time.Second, func() error {
		find := kmsg.NewPtrFindCoordinatorRequest() // makes a new broker create the topic of the transactions' states
		find.Version, find.CoordinatorType, find.CoordinatorKeys = 4, 1, []string{x.name}
		ask[*kmsg.FindCoordinatorResponse](w, w.admin, find)
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version, req.TransactionalID, req.TransactionTimeoutMillis = 4, &x.name, 60_000
		req.ProducerID, req.ProducerEpoch = -1, -1
		resp := ask[*kmsg.InitProducerIDResponse](w, w.admin, req)
		x.id, x.epoch = resp.ProducerID, resp.ProducerEpoch
		return kerr.ErrorForCode(resp.ErrorCode)
	})
	return x
}

// produce appends one batch of n records within the transaction.
func (x *txn) produce(p tp, n int) int64 {
	x.w.Helper()
	x.w.until("add partition", 30*time.Second, func() error {
		req := kmsg.NewPtrAddPartitionsToTxnRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, x.name, x.id, x.epoch
		topic := kmsg.NewAddPartitionsToTxnRequestTopic()
		topic.Topic, topic.Partitions = p.name, []int32{p.p}
		req.Topics = append(req.Topics, topic)
		resp := ask[*kmsg.AddPartitionsToTxnResponse](x.w, x.w.admin, req)
		return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	})
	base := x.w.put(p, batch{n: n, txn: x, first: x.next[p.p]})
	x.next[p.p] += int32(n)
	return base
}

// end commits or aborts; the marker takes one offset of each partition. It returns when the marker is in the log.
func (x *txn) end(p tp, commit bool) {
	x.w.Helper()
	before := x.w.endOffset(p)
	x.w.until("end transaction", 30*time.Second, func() error {
		req := kmsg.NewPtrEndTxnRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = 3, x.name, x.id, x.epoch, commit
		return kerr.ErrorForCode(ask[*kmsg.EndTxnResponse](x.w, x.w.admin, req).ErrorCode)
	})
	x.w.until("transaction marker", 30*time.Second, func() error {
		if end := x.w.endOffset(p); end <= before {
			return fmt.Errorf("end is still %d", end)
		}
		return nil
	})
}

// endOffset is the high watermark, startOffset the first offset that is still there.
func (w *world) endOffset(p tp) int64   { w.Helper(); return w.listOffset(p, -1) }
func (w *world) startOffset(p tp) int64 { w.Helper(); return w.listOffset(p, -2) }

func (w *world) listOffset(p tp, at int64) (offset int64) {
	w.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID = 5, -1
	part := kmsg.NewListOffsetsRequestTopicPartition()
	part.Partition, part.Timestamp = p.p, at
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic, topic.Partitions = p.name, append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	w.until("ListOffsets", 30*time.Second, func() error { // others hear of a new leader a moment before itself
		got := ask[*kmsg.ListOffsetsResponse](w, w.leaderOf(p), req).Topics[0].Partitions[0]
		offset = got.Offset
		return kerr.ErrorForCode(got.ErrorCode)
	})
	return offset
}

// deleteRecords moves the log start.
func (w *world) deleteRecords(p tp, to int64) {
	w.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.Version, req.TimeoutMillis = 2, 10_000
	part := kmsg.NewDeleteRecordsRequestTopicPartition()
	part.Partition, part.Offset = p.p, to
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic, topic.Partitions = p.name, append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	got := ask[*kmsg.DeleteRecordsResponse](w, w.admin, req).Topics[0].Partitions[0]
	w.code("DeleteRecords", got.ErrorCode, nil)
	if got.LowWatermark != to {
		w.Fatalf("log start is %d after DeleteRecords, want %d", got.LowWatermark, to)
	}
}

// stored lists the record batches of a partition as a consumer of the log sees them.
func (w *world) stored(p tp, from int64) []span {
	w.Helper()
	return w.batches(w.fetchLog(p, from))
}

// fetchLog is one Fetch.
func (w *world) fetchLog(p tp, from int64) []byte {
	w.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes, req.MaxWaitMillis, req.SessionEpoch = 12, 50<<20, 0, 0, -1
	part := kmsg.NewFetchRequestTopicPartition()
	part.Partition, part.FetchOffset, part.PartitionMaxBytes, part.CurrentLeaderEpoch = p.p, from, 50<<20, -1
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.Partitions = p.name, append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	got := ask[*kmsg.FetchResponse](w, w.admin, req).Topics[0].Partitions[0]
	w.code("Fetch", got.ErrorCode, nil)
	return got.RecordBatches
}

// span is a range of offsets, both ends included.
type span struct{ first, last int64 }

// batches reads the borders of stored record batches; a cut-off one at the end is left out.
func (w *world) batches(b []byte) (spans []span) {
	w.Helper()
	for len(b) >= 61 {
		var rb kmsg.RecordBatch
		size := 12 + int(binary.BigEndian.Uint32(b[8:]))
		if size > len(b) {
			break
		}
		if err := rb.ReadFrom(b[:size]); err != nil || rb.Magic != 2 {
			w.Fatalf("record batch: %v, magic %d", err, rb.Magic)
		}
		if want := crc32.Checksum(b[21:size], castagnoli); uint32(rb.CRC) != want {
			w.Fatalf("record batch at %d: wrong checksum", rb.FirstOffset)
		}
		spans = append(spans, span{rb.FirstOffset, rb.FirstOffset + int64(rb.LastOffsetDelta)})
		b = b[size:]
	}
	return spans
}
