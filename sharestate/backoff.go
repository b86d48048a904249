package sharestate

// Release backoff, kshare's own (off with ReleaseBackoffMs 0): a record that comes back
// by release, lock expiry or session close rests before it is offered again.
//
//   - It rests from the moment at which it came back, after a lock's end from that end. The
//     time to rest is fixed then; later settings do not change it, except that the first op
//     with the backoff off ends all rests.
//   - Offsets rest, not batches: where a tracked batch came back in parts, each run of equal
//     count and time rests by itself, and what is free of the batch goes meanwhile. Until
//     they have rested, the rules of redelivery (throttling, delivery alone) see resting offsets
//     as they see those that another member holds.
//   - Resting offsets are Available and inside the window: they hold back SPSO and fill the
//     window, but not the records beside and behind them.
//
// The end of a rest is a range's deadline. Every op that carries settings first ends those
// that are over, so to the rules a range either rests or is free.

// resting tells whether s is Available but not to be acquired yet.
func (s *span) resting() bool { return s.state == StateAvailable && s.deadline != 0 }

// free tells whether s may be acquired.
func (s *span) free() bool { return s.state == StateAvailable && s.deadline == 0 }

// backoff is how long in ms a record rests after its count-th delivery: twice as long each
// time, up to the maximum.
func (s *Settings) backoff(count int16) int64 {
	first, most := int64(max(s.ReleaseBackoffMs, 0)), int64(max(s.ReleaseBackoffMaxMs, 0))
	return min(first<<max(min(count-1, 31), 0), most)
}

// restUntil is when an Acquired s that comes back by the time clock may be acquired again,
// 0 if at once.
func (s *span) restUntil(set *Settings, clock int64) int64 {
	rest := set.backoff(s.count)
	if rest == 0 {
		return 0
	}
	until := later(min(s.deadline, clock), rest)
	if until <= clock {
		return 0
	}
	return until
}

// restEnds tells whether a rest is over at the time now.
func (s *span) restEnds(set *Settings, now int64) bool {
	return set.ReleaseBackoffMs <= 0 || s.deadline <= now
}

// wakesAll tells whether ranges rest although the backoff has been turned off.
func (p *Partition) wakesAll(set *Settings) bool { return p.resting > 0 && set.ReleaseBackoffMs <= 0 }

// endRests frees what has rested.
func (p *Partition) endRests(set *Settings) {
	if p.resting == 0 {
		return
	}
	n := p.change(
		func(s *span) bool { return s.resting() && s.restEnds(set, p.clock) },
		func(s span) span { return s.available(0) })
	p.freed = p.freed || n > 0
}
