package sharestate

// applyAcknowledge judges all batches of a request before it applies any. An error
// leaves everything as it was, except that locks renewed by the batches before the
// failing one stay renewed, as on a broker.
func (p *Partition) applyAcknowledge(op *acknowledgeOp) AckCode {
	if !wellFormed(op.batches) {
		return AckInvalidRequest
	}
	at := 0
	for i := range op.batches {
		code := AckOK
		if code, at = p.judge(op, i, at); code != AckOK {
			p.acknowledge(op, op.batches[:i], true)
			return code
		}
	}
	p.acknowledge(op, op.batches, false)
	return AckOK
}

// wellFormed checks what needs no state. Batches ascend; that one begins where the
// one before ended is for judge to refuse.
func wellFormed(batches []ackRange) bool {
	for i := range batches {
		b := &batches[i]
		if b.first < 0 || b.first > b.last || i > 0 && b.first < batches[i-1].last {
			return false
		}
		if n := len(b.types); n == 0 || n > 1 && int64(n-1) != b.last-b.first {
			return false
		}
		for _, t := range b.types {
			if AckType(t) > AckRenew || AckType(t) < AckGap {
				return false
			}
		}
	}
	return true
}

// judge tells what the i-th batch would lead to after the ones before it. at is a
// range where the search may begin, here and in the result.
func (p *Partition) judge(op *acknowledgeOp, i, at int) (AckCode, int) {
	b := &op.batches[i]
	if b.last < p.spso {
		return AckOK, at // finished long ago
	}
	if len(p.spans) == 0 {
		return AckInvalidRecordState, at
	}
	at = p.indexFrom(at, max(b.first, p.spso))
	if b.last >= p.end || p.spans[p.indexFrom(at, b.last)].flags&untracked != 0 {
		return AckInvalidRequest, at // ends past what was handed out
	}
	for j := at; j < len(p.spans) && p.spans[j].first <= b.last; j++ {
		s := &p.spans[j]
		if s.flags&untracked != 0 {
			continue
		}
		first := max(s.first, b.first)
		if s.state != StateAcquired || p.holders.get(s.holder).member != string(op.member) {
			return AckInvalidRecordState, at
		}
		if i > 0 && first == op.batches[i-1].last && op.batches[i-1].at(first) != AckRenew {
			return AckInvalidRecordState, at // the batch before has finished this one
		}
		if !op.settings.RenewEnabled && b.renews(first, min(s.last, b.last)) {
			return AckRenewDisabled, at
		}
	}
	return AckOK, at
}

// renews tells whether an offset of [first, last] is to be renewed.
func (a *ackRange) renews(first, last int64) bool {
	if len(a.types) == 1 {
		return AckType(a.types[0]) == AckRenew
	}
	for _, t := range a.types[first-a.first : last-a.first+1] {
		if AckType(t) == AckRenew {
			return true
		}
	}
	return false
}

// run gives the end of the run of equal types that begins at first.
func (a *ackRange) run(first, last int64) int64 {
	if len(a.types) == 1 {
		return last
	}
	end := first
	for end < last && a.types[end+1-a.first] == a.types[first-a.first] {
		end++
	}
	return end
}

// acknowledge applies batches that were judged good; onlyRenew leaves all other
// types out.
func (p *Partition) acknowledge(op *acknowledgeOp, batches []ackRange, onlyRenew bool) {
	for len(batches) > 0 && batches[0].last < p.spso {
		batches = batches[1:]
	}
	if len(batches) == 0 {
		return
	}
	deadline := p.after(op.settings.LockDurationMs)
	written := false
	w := p.rewrite(max(batches[0].first, p.spso))
	for i := range batches {
		b := &batches[i]
		last := b.last
		if !onlyRenew && i+1 < len(batches) && batches[i+1].first == last {
			last-- // renewed here, and then decided by the next batch
		}
		w.keepTo(max(b.first, p.spso))
		for {
			s, ok := w.peek()
			if !ok || s.first > last {
				break
			}
			if s.state != StateAcquired { // an untracked hole
				w.emit(w.take(last))
				continue
			}
			t := b.at(s.first)
			piece := w.take(b.run(s.first, min(s.last, last)))
			if t == AckRenew {
				piece.deadline = deadline
				p.nextExpiry = min(p.nextExpiry, deadline)
			} else if !onlyRenew {
				piece = p.settled(piece, t, &op.settings)
				written = true
			}
			w.emit(piece)
		}
	}
	w.finish()
	if written {
		p.written = true
		p.leaderEpoch = max(p.leaderEpoch, op.leaderEpoch)
	}
}

// settled gives an Acquired range after an acknowledgement other than Renew.
func (p *Partition) settled(s span, t AckType, set *Settings) span {
	switch t {
	case AckAccept:
		return s.finished(StateAcknowledged)
	case AckReject:
		return s.archived(set, rejected)
	case AckRelease:
		s = s.released(set, p.clock)
		p.note(&s)
		return s
	}
	return s.finished(StateArchived) // a gap; never a dead letter
}
