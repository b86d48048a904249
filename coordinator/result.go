package coordinator

import "encoding/binary"

// Code is the outcome of an op.
type Code byte

// The outcomes. Numbers are frozen: results stand in Redis for a while.
const (
	CodeOK Code = iota
	CodeGroupMissing
	CodeNonEmpty
	CodeGroupFull
	CodeUnknownMember
	CodeFencedEpoch
	CodeInvalid
)

// HeartbeatResult is the result of a Heartbeat op.
type HeartbeatResult struct {
	Code Code
	// Epoch is the member's epoch, -1 after a leave. With CodeFencedEpoch it is the epoch that the
	// coordinator holds.
	Epoch         int32
	HasAssignment bool
	Assignment    []TopicPartitions
}

func (h HeartbeatResult) append(b []byte) []byte {
	b = appendBool(appendInt32(append(b, byte(h.Code)), h.Epoch), h.HasAssignment)
	if !h.HasAssignment {
		return b
	}
	return appendAssignment(b, h.Assignment)
}

// DecodeHeartbeatResult reads the result of a Heartbeat op.
func DecodeHeartbeatResult(b []byte) (HeartbeatResult, error) {
	r := &reader{b: b}
	h := HeartbeatResult{Code: Code(r.byte()), Epoch: r.int32(), HasAssignment: r.bool()}
	if h.Code > CodeInvalid {
		r.fail("result code")
	}
	if h.HasAssignment {
		h.Assignment = r.assignment()
	}
	return h, r.end()
}

// DecodeCodeResult reads the result of any other op.
func DecodeCodeResult(b []byte) (Code, error) {
	r := &reader{b: b}
	code := Code(r.byte())
	if code > CodeInvalid {
		r.fail("result code")
	}
	return code, r.end()
}

func appendAssignment(b []byte, assignment []TopicPartitions) []byte {
	b = binary.AppendUvarint(b, uint64(len(assignment)))
	for _, t := range assignment {
		b = appendPartitions(append(appendString(b, t.Name), t.ID[:]...), t.Partitions)
	}
	return b
}

func (r *reader) assignment() []TopicPartitions {
	var assignment []TopicPartitions
	for range r.count(18) {
		assignment = append(assignment, TopicPartitions{Name: r.string(), ID: r.id(), Partitions: r.partitions()})
	}
	return assignment
}
