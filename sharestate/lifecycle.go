package sharestate

// applyStart lets the first resolved start offset win, and returns the SPSO.
func (p *Partition) applyStart(op Start) int64 {
	if p.spso < 0 && op.Offset >= 0 {
		p.spso, p.end = op.Offset, op.Offset
		p.leaderEpoch = max(p.leaderEpoch, op.LeaderEpoch)
		p.moved = true
	}
	return p.spso
}

// applyReset begins a new life, unless this one or a later one has begun already.
func (p *Partition) applyReset(op Reset) uint64 {
	if op.Incarnation <= p.incarnation {
		return 0
	}
	p.begin(op.Incarnation, op.Offset)
	p.moved = true
	return 1
}

// applyLogStart finishes what lies below upstream's new log start. Kafka keeps
// ranges below it that are still Acquired until acknowledged or timed out; since
// an acknowledgement below SPSO succeeds without effect, nobody can tell.
func (p *Partition) applyLogStart(op *AdvanceLogStart) {
	if p.spso < 0 || op.LogStart <= p.spso {
		return
	}
	p.moved = true
	n := p.index(op.LogStart)
	p.tally(p.spans[:n], -1)
	p.drop(n)
	p.spso = op.LogStart
	if len(p.spans) == 0 {
		p.end = max(p.end, op.LogStart)
		p.spso = p.end
		return
	}
	if s := &p.spans[0]; s.first < op.LogStart {
		p.tally(p.spans[:1], -1)
		s.first = op.LogStart
		p.tally(p.spans[:1], 1)
	}
	p.settle()
}

// applyLeaderChange takes the leader epoch that comes next, and gives the number of
// offsets that the log has lost with the change.
func (p *Partition) applyLeaderChange(op LeaderChange) uint64 {
	if p.spso < 0 || op.From != p.logEpoch || op.Epoch <= op.From {
		return 0
	}
	p.logEpoch = op.Epoch
	if op.From < 0 || op.End < 0 || op.End >= p.end {
		return 0
	}
	lost := uint64(p.end - op.End)
	p.cut(op.End)
	return lost
}

// cut forgets everything from end on, finished or not.
func (p *Partition) cut(end int64) {
	p.moved = true
	n := p.index(end)
	p.tally(p.spans[n:], -1)
	if n < len(p.spans) && p.spans[n].first < end {
		p.spans[n].last = end - 1
		p.tally(p.spans[n:n+1], 1)
		n++
	}
	p.spans = p.spans[:n]
	for i := range p.spans {
		if s := &p.spans[i]; s.batchLast >= end {
			s.batchLast = end - 1
		}
	}
	p.spso, p.end = min(p.spso, end), end
	p.settle()
}
