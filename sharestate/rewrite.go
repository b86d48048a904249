package sharestate

import (
	"slices"
	"sort"
)

// rewriter replaces a stretch of the ranges in one pass: it copies or changes what
// it reads, piece by piece, merges equal neighbours as it writes, and at the end
// puts the new stretch in the place of the old one. So an op costs what it
// touches, and no op leaves ranges split that should be one.
type rewriter struct {
	p    *Partition
	from int  // first replaced range
	next int  // range to load into cur when that is used up
	cur  span // unread rest of a range
	live bool // cur holds something
}

// rewrite begins at the range that holds offset, or at the end of the window.
func (p *Partition) rewrite(offset int64) rewriter {
	return p.rewriteAt(p.index(offset))
}

// rewriteAt begins at the i-th range. The one before is read too, since a changed
// range may merge into it.
func (p *Partition) rewriteAt(i int) rewriter {
	w := rewriter{p: p, from: max(i-1, 0)}
	p.out = p.out[:0]
	for w.next = w.from; w.next < i; w.next++ {
		w.emit(p.spans[w.next])
	}
	return w
}

// index finds the first range that ends at or after offset.
func (p *Partition) index(offset int64) int { return p.indexFrom(0, offset) }

// indexFrom is index where all ranges before lo are known to end below offset.
func (p *Partition) indexFrom(lo int, offset int64) int {
	n := len(p.spans)
	if n == lo || p.spans[n-1].last < offset {
		return n
	}
	for near := min(lo+4, n); lo < near; lo++ {
		if p.spans[lo].last >= offset {
			return lo
		}
	}
	return lo + sort.Search(n-lo, func(i int) bool { return p.spans[lo+i].last >= offset })
}

// peek gives the unread rest of the present range.
func (w *rewriter) peek() (*span, bool) {
	if !w.live {
		if w.next == len(w.p.spans) {
			return nil, false
		}
		w.cur, w.live = w.p.spans[w.next], true
		w.next++
	}
	return &w.cur, true
}

// take reads the present range up to last, without writing it.
func (w *rewriter) take(last int64) span {
	s := w.cur
	if last < w.cur.last {
		s.last = last
		w.cur.first = last + 1
		return s
	}
	w.live = false
	return s
}

// keepTo copies everything below offset.
func (w *rewriter) keepTo(offset int64) {
	for {
		s, ok := w.peek()
		if !ok || s.first >= offset {
			return
		}
		w.emit(w.take(offset - 1))
	}
}

// emit writes s after what was written before.
func (w *rewriter) emit(s span) {
	out := w.p.out
	if n := len(out); n > 0 && out[n-1].joins(&s) {
		out[n-1].last = s.last
		return
	}
	w.p.out = append(out, s)
}

// finish puts the new stretch in place and moves SPSO over a finished prefix. What
// was emitted beyond the old end extends the window.
func (w *rewriter) finish() {
	p := w.p
	if w.live {
		w.emit(w.cur)
		w.live = false
	}
	if w.next < len(p.spans) { // it may merge with a changed range before it
		w.emit(p.spans[w.next])
		w.next++
	}
	p.tally(p.spans[w.from:w.next], -1)
	out := p.out
	if w.from == 0 {
		out = out[p.pass(out):]
	}
	p.tally(out, 1)
	if spare := w.next - w.from - len(out); w.from == 0 && spare > 0 {
		copy(p.spans[spare:], out) // what follows can stay where it is
		p.drop(spare)
	} else {
		p.spans = slices.Replace(p.spans, w.from, w.next, out...)
	}
	p.settle()
}

// settle moves SPSO over a finished prefix.
func (p *Partition) settle() {
	if n := p.pass(p.spans); n > 0 {
		p.tally(p.spans[:n], -1)
		p.drop(n)
	}
}

// pass moves SPSO over the finished ranges at the front of spans and counts them.
func (p *Partition) pass(spans []span) int {
	n := 0
	for n < len(spans) && spans[n].state.terminal() {
		p.spso = spans[n].last + 1
		n++
	}
	return n
}

// tally keeps the sums that are asked for too often to count anew.
func (p *Partition) tally(spans []span, sign int64) {
	for i := range spans {
		s := &spans[i]
		switch {
		case s.free():
			p.available += sign * s.size()
		case s.state == StateAvailable:
			p.resting += sign * s.size()
		case s.state == StateArchiving:
			p.archiving += sign * s.size()
		case s.state.terminal():
			p.complete += sign * s.size()
		}
	}
}

// drop removes the first n ranges. A short rest moves to the front, which keeps
// the memory in use; a long one stays where it is.
func (p *Partition) drop(n int) {
	if rest := len(p.spans) - n; rest <= 32 {
		copy(p.spans, p.spans[n:])
		p.spans = p.spans[:rest]
		return
	}
	p.spans = p.spans[n:]
}
