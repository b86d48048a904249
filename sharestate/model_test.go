package sharestate

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
	logEpoch    int32
	written     bool
	records     []modelRecord  // records[i] is offset spso+i
	moved       bool           // of the last op: a reason to look again
	freed       bool           // of the last op: something became free to be acquired
	rested      bool           // of the last op: something came back, to be acquired later
	room        bool           // of the last op: a full window is no longer full
	rules       map[string]int // how often each rule of reach_test.go has applied; nil = not counted
}

// met takes note of a rule that applies.
func (m *model) met(rule string, applies bool) {
	if applies && m.rules != nil {
		m.rules[rule]++
	}
}

func newModel(incarnation, start int64) *model {
	m := &model{incarnation: incarnation, spso: -1, logEpoch: -1}
	if start >= 0 {
		m.spso, m.written = start, true
	}
	return m
}

func (m *model) end() int64 { return m.spso + int64(len(m.records)) }

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
	was := m.spso
	for len(m.records) > 0 && modelTerminal(m.records[0].state) {
		m.records = m.records[1:]
		m.spso++
	}
	finished := m.finished()
	m.met("SPSO: behind what is finished, inside a tracked batch",
		m.spso > was && len(m.records) > 0 && m.records[0].batch != nil && m.records[0].batch.first < m.spso)
	m.met("SPSO: everything is finished and the window empty", m.spso > was && len(m.records) == 0)
	m.met("SPSO: stays at what is not finished", m.spso == was && finished > 0)
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
		return startResult{m.spso}
	case Reset:
		if o.Incarnation <= m.incarnation {
			return int64(0)
		}
		clock, rules := m.clock, m.rules
		*m = *newModel(o.Incarnation, o.Offset)
		m.clock, m.rules, m.moved = clock, rules, true
		return int64(1)
	case LeaderChange:
		if m.spso < 0 || o.From != m.logEpoch || o.Epoch <= m.logEpoch {
			return int64(0)
		}
		m.logEpoch = o.Epoch
		if o.From < 0 || o.End < 0 {
			return int64(0)
		}
		return m.cut(o.End)
	}
	set := settingsOf(op)
	full := len(m.records) >= int(set.MaxRecordLocks)
	expired := m.expire(set)
	var res any
	switch o := op.(type) {
	case Acquire:
		res = m.acquire(o)
	case AcquireUnder:
		res = AcquireResult{Stale: true}
		if o.Epoch == m.logEpoch {
			res = m.acquire(o.Acquire)
		}
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
		m.logStart(o.LogStart)
	case LogStartUnder:
		if o.Epoch == m.logEpoch {
			m.logStart(o.LogStart)
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

func (m *model) logStart(start int64) {
	if m.spso >= 0 && start > m.spso {
		m.moved = true
		m.records = m.records[min(start-m.spso, int64(len(m.records))):]
		m.spso = start
	}
}

// cut lets the log end at end
func (m *model) cut(end int64) (n int64) {
	for m.end() > end && len(m.records) > 0 {
		m.records = m.records[:len(m.records)-1]
		n++
	}
	if m.spso > end {
		n += m.spso - end
		m.spso = end
	}
	for i := range m.records {
		if b := m.records[i].batch; b != nil {
			b.last = min(b.last, end-1)
		}
	}
	m.moved = n > 0
	m.settle()
	return n
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
	case AcquireUnder:
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
	case LogStartUnder:
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
	rest := modelBackoff(set, r.count)
	until := min(r.deadline, m.clock) + rest
	if until <= m.clock {
		until = 0
	}
	m.met("backoff: rests longer than after the delivery before", rest > 0 && r.count > 1 && rest > modelBackoff(set, r.count-1))
	m.met("backoff: rests as long as the maximum", rest > 0 && rest == 1000*int64(set.ReleaseBackoffMaxMs))
	m.met("backoff: has rested since its lock ended", rest > 0 && until == 0)
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
			m.met("backoff: turned off while records rest", r.deadline > m.clock)
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
