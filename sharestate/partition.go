package sharestate

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Partition is one share-partition. It is not safe for concurrent use.
type Partition struct {
	incarnation int64
	clock       int64 // highest time seen, µs: time never goes back
	spso        int64 // -1 while no start offset is resolved
	end         int64 // first offset never handed out; spso when nothing is tracked
	leaderEpoch int32 // highest one that came with a start or an acknowledgement
	logEpoch    int32 // leader epoch that the window was read under, -1 = not told; see LeaderChange
	written     bool  // Kafka would have persisted the start offset by now

	spans   []span // cover [spso, end)
	holders holders

	// Sums over spans, and a bound: no lock and no rest ends before nextExpiry.
	available  int64 // free to be acquired
	resting    int64 // Available, but not yet
	archiving  int64
	complete   int64
	nextExpiry int64

	// Of the op under way.
	moved    bool  // the window moved without an acquisition: look again
	freed    bool  // records became free to be acquired
	rested   bool  // records became Available, to be acquired later
	fullOver int64 // the window was full by this limit at the beginning; 0 = it was not

	// Memory of Apply, kept for the next one.
	out     []span
	acquire acquireOp
	ack     acknowledgeOp
}

// NewPartition gives a share-partition in its first state. With startOffset -1 it
// waits for a [Start]; else the start offset is fixed and counts as written.
// Incarnation is the Redis time of its initialization, in µs.
func NewPartition(incarnation, startOffset int64) *Partition {
	p := &Partition{}
	p.begin(incarnation, startOffset)
	return p
}

// NewPartitionUnder is NewPartition of records that were read under leader epoch epoch so far, as a [LeaderChange]
// says of a started share-partition; -1 = not told.
func NewPartitionUnder(incarnation, startOffset int64, epoch int32) *Partition {
	p := NewPartition(incarnation, startOffset)
	if p.Started() {
		p.logEpoch = max(epoch, -1)
	}
	return p
}

// begin starts a life at offset, or at what a Start will say.
func (p *Partition) begin(incarnation, offset int64) {
	*p = Partition{
		incarnation: incarnation, clock: p.clock, spso: -1, logEpoch: -1, nextExpiry: math.MaxInt64,
		spans: p.spans[:0], out: p.out, acquire: p.acquire, ack: p.ack,
	}
	if offset >= 0 {
		p.spso, p.end, p.written = offset, offset, true
	}
}

// Apply folds one encoded op into the state at time now (µs, as stamped by the
// log) and appends its result to dst. wake tells that records became available (be it
// for later, see [Partition.NextChange]) or a full window got room, so that waiting
// fetches should look again. An error
// (ErrMalformed, ErrUnknownKind, wrapped) leaves the state as it was; the op must
// not be skipped then.
func (p *Partition) Apply(dst, op []byte, now int64) (result []byte, wake bool, err error) {
	if len(op) == 0 {
		return dst, false, fmt.Errorf("%w: empty op", ErrMalformed)
	}
	r := reader{b: op[1:]}
	p.moved, p.freed, p.rested, p.fullOver = false, false, false, 0
	switch op[0] {
	case kindFence:
		if r.end() == nil {
			p.advance(now)
		}
	case kindStart:
		if o := r.start(); r.end() == nil {
			p.advance(now)
			dst = binary.AppendVarint(dst, p.applyStart(o))
		}
	case kindReset:
		if o := r.reset(); r.end() == nil {
			p.advance(now)
			dst = binary.AppendUvarint(dst, p.applyReset(o))
		}
	case kindAcquire:
		if p.acquire.decode(&r); r.end() == nil {
			p.enter(&p.acquire.Settings, now)
			dst = p.applyAcquire(dst, &p.acquire)
		}
		p.acquire.member = nil
	case kindAcquireUnder:
		epoch := r.int32()
		if p.acquire.decode(&r); r.end() == nil {
			p.enter(&p.acquire.Settings, now)
			if epoch == p.logEpoch {
				dst = p.applyAcquire(dst, &p.acquire)
			} else {
				dst = append(dst, staleRead)
			}
		}
		p.acquire.member = nil
	case kindAcknowledge:
		if p.ack.decode(&r); r.end() == nil {
			p.enter(&p.ack.settings, now)
			dst = append(dst, byte(p.applyAcknowledge(&p.ack)))
		}
		p.ack.forget()
	case kindRelease:
		var o releaseOp
		if o.decode(&r); r.end() == nil {
			p.enter(&o.settings, now)
			dst = binary.AppendUvarint(dst, p.applyRelease(&o))
		}
	case kindReleaseReplica:
		if o := r.releaseReplica(); r.end() == nil {
			p.enter(&o.Settings, now)
			dst = binary.AppendUvarint(dst, p.applyReleaseReplica(&o))
		}
	case kindExpire:
		if set := r.settings(); r.end() == nil {
			dst = binary.AppendUvarint(dst, p.enter(&set, now))
		}
	case kindAdvanceLogStart:
		if o := r.advanceLogStart(); r.end() == nil {
			p.enter(&o.Settings, now)
			p.applyLogStart(&o)
		}
	case kindLogStartUnder:
		epoch := r.int32()
		if o := r.advanceLogStart(); r.end() == nil {
			p.enter(&o.Settings, now)
			if epoch == p.logEpoch {
				p.applyLogStart(&o)
			}
		}
	case kindClaimArchiving:
		if o := r.claimArchiving(); r.end() == nil {
			p.enter(&o.Settings, now)
			dst = p.applyClaim(dst, &o)
		}
	case kindArchivingDone:
		if o := r.archivingDone(); r.end() == nil {
			p.enter(&o.Settings, now)
			dst = binary.AppendUvarint(dst, p.applyArchivingDone(&o))
		}
	case kindLeaderChange:
		if o := r.leaderChange(); r.end() == nil {
			p.advance(now)
			dst = binary.AppendUvarint(dst, p.applyLeaderChange(o))
		}
	default:
		return dst, false, fmt.Errorf("%w %d", ErrUnknownKind, op[0])
	}
	if err := r.end(); err != nil {
		return dst, false, fmt.Errorf("%w: op kind %d", err, op[0])
	}
	return dst, p.wake(), nil
}

// wake tells whether the op gave waiting fetches a reason to look again. Records
// that it freed and took at once are none.
func (p *Partition) wake() bool {
	return p.moved || p.rested || p.freed && p.available > 0 || p.inFlight() < p.fullOver
}

// advance moves the clock, which never goes back.
func (p *Partition) advance(now int64) { p.clock = max(p.clock, now) }

// enter begins an op that carries settings: locks and rests that have run out end
// first. It returns the number of offsets whose lock ended.
func (p *Partition) enter(set *Settings, now int64) uint64 {
	p.advance(now)
	if limit := int64(set.MaxRecordLocks); p.inFlight() >= limit {
		p.fullOver = limit
	}
	return p.expire(set)
}

// inFlight is the size of the window: a span of offsets, so finished ones inside
// it count too.
func (p *Partition) inFlight() int64 {
	if len(p.spans) == 0 {
		return 0
	}
	return p.end - p.spso
}

// position is where the next acquisition begins: the lowest offset that is free, else
// what follows the window.
func (p *Partition) position() int64 {
	if p.available > 0 {
		for i := range p.spans {
			if p.spans[i].free() {
				return p.spans[i].first
			}
		}
	}
	return p.end
}

// after adds a duration in milliseconds to the clock.
func (p *Partition) after(ms int32) int64 { return later(p.clock, int64(max(ms, 0))) }

// later is ms milliseconds (not negative) after t.
func later(t, ms int64) int64 {
	d := ms * 1000
	if t > math.MaxInt64-d {
		return math.MaxInt64
	}
	return t + d
}
