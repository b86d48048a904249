package sharestate

import "encoding/binary"

// Acquired is one AcquiredRecords entry. DeliveryCount includes this delivery.
type Acquired struct {
	First, Last   int64
	DeliveryCount int16
}

// AcquireResult is the result of an [Acquire] or [AcquireUnder]. Stale means that the position at
// the op's place in the log was below Acquire.From, or the partition not started:
// nothing beyond SPEO was taken and nothing archived, so the caller should read
// upstream again from the present position; or that the read was under another leader
// epoch than the one in force, and nothing was taken at all.
type AcquireResult struct {
	Stale    bool
	Acquired []Acquired
}

// AckCode is the outcome of an [Acknowledge].
type AckCode uint8

const (
	AckOK                 AckCode = 0
	AckInvalidRecordState AckCode = 1 // INVALID_RECORD_STATE
	AckInvalidRequest     AckCode = 2 // INVALID_REQUEST
	AckRenewDisabled      AckCode = 3 // INVALID_RECORD_STATE: renewal is off for the group
)

// AcknowledgeResult is the result of an [Acknowledge].
type AcknowledgeResult struct{ Code AckCode }

// ArchivingRange is a run of claimed Archiving offsets.
type ArchivingRange struct {
	First, Last   int64
	DeliveryCount int16
	Rejected      bool // by the client; else the delivery limit was reached
}

// ClaimResult is the result of a [ClaimArchiving].
type ClaimResult struct{ Ranges []ArchivingRange }

// An acquire's result is a flag byte and then entries up to the end.
const staleRead = 1 << 0

func appendAcquired(dst []byte, prev, first, last int64, count int16) []byte {
	dst = binary.AppendUvarint(dst, uint64(first-prev))
	dst = binary.AppendUvarint(dst, uint64(last-first))
	return binary.AppendUvarint(dst, uint64(count))
}

// DecodeAcquireResult reads the result of an [Acquire] or [AcquireUnder].
func DecodeAcquireResult(b []byte) (res AcquireResult, err error) {
	r := reader{b: b}
	res.Stale = r.flags(staleRead) != 0
	var prev int64
	for len(r.b) > 0 {
		var a Acquired
		a.First = prev + int64(r.uvarint())
		a.Last = a.First + int64(r.uvarint())
		a.DeliveryCount = r.deliveryCount()
		res.Acquired = append(res.Acquired, a)
		prev = a.Last
	}
	return res, r.end()
}

// DecodeAcknowledgeResult reads the result of an [Acknowledge].
func DecodeAcknowledgeResult(b []byte) (AcknowledgeResult, error) {
	r := reader{b: b}
	code := AckCode(r.byte())
	if code > AckRenewDisabled {
		r.fail()
	}
	return AcknowledgeResult{code}, r.end()
}

// DecodeCountResult reads the result of an op that answers with a number.
func DecodeCountResult(b []byte) (int64, error) {
	r := reader{b: b}
	return int64(r.uvarint()), r.end()
}

func appendClaimed(dst []byte, prev int64, s *span) []byte {
	dst = appendAcquired(dst, prev, s.first, s.last, s.count)
	if s.flags&rejected != 0 {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// DecodeClaimResult reads the result of a [ClaimArchiving].
func DecodeClaimResult(b []byte) (res ClaimResult, err error) {
	r := reader{b: b}
	var prev int64
	for len(r.b) > 0 {
		var a ArchivingRange
		a.First = prev + int64(r.uvarint())
		a.Last = a.First + int64(r.uvarint())
		a.DeliveryCount = r.deliveryCount()
		a.Rejected = r.flags(1) != 0
		res.Ranges = append(res.Ranges, a)
		prev = a.Last
	}
	return res, r.end()
}

func (r *reader) deliveryCount() int16 {
	v := r.uvarint()
	if v > maxDeliveryCount {
		r.fail()
		return 0
	}
	return int16(v)
}
