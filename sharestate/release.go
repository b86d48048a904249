package sharestate

import "math"

// change passes every range for which pick holds through alter, and returns the
// number of offsets picked.
func (p *Partition) change(pick func(*span) bool, alter func(span) span) uint64 {
	i := 0
	for i < len(p.spans) && !pick(&p.spans[i]) {
		i++
	}
	if i == len(p.spans) {
		return 0
	}
	var n int64
	w := p.rewriteAt(i)
	for {
		s, ok := w.peek()
		if !ok {
			break
		}
		piece := w.take(s.last)
		if pick(&piece) {
			n += piece.size()
			piece = alter(piece)
		}
		w.emit(piece)
	}
	w.finish()
	return uint64(n)
}

// release ends the locks that pick chooses.
func (p *Partition) release(set *Settings, pick func(*span) bool) uint64 {
	n := p.change(
		func(s *span) bool { return s.state == StateAcquired && pick(s) },
		func(s span) span {
			s = s.released(set, p.clock)
			p.note(&s)
			return s
		})
	p.written = p.written || n > 0
	return n
}

// note notes what became of a released range, for those who wait.
func (p *Partition) note(s *span) {
	p.freed = p.freed || s.free()
	if s.resting() {
		p.rested = true
		p.nextExpiry = min(p.nextExpiry, s.deadline)
	}
}

// expire ends the locks and rests that have run out by now. It returns the number of
// offsets whose lock ended.
func (p *Partition) expire(set *Settings) uint64 {
	if p.clock < p.nextExpiry && !p.wakesAll(set) {
		return 0
	}
	n := p.release(set, func(s *span) bool { return s.deadline <= p.clock })
	p.endRests(set)
	p.expireAgain()
	return n
}

// expireAgain sets the time before which there is nothing to expire.
func (p *Partition) expireAgain() {
	p.nextExpiry = math.MaxInt64
	for i := range p.spans {
		if s := &p.spans[i]; s.state == StateAcquired || s.resting() {
			p.nextExpiry = min(p.nextExpiry, s.deadline)
		}
	}
}

// applyRelease frees what the member holds under this session and older ones.
func (p *Partition) applyRelease(op *releaseOp) uint64 {
	return p.release(&op.settings, func(s *span) bool {
		h := p.holders.get(s.holder)
		return h.session.Opened <= op.session.Opened && h.member == string(op.member)
	})
}

// applyReleaseReplica frees what the sessions of a dead replica hold, and lets
// others write the dead letters that it had claimed.
func (p *Partition) applyReleaseReplica(op *ReleaseReplica) uint64 {
	n := p.release(&op.Settings, func(s *span) bool {
		return p.holders.get(s.holder).session.Replica == op.Replica
	})
	return n + p.change(
		func(s *span) bool {
			return s.state == StateArchiving && s.holder != 0 &&
				p.holders.get(s.holder).session.Replica == op.Replica
		},
		func(s span) span {
			s.holder, s.deadline = 0, 0
			return s
		})
}
