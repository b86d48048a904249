package sharestate

import "math"

// acquisition is one pass of an [Acquire] over the window and beyond.
type acquisition struct {
	p     *Partition
	w     rewriter
	op    *acquireOp
	dst   []byte
	prev  int64 // end of the last entry in dst
	stale bool

	aborted []OffsetRange // those not yet passed

	base     int64 // records were read from here ...
	last     int64 // ... to here; nothing beyond is taken
	budget   int64 // offsets to take; checked between tracked batches in BatchOptimized
	taken    int64
	limit    int16 // delivery limit L; 0 = none
	throttle int16 // count from which deliveries shrink, T
	holder   uint32
	deadline int64
	stopped  bool // the pass is over, whatever budget is left

	// Of the tracked batch under way.
	batchFirst int64
	inBatch    bool
	throttled  bool
	batchTaken int64
	batchCap   int64 // -1 = none
}

// applyAcquire takes tracked records that are free first, lowest offset first, and
// then new ones. It appends the result to dst.
func (p *Partition) applyAcquire(dst []byte, op *acquireOp) []byte {
	a := acquisition{p: p, op: op, dst: append(dst, 0)}
	pos := p.position()
	if a.stale = p.spso < 0 || pos < op.From; a.stale {
		a.dst[len(a.dst)-1] = staleRead
	}
	op.Batches = validRanges(op.Batches)
	a.aborted = validRanges(op.Aborted)
	if p.spso < 0 || len(op.Batches) == 0 || !a.allow(pos) {
		return a.dst
	}
	a.limit = max(op.Settings.DeliveryLimit, 0)
	a.throttle = max(2, int16((int32(a.limit)+1)/2))
	if a.limit == 0 {
		a.throttle = maxDeliveryCount
	}
	a.deadline = p.after(op.Settings.LockDurationMs)

	p.holders.sweep(p.spans)
	a.w = p.rewrite(pos)
	a.redeliver()
	if a.throttled && a.batchTaken > 0 {
		a.stopped = true // what is near the limit travels alone
	}
	if !a.stopped && a.taken < a.budget && a.last >= p.end {
		a.takeNew()
	}
	a.w.finish()
	return a.dst
}

// validRanges cuts ranges before the first one that is out of order.
func validRanges(ranges []OffsetRange) []OffsetRange {
	next := int64(0)
	for i, r := range ranges {
		if r.First < next || r.Last < r.First || r.Last == math.MaxInt64 {
			return ranges[:i]
		}
		next = r.Last + 1
	}
	return ranges
}

// allow sets how much may be taken and up to where (the window limit).
func (a *acquisition) allow(pos int64) bool {
	p, op := a.p, a.op
	a.base = op.Batches[0].First
	a.last = op.Batches[len(op.Batches)-1].Last
	a.budget = min(int64(op.MaxRecords), int64(op.Settings.MaxRecordLocks)-p.inFlight())
	if a.budget <= 0 && pos < p.end {
		// The window is full, but what is free inside it may still go.
		a.budget = int64(op.MaxRecords)
		a.last = min(a.last, p.end-1)
	}
	if a.stale {
		a.last = min(a.last, p.end-1) // nothing new on the word of such a read
	}
	return a.budget > 0
}

// redeliver goes over the tracked ranges, from the position to a.last. It archives
// what a fresh read shows to be compacted away, resting or not, and takes what is free.
func (a *acquisition) redeliver() {
	for !a.stopped {
		s, ok := a.w.peek()
		switch {
		case !ok || s.first > a.last:
			return
		case s.state != StateAvailable, s.resting() && s.first >= a.base:
			a.w.emit(a.w.take(s.last))
		case s.first < a.base && a.stale:
			a.w.emit(a.w.take(a.base - 1))
		case s.first < a.base:
			a.w.emit(a.w.take(a.base - 1).finished(StateArchived))
		default:
			a.offer(s)
		}
	}
}

// offer takes as much of the free range s as the rules of its batch allow.
func (a *acquisition) offer(s *span) {
	upTo := min(s.last, a.last)
	if a.stale {
		// Judged on a read that may be from another life of the partition, so
		// aborted records are neither handed out nor archived.
		r, ok := a.nextAborted(s.first)
		if ok && r.First <= s.first {
			a.w.emit(a.w.take(min(r.Last, s.last)))
			return
		}
		if ok && r.First <= upTo {
			upTo = r.First - 1
		}
	}
	if !a.inBatch || s.batchFirst != a.batchFirst {
		if !a.enterBatch(s) {
			a.stopped = true
			return
		}
	}
	n := min(upTo-s.first+1, a.room(s.count))
	if n <= 0 {
		a.stopped = true
		return
	}
	alone := a.lastAttempt(s.count)
	piece := a.w.take(s.first + n - 1)
	a.acquire(piece, piece.count)
	a.batchTaken += n
	if alone {
		a.stopped = true
	}
}

// enterBatch begins with the next tracked batch: the budget is judged here, and a
// batch near the delivery limit travels alone.
func (a *acquisition) enterBatch(s *span) bool {
	if a.taken >= a.budget || a.throttled && a.batchTaken > 0 {
		return false
	}
	a.inBatch, a.batchFirst, a.batchTaken, a.batchCap = true, s.batchFirst, 0, -1
	a.throttled = a.nearLimit(s)
	return !a.throttled || a.taken == 0
}

// nearLimit tells whether the batch that s begins holds, within what was read, a free
// offset that was delivered often enough to isolate it. Resting ones count no more
// than those that others hold: they cannot go now.
func (a *acquisition) nearLimit(s *span) bool {
	if s.count >= a.throttle {
		return true
	}
	for i := a.w.next; i < len(a.p.spans); i++ {
		t := &a.p.spans[i]
		if t.first > min(s.batchLast, a.last) {
			return false
		}
		if t.free() && t.batchFirst == s.batchFirst && t.count >= a.throttle {
			return true
		}
	}
	return false
}

// lastAttempt tells whether an offset delivered count times may go once more only.
// Those travel alone, so that one bad record takes no other with it.
func (a *acquisition) lastAttempt(count int16) bool { return a.limit > 2 && count == a.limit-1 }

// room is how many offsets of equal count may be taken next from this batch.
func (a *acquisition) room(count int16) int64 {
	room := int64(math.MaxInt64)
	if a.op.Mode == RecordLimit {
		room = a.budget - a.taken
	}
	if a.lastAttempt(count) {
		if a.batchTaken > 0 {
			return 0
		}
		room = min(room, 1)
	}
	if count >= a.throttle && a.batchCap < 0 {
		size := a.w.cur.batchLast - a.w.cur.batchFirst + 1
		a.batchCap = max(1, size>>(count-a.throttle+1))
		if a.batchTaken >= a.batchCap {
			a.batchCap = math.MaxInt64 // a broker stops at exactly the cap, which has been passed
		}
	}
	if a.batchCap >= 0 {
		room = min(room, a.batchCap-a.batchTaken)
	}
	return room
}

// takeNew takes records beyond SPEO and extends the window over them.
func (a *acquisition) takeNew() {
	p := a.p
	first := p.end
	if a.base > first { // upstream no longer has what followed the window
		a.w.emit(span{first: first, last: a.base - 1, state: StateArchived, flags: untracked})
		first = a.base
	}
	upTo := a.last
	if rest := a.budget - a.taken; rest < upTo-first+1 {
		upTo = batchEnd(a.op.Batches, first, first+rest-1)
	}
	p.end = upTo + 1
	if a.op.Mode == RecordLimit {
		a.takeCut(first, upTo)
		return
	}
	// Entries end at the borders of stored batches, once they are long enough.
	size := int64(max(a.op.BatchSize, 1))
	for _, b := range a.op.Batches {
		if b.First > upTo {
			break
		}
		if b.First-first >= size {
			a.acquire(newSpan(first, b.First-1, first, b.First-1), 0)
			first = b.First
		}
	}
	a.acquire(newSpan(first, upTo, first, upTo), 0)
}

// takeCut takes what the budget allows, inside a stored batch if need be; the rest
// of that one stays in the window as Available and goes next.
func (a *acquisition) takeCut(first, last int64) {
	cut := min(last, first+a.budget-a.taken-1)
	a.acquire(newSpan(first, cut, first, last), 0)
	if cut < last {
		a.w.emit(newSpan(cut+1, last, first, last))
	}
}

func newSpan(first, last, batchFirst, batchLast int64) span {
	return span{first: first, last: last, batchFirst: batchFirst, batchLast: batchLast}
}

// batchEnd gives the end of the last stored batch that begins at or before target;
// in a hole before the first batch that reaches beyond first, the end of that one.
func batchEnd(batches []OffsetRange, first, target int64) int64 {
	end := int64(-1)
	for _, b := range batches {
		if b.First > target && end >= first {
			break
		}
		end = b.Last
	}
	return end
}

// acquire hands out piece, delivered count times before. Records of aborted
// transactions count as taken but are archived at once.
func (a *acquisition) acquire(piece span, count int16) {
	a.taken += piece.size()
	for {
		r, ok := a.nextAborted(piece.first)
		if !ok || r.First > piece.last {
			a.acquireWhole(piece, count)
			return
		}
		if r.First > piece.first {
			head := piece
			head.last = r.First - 1
			a.acquireWhole(head, count)
			piece.first = r.First
		}
		aborted := piece
		aborted.last = min(piece.last, r.Last)
		a.w.emit(aborted.finished(StateArchived))
		if aborted.last == piece.last {
			return
		}
		piece.first = aborted.last + 1
	}
}

func (a *acquisition) acquireWhole(s span, count int16) {
	if a.holder == 0 {
		a.holder = a.p.holders.number(a.op.member, a.op.Session)
	}
	if count < maxDeliveryCount {
		count++
	}
	s.state, s.count, s.holder, s.deadline = StateAcquired, count, a.holder, a.deadline
	a.p.nextExpiry = min(a.p.nextExpiry, s.deadline)
	a.w.emit(s)
	a.dst = appendAcquired(a.dst, a.prev, s.first, s.last, s.count)
	a.prev = s.last
}

// nextAborted gives the first aborted range that ends at or after offset. Offsets
// ascend during a pass, so what lies below is done with.
func (a *acquisition) nextAborted(offset int64) (OffsetRange, bool) {
	for len(a.aborted) > 0 && a.aborted[0].Last < offset {
		a.aborted = a.aborted[1:]
	}
	if len(a.aborted) == 0 {
		return OffsetRange{}, false
	}
	return a.aborted[0], true
}
