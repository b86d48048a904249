package sharestate

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
