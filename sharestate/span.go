package sharestate

import (
	"encoding/binary"
	"math"
)

const maxDeliveryCount = math.MaxInt16

// span is one run of offsets that agree in everything. Fields that a state has no
// use for are zero, so that neighbours merge and snapshots are canonical.
type span struct {
	first, last int64
	// batchFirst and batchLast are the ends of the tracked batch: the
	// AcquiredRecords entry in which the offsets were first handed out. The rules
	// of redelivery count and isolate by these. Available and Acquired only.
	batchFirst, batchLast int64
	deadline              int64  // µs, end of the lock (Acquired), claim (Archiving) or rest (Available; see backoff.go)
	holder                uint32 // who acquired or claimed; see holders
	count                 int16  // deliveries so far; not in terminal states
	state                 State
	flags                 spanFlags
}

type spanFlags uint8

const (
	// untracked marks Archived offsets that were never handed out: a compaction
	// hole before the first batch of a read. Kafka keeps nothing for them, so
	// acknowledgements pass over them.
	untracked spanFlags = 1 << 0
	// rejected marks Archiving offsets that a client rejected; the others
	// reached the delivery limit.
	rejected spanFlags = 1 << 1
)

func (s *span) size() int64 { return s.last - s.first + 1 }

// terminal tells whether the offsets are finished for good.
func (st State) terminal() bool { return st == StateAcknowledged || st == StateArchived }

// joins tells whether next, which begins right after s, is more of the same.
func (s *span) joins(next *span) bool {
	return s.state == next.state && s.count == next.count && s.holder == next.holder &&
		s.deadline == next.deadline && s.batchFirst == next.batchFirst &&
		s.batchLast == next.batchLast && s.flags == next.flags
}

// finished gives s in a terminal state.
func (s span) finished(st State) span {
	return span{first: s.first, last: s.last, state: st}
}

// available gives s free to be acquired from a time on (0 = at once), its count untouched.
func (s span) available(from int64) span {
	s.state, s.holder, s.deadline = StateAvailable, 0, from
	return s
}

// archived gives s Archived, by way of Archiving if dead letters are wanted.
func (s span) archived(set *Settings, why spanFlags) span {
	if !set.DeadLetters {
		return s.finished(StateArchived)
	}
	return span{first: s.first, last: s.last, count: s.count, state: StateArchiving, flags: why}
}

// released gives an Acquired s after release, lock expiry or session close, as it is at
// the time clock. Without a sensible limit nothing is ever given up.
func (s span) released(set *Settings, clock int64) span {
	if set.DeliveryLimit > 0 && s.count >= set.DeliveryLimit {
		return s.archived(set, 0)
	}
	return s.available(s.restUntil(set, clock))
}

// holder is a member with one of its sessions, or (with no member) a replica that
// writes dead letters.
type holder struct {
	member  string
	session SessionNonce
}

// holders numbers the holders from 1, so that a span is small and comparing two is
// cheap. The numbers are private to one replica's memory: no result, snapshot or
// decision depends on them.
type holders struct {
	list    []holder // number-1 is the index
	byKey   map[string]uint32
	key     []byte
	sweepAt int
}

const minSweep = 64

func (h *holders) number(member []byte, session SessionNonce) uint32 {
	h.key = binary.LittleEndian.AppendUint64(h.key[:0], uint64(session.Opened))
	h.key = binary.LittleEndian.AppendUint64(h.key, session.Replica)
	h.key = append(h.key, member...)
	if n, ok := h.byKey[string(h.key)]; ok {
		return n
	}
	if h.byKey == nil {
		h.byKey = make(map[string]uint32)
	}
	h.list = append(h.list, holder{string(member), session})
	n := uint32(len(h.list))
	h.byKey[string(h.key)] = n
	return n
}

func (h *holders) get(n uint32) *holder { return &h.list[n-1] }

// sweep forgets the holders that no span names, once there may be many.
func (h *holders) sweep(spans []span) {
	if len(h.list) < max(h.sweepAt, minSweep) {
		return
	}
	var kept holders
	renumbered := make([]uint32, len(h.list)+1)
	for i := range spans {
		n := spans[i].holder
		if n == 0 {
			continue
		}
		if renumbered[n] == 0 {
			old := h.get(n)
			renumbered[n] = kept.number([]byte(old.member), old.session)
		}
		spans[i].holder = renumbered[n]
	}
	kept.sweepAt = 2 * len(kept.list)
	*h = kept
}
