package upstream

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Copies are the records of one unpacked batch. Nothing else in kshare looks into a batch.
type Copies struct {
	base, last int64
	records    map[int64]*kgo.Record
}

// Copies unpacks the batch.
func (b Batch) Copies() (Copies, error) {
	got, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Offset: b.Base},
		&kmsg.FetchResponseTopicPartition{RecordBatches: b.Bytes}, kgo.DefaultDecompressor(), nil)
	if got.Err != nil {
		return Copies{}, fmt.Errorf("%w: batch at offset %d: %w", ErrCorrupt, b.Base, got.Err)
	}
	c := Copies{base: b.Base, last: b.Last, records: make(map[int64]*kgo.Record, len(got.Records))}
	for _, r := range got.Records {
		c.records[r.Offset] = r
	}
	return c, nil
}

// Covers tells whether the offset lies in the batch.
func (c Copies) Covers(offset int64) bool {
	return c.records != nil && c.base <= offset && offset <= c.last
}

// At gives key and value of the record at the offset, nil without one.
func (c Copies) At(offset int64) (key, value []byte) {
	if r := c.records[offset]; r != nil {
		return r.Key, r.Value
	}
	return nil, nil
}
