package upstream

import "fmt"

// TP names one partition by its topic's id, so that a recreated topic is another partition.
type TP struct {
	ID        [16]byte
	Partition int32
}

func (tp TP) String() string { return fmt.Sprintf("%x-%d", tp.ID, tp.Partition) }

// Isolation is Kafka's isolation level of a read.
type Isolation int8

const (
	// ReadUncommitted reads up to the high watermark.
	ReadUncommitted Isolation = 0
	// ReadCommitted reads up to the last stable offset and has batches of aborted transactions flagged.
	ReadCommitted Isolation = 1
)

// Node is one broker of upstream, with the address that upstream itself advertises.
type Node struct {
	ID   int32
	Host string
	Port int32
	Rack *string
}

// Topic is what upstream's metadata says of a topic.
type Topic struct {
	ID         [16]byte
	Name       string
	Partitions int32
	Internal   bool
}

// Batch is one stored record batch.
type Batch struct {
	// Base and Last are the batch's first and last offset, both included.
	Base, Last int64
	// Bytes is the batch as stored upstream. Shared by all readers: not to be written to.
	Bytes []byte
	// Aborted: the batch belongs to an aborted transaction (ReadCommitted only).
	Aborted bool
	// Control: the batch holds a transaction marker, no data.
	Control bool
}

// View is what is known of a partition's log from some offset on, under one leader.
type View struct {
	// Batches stand next to each other in the log, from the batch that holds the offset asked for (or the first
	// after it, where compaction left a hole). Empty at the end of what may be read.
	Batches []Batch
	// LogStart, HighWatermark and LastStable are the newest known; -1 means not known.
	LogStart, HighWatermark, LastStable int64
	// Epoch is the leader epoch that all of this was read under; -1 means nothing was read yet.
	Epoch int32
	// Err is the partition's present trouble: ErrNotLeader, ErrUnknownTopicOrPartition, ErrOffsetOutOfRange,
	// ErrCorrupt, ErrUnauthorized, ErrUnavailable.
	Err error
}

// unread is a View that tells nothing.
var unread = View{LogStart: -1, HighWatermark: -1, LastStable: -1, Epoch: -1}
