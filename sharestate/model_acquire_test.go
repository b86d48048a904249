package sharestate

import "math"

func (m *model) acquire(o Acquire) AcquireResult {
	var res AcquireResult
	if m.spso < 0 {
		res.Stale = true
		return res
	}
	pos := m.position()
	res.Stale = pos < o.From
	if len(o.Batches) == 0 {
		return res
	}
	base, last := o.Batches[0].First, o.Batches[len(o.Batches)-1].Last
	budget := min(int(o.MaxRecords), int(o.Settings.MaxRecordLocks)-len(m.records))
	if budget <= 0 && pos < m.end() {
		budget = min(int(o.MaxRecords), int(m.end()-pos))
		last = min(last, m.end()-1)
	}
	if budget <= 0 {
		return res
	}
	if !res.Stale {
		for off := pos; off < min(base, m.end()); off++ {
			if r := m.at(off); r.state == StateAvailable {
				*r = modelRecord{state: StateArchived}
			}
		}
	}
	limit := o.Settings.DeliveryLimit
	threshold := int16(2)
	for int(threshold)*2 < int(limit) {
		threshold++
	}
	if limit <= 0 {
		threshold = maxDeliveryCount
	}
	taken, stop := 0, false
	var got []int64 // acquired offsets, ascending
	take := func(off int64) {
		r := m.at(off)
		*r = modelRecord{state: StateAcquired, count: r.count + 1, batch: r.batch, member: o.Member,
			session: o.Session, deadline: m.clock + int64(o.Settings.LockDurationMs)*1000}
		taken++
		got = append(got, off)
	}
	candidate := func(off int64) bool {
		return m.at(off).free() && !(res.Stale && covered(o.Aborted, off))
	}
	for off := max(base, m.spso); off <= min(last, m.end()-1) && !stop; off++ {
		if !candidate(off) {
			continue
		}
		if taken >= budget {
			break
		}
		batch := m.at(off).batch
		until := min(last, batch.last, m.end()-1)
		var most int16
		for x := off; x <= until; x++ {
			if r := m.at(x); r.free() && r.batch == batch {
				most = max(most, r.count)
			}
		}
		throttled := most >= threshold
		if throttled && taken > 0 {
			stop = true
			break
		}
		quota, here := -1, 0
		x := off
		for ; x <= until; x++ {
			if !candidate(x) || m.at(x).batch != batch {
				continue
			}
			count := m.at(x).count
			lastTry := limit > 2 && count == limit-1
			if lastTry && here > 0 {
				break
			}
			if count >= threshold && quota < 0 {
				quota = max(1, int((batch.last-batch.first+1)>>(count-threshold+1)))
				if here >= quota {
					quota = math.MaxInt // passed already, hence never met
				}
			}
			if here == quota {
				break
			}
			if o.Mode == RecordLimit && taken >= budget {
				break
			}
			take(x)
			here++
			if lastTry {
				break
			}
		}
		stop = throttled || x <= until
		off = until
	}
	if !stop && !res.Stale && taken < budget && last >= m.end() {
		m.acquireNew(o, base, last, budget-taken, take)
	}
	for _, off := range got {
		if covered(o.Aborted, off) {
			*m.at(off) = modelRecord{state: StateArchived}
			continue
		}
		r := m.at(off)
		if n := len(res.Acquired); n > 0 && res.Acquired[n-1].Last == off-1 &&
			res.Acquired[n-1].DeliveryCount == r.count && m.at(off-1).batch == r.batch {
			res.Acquired[n-1].Last = off
			continue
		}
		res.Acquired = append(res.Acquired, Acquired{off, off, r.count})
	}
	return res
}

func (m *model) acquireNew(o Acquire, base, last int64, budget int, take func(int64)) {
	if base > m.end() {
		if len(m.records) == 0 {
			m.spso = base
		}
		for m.end() < base {
			m.records = append(m.records, modelRecord{state: StateArchived, untracked: true})
		}
	}
	first := m.end()
	if want := first + int64(budget) - 1; want < last {
		// whole stored batches up to the one that holds want; if want is in a hole,
		// up to the hole, but at least one
		for i := len(o.Batches) - 1; i >= 0; i-- {
			if b := o.Batches[i]; b.First <= want || i > 0 && o.Batches[i-1].Last < first {
				last = b.Last
				break
			}
		}
	}
	batch := &modelBatch{first, last}
	for off := first; off <= last; off++ {
		if o.Mode != RecordLimit {
			for _, b := range o.Batches {
				if b.First == off && off-batch.first >= int64(max(o.BatchSize, 1)) {
					batch.last = off - 1
					batch = &modelBatch{off, last}
				}
			}
		}
		m.records = append(m.records, modelRecord{batch: batch})
		if o.Mode == RecordLimit && off-first >= int64(budget) {
			continue
		}
		take(off)
	}
}
