package sharestate

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestRandomOperationsMatchPerRecordModel folds random histories into the
// partition and into the model, and compares the result of every op and everything
// visible after it. Now and then the partition is replaced by a restored snapshot
// of itself, which must make no difference.
func TestRandomOperationsMatchPerRecordModel(t *testing.T) {
	seeds, ops := 250, 4200
	if testing.Short() || raceDetector {
		seeds, ops = 20, 2000
	}
	const groups = 5
	for g := range groups {
		t.Run(fmt.Sprint("group", g), func(t *testing.T) {
			t.Parallel()
			for seed := g; seed < seeds; seed += groups {
				newHistory(uint64(seed)).run(t, ops)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// startBelow bounds random start offsets, so that histories stay in the made-up log.
const startBelow = 2000

// history makes up operations that make sense often enough to go deep.
type history struct {
	seed  uint64
	rnd   *rand.Rand
	p     *Partition
	m     *model
	set   Settings
	now   int64
	log   []OffsetRange // upstream's record batches
	bad   []OffsetRange // those of aborted transactions
	seen  []int64       // earlier positions, for stale reads
	sess  int64
	buf   []byte
	snap  []byte
	snap2 []byte
}

func newHistory(seed uint64) *history {
	h := &history{seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), now: 1_000_000}
	start := int64(-1)
	if h.chance(50) {
		start = h.rnd.Int64N(20)
	}
	h.p, h.m = NewPartition(1, start), newModel(1, start)
	h.set = Settings{DeliveryLimit: int16(2 + h.rnd.IntN(6)), LockDurationMs: int32(1 + h.rnd.IntN(40)),
		MaxRecordLocks: int32(5 + h.rnd.IntN(60)), RenewEnabled: !h.chance(20), DeadLetters: h.chance(30)}
	if h.chance(50) {
		h.backOff()
	}
	for off := int64(0); off < 60_000; {
		if h.chance(10) {
			off += 1 + h.rnd.Int64N(6)
		}
		size := 1 + h.rnd.Int64N(8)
		if h.chance(10) {
			size *= 4
		}
		b := OffsetRange{off, off + size - 1}
		h.log = append(h.log, b)
		if h.chance(8) {
			h.bad = append(h.bad, b)
		}
		off += size
	}
	return h
}

func (h *history) chance(percent int) bool { return h.rnd.IntN(100) < percent }

// backOff turns the release backoff on.
func (h *history) backOff() {
	h.set.ReleaseBackoffMs, h.set.ReleaseBackoffMaxMs = int32(1+h.rnd.IntN(8)), int32(h.rnd.IntN(40))
}

func (h *history) run(t *testing.T, ops int) {
	for i := range ops {
		op := h.next()
		if err := h.step(op); err != nil {
			t.Errorf("seed %d, op %d, %T%+v: %v", h.seed, i, op, op, err)
			return
		}
		if h.chance(3) {
			if err := h.restore(); err != nil {
				t.Errorf("seed %d, after op %d: %v", h.seed, i, err)
				return
			}
		}
	}
}

func (h *history) step(op Op) error {
	h.buf = EncodeOp(h.buf[:0], op)
	if h.chance(5) {
		back, err := DecodeOp(h.buf)
		if err != nil || !reflect.DeepEqual(normal(back), normal(op)) {
			return fmt.Errorf("decodes to %+v, %v", back, err)
		}
	}
	raw, wake, err := h.p.Apply(nil, h.buf, h.now)
	if err != nil {
		return err
	}
	got, err := decodeResult(op, raw)
	if err != nil {
		return err
	}
	want := h.m.apply(op, h.now)
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("result %+v, model %+v", got, want)
	}
	if wake != h.m.wake() {
		return fmt.Errorf("wake %v, model %v", wake, h.m.wake())
	}
	if err := invariants(h.p); err != nil {
		return err
	}
	return h.compare()
}

// normal makes nil and empty slices one, as the encoding does.
func normal(op Op) Op {
	switch o := op.(type) {
	case Acquire:
		o.Batches, o.Aborted = append([]OffsetRange{}, o.Batches...), append([]OffsetRange{}, o.Aborted...)
		return o
	case Acknowledge:
		o.Batches = append([]AckBatch{}, o.Batches...)
		return o
	case ArchivingDone:
		o.Ranges = append([]OffsetRange{}, o.Ranges...)
		return o
	}
	return op
}

func decodeResult(op Op, raw []byte) (any, error) {
	switch op.(type) {
	case Acquire:
		return asAny(DecodeAcquireResult(raw))
	case Acknowledge:
		return asAny(DecodeAcknowledgeResult(raw))
	case Start:
		return asAny(DecodeStartResult(raw))
	case ClaimArchiving:
		return asAny(DecodeClaimResult(raw))
	case Fence, AdvanceLogStart:
		if len(raw) > 0 {
			return nil, fmt.Errorf("result % x", raw)
		}
		return nil, nil
	}
	return asAny(DecodeCountResult(raw))
}

func asAny[T any](v T, err error) (any, error) { return v, err }

// invariants checks what must hold after any op: the order of the ranges, and the
// sums that are kept beside them.
func invariants(p *Partition) error {
	if err := p.check(); err != nil {
		return err
	}
	var available, resting, archiving, complete int64
	for _, s := range p.spans {
		switch {
		case s.resting():
			resting += s.size()
			if s.deadline < p.nextExpiry {
				return fmt.Errorf("a rest ends at %d, before %d", s.deadline, p.nextExpiry)
			}
		case s.state == StateAvailable:
			available += s.size()
		case s.state == StateArchiving:
			archiving += s.size()
		case s.state.terminal():
			complete += s.size()
		case s.state == StateAcquired && s.deadline < p.nextExpiry:
			return fmt.Errorf("a lock ends at %d, before %d", s.deadline, p.nextExpiry)
		}
		if s.state == StateAcquired && s.deadline <= p.clock && s.deadline < p.nextExpiry {
			return fmt.Errorf("expired lock at %d", s.first)
		}
	}
	if available != p.available || resting != p.resting || archiving != p.archiving || complete != p.complete {
		return fmt.Errorf("sums %d, %d, %d, %d for %d, %d, %d, %d", p.available, p.resting, p.archiving, p.complete, available, resting, archiving, complete)
	}
	return nil
}

// compare holds everything visible against the model.
func (h *history) compare() error {
	p, m := h.p, h.m
	if p.SPSO() != m.spso || p.Started() != (m.spso >= 0) || p.Incarnation() != m.incarnation {
		return fmt.Errorf("SPSO %d, model %d", p.SPSO(), m.spso)
	}
	complete, off := int64(0), m.spso
	first := int64(math.MaxInt64)
	for i := range p.spans {
		s := &p.spans[i]
		for ; off <= s.last; off++ {
			if off >= m.end() {
				return fmt.Errorf("offset %d: %+v, model has nothing", off, *s)
			}
			r := m.at(off)
			if !same(p, s, r) {
				return fmt.Errorf("offset %d: %+v, model %+v batch %+v", off, *s, *r, r.batch)
			}
			if modelTerminal(r.state) {
				complete++
			}
			if r.state == StateAcquired {
				first = min(first, r.deadline)
			}
		}
	}
	if off != m.end() {
		return fmt.Errorf("window ends at %d, model at %d", off, m.end())
	}
	if want := m.spso + int64(max(len(m.records)-1, 0)); p.SPEO() != want {
		return fmt.Errorf("SPEO %d, model %d", p.SPEO(), want)
	}
	want := Summary{StartOffset: -1, LeaderEpoch: m.leaderEpoch, DeliveryComplete: complete, InFlight: int64(len(m.records))}
	if m.written {
		want.StartOffset = m.spso
	}
	if got := p.Summary(); got != want {
		return fmt.Errorf("summary %+v, model %+v", got, want)
	}
	if got, ok := p.NextDeadline(); ok != (first < math.MaxInt64) || ok && got != first {
		return fmt.Errorf("next deadline %d, model %d", got, first)
	}
	return h.compareFetchable()
}

func same(p *Partition, s *span, r *modelRecord) bool {
	if s.state != r.state || s.count != r.count || s.deadline != r.deadline ||
		s.flags&untracked != 0 != r.untracked || s.flags&rejected != 0 != r.rejected {
		return false
	}
	if r.batch != nil && (s.batchFirst != r.batch.first || s.batchLast != r.batch.last) {
		return false
	}
	if s.holder == 0 {
		return r.state != StateAcquired && !r.claimed
	}
	return *p.holders.get(s.holder) == holder{r.member, r.session}
}

// compareFetchable asks at a time ahead, where locks have ended that no op has
// ended yet: the answer must be that after an Expire at that time.
func (h *history) compareFetchable() error {
	if !h.chance(20) {
		return nil
	}
	ahead := h.now + h.rnd.Int64N(30_000)
	later := &model{incarnation: h.m.incarnation, clock: max(h.m.clock, ahead), spso: h.m.spso,
		records: append([]modelRecord(nil), h.m.records...)}
	later.expire(h.set)
	var want Fetchable
	ok := false
	if later.spso >= 0 {
		want = Fetchable{Position: later.position(), Last: later.end() - 1}
		if len(later.records) < int(h.set.MaxRecordLocks) {
			want.New, want.Last = true, math.MaxInt64
		}
		ok = want.New || want.Position < later.end()
	}
	got, gotOK := h.p.Fetchable(ahead, h.set)
	if gotOK != ok || ok && got != want {
		return fmt.Errorf("fetchable %+v %v, model %+v %v", got, gotOK, want, ok)
	}
	if err := h.compareNextChange(); err != nil {
		return err
	}
	for member := range 3 {
		var held []OffsetRange
		for i := range h.m.records {
			off := h.m.spso + int64(i)
			if r := &h.m.records[i]; r.state != StateAcquired || r.member != memberName(member) {
				continue
			}
			if n := len(held); n > 0 && held[n-1].Last == off-1 {
				held[n-1].Last = off
			} else {
				held = append(held, OffsetRange{off, off})
			}
		}
		if got := h.p.heldBy(memberName(member)); !reflect.DeepEqual(got, held) {
			return fmt.Errorf("held by %d: %v, model %v", member, got, held)
		}
	}
	return nil
}

// compareNextChange lets the model go on alone, from one deadline to the next, until
// something changes after a time ahead.
func (h *history) compareNextChange() error {
	ahead := h.m.clock + h.rnd.Int64N(30_000)
	want := int64(math.MaxInt64)
	for i := range h.m.records {
		r := h.m.records[i]
		at := r.deadline
		if r.state == StateAcquired && at <= ahead && (h.set.DeliveryLimit <= 0 || r.count < h.set.DeliveryLimit) {
			at += modelBackoff(h.set, r.count)
		}
		if (r.state == StateAcquired || r.state == StateAvailable) && at > ahead {
			want = min(want, at)
		}
	}
	if got, ok := h.p.NextChange(ahead, h.set); got != want || ok != (want < math.MaxInt64) {
		return fmt.Errorf("next change after %d: %d %v, model %d", ahead, got, ok, want)
	}
	return nil
}

// restore puts a restored snapshot in the partition's place.
func (h *history) restore() error {
	h.snap = h.p.AppendSnapshot(h.snap[:0])
	q := NewPartition(77, 5)
	if err := q.Restore(h.snap); err != nil {
		return err
	}
	if h.snap2 = q.AppendSnapshot(h.snap2[:0]); !bytes.Equal(h.snap, h.snap2) {
		return fmt.Errorf("snapshot % x restored gives % x", h.snap, h.snap2)
	}
	h.p = q
	return h.compare()
}

func memberName(i int) string { return [...]string{"m-a", "m-b", "m-c"}[i] }

func (h *history) next() Op {
	switch {
	case h.chance(10):
		h.now -= h.rnd.Int64N(3000) // clocks of a failed-over Redis go back
	case h.chance(70):
		h.now += h.rnd.Int64N(4000)
	}
	if h.chance(1) {
		h.set.DeliveryLimit = int16(h.rnd.IntN(8))
		h.set.MaxRecordLocks = int32(h.rnd.IntN(70))
		h.set.DeadLetters = h.chance(30)
		if h.set.ReleaseBackoffMs, h.set.ReleaseBackoffMaxMs = 0, 0; h.chance(50) {
			h.backOff()
		}
	}
	h.seen = append(h.seen, h.m.position())
	if len(h.seen) > 8 {
		h.seen = h.seen[1:]
	}
	switch n := h.rnd.IntN(100); {
	case h.m.spso < 0 && n < 30:
		return Start{h.rnd.Int64N(startBelow) - 1, int32(h.rnd.IntN(5)) - 1}
	case n < 42:
		return h.acquire()
	case n < 82:
		return h.acknowledge()
	case n < 86:
		return Release{memberName(h.rnd.IntN(3)), SessionNonce{max(0, h.sess-h.rnd.Int64N(3)), 1}, h.set}
	case n < 88:
		return ReleaseReplica{uint64(h.rnd.IntN(3)), h.set}
	case n < 91:
		return Expire{h.set}
	case n < 92:
		return h.logStart()
	case n < 93 && h.chance(25):
		return Reset{h.rnd.Int64N(startBelow) - 2, h.m.incarnation + h.rnd.Int64N(3) - 1}
	case n < 96:
		return ClaimArchiving{uint64(h.rnd.IntN(3)), h.m.incarnation - h.rnd.Int64N(12)/11, int32(h.rnd.IntN(10)), int32(h.rnd.IntN(20)), h.set}
	case n < 99:
		return h.archivingDone()
	}
	return Fence{}
}

func (h *history) logStart() Op {
	return AdvanceLogStart{max(0, h.m.spso) + h.rnd.Int64N(30) - 8, h.set}
}

func (h *history) acquire() Op {
	from := h.seen[len(h.seen)-1]
	if h.chance(12) {
		from = h.seen[h.rnd.IntN(len(h.seen))]
	}
	if h.chance(3) {
		from = max(0, from+h.rnd.Int64N(20)-10)
	}
	if from < 0 {
		from = 0
	}
	op := Acquire{Member: memberName(h.rnd.IntN(3)), From: from, MaxRecords: int32(h.rnd.IntN(25)),
		BatchSize: int32(h.rnd.IntN(12)), Mode: AcquireMode(h.rnd.IntN(2)), Settings: h.set}
	if h.chance(20) {
		h.sess++
	}
	op.Session = SessionNonce{h.sess, uint64(h.rnd.IntN(3))}
	if h.chance(3) {
		return op // upstream had nothing
	}
	lo, hi := 0, len(h.log)
	for lo < hi { // first batch that ends at or after from
		if mid := (lo + hi) / 2; h.log[mid].Last < from {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if h.chance(4) {
		lo++ // compacted away meanwhile
	}
	op.Batches = h.log[min(lo, len(h.log)):min(lo+1+h.rnd.IntN(6), len(h.log))]
	if h.chance(50) {
		for _, b := range h.bad {
			if len(op.Batches) > 0 && b.First >= op.Batches[0].First && b.Last <= op.Batches[len(op.Batches)-1].Last {
				op.Aborted = append(op.Aborted, b)
			}
		}
	}
	return op
}

func (h *history) ackType() AckType {
	switch n := h.rnd.IntN(100); {
	case n < 35:
		return AckAccept
	case n < 75:
		return AckRelease
	case n < 83:
		return AckReject
	case n < 90:
		return AckGap
	}
	return AckRenew
}

func (h *history) acknowledge() Op {
	op := Acknowledge{Member: memberName(h.rnd.IntN(3)), LeaderEpoch: int32(h.rnd.IntN(6)) - 1, Settings: h.set}
	for _, held := range h.p.heldBy(op.Member) {
		if h.chance(30) {
			continue
		}
		first, last := held.First, held.Last
		if h.chance(40) {
			first += h.rnd.Int64N(last - first + 1)
			last = first + h.rnd.Int64N(last-first+1)
		}
		if h.chance(3) {
			first -= h.rnd.Int64N(4)
		}
		if h.chance(3) {
			last += h.rnd.Int64N(4)
		}
		n := len(op.Batches)
		if n > 0 && first <= op.Batches[n-1].Last && !h.chance(10) {
			continue
		}
		if h.chance(2) && n > 0 {
			first = op.Batches[n-1].Last // once more
		}
		op.Batches = append(op.Batches, AckBatch{first, last, h.ackTypes(last - first + 1)})
		if h.chance(5) {
			op.Batches = append(op.Batches, AckBatch{last, last, h.ackTypes(1)})
		}
	}
	if len(op.Batches) == 0 && h.chance(20) {
		first := max(0, h.m.spso) + h.rnd.Int64N(40) - 10
		last := first + h.rnd.Int64N(12) - 1
		op.Batches = []AckBatch{{first, last, h.ackTypes(last - first + 1)}}
	}
	return op
}

func (h *history) ackTypes(size int64) []AckType {
	if h.chance(50) || size < 1 {
		return []AckType{h.ackType()}
	}
	if h.chance(1) {
		size++
	}
	types := make([]AckType, size)
	for i := range types {
		if types[i] = h.ackType(); i > 0 && h.chance(60) {
			types[i] = types[i-1]
		}
	}
	return types
}

func (h *history) archivingDone() Op {
	op := ArchivingDone{Incarnation: h.m.incarnation - h.rnd.Int64N(12)/11, Settings: h.set}
	for i, r := range h.m.records {
		if off := h.m.spso + int64(i); r.state == StateArchiving && h.chance(60) {
			op.Ranges = append(op.Ranges, OffsetRange{off, off})
		}
	}
	return op
}

// heldBy gives the offsets that a member holds under any of its sessions,
// ascending, neighbours joined. Locks that have run out but were not ended yet
// count as held.
func (p *Partition) heldBy(member string) []OffsetRange {
	var held []OffsetRange
	for i := range p.spans {
		s := &p.spans[i]
		if s.state != StateAcquired || p.holders.get(s.holder).member != member {
			continue
		}
		if n := len(held); n > 0 && held[n-1].Last+1 == s.first {
			held[n-1].Last = s.last
			continue
		}
		held = append(held, OffsetRange{s.first, s.last})
	}
	return held
}
