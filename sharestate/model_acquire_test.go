package sharestate

// pass is one Acquire on the model.
type pass struct {
	*model
	o          Acquire
	stale      bool
	base, last int64 // the offsets that may be taken, as far as the read goes
	budget     int
	limit      int16
	threshold  int16   // T: from this count on a batch is isolated
	got        []int64 // offsets taken, ascending
}

func (m *model) acquire(o Acquire) AcquireResult {
	p := &pass{model: m, o: o, stale: m.spso < 0 || m.position() < o.From, limit: o.Settings.DeliveryLimit}
	if m.spso < 0 || len(o.Batches) == 0 || !p.allow() {
		return AcquireResult{Stale: p.stale}
	}
	p.threshold = 2
	for int(p.threshold)*2 < int(p.limit) {
		p.threshold++
	}
	if p.limit <= 0 {
		p.threshold = maxDeliveryCount
	}
	p.archiveCompacted()
	over := p.redeliver()
	if !p.stale && p.taken() < p.budget && p.last >= p.end() {
		p.met("near the limit: nothing new goes with it", over)
		if !over {
			p.takeNew()
		}
	}
	return AcquireResult{p.stale, p.entries()}
}

// allow tells how many offsets may be taken and up to where.
func (p *pass) allow() bool {
	p.base, p.last = p.o.Batches[0].First, p.o.Batches[len(p.o.Batches)-1].Last
	asked, locks := int(p.o.MaxRecords), int(p.o.Settings.MaxRecordLocks)
	p.budget = min(asked, locks-len(p.records))
	p.met("window: less room than MaxRecords", 0 < p.budget && p.budget < asked)
	if pos := p.position(); p.budget <= 0 && pos < p.end() {
		p.met("window: full, what is free inside goes", asked > 0)
		p.met("window: full, nothing beyond SPEO goes", asked > 0 && p.last >= p.end())
		p.budget = min(asked, int(p.end()-pos))
		p.last = min(p.last, p.end()-1)
	}
	p.met("window: full, nothing goes", p.budget <= 0 && asked > 0)
	p.met("window: filled by finished offsets too", p.budget <= 0 && asked > 0 && len(p.records)-p.finished() < locks)
	return p.budget > 0
}

func (m *model) finished() (n int) {
	for i := range m.records {
		if modelTerminal(m.records[i].state) {
			n++
		}
	}
	return n
}

func (p *pass) taken() int { return len(p.got) }

func (p *pass) archiveCompacted() {
	if p.stale {
		return
	}
	for off := p.position(); off < min(p.base, p.end()); off++ {
		if r := p.at(off); r.state == StateAvailable {
			*r = modelRecord{state: StateArchived}
		}
	}
}

func (p *pass) take(off int64) {
	r := p.at(off)
	*r = modelRecord{state: StateAcquired, count: r.count + 1, batch: r.batch, member: p.o.Member,
		session: p.o.Session, deadline: p.clock + int64(p.o.Settings.LockDurationMs)*1000}
	p.got = append(p.got, off)
}

func (p *pass) candidate(off int64) bool {
	return p.at(off).free() && !(p.stale && covered(p.o.Aborted, off))
}

// redeliver goes from tracked batch to tracked batch. It returns whether the pass is over.
func (p *pass) redeliver() bool {
	tracked := min(p.last, p.end()-1)
	for off := max(p.base, p.spso); off <= tracked; off++ {
		if !p.candidate(off) {
			continue
		}
		if p.taken() >= p.budget {
			p.met("budget: ends between tracked batches", true)
			return true
		}
		last := min(p.at(off).batch.last, tracked)
		near := p.nearLimit(off, last)
		if near && p.taken() > 0 {
			p.met("near the limit: the pass stops before the batch", true)
			return true
		}
		if !p.takeBatch(off, last) || near {
			return true
		}
		off = last
	}
	return false
}

// nearLimit tells whether the batch that begins to be free at first has, up to last, a free offset that is to be isolated.
func (p *pass) nearLimit(first, last int64) bool {
	near, unread, resting := false, false, false
	batch := p.at(first).batch
	for off := first; off <= min(batch.last, p.end()-1); off++ {
		r := p.at(off)
		isolate := r.state == StateAvailable && r.count >= p.threshold
		near = near || isolate && off <= last && r.free()
		unread = unread || isolate && off > last && r.free()
		resting = resting || isolate && !r.free()
	}
	p.met("near the limit: by an offset behind others", near && p.at(first).count < p.threshold)
	p.met("near the limit: not by what was not read", unread && !near)
	p.met("near the limit: not by what rests", resting && !near && !unread)
	return near
}

// takeBatch takes what is free of one tracked batch. It returns whether the pass may go on behind it.
func (p *pass) takeBatch(first, last int64) bool {
	batch, part, here := p.at(first).batch, -1, 0
	for off := first; off <= last; off++ {
		if !p.candidate(off) {
			continue
		}
		count := p.at(off).count
		lastAttempt := p.limit > 2 && count == p.limit-1
		if count >= p.threshold && part < 0 {
			part = p.part(batch, count)
			p.met("near the limit: more than the part had gone already", here >= part)
			if here >= part {
				part = maxDeliveryCount // a broker stops when that many have gone, and not again
			}
		}
		switch {
		case lastAttempt && here > 0:
			p.met("last attempt: the pass stops before it", true)
			return false
		case here == part:
			p.met("near the limit: only a part of the batch goes", true)
			return false
		case p.o.Mode == RecordLimit && p.taken() >= p.budget:
			p.met("record_limit: the budget ends inside a tracked batch", true)
			return false
		}
		p.met("batch_optimized: a tracked batch goes beyond the budget", p.taken() >= p.budget)
		p.met("record_limit: the rest of a record batch is new still", count == 0)
		p.met("last attempt: not alone with a limit of 2", p.limit == 2 && count == 1 && here > 0)
		p.met("last attempt: past it, under a limit that was lowered", p.limit > 2 && count >= p.limit && here > 0)
		p.take(off)
		here++
		if lastAttempt {
			p.met("last attempt: nothing goes with it", true)
			return false
		}
	}
	p.met("tracked batch: what is free of it goes", last == batch.last && int64(here) < last-first+1)
	return true
}

// part is how many offsets of a batch may go, delivered count times and near the limit.
func (p *pass) part(batch *modelBatch, count int16) int {
	size := int(batch.last - batch.first + 1)
	smaller := int(batch.last - max(batch.first, p.spso) + 1)
	shift := count - p.threshold + 1
	p.met("near the limit: the part is a half", shift == 1)
	p.met("near the limit: the part is a quarter or less", shift > 1)
	p.met("near the limit: the part is one at least", size>>shift == 0)
	p.met("near the limit: the part is of the batch as it was handed out first", smaller>>shift != size>>shift)
	return max(1, size>>shift)
}

// takeNew takes offsets beyond SPEO.
func (p *pass) takeNew() {
	p.met("new records: behind those that came back", p.taken() > 0)
	if p.base > p.end() {
		p.met("new records: behind a hole that is passed over", len(p.records) > 0)
		if len(p.records) == 0 {
			p.spso = p.base
		}
		for p.end() < p.base {
			p.records = append(p.records, modelRecord{state: StateArchived, untracked: true})
		}
	}
	first, last, budget := p.end(), p.last, int64(p.budget-p.taken())
	if want := first + budget - 1; want < last {
		last = p.wholeBatches(first, want)
		p.met("new records: up to a hole in which the budget ends", last < want)
		p.met("batch_optimized: whole record batches, beyond the budget", last > want && p.o.Mode != RecordLimit)
		p.met("record_limit: cut inside a record batch", last > want && p.o.Mode == RecordLimit)
	}
	batch := &modelBatch{first, last}
	for off := first; off <= last; off++ {
		if p.cutBefore(off, batch.first) {
			batch.last = off - 1
			batch = &modelBatch{off, last}
		}
		p.records = append(p.records, modelRecord{batch: batch})
		if p.o.Mode != RecordLimit || off-first < budget {
			p.take(off)
		}
	}
	p.met("batch_optimized: the last entry is shorter than BatchSize",
		p.o.Mode != RecordLimit && batch.first > first && last-batch.first+1 < int64(p.o.BatchSize))
	p.met("window: beyond its limit by a record batch", len(p.records) > int(p.o.Settings.MaxRecordLocks))
}

// wholeBatches is the end of the record batch that holds want; if want is in a hole, of the one before the hole, but
// at least of the first that reaches first.
func (p *pass) wholeBatches(first, want int64) int64 {
	for i := len(p.o.Batches) - 1; i > 0; i-- {
		if b := p.o.Batches[i]; b.First <= want || p.o.Batches[i-1].Last < first {
			return b.Last
		}
	}
	return p.o.Batches[0].Last
}

// cutBefore tells whether an entry that began at first ends before off.
func (p *pass) cutBefore(off, first int64) bool {
	for i, b := range p.o.Batches {
		if b.First != off || off == first || off-first < int64(p.o.BatchSize) {
			continue
		}
		p.met("record_limit: BatchSize does not count", p.o.Mode == RecordLimit)
		if p.o.Mode == RecordLimit {
			return false
		}
		p.met("batch_optimized: an entry ends when it has BatchSize offsets", off-first == int64(p.o.BatchSize))
		p.met("batch_optimized: an entry is longer than BatchSize for the sake of a record batch", off-first > int64(p.o.BatchSize))
		p.met("batch_optimized: a hole behind an entry belongs to it", i > 0 && p.o.Batches[i-1].Last < off-1)
		return true
	}
	return false
}

// entries are the offsets taken as the answer tells them: neighbours of one batch and count together, without those of
// aborted transactions, which are finished.
func (p *pass) entries() (out []Acquired) {
	for _, off := range p.got {
		if covered(p.o.Aborted, off) {
			*p.at(off) = modelRecord{state: StateArchived}
			continue
		}
		r, n := p.at(off), len(out)
		if n > 0 && out[n-1].Last == off-1 && p.at(off-1).batch == r.batch {
			if out[n-1].DeliveryCount == r.count {
				out[n-1].Last = off
				continue
			}
			p.met("tracked batch: an entry for each count", true)
		}
		out = append(out, Acquired{off, off, r.count})
	}
	return out
}
