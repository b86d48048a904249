package sharestate

import "math/rand/v2"

// startBelow bounds random start offsets, so that histories stay in the made-up log.
const startBelow = 2000

// history makes up operations that make sense often enough to go deep.
type history struct {
	seed  uint64
	rnd   *rand.Rand
	p     *Partition
	m     *model
	set   Settings
	now   int64
	log   []OffsetRange // upstream's record batches
	bad   []OffsetRange // those of aborted transactions
	seen  []int64       // earlier positions, for stale reads
	sess  int64
	keeps int // in a hundred acknowledgements, those that settle a record or renew its lock
	buf   []byte
	snap  []byte
	snap2 []byte
}

func newHistory(seed uint64) *history {
	h := &history{seed: seed, rnd: rand.New(rand.NewPCG(seed, 1)), now: 1_000_000}
	start := int64(-1)
	if h.chance(50) {
		start = h.rnd.Int64N(20)
	}
	h.p, h.m = NewPartition(1, start), newModel(1, start)
	h.set = Settings{DeliveryLimit: int16(2 + h.rnd.IntN(9)), LockDurationMs: int32(1 + h.rnd.IntN(40)),
		MaxRecordLocks: int32(5 + h.rnd.IntN(60)), RenewEnabled: !h.chance(20), DeadLetters: h.chance(30)}
	if h.chance(30) {
		h.set.MaxRecordLocks += 150
	}
	h.keeps = 60
	if h.chance(40) {
		h.keeps = 25 // records come back often, up to the delivery limit
	}
	if h.chance(50) {
		h.backOff()
	}
	for off := int64(0); off < 60_000; {
		if h.chance(10) {
			off += 1 + h.rnd.Int64N(6)
		}
		size := 1 + h.rnd.Int64N(8)
		if h.chance(10) {
			size *= 4
		}
		b := OffsetRange{off, off + size - 1}
		h.log = append(h.log, b)
		if h.chance(8) {
			h.bad = append(h.bad, b)
		}
		off += size
	}
	return h
}

func (h *history) chance(percent int) bool { return h.rnd.IntN(100) < percent }

// backOff turns the release backoff on.
func (h *history) backOff() {
	h.set.ReleaseBackoffMs, h.set.ReleaseBackoffMaxMs = int32(1+h.rnd.IntN(8)), int32(h.rnd.IntN(40))
}

func memberName(i int) string { return [...]string{"m-a", "m-b", "m-c"}[i] }

func (h *history) next() Op {
	switch {
	case h.chance(10):
		h.now -= h.rnd.Int64N(3000) // clocks of a failed-over Redis go back
	case h.chance(70):
		h.now += h.rnd.Int64N(4000)
	}
	if h.chance(1) {
		h.set.DeliveryLimit = int16(h.rnd.IntN(11))
		h.set.MaxRecordLocks = int32(h.rnd.IntN(70))
		h.set.DeadLetters = h.chance(30)
		if h.set.ReleaseBackoffMs, h.set.ReleaseBackoffMaxMs = 0, 0; h.chance(50) {
			h.backOff()
		}
	}
	h.seen = append(h.seen, h.m.position())
	if len(h.seen) > 8 {
		h.seen = h.seen[1:]
	}
	switch n := h.rnd.IntN(100); {
	case h.m.spso < 0 && n < 30:
		return Start{h.rnd.Int64N(startBelow) - 1, int32(h.rnd.IntN(5)) - 1}
	case n < 42:
		return h.under(h.acquire())
	case n < 82:
		return h.acknowledge()
	case n < 86:
		return Release{memberName(h.rnd.IntN(3)), SessionNonce{max(0, h.sess-h.rnd.Int64N(3)), 1}, h.set}
	case n < 88:
		return ReleaseReplica{uint64(h.rnd.IntN(3)), h.set}
	case n < 91:
		return Expire{h.set}
	case n < 92:
		return h.logStart()
	case n < 93 && h.chance(40):
		return h.leaderChange()
	case n < 93 && h.chance(40):
		return Reset{h.rnd.Int64N(startBelow) - 2, h.m.incarnation + h.rnd.Int64N(3) - 1}
	case n < 96:
		return ClaimArchiving{uint64(h.rnd.IntN(3)), h.m.incarnation - h.rnd.Int64N(12)/11, int32(h.rnd.IntN(10)), int32(h.rnd.IntN(20)), h.set}
	case n < 99:
		return h.archivingDone()
	}
	return Fence{}
}

func (h *history) logStart() Op {
	op := AdvanceLogStart{max(0, h.m.spso) + h.rnd.Int64N(30) - 8, h.set}
	if h.now%2 == 0 {
		return op
	}
	return LogStartUnder{h.m.logEpoch - int32(h.now/2%4/3), op} // one in four read under another leader
}

// leaderChange cuts the log now and then, and sometimes comes late or twice.
func (h *history) leaderChange() Op {
	op := LeaderChange{From: h.m.logEpoch, Epoch: h.m.logEpoch + int32(h.rnd.IntN(3)), End: max(0, h.m.end()) + h.rnd.Int64N(20)}
	if h.chance(20) {
		op.From += int32(h.rnd.IntN(3)) - 1
	}
	if h.chance(10) {
		op.End = -1
	} else if h.chance(60) {
		op.End = max(0, op.End-h.rnd.Int64N(60))
	}
	return op
}

// under is an acquisition that tells the leader epoch of its read, which may be another by now, or that does not.
func (h *history) under(op Acquire) Op {
	switch {
	case h.chance(50):
		return op
	case h.chance(97):
		return AcquireUnder{h.m.logEpoch, op}
	}
	return AcquireUnder{h.m.logEpoch + int32(h.rnd.IntN(3)) - 1, op}
}

func (h *history) acquire() Acquire {
	from := h.seen[len(h.seen)-1]
	if h.chance(12) {
		from = h.seen[h.rnd.IntN(len(h.seen))]
	}
	if h.chance(3) {
		from = max(0, from+h.rnd.Int64N(20)-10)
	}
	if from < 0 {
		from = 0
	}
	op := Acquire{Member: memberName(h.rnd.IntN(3)), From: from, MaxRecords: int32(h.rnd.IntN(25)),
		BatchSize: int32(h.rnd.IntN(12)), Mode: AcquireMode(h.rnd.IntN(2)), Settings: h.set}
	if h.chance(30) {
		op.BatchSize = 40 // tracked batches of several record batches
	}
	if h.chance(20) {
		h.sess++
	}
	op.Session = SessionNonce{h.sess, uint64(h.rnd.IntN(3))}
	if h.chance(3) {
		return op // upstream had nothing
	}
	lo, hi := 0, len(h.log)
	for lo < hi { // first batch that ends at or after from
		if mid := (lo + hi) / 2; h.log[mid].Last < from {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if h.chance(4) {
		lo++ // compacted away meanwhile
	}
	read := 1
	if h.chance(65) {
		read += h.rnd.IntN(6)
	}
	op.Batches = h.log[min(lo, len(h.log)):min(lo+read, len(h.log))]
	if h.chance(50) {
		for _, b := range h.bad {
			if len(op.Batches) > 0 && b.First >= op.Batches[0].First && b.Last <= op.Batches[len(op.Batches)-1].Last {
				op.Aborted = append(op.Aborted, b)
			}
		}
	}
	return op
}

func (h *history) ackType() AckType {
	if !h.chance(h.keeps) {
		return AckRelease
	}
	switch n := h.rnd.IntN(60); {
	case n < 35:
		return AckAccept
	case n < 43:
		return AckReject
	case n < 50:
		return AckGap
	}
	return AckRenew
}

func (h *history) acknowledge() Op {
	op := Acknowledge{Member: memberName(h.rnd.IntN(3)), LeaderEpoch: int32(h.rnd.IntN(6)) - 1, Settings: h.set}
	for i := range 3 {
		if m := memberName(i); len(h.p.heldBy(op.Member)) == 0 && !h.chance(20) {
			op.Member = m
		}
	}
	for _, held := range h.p.heldBy(op.Member) {
		if h.chance(30) {
			continue
		}
		first, last := held.First, held.Last
		if h.chance(40) {
			first += h.rnd.Int64N(last - first + 1)
			last = first + h.rnd.Int64N(last-first+1)
		}
		if h.chance(3) {
			first -= h.rnd.Int64N(4)
		}
		if h.chance(3) {
			last += h.rnd.Int64N(4)
		}
		n := len(op.Batches)
		if n > 0 && first <= op.Batches[n-1].Last && !h.chance(10) {
			continue
		}
		if h.chance(2) && n > 0 {
			first = op.Batches[n-1].Last // once more
		}
		op.Batches = append(op.Batches, AckBatch{first, last, h.ackTypes(last - first + 1)})
		if h.chance(5) {
			op.Batches = append(op.Batches, AckBatch{last, last, h.ackTypes(1)})
		}
	}
	if len(op.Batches) == 0 && h.chance(20) {
		first := max(0, h.m.spso) + h.rnd.Int64N(40) - 10
		last := first + h.rnd.Int64N(12) - 1
		op.Batches = []AckBatch{{first, last, h.ackTypes(last - first + 1)}}
	}
	return op
}

func (h *history) ackTypes(size int64) []AckType {
	if h.chance(50) || size < 1 {
		return []AckType{h.ackType()}
	}
	if h.chance(1) {
		size++
	}
	types := make([]AckType, size)
	for i := range types {
		if types[i] = h.ackType(); i > 0 && h.chance(60) {
			types[i] = types[i-1]
		}
	}
	return types
}

func (h *history) archivingDone() Op {
	op := ArchivingDone{Incarnation: h.m.incarnation - h.rnd.Int64N(12)/11, Settings: h.set}
	for i, r := range h.m.records {
		if off := h.m.spso + int64(i); r.state == StateArchiving && h.chance(60) {
			op.Ranges = append(op.Ranges, OffsetRange{off, off})
		}
	}
	return op
}

// nextInStep makes up the next op and lets the model follow, as the generator
// looks at it.
func (h *history) nextInStep() Op {
	op := h.next()
	h.m.apply(op, h.now)
	return op
}
