package sharestate

import "math"

// A naive model of a share-partition: one struct per offset, rules spelled out
// offset by offset as in the specification, no ranges and no sums. The property
// test compares the real one with it.

type modelRecord struct {
	state     State
	count     int16
	batch     *modelBatch // Available and Acquired only
	untracked bool
	rejected  bool
	member    string
	session   SessionNonce
	claimed   bool
	deadline  int64
}

type modelBatch struct{ first, last int64 }

type model struct {
	incarnation int64
	clock       int64
	spso        int64
	leaderEpoch int32
	written     bool
	records     []modelRecord // records[i] is offset spso+i
	moved       bool          // of the last op: a reason to look again
	freed       bool          // of the last op: something became free to be acquired
	rested      bool          // of the last op: something came back, to be acquired later
	room        bool          // of the last op: a full window is no longer full
}

func newModel(incarnation, start int64) *model {
	m := &model{incarnation: incarnation, spso: -1}
	if start >= 0 {
		m.spso, m.written = start, true
	}
	return m
}

func (m *model) end() int64                { return m.spso + int64(len(m.records)) }
func (m *model) at(off int64) *modelRecord { return &m.records[off-m.spso] }

func (m *model) position() int64 {
	for i := range m.records {
		if m.records[i].free() {
			return m.spso + int64(i)
		}
	}
	return m.end()
}

func modelTerminal(st State) bool { return st == StateAcknowledged || st == StateArchived }

func (m *model) settle() {
	for len(m.records) > 0 && modelTerminal(m.records[0].state) {
		m.records = m.records[1:]
		m.spso++
	}
}

func (m *model) apply(op Op, now int64) any {
	m.moved, m.freed, m.rested, m.room = false, false, false, false
	m.clock = max(m.clock, now)
	switch o := op.(type) {
	case Fence:
		return nil
	case Start:
		if m.spso < 0 && o.Offset >= 0 {
			m.spso = o.Offset
			m.leaderEpoch = max(m.leaderEpoch, o.LeaderEpoch)
			m.moved = true
		}
		return StartResult{m.spso}
	case Reset:
		if o.Incarnation <= m.incarnation {
			return int64(0)
		}
		clock := m.clock
		*m = *newModel(o.Incarnation, o.Offset)
		m.clock, m.moved = clock, true
		return int64(1)
	}
	set := settingsOf(op)
	full := len(m.records) >= int(set.MaxRecordLocks)
	expired := m.expire(set)
	var res any
	switch o := op.(type) {
	case Acquire:
		res = m.acquire(o)
	case Acknowledge:
		res = AcknowledgeResult{m.acknowledge(o)}
	case Release:
		res = m.free(set, func(r *modelRecord) bool {
			return r.member == o.Member && r.session.Opened <= o.Session.Opened
		})
	case ReleaseReplica:
		n := m.free(set, func(r *modelRecord) bool { return r.session.Replica == o.Replica })
		for i := range m.records {
			if r := &m.records[i]; r.claimed && r.session.Replica == o.Replica {
				r.claimed, r.session, r.deadline = false, SessionNonce{}, 0
				n++
			}
		}
		res = n
	case Expire:
		res = expired
	case AdvanceLogStart:
		if m.spso >= 0 && o.LogStart > m.spso {
			m.moved = true
			cut := min(o.LogStart-m.spso, int64(len(m.records)))
			m.records = m.records[cut:]
			m.spso = o.LogStart
		}
	case ClaimArchiving:
		res = m.claim(o)
	case ArchivingDone:
		res = m.done(o)
	}
	m.settle()
	m.room = full && len(m.records) < int(set.MaxRecordLocks)
	return res
}

func (m *model) wake() bool {
	available := false
	for i := range m.records {
		available = available || m.records[i].free()
	}
	return m.moved || m.room || m.rested || m.freed && available
}

func settingsOf(op Op) Settings {
	switch o := op.(type) {
	case Acquire:
		return o.Settings
	case Acknowledge:
		return o.Settings
	case Release:
		return o.Settings
	case ReleaseReplica:
		return o.Settings
	case Expire:
		return o.Settings
	case AdvanceLogStart:
		return o.Settings
	case ClaimArchiving:
		return o.Settings
	case ArchivingDone:
		return o.Settings
	}
	return Settings{}
}

// end of a hold other than by accept, reject or gap
func (m *model) giveBack(r *modelRecord, set Settings) {
	if set.DeliveryLimit > 0 && r.count >= set.DeliveryLimit {
		m.bury(r, set, false)
		return
	}
	// came back now, or when its lock ended
	until := min(r.deadline, m.clock) + modelBackoff(set, r.count)
	if until <= m.clock {
		until = 0
	}
	*r = modelRecord{state: StateAvailable, count: r.count, batch: r.batch, deadline: until}
	m.freed, m.rested = m.freed || until == 0, m.rested || until > 0
}

// free: deadline is the end of the rest of an Available record
func (r *modelRecord) free() bool { return r.state == StateAvailable && r.deadline == 0 }

func modelBackoff(set Settings, count int16) int64 {
	rest := int64(set.ReleaseBackoffMs)
	for ; count > 1 && rest < int64(set.ReleaseBackoffMaxMs); count-- {
		rest *= 2
	}
	return 1000 * min(rest, int64(set.ReleaseBackoffMaxMs))
}

func (m *model) bury(r *modelRecord, set Settings, rejected bool) {
	if set.DeadLetters {
		*r = modelRecord{state: StateArchiving, count: r.count, rejected: rejected}
	} else {
		*r = modelRecord{state: StateArchived}
	}
}

func (m *model) free(set Settings, which func(*modelRecord) bool) int64 {
	var n int64
	for i := range m.records {
		if r := &m.records[i]; r.state == StateAcquired && which(r) {
			m.giveBack(r, set)
			n++
		}
	}
	if n > 0 {
		m.written = true
	}
	return n
}

func (m *model) expire(set Settings) int64 {
	n := m.free(set, func(r *modelRecord) bool { return r.deadline <= m.clock })
	for i := range m.records {
		r := &m.records[i]
		if r.state == StateAvailable && r.deadline > 0 && (r.deadline <= m.clock || set.ReleaseBackoffMs == 0) {
			r.deadline, m.freed = 0, true
		}
	}
	m.settle()
	return n
}

func covered(ranges []OffsetRange, off int64) bool {
	for _, r := range ranges {
		if r.First <= off && off <= r.Last {
			return true
		}
	}
	return false
}

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

func (m *model) acknowledge(o Acknowledge) AckCode {
	prev := int64(-1)
	for _, b := range o.Batches {
		if b.First < 0 || b.First > b.Last || b.First < prev || len(b.Types) == 0 ||
			len(b.Types) > 1 && int64(len(b.Types)) != b.Last-b.First+1 {
			return AckInvalidRequest
		}
		for _, t := range b.Types {
			if t < 0 || t > 4 {
				return AckInvalidRequest
			}
		}
		prev = b.Last
	}
	before := append([]modelRecord(nil), m.records...)
	deadline := m.clock + int64(o.Settings.LockDurationMs)*1000
	freed, rested := m.freed, m.rested
	wrote := false
	var renewed []int64 // by the batches that passed
	for _, b := range o.Batches {
		n := len(renewed)
		code := m.acknowledgeBatch(o, b, deadline, &renewed, &wrote)
		if code != AckOK {
			m.records, m.freed, m.rested = before, freed, rested
			for _, off := range renewed[:n] {
				m.at(off).deadline = deadline
			}
			return code
		}
	}
	if wrote {
		m.written = true
		m.leaderEpoch = max(m.leaderEpoch, o.LeaderEpoch)
	}
	return AckOK
}

func (m *model) acknowledgeBatch(o Acknowledge, b AckBatch, deadline int64, renewed *[]int64, wrote *bool) AckCode {
	if b.Last < m.spso {
		return AckOK
	}
	if len(m.records) == 0 {
		return AckInvalidRecordState
	}
	if b.Last >= m.end() || m.at(b.Last).untracked {
		return AckInvalidRequest
	}
	for off := max(b.First, m.spso); off <= b.Last; off++ {
		r := m.at(off)
		if r.untracked {
			continue
		}
		if r.state != StateAcquired || r.member != o.Member {
			return AckInvalidRecordState
		}
		t := b.Types[0]
		if len(b.Types) > 1 {
			t = b.Types[off-b.First]
		}
		*wrote = *wrote || t != AckRenew
		switch t {
		case AckRenew:
			if !o.Settings.RenewEnabled {
				return AckRenewDisabled
			}
			r.deadline = deadline
			*renewed = append(*renewed, off)
		case AckAccept:
			*r = modelRecord{state: StateAcknowledged}
		case AckGap:
			*r = modelRecord{state: StateArchived}
		case AckReject:
			m.bury(r, o.Settings, true)
		case AckRelease:
			m.giveBack(r, o.Settings)
		}
	}
	return AckOK
}

func (m *model) claim(o ClaimArchiving) ClaimResult {
	var res ClaimResult
	if o.Incarnation != m.incarnation {
		return res
	}
	left := o.MaxRecords
	var lastRec modelRecord
	for i := range m.records {
		r := &m.records[i]
		if r.state != StateArchiving || r.claimed && r.deadline > m.clock || left <= 0 {
			continue
		}
		left--
		was := *r
		off := m.spso + int64(i)
		r.claimed, r.session = true, SessionNonce{Replica: o.Replica}
		r.deadline = m.clock + int64(o.ClaimMs)*1000
		if n := len(res.Ranges); n > 0 && res.Ranges[n-1].Last == off-1 && lastRec == was {
			res.Ranges[n-1].Last = off
		} else {
			res.Ranges = append(res.Ranges, ArchivingRange{off, off, r.count, r.rejected})
		}
		lastRec = was
	}
	return res
}

func (m *model) done(o ArchivingDone) int64 {
	var n int64
	if o.Incarnation != m.incarnation {
		return 0
	}
	for i := range m.records {
		if r := &m.records[i]; r.state == StateArchiving && covered(o.Ranges, m.spso+int64(i)) {
			*r = modelRecord{state: StateArchived}
			n++
		}
	}
	if n > 0 {
		m.written = true
	}
	return n
}
