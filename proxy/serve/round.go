package serve

import (
	"context"
	"errors"
	"time"

	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// A round carries out what a request wants of the store in one pipeline: for each share-partition one frame with its
// acknowledgements and its acquisition, and the session's move. The ops are queued before the move (see endSession).

// sent is one partition's frame under way.
type sent struct {
	it      *fetchItem
	pending *statelog.Pending
	// which of the frame's results belong to what; -1 = none.
	ack, take, advance, change int
}

// round sends the planned acquisitions, and with the first one the acknowledgements and the session's step.
func (f *fetch) round(ctx context.Context) {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	f.retry = false
	var out []sent
	for _, it := range f.items {
		if o, ok := f.send(it); ok {
			out = append(out, o)
		}
	}
	var move *statelog.PendingSession
	if !f.moved {
		move = f.move()
	}
	if len(out) == 0 && move == nil {
		return
	}
	f.s.o.Store.Kick()
	for _, o := range out {
		res, err := o.pending.Wait(ctx)
		f.receive(o, res, err)
	}
	if move != nil {
		f.settleMove(ctx, move)
	}
}

// send queues one partition's frame.
func (f *fetch) send(it *fetchItem) (sent, bool) {
	o := sent{it: it, ack: -1, take: -1, advance: -1, change: -1}
	if it.sh == nil {
		return o, false
	}
	var ops [][]byte
	add := func(op sharestate.Op) int {
		ops = append(ops, sharestate.EncodeOp(nil, op))
		return len(ops) - 1
	}
	key := f.visit.ss.key
	if it.acks.pending() {
		epoch := int32(-1)
		if _, e, ok := f.s.o.Upstream.Leader(it.part.TP); ok {
			epoch = e
		}
		o.ack = add(sharestate.Acknowledge{Member: key.Member, Batches: it.acks.batches, LeaderEpoch: epoch, Settings: f.set})
	}
	switch p := it.plan; {
	case f.visit.final && it.inSession:
		add(sharestate.Release{Member: key.Member, Session: f.visit.nonce, Settings: f.set})
	case p == nil:
	case p.change != nil:
		o.change = add(*p.change)
	case p.logStart >= 0:
		o.advance = add(sharestate.LogStartUnder{Epoch: p.epoch, AdvanceLogStart: sharestate.AdvanceLogStart{LogStart: p.logStart, Settings: f.set}})
	default:
		o.take = add(p.acquire(f.visit, f.batchSize, f.mode, f.set))
		it.sh.taking.Add(1)
	}
	if len(ops) == 0 {
		return o, false
	}
	o.pending = it.sh.log.Submit(ops...)
	return o, true
}

// move queues the session's step.
func (f *fetch) move() *statelog.PendingSession {
	v := f.visit
	if v.final {
		return f.s.o.Store.CloseSession(v.ss.key, v.seen.Opened, v.seen.Replica)
	}
	return f.s.o.Store.MoveSession(v.ss.key, v.seen, v.next, v.body)
}

// receive books the results of one partition's frame.
func (f *fetch) receive(o sent, res [][]byte, err error) {
	it := o.it
	if o.take >= 0 {
		it.sh.taking.Add(-1)
	}
	if err != nil {
		if o.ack >= 0 {
			it.acks.settle(nil, err)
		}
		if o.take >= 0 || o.advance >= 0 || o.change >= 0 {
			f.note(it, err)
		}
		if o.take >= 0 && !errors.Is(err, statelog.ErrMissing) {
			f.s.reclaim(f.visit, it.sh, o, f.set)
		}
		return
	}
	f.s.o.Checkpoints.moved(it.sh)
	f.s.o.DeadLetters.made(it.sh.key, it.sh.log)
	if o.ack >= 0 {
		it.acks.settle(res[o.ack], nil)
		if it.acks.code == codeNone {
			f.s.m.countAcks(it.acks.batches)
		}
	}
	if o.change >= 0 {
		it.sh.changed(it.plan.change, res[o.change])
	}
	if o.advance >= 0 || o.change >= 0 {
		f.retry = true
	}
	if o.take >= 0 {
		f.receiveTake(it, res[o.take])
	}
}

// receiveTake books what an acquisition took.
func (f *fetch) receiveTake(it *fetchItem, res []byte) {
	r, err := sharestate.DecodeAcquireResult(res)
	if err != nil {
		it.code = codeUnknown
		f.s.o.Log.Error().Err(err).Str("partition", it.sh.log.Name()).Msg("acquire result cannot be read")
		return
	}
	if len(r.Acquired) > 0 {
		it.acquired, it.records, it.empties = r.Acquired, it.plan.records(r.Acquired), 0
		f.s.m.countAcquired(r.Acquired)
		return
	}
	if r.Stale || f.denied || it.overtaken() {
		f.retry = true
		return
	}
	it.empties++
	it.hold = time.Now().Add(min(emptyHold<<min(it.empties, 6), time.Second))
}

// overtaken tells whether others have taken all that was planned: then there may be more behind it.
func (it *fetchItem) overtaken() bool {
	over, last := false, it.plan.batches[len(it.plan.batches)-1].Last
	it.sh.log.Cached(func(p *sharestate.Partition) { over = p.Started() && p.SPEO() > last })
	return over
}

// emptyHold (doubled each time) is how long a partition is left alone after an acquisition that took nothing: another
// member was faster, or the view and the batches do not meet. It keeps such a fetch from filling the log.
const emptyHold = 20 * time.Millisecond

// settleMove books the outcome of the session's step. A session that turns out to stand elsewhere is judged again;
// refused is set if the request has no place in it.
func (f *fetch) settleMove(ctx context.Context, p *statelog.PendingSession) {
	v, s := f.visit, f.s
	for {
		got, ok, err := p.Wait(ctx)
		if v.final {
			f.settleClose(ctx, got, ok, err)
			return
		}
		through, again := v.moved(got, ok, err)
		if again {
			p = s.o.Store.MoveSession(v.ss.key, v.seen, v.next, v.body)
			s.o.Store.Kick()
			continue
		}
		switch {
		case err != nil:
			f.noteAll(err)
		case through:
			f.moved = true
		case got.Opened == 0:
			f.refused = codeSessionNotFound
			s.sessions.drop(v.ss)
		case f.goOver(ctx, got):
			v, p = f.visit, f.move()
			s.o.Store.Kick()
			continue
		default:
			f.refused = codeSessionEpoch
		}
		return
	}
}

// goOver takes the request to the session that Redis turned out to hold, if its epoch is the one that is due there: the
// session that was known here was replaced elsewhere since. What was acquired on partitions of the old one is given back.
func (f *fetch) goOver(ctx context.Context, got statelog.Session) bool {
	ss, err := f.s.adopt(f.visit.ss.key, got)
	if err != nil {
		f.s.o.Log.Error().Err(err).Str("group", f.visit.ss.key.Group).Msg("share session cannot be read")
		return false
	}
	v, ok := ss.step(f.visit.epoch, f.visit.change)
	if !ok {
		return false
	}
	f.visit = v
	for _, it := range f.items {
		if it.inSession = v.parts.has(it.part.TP); !it.inSession {
			f.giveBackItem(ctx, it)
		}
	}
	return true
}

// noteAll books that the session's step has an unknown outcome. What was acquired is delivered all the same: the client
// counts on, and the session with it (see shareSession.doubt).
func (f *fetch) noteAll(err error) {
	for _, it := range f.items {
		if len(it.acquired) == 0 {
			f.note(it, err)
		}
	}
}

// settleClose books the outcome of a close by epoch -1. The session may have gone on elsewhere since this replica saw it,
// so that Redis held more partitions than were released, or been replaced: whatever session is there closes.
func (f *fetch) settleClose(ctx context.Context, got statelog.Session, ok bool, err error) {
	v, s := f.visit, f.s
	rest := &ending{key: v.ss.key, opened: got.Opened, replica: got.Replica, closed: ok}
	switch {
	case err != nil:
		f.noteAll(err)
		return
	case !ok && got.Opened == 0:
		f.refused = codeSessionNotFound
		s.sessions.drop(v.ss)
		return
	case ok:
		if rest.parts, err = decodeSessionParts(got.Body); err != nil {
			s.o.Log.Error().Err(err).Str("group", v.ss.key.Group).Msg("share session cannot be read")
		}
		rest.parts = rest.parts.without(v.parts)
	}
	f.moved = true
	s.sessions.drop(v.ss)
	s.unclaim(v.ss.key, got.Opened)
	if ok && len(rest.parts) == 0 {
		return
	}
	if err := s.endSession(ctx, rest); err != nil {
		go s.keepEnding([]*ending{rest})
	}
}
