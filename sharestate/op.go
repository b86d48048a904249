package sharestate

// OffsetRange is a run of offsets, both ends included.
type OffsetRange struct{ First, Last int64 }

// AcquireMode is the ShareFetch ShareAcquireMode (KIP-1206), by its wire id. An unknown
// one is taken for BatchOptimized; refusing it is up to the API.
type AcquireMode int8

const (
	// BatchOptimized acquires whole stored record batches; MaxRecords is soft.
	BatchOptimized AcquireMode = 0
	// RecordLimit never acquires more than MaxRecords offsets.
	RecordLimit AcquireMode = 1
)

// AckType is the acknowledgement type of a ShareFetch or ShareAcknowledge, by
// its wire id.
type AckType int8

const (
	AckGap     AckType = 0 // no record behind the offset; becomes Archived
	AckAccept  AckType = 1 // becomes Acknowledged
	AckRelease AckType = 2 // becomes Available, or finished at the delivery limit
	AckReject  AckType = 3 // becomes Archived, through Archiving with dead letters
	AckRenew   AckType = 4 // stays Acquired, the lock starts again (KIP-1222)
)

// SessionNonce names one share session of a member. Sessions of one member are
// ordered by Opened, which rises strictly.
type SessionNonce struct {
	Opened  int64  // Redis time of the opening, in µs
	Replica uint64 // nonce of the replica whose connection opened it
}

// Settings are the group settings that transitions depend on, as configured when
// the op was made.
type Settings struct {
	DeliveryLimit  int16 // group share.delivery.count.limit
	RenewEnabled   bool  // group share.renew.acknowledge.enable
	DeadLetters    bool  // a dead-letter topic is set: Archiving comes before Archived
	LockDurationMs int32 // group share.record.lock.duration.ms
	MaxRecordLocks int32 // group share.partition.max.record.locks

	// kshare's own, see backoff.go. 0 = what is released is offered again at once.
	ReleaseBackoffMs    int32 // group share.release.backoff.ms
	ReleaseBackoffMaxMs int32 // group share.release.backoff.max.ms
}

// AckBatch is one AcknowledgementBatch of a request. Types has length one (for
// the whole range) or one entry per offset.
type AckBatch struct {
	First, Last int64
	Types       []AckType
}

// Op is one entry of a share-partition's log. The kinds and their encodings are
// frozen: a changed rule is a new kind with a new number.
type Op interface {
	kind() byte
	appendBody(dst []byte) []byte
}

// The kinds, as written in the first byte of an encoded op.
const (
	kindFence           byte = 1
	kindStart           byte = 2
	kindAcquire         byte = 3
	kindAcknowledge     byte = 4
	kindRelease         byte = 5
	kindReleaseReplica  byte = 6
	kindExpire          byte = 7
	kindAdvanceLogStart byte = 8
	kindReset           byte = 9
	kindClaimArchiving  byte = 10
	kindArchivingDone   byte = 11
	kindLeaderChange    byte = 12
	kindAcquireUnder    byte = 13
	kindLogStartUnder   byte = 14
)

// Start fixes the SPSO that share.auto.offset.reset resolved to. The first Start
// in the log wins; the result is the SPSO in force as a varint, which replicas read
// off the partition.
type Start struct {
	Offset      int64
	LeaderEpoch int32 // leader epoch known when the offset was resolved, -1 = unknown
}

// Acquire takes records for a member (KIP-932 ShareFetch). Batches are the stored
// record batches, ascending, that an upstream read from offset From returned;
// Aborted (ascending) are those of them that belong to aborted transactions, given
// only under read_committed. Result: [AcquireResult]. By itself it stands in older
// logs only: replicas write it as part of an [AcquireUnder].
type Acquire struct {
	Member     string
	Session    SessionNonce
	From       int64
	Batches    []OffsetRange
	Aborted    []OffsetRange
	MaxRecords int32
	BatchSize  int32
	Mode       AcquireMode
	Settings   Settings
}

// AcquireUnder is an Acquire of records that were read under leader epoch Epoch. If
// another one is in force at its place in the log ([LeaderChange]) it is stale and
// does nothing: other records, and other transactions, may stand at these offsets.
type AcquireUnder struct {
	Epoch int32
	Acquire
}

// Acknowledge applies the acknowledgements of one request to this partition, all
// or none. Records acquired under any session of the member qualify. Result:
// [AcknowledgeResult].
type Acknowledge struct {
	Member      string
	Batches     []AckBatch
	LeaderEpoch int32 // leader epoch known to the replica, -1 = unknown; shown by Summary
	Settings    Settings
}

// Release frees what the member holds under the named session or an older one,
// as the close of a share session does. Result: the number of offsets
// ([DecodeCountResult]).
type Release struct {
	Member   string
	Session  SessionNonce
	Settings Settings
}

// ReleaseReplica frees all that sessions opened through a dead replica hold, its
// claims on Archiving records included. Result: the number of offsets.
type ReleaseReplica struct {
	Replica  uint64
	Settings Settings
}

// Expire ends the locks that have run out. Every op that carries Settings does so
// first; this one does nothing else. Result: the number of offsets.
type Expire struct{ Settings Settings }

// AdvanceLogStart says that upstream's log starts at LogStart (retention,
// DeleteRecords): what lies below is finished.
type AdvanceLogStart struct {
	LogStart int64
	Settings Settings
}

// LogStartUnder is an AdvanceLogStart that a read under leader epoch Epoch told of. It
// does nothing where another one is in force: an unclean election may have brought a
// log that begins earlier.
type LogStartUnder struct {
	Epoch int32
	AdvanceLogStart
}

// LeaderChange says that records are read under leader epoch Epoch from now on, and
// that the log of leader epoch From, under which those of the window were read, ends
// at End there (KIP-101; -1 = upstream cannot tell). What is tracked at End or beyond
// was cut off the log by an unclean leader election and is forgotten: other records
// may stand there by now. It counts only if From is the epoch in force, and Epoch
// is above it; with -1, where none is yet, nothing is cut. Result: the number of offsets that were cut
// ([DecodeCountResult]).
type LeaderChange struct {
	From, Epoch int32
	End         int64
}

// Reset begins a new life of the share-partition at Offset, or with -1 at what a
// coming Start says. It counts only if Incarnation is above the one in force.
// Result: 1 if it counted, else 0 ([DecodeCountResult]).
type Reset struct {
	Offset      int64
	Incarnation int64
}

// ClaimArchiving takes up to MaxRecords Archiving offsets that nobody has claimed,
// or whose claim has run out, to write their dead letters within ClaimMs. It
// counts only if Incarnation is the one in force. Result: [ClaimResult].
type ClaimArchiving struct {
	Replica     uint64
	Incarnation int64
	MaxRecords  int32
	ClaimMs     int32
	Settings    Settings
}

// ArchivingDone turns the Archiving offsets of Ranges (ascending) into Archived,
// whoever claimed them. It counts only if Incarnation is the one in force. Result:
// the number of offsets.
type ArchivingDone struct {
	Incarnation int64
	Ranges      []OffsetRange
	Settings    Settings
}

// Fence changes nothing but the clock, and no replica writes it: package statelog
// settles the outcome of an append whose reply was lost with a frame without ops.
type Fence struct{}

func (Fence) kind() byte           { return kindFence }
func (Start) kind() byte           { return kindStart }
func (Acquire) kind() byte         { return kindAcquire }
func (Acknowledge) kind() byte     { return kindAcknowledge }
func (Release) kind() byte         { return kindRelease }
func (ReleaseReplica) kind() byte  { return kindReleaseReplica }
func (Expire) kind() byte          { return kindExpire }
func (AdvanceLogStart) kind() byte { return kindAdvanceLogStart }
func (Reset) kind() byte           { return kindReset }
func (ClaimArchiving) kind() byte  { return kindClaimArchiving }
func (ArchivingDone) kind() byte   { return kindArchivingDone }
func (LeaderChange) kind() byte    { return kindLeaderChange }
func (AcquireUnder) kind() byte    { return kindAcquireUnder }
func (LogStartUnder) kind() byte   { return kindLogStartUnder }
