package sharestate

import "math"

// State is the state of a run of offsets, numbered as Kafka persists it.
type State uint8

const (
	StateAvailable    State = 0
	StateAcquired     State = 1
	StateAcknowledged State = 2
	StateArchiving    State = 3
	StateArchived     State = 4
)

func (st State) String() string {
	names := [...]string{"Available", "Acquired", "Acknowledged", "Archiving", "Archived"}
	if int(st) < len(names) {
		return names[st]
	}
	return "Unknown"
}

// Started tells whether the start offset is resolved.
func (p *Partition) Started() bool { return p.spso >= 0 }

// SPSO is the share-partition start offset, -1 if not [Partition.Started].
func (p *Partition) SPSO() int64 { return p.spso }

// SPEO is the share-partition end offset: the last offset handed out or passed
// over. With nothing tracked it is SPSO, as in Kafka.
func (p *Partition) SPEO() int64 {
	if len(p.spans) == 0 {
		return p.spso
	}
	return p.end - 1
}

// End is the first offset that was neither handed out nor passed over; SPSO with nothing
// tracked, -1 if not [Partition.Started].
func (p *Partition) End() int64 {
	if p.spso < 0 {
		return -1
	}
	return p.end
}

// LogEpoch is the leader epoch that the records of the window were read under, or that
// the start offset was found under; -1 if no [LeaderChange] told it. Nothing that was
// read under another one may be acquired.
func (p *Partition) LogEpoch() int32 { return p.logEpoch }

// Incarnation names the life of the share-partition; it changes with a [Reset].
func (p *Partition) Incarnation() int64 { return p.incarnation }

// Fetchable says what an [Acquire] made now could take.
type Fetchable struct {
	Position int64 // lowest offset that may be acquired: read upstream from here; resting ones may lie below
	Last     int64 // highest offset that may be acquired; math.MaxInt64 if only the record budget limits
	New      bool  // offsets beyond SPEO may be acquired
}

// Fetchable tells what an [Acquire] at time now (µs) could take, counting locks and
// rests that have run out by then as ended. It is false while the partition is not
// started, and while the window is full with nothing free inside.
func (p *Partition) Fetchable(now int64, s Settings) (Fetchable, bool) {
	if p.spso < 0 {
		return Fetchable{}, false
	}
	now = max(now, p.clock)
	start, position := p.spso, p.end
	if now >= p.nextExpiry || p.wakesAll(&s) {
		start, position = p.afterExpiry(now, &s)
	} else if p.available > 0 {
		position = p.position()
	}
	inFlight := p.end - start
	f := Fetchable{Position: position, Last: p.end - 1}
	if inFlight < int64(s.MaxRecordLocks) {
		f.New, f.Last = true, math.MaxInt64
	}
	return f, f.New || position < p.end
}

// afterExpiry tells where SPSO and the fetch position will be once the locks and rests
// that have run out by now are ended.
func (p *Partition) afterExpiry(now int64, set *Settings) (start, position int64) {
	start = -1
	for i := range p.spans {
		s := p.spans[i]
		if s.state == StateAcquired && s.deadline <= now {
			s = s.released(set, now)
		}
		if start < 0 && !s.state.terminal() {
			start = s.first
		}
		if s.free() || s.resting() && s.restEnds(set, now) {
			return start, s.first
		}
	}
	if start < 0 {
		start = p.end
	}
	return start, p.end
}

// NextDeadline is the time (µs) at which the first lock runs out, if any is held.
func (p *Partition) NextDeadline() (int64, bool) {
	deadline, ok := int64(math.MaxInt64), false
	for i := range p.spans {
		if s := &p.spans[i]; s.state == StateAcquired {
			deadline, ok = min(deadline, s.deadline), true
		}
	}
	return deadline, ok
}

// NextChange is the first time (µs) above after at which a waiting fetch may find more if
// nothing else happens: a lock runs out, or records have rested, those included
// whose lock ran out by then without an op that noticed. ok is false if there is none.
func (p *Partition) NextChange(after int64, set Settings) (at int64, ok bool) {
	at = math.MaxInt64
	for i := range p.spans {
		s := p.spans[i]
		if s.state == StateAcquired && s.deadline <= after {
			s = s.released(&set, s.deadline)
		}
		if (s.state == StateAcquired || s.resting()) && s.deadline > after {
			at, ok = min(at, s.deadline), true
		}
	}
	return at, ok
}

// NextClaim is the time (µs) from which a [ClaimArchiving] finds something: 0 if
// Archiving offsets are there that nobody has claimed, else the end of the first
// claim. It is false if none are Archiving, which costs nothing to tell.
func (p *Partition) NextClaim() (int64, bool) {
	if p.archiving == 0 {
		return 0, false
	}
	at := int64(math.MaxInt64)
	for i := range p.spans {
		if s := &p.spans[i]; s.state == StateArchiving {
			at = min(at, s.deadline) // 0 without a claim
		}
	}
	return at, true
}

// Summary is what DescribeShareGroupOffsets tells of a share-partition.
type Summary struct {
	StartOffset      int64 // SPSO; -1 until Kafka would have persisted it
	LeaderEpoch      int32 // highest that came with a start or an acknowledgement, at first 0
	DeliveryComplete int64 // finished offsets inside the window (KIP-1226)
	InFlight         int64 // offsets of [SPSO, SPEO], 0 with nothing tracked
}

// Summary tells the offsets as DescribeShareGroupOffsets shows them. StartOffset is
// -1 until the first state write that Kafka would make: an acknowledgement other
// than Renew, or the end of a lock by release or time.
func (p *Partition) Summary() Summary {
	s := Summary{StartOffset: -1, LeaderEpoch: p.leaderEpoch, DeliveryComplete: p.complete, InFlight: p.inFlight()}
	if p.written {
		s.StartOffset = p.spso
	}
	return s
}

// RangeView is one range of the window, for status pages and tests.
type RangeView struct {
	First, Last   int64
	State         State
	DeliveryCount int16        // 0 in terminal states
	Member        string       // holder of an Acquired range
	Session       SessionNonce // of the holder; of a claim, only Replica is set
	Deadline      int64        // µs, end of the lock (Acquired), the claim (Archiving) or the rest (Available)
}

// Ranges gives the window from SPSO to SPEO.
func (p *Partition) Ranges() []RangeView {
	views := make([]RangeView, 0, len(p.spans))
	for i := range p.spans {
		s := &p.spans[i]
		v := RangeView{First: s.first, Last: s.last, State: s.state, DeliveryCount: s.count, Deadline: s.deadline}
		if s.holder != 0 {
			h := p.holders.get(s.holder)
			v.Member, v.Session = h.member, h.session
		}
		views = append(views, v)
	}
	return views
}
