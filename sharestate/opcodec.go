package sharestate

import "encoding/binary"

// EncodeOp appends the encoding of op to dst: the kind's byte, then its fields.
func EncodeOp(dst []byte, op Op) []byte {
	return op.appendBody(append(dst, op.kind()))
}

const (
	settingRenew       byte = 1 << 0
	settingDeadLetters byte = 1 << 1
	settingBackoff     byte = 1 << 2 // the two numbers of the backoff follow
)

func (s Settings) append(dst []byte) []byte {
	dst = binary.AppendVarint(dst, int64(s.DeliveryLimit))
	dst = binary.AppendVarint(dst, int64(s.LockDurationMs))
	dst = binary.AppendVarint(dst, int64(s.MaxRecordLocks))
	var flags byte
	if s.RenewEnabled {
		flags |= settingRenew
	}
	if s.DeadLetters {
		flags |= settingDeadLetters
	}
	if s.ReleaseBackoffMs == 0 && s.ReleaseBackoffMaxMs == 0 {
		return append(dst, flags)
	}
	dst = append(dst, flags|settingBackoff)
	dst = binary.AppendVarint(dst, int64(s.ReleaseBackoffMs))
	return binary.AppendVarint(dst, int64(s.ReleaseBackoffMaxMs))
}

func (r *reader) settings() (s Settings) {
	s.DeliveryLimit = r.int16()
	s.LockDurationMs = r.int32()
	s.MaxRecordLocks = r.int32()
	flags := r.flags(settingRenew | settingDeadLetters | settingBackoff)
	s.RenewEnabled = flags&settingRenew != 0
	s.DeadLetters = flags&settingDeadLetters != 0
	if flags&settingBackoff != 0 {
		s.ReleaseBackoffMs = r.int32()
		s.ReleaseBackoffMaxMs = r.int32()
	}
	return s
}

func (n SessionNonce) append(dst []byte) []byte {
	dst = binary.AppendVarint(dst, n.Opened)
	return binary.AppendUvarint(dst, n.Replica)
}

func (r *reader) session() SessionNonce {
	opened := r.varint()
	return SessionNonce{opened, r.uvarint()}
}

func (Fence) appendBody(dst []byte) []byte { return dst }

func (o Start) appendBody(dst []byte) []byte {
	dst = binary.AppendVarint(dst, o.Offset)
	return binary.AppendVarint(dst, int64(o.LeaderEpoch))
}

func (o Acquire) appendBody(dst []byte) []byte {
	dst = appendBytes(dst, o.Member)
	dst = o.Session.append(dst)
	dst = binary.AppendVarint(dst, o.From)
	dst = appendRanges(dst, o.From, o.Batches)
	dst = appendRanges(dst, o.From, o.Aborted)
	dst = binary.AppendVarint(dst, int64(o.MaxRecords))
	dst = binary.AppendVarint(dst, int64(o.BatchSize))
	dst = append(dst, byte(o.Mode))
	return o.Settings.append(dst)
}

func (o AcquireUnder) appendBody(dst []byte) []byte {
	return o.Acquire.appendBody(binary.AppendVarint(dst, int64(o.Epoch)))
}

func (o Acknowledge) appendBody(dst []byte) []byte {
	dst = appendBytes(dst, o.Member)
	dst = binary.AppendUvarint(dst, uint64(len(o.Batches)))
	var prev int64
	for _, b := range o.Batches {
		dst = binary.AppendVarint(dst, b.First-prev)
		dst = binary.AppendUvarint(dst, uint64(b.Last-b.First))
		dst = binary.AppendUvarint(dst, uint64(len(b.Types)))
		for _, t := range b.Types {
			dst = append(dst, byte(t))
		}
		prev = b.Last
	}
	dst = binary.AppendVarint(dst, int64(o.LeaderEpoch))
	return o.Settings.append(dst)
}

func (o Release) appendBody(dst []byte) []byte {
	dst = appendBytes(dst, o.Member)
	dst = o.Session.append(dst)
	return o.Settings.append(dst)
}

func (o ReleaseReplica) appendBody(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, o.Replica)
	return o.Settings.append(dst)
}

func (o Expire) appendBody(dst []byte) []byte { return o.Settings.append(dst) }

func (o AdvanceLogStart) appendBody(dst []byte) []byte {
	dst = binary.AppendVarint(dst, o.LogStart)
	return o.Settings.append(dst)
}

func (o LogStartUnder) appendBody(dst []byte) []byte {
	return o.AdvanceLogStart.appendBody(binary.AppendVarint(dst, int64(o.Epoch)))
}

func (o Reset) appendBody(dst []byte) []byte {
	dst = binary.AppendVarint(dst, o.Offset)
	return binary.AppendVarint(dst, o.Incarnation)
}

func (o ClaimArchiving) appendBody(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, o.Replica)
	dst = binary.AppendVarint(dst, o.Incarnation)
	dst = binary.AppendVarint(dst, int64(o.MaxRecords))
	dst = binary.AppendVarint(dst, int64(o.ClaimMs))
	return o.Settings.append(dst)
}

func (o ArchivingDone) appendBody(dst []byte) []byte {
	dst = binary.AppendVarint(dst, o.Incarnation)
	dst = appendRanges(dst, 0, o.Ranges)
	return o.Settings.append(dst)
}

func (o LeaderChange) appendBody(dst []byte) []byte {
	dst = binary.AppendVarint(dst, int64(o.From))
	dst = binary.AppendVarint(dst, int64(o.Epoch))
	return binary.AppendVarint(dst, o.End)
}

// The decoded forms below point into the op's bytes where the exported ones own
// copies, and are reused from one Apply to the next. Apply lets go of the bytes
// before it returns: they may be part of a long piece of log.

type acquireOp struct {
	Acquire // Member stays empty
	member  []byte
}

func (o *acquireOp) decode(r *reader) {
	o.member = r.bytes()
	o.Session = r.session()
	o.From = r.varint()
	o.Batches = r.ranges(o.Batches, o.From)
	o.Aborted = r.ranges(o.Aborted, o.From)
	o.MaxRecords = r.int32()
	o.BatchSize = r.int32()
	o.Mode = AcquireMode(r.byte())
	o.Settings = r.settings()
}

type ackRange struct {
	first, last int64
	types       []byte
}

// at gives the type for an offset of the range.
func (a *ackRange) at(offset int64) AckType {
	if len(a.types) == 1 {
		return AckType(a.types[0])
	}
	return AckType(a.types[offset-a.first])
}

type acknowledgeOp struct {
	member      []byte
	batches     []ackRange
	leaderEpoch int32
	settings    Settings
}

func (o *acknowledgeOp) decode(r *reader) {
	o.member = r.bytes()
	o.batches = o.batches[:0]
	var prev int64
	for n := r.count(3); n > 0; n-- {
		first := prev + r.varint()
		last := first + int64(r.uvarint())
		o.batches = append(o.batches, ackRange{first, last, r.bytes()})
		prev = last
	}
	o.leaderEpoch = r.int32()
	o.settings = r.settings()
}

// forget lets go of the op's bytes and keeps the memory for the next one.
func (o *acknowledgeOp) forget() {
	o.member = nil
	clear(o.batches)
}

type releaseOp struct {
	member   []byte
	session  SessionNonce
	settings Settings
}

func (o *releaseOp) decode(r *reader) {
	o.member = r.bytes()
	o.session = r.session()
	o.settings = r.settings()
}

func (r *reader) start() Start {
	offset := r.varint()
	return Start{offset, r.int32()}
}

func (r *reader) releaseReplica() ReleaseReplica {
	replica := r.uvarint()
	return ReleaseReplica{replica, r.settings()}
}

func (r *reader) advanceLogStart() AdvanceLogStart {
	start := r.varint()
	return AdvanceLogStart{start, r.settings()}
}

func (r *reader) reset() Reset {
	offset := r.varint()
	return Reset{offset, r.varint()}
}

func (r *reader) claimArchiving() (o ClaimArchiving) {
	o.Replica = r.uvarint()
	o.Incarnation = r.varint()
	o.MaxRecords = r.int32()
	o.ClaimMs = r.int32()
	o.Settings = r.settings()
	return o
}

func (r *reader) archivingDone() (o ArchivingDone) {
	o.Incarnation = r.varint()
	o.Ranges = r.ranges(nil, 0)
	o.Settings = r.settings()
	return o
}

func (r *reader) leaderChange() (o LeaderChange) {
	o.From = r.int32()
	o.Epoch = r.int32()
	o.End = r.varint()
	return o
}
