package sharestate

// applyClaim gives Archiving records to a replica that will write their dead
// letters, and appends which.
func (p *Partition) applyClaim(dst []byte, op *ClaimArchiving) []byte {
	if op.Incarnation != p.incarnation {
		return dst
	}
	free := func(s *span) bool {
		return s.state == StateArchiving && (s.holder == 0 || s.deadline <= p.clock)
	}
	budget, prev, deadline := int64(op.MaxRecords), int64(0), p.after(op.ClaimMs)
	i := 0
	for i < len(p.spans) && !free(&p.spans[i]) {
		i++
	}
	if i == len(p.spans) || budget <= 0 {
		return dst
	}
	p.holders.sweep(p.spans)
	claimant := p.holders.number(nil, SessionNonce{Replica: op.Replica})
	w := p.rewriteAt(i)
	for budget > 0 {
		s, ok := w.peek()
		if !ok {
			break
		}
		if !free(s) {
			w.emit(w.take(s.last))
			continue
		}
		piece := w.take(s.first + min(budget, s.size()) - 1)
		piece.holder, piece.deadline = claimant, deadline
		dst = appendClaimed(dst, prev, &piece)
		prev = piece.last
		budget -= piece.size()
		w.emit(piece)
	}
	w.finish()
	return dst
}

// applyArchivingDone finishes records whose dead letters were written or given up.
func (p *Partition) applyArchivingDone(op *ArchivingDone) uint64 {
	ranges := validRanges(op.Ranges)
	if op.Incarnation != p.incarnation || len(ranges) == 0 || len(p.spans) == 0 {
		return 0
	}
	var n int64
	w := p.rewrite(ranges[0].First)
	for _, r := range ranges {
		w.keepTo(r.First)
		for {
			s, ok := w.peek()
			if !ok || s.first > r.Last {
				break
			}
			piece := w.take(r.Last)
			if piece.state == StateArchiving {
				n += piece.size()
				piece = piece.finished(StateArchived)
			}
			w.emit(piece)
		}
	}
	w.finish()
	p.written = p.written || n > 0
	return uint64(n)
}
