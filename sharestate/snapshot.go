package sharestate

import (
	"encoding/binary"
	"fmt"
	"math"
)

// snapshotVersion covers the encoding and the meaning of the state. It rises when
// either changes; a replica refuses what it does not know.
const snapshotVersion = 1

// A range is written as one byte (state in the low three bits, then these), its
// size and the fields that its state uses.
const (
	tagState     = 0x07
	tagUntracked = 1 << 3
	tagRejected  = 1 << 4
	tagWhole     = 1 << 5 // the range is its whole tracked batch
	tagClaimed   = 1 << 6
	tagResting   = 1 << 7
)

// Flags before the holders.
const (
	flagWritten  = 1 << 0
	flagLogEpoch = 1 << 1 // the leader epoch of the window follows
)

// AppendSnapshot appends the state to dst. Equal states give equal bytes, however
// they came about.
func (p *Partition) AppendSnapshot(dst []byte) []byte {
	dst = append(dst, snapshotVersion)
	dst = binary.AppendVarint(dst, p.incarnation)
	dst = binary.AppendVarint(dst, p.clock)
	dst = binary.AppendVarint(dst, p.spso)
	dst = binary.AppendVarint(dst, int64(p.leaderEpoch))
	var flags byte
	if p.written {
		flags |= flagWritten
	}
	if p.logEpoch >= 0 {
		flags |= flagLogEpoch
	}
	if dst = append(dst, flags); p.logEpoch >= 0 {
		dst = binary.AppendVarint(dst, int64(p.logEpoch))
	}
	dst, numbers := p.appendHolders(dst)
	dst = binary.AppendUvarint(dst, uint64(len(p.spans)))
	for i := range p.spans {
		s := &p.spans[i]
		var number uint32
		if s.holder != 0 {
			number = numbers[s.holder]
		}
		dst = s.append(dst, number, p.clock)
	}
	return dst
}

// appendHolders writes the holders in the order in which the ranges first name
// them, and tells their numbers in that order, from 1.
func (p *Partition) appendHolders(dst []byte) ([]byte, []uint32) {
	numbers := make([]uint32, len(p.holders.list)+1)
	var named []uint32
	for i := range p.spans {
		if n := p.spans[i].holder; n != 0 && numbers[n] == 0 {
			named = append(named, n)
			numbers[n] = uint32(len(named))
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(named)))
	for _, n := range named {
		h := p.holders.get(n)
		dst = appendBytes(dst, h.member)
		dst = h.session.append(dst)
	}
	return dst, numbers
}

func (s *span) append(dst []byte, holder uint32, clock int64) []byte {
	tag := byte(s.state)
	if s.flags&untracked != 0 {
		tag |= tagUntracked
	}
	if s.flags&rejected != 0 {
		tag |= tagRejected
	}
	tracked := s.state == StateAvailable || s.state == StateAcquired
	whole := s.batchFirst == s.first && s.batchLast == s.last
	if tracked && whole {
		tag |= tagWhole
	}
	if s.state == StateArchiving && holder != 0 {
		tag |= tagClaimed
	}
	if s.resting() {
		tag |= tagResting
	}
	dst = append(dst, tag)
	dst = binary.AppendUvarint(dst, uint64(s.last-s.first))
	if s.state.terminal() {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(s.count))
	if tracked && !whole {
		dst = binary.AppendUvarint(dst, uint64(s.first-s.batchFirst))
		dst = binary.AppendUvarint(dst, uint64(s.batchLast-s.last))
	}
	if holder != 0 {
		dst = binary.AppendUvarint(dst, uint64(holder))
	}
	if holder != 0 || s.resting() {
		dst = binary.AppendVarint(dst, s.deadline-clock)
	}
	return dst
}

// Restore replaces the state by a snapshot. On an error (ErrMalformed,
// ErrSnapshotVersion, wrapped) the state stays as it was.
func (p *Partition) Restore(snapshot []byte) error {
	if len(snapshot) == 0 {
		return fmt.Errorf("%w: empty snapshot", ErrMalformed)
	}
	if snapshot[0] != snapshotVersion {
		return fmt.Errorf("%w %d", ErrSnapshotVersion, snapshot[0])
	}
	r := reader{b: snapshot[1:]}
	q := Partition{
		incarnation: r.varint(), clock: r.varint(), spso: r.varint(),
		leaderEpoch: r.int32(), logEpoch: -1, nextExpiry: math.MaxInt64,
	}
	flags := r.flags(flagWritten | flagLogEpoch)
	q.written = flags&flagWritten != 0
	if flags&flagLogEpoch != 0 {
		if q.logEpoch = r.int32(); q.logEpoch < 0 {
			r.fail()
		}
	}
	q.end = q.spso
	q.readHolders(&r)
	q.readSpans(&r)
	if err := r.end(); err != nil {
		return fmt.Errorf("%w: snapshot", err)
	}
	if err := q.check(); err != nil {
		return fmt.Errorf("%w: snapshot: %w", ErrMalformed, err)
	}
	q.expireAgain()
	q.tally(q.spans, 1)
	*p = q
	return nil
}

func (p *Partition) readHolders(r *reader) {
	for i, n := 1, r.count(3); i <= n; i++ {
		member := r.bytes()
		if got := p.holders.number(member, r.session()); int(got) != i {
			r.fail() // twice the same
		}
	}
}

func (p *Partition) readSpans(r *reader) {
	n := r.count(2)
	if n > 0 {
		p.spans = make([]span, 0, n)
	}
	for ; n > 0 && !r.bad; n-- {
		s := r.span(p.end, len(p.holders.list), p.clock)
		p.spans = append(p.spans, s)
		p.end = s.last + 1
	}
}

// span reads the range that begins at first.
func (r *reader) span(first int64, holders int, clock int64) span {
	tag := r.flags(tagState | tagUntracked | tagRejected | tagWhole | tagClaimed | tagResting)
	s := span{first: first, state: State(tag & tagState)}
	s.last = first + int64(r.uvarint())
	if tag&tagUntracked != 0 {
		s.flags |= untracked
	}
	if tag&tagRejected != 0 {
		s.flags |= rejected
	}
	if s.state.terminal() {
		return s
	}
	s.count = r.deliveryCount()
	if s.state != StateArchiving {
		s.batchFirst, s.batchLast = s.first, s.last
		if tag&tagWhole == 0 {
			s.batchFirst -= int64(r.uvarint())
			s.batchLast += int64(r.uvarint())
		}
	}
	if s.state == StateAcquired || tag&tagClaimed != 0 {
		n := r.uvarint()
		if n == 0 || n > uint64(holders) {
			r.fail()
			return s
		}
		s.holder = uint32(n)
		s.deadline = clock + r.varint()
	}
	if tag&tagResting != 0 {
		if s.state != StateAvailable {
			r.fail()
			return s
		}
		s.deadline = clock + r.varint()
	}
	return s
}
