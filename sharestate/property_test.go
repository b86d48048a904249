package sharestate

import (
	"bytes"
	"fmt"
	"math"
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
		seeds, ops = 60, 3000
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
		back, err := decodeOp(h.buf)
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
	case AcquireUnder:
		o.Acquire = normal(o.Acquire).(Acquire)
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
	case Acquire, AcquireUnder:
		return asAny(DecodeAcquireResult(raw))
	case Acknowledge:
		return asAny(DecodeAcknowledgeResult(raw))
	case Start:
		return asAny(decodeStartResult(raw))
	case ClaimArchiving:
		return asAny(DecodeClaimResult(raw))
	case Fence, AdvanceLogStart, LogStartUnder:
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
	if p.LogEpoch() != m.logEpoch {
		return fmt.Errorf("epoch of the window %d, model %d", p.LogEpoch(), m.logEpoch)
	}
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
