package statelog

import (
	"errors"
	"time"
)

// Compaction is due when the ops behind the snapshot outgrow max(compactFloor, 2 x snapshot).
const compactFloor = 16 << 10

// landed takes the reply to a flight.
func (c *core) landed(f *flight, v any, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flight = nil
	switch {
	case err == nil:
		c.replied(f, v)
	case errors.Is(err, errNotSent):
		c.undo(f)
		c.park()
	case away(err):
		if f.kind == flightAppend && !refused(err) {
			c.unsettled = f // perhaps it was applied
		} else {
			c.undo(f)
		}
		c.park()
	default:
		c.rejected(f, err)
	}
	c.pump()
}

// rejected handles an error that Redis answered (out of memory, wrong type, no permission): nothing was done.
func (c *core) rejected(f *flight, err error) {
	if c.store.mayComplain() {
		c.store.log.Error().Err(err).Str("key", c.key).Msg("Redis refuses a command")
	}
	err = c.fail(c.store.unavailable(err))
	switch f.kind {
	case flightAppend:
		for _, p := range f.pendings {
			p.finish(nil, err)
		}
	case flightFence:
		// The outcome is still open; the callers' own time runs out meanwhile.
		c.parked = true
		time.AfterFunc(longestPause, c.resume)
	case flightRead, flightLoad:
		c.finishReaders(f.start, err)
		if c.st == nil {
			c.failWaiting(f.start, err)
		}
	case flightCompact, flightReseed: // what waits may depend on it
		c.failWaiting(time.Now(), err)
		c.finishReaders(time.Now(), err)
	}
}

// replied folds a good reply in.
func (c *core) replied(f *flight, v any) {
	switch f.kind {
	case flightAppend, flightFence:
		c.appended(f, v)
	case flightRead:
		c.read(f, v)
	case flightLoad:
		if s, ok := v.(string); ok {
			c.whole(f, s)
		} else {
			c.gone(f)
		}
	case flightCompact:
		c.compacted(f, v)
	case flightReseed:
		c.reseeded(f, v)
	}
}

func (c *core) appended(f *flight, v any) {
	switch v := v.(type) {
	case int64:
		c.gone(f)
		return
	case string:
		c.tail(f, v)
	case []any:
		s, _ := v[0].(string)
		c.whole(f, s)
	}
	if c.stopped != nil {
		return
	}
	if f.kind == flightAppend && !f.settled {
		// The script answered but our frame is not in its answer. Settle it like a lost answer.
		c.store.log.Error().Str("key", c.key).Stringer("token", f.token).Msg("own frame is not in the log's answer")
		c.unsettled = f
	}
	if u := c.unsettled; f.kind == flightFence && f.settled && u != nil {
		// Our fence is in the log and the frame is not before it: it is not applied and never will be.
		c.unsettled = nil
		c.requeue(u.pendings)
	}
}

// read takes what follows the known position.
func (c *core) read(f *flight, v any) {
	s, _ := v.(string)
	if len(s) < tokenLen || readToken([]byte(s[:tokenLen])) != c.st.token {
		c.reload = true // compacted, rolled back, replaced or gone
		c.wantRead = true
		return
	}
	c.tail(f, s)
}

// tail folds the bytes that follow the known token, which stands at their start.
func (c *core) tail(f *flight, s string) {
	if len(s) < tokenLen || c.st == nil {
		c.stop(errFrame)
		return
	}
	frames, err := parseFrames([]byte(s[tokenLen:]))
	if err != nil {
		c.halt(f, err)
		return
	}
	for _, fr := range frames {
		if err := c.fold(f, c.st, fr); err != nil {
			c.halt(f, err)
			return
		}
	}
	c.caughtUp(f, len(frames) > 0)
}

// whole replaces the copy by one made from the whole log.
func (c *core) whole(f *flight, s string) {
	if c.rebuild(f, []byte(s)) {
		c.caughtUp(f, true)
	}
}

// rebuild makes the copy anew. The snapshot in the log wins over what this replica had; if both stand at the same frame
// and differ, that is a bug worth shouting about. It reports false if the key had to be stopped.
func (c *core) rebuild(f *flight, log []byte) bool {
	c.store.stats.reloads.Add(1)
	c.reload = false
	frames, err := parseFrames(log)
	if err == nil && len(frames) == 0 {
		err = errFrame
	}
	if err != nil {
		c.halt(f, err)
		return false
	}
	st, covers, err := restore(frames[0], c.family.fresh(), c.family.semantics)
	if err != nil {
		c.halt(f, err)
		return false
	}
	old := c.st
	check := func(at token) {
		if old != nil && old.token == at {
			c.compare(old, st)
			old = nil
		}
	}
	check(covers)
	c.lookup(st, f)
	c.lookup(st, c.unsettled)
	for _, fr := range frames[1:] {
		if err := c.fold(f, st, fr); err != nil {
			c.halt(f, err)
			return false
		}
		check(fr.token)
	}
	c.st = st
	return true
}

func (c *core) compare(old, st *state) {
	if !differs(old, st) {
		return
	}
	c.store.stats.divergences.Add(1)
	c.store.log.Error().Str("key", c.key).Stringer("token", old.token).
		Msg("this replica's state differs from another's at the same place in the log; the one in Redis is taken")
}

// fold applies one frame to st and answers our own ops when it is ours.
func (c *core) fold(f *flight, st *state, fr frame) error {
	out, err := st.apply(fr)
	if err != nil {
		return err
	}
	if fr.token.writer != c.store.writer {
		return nil
	}
	for _, own := range []*flight{f, c.unsettled} {
		if own == nil || own.token != fr.token || own.kind > flightFence {
			continue
		}
		own.settled = true
		if own == c.unsettled {
			c.unsettled = nil
		}
		switch {
		case own.kind == flightFence && out.void:
			own.settled = false
		case out.void: // overtaken by a later frame of ours
			c.requeue(own.pendings)
		default:
			c.answer(own, out.results)
			if own.kind == flightAppend {
				c.store.clock.learn(fr.time, own.start)
			}
			if out.wake {
				c.store.pipe.publish(c.name)
			}
		}
	}
	return nil
}

// lookup finds the outcome of a frame that a snapshot has swallowed, in its table of writers.
func (c *core) lookup(st *state, own *flight) {
	if own == nil || own.kind != flightAppend || own.settled {
		return
	}
	w := st.writer(own.token.writer, st.time)
	if w == nil || w.ops < own.token.counter {
		return // not applied so far
	}
	own.settled = true
	if own == c.unsettled {
		c.unsettled = nil
	}
	if w.ops > own.token.counter {
		c.failUnsettled(own, errors.New("later ops of this replica hide it"))
		return
	}
	c.answer(own, w.results)
	c.store.pipe.publish(c.name) // whether others have to wake is not in the table
}

// answer hands the results of a frame to its callers.
func (c *core) answer(f *flight, results [][]byte) {
	n := 0
	for _, p := range f.pendings {
		n += len(p.ops)
	}
	if n != len(results) { // the table keeps results only for a while
		for _, p := range f.pendings {
			p.finish(nil, c.fail(c.store.unavailable(errors.New("applied, but its result is gone"))))
		}
		return
	}
	for _, p := range f.pendings {
		p.finish(results[:len(p.ops):len(p.ops)], nil)
		results = results[len(p.ops):]
	}
}

// halt stops the key because of what a reply held. Own ops in that reply may have been applied.
func (c *core) halt(f *flight, err error) {
	if f != nil && f.kind == flightAppend && !f.settled {
		c.failUnsettled(f, errors.Join(ErrStopped, err))
	}
	c.stop(err)
}

// caughtUp notes that the copy holds everything that was in Redis when f started.
func (c *core) caughtUp(f *flight, changed bool) {
	if f.start.After(c.freshAt) {
		c.freshAt = f.start
	}
	c.finishReaders(f.start, nil)
	if changed {
		c.notify()
		c.planCompaction(f)
	}
}

// planCompaction leaves the work to the replica whose own frame crossed the limit, so that replicas do not all do it; if
// that one does not, others do a little later.
func (c *core) planCompaction(f *flight) {
	ops := c.st.pos - c.st.base
	limit := max(compactFloor, 2*c.st.base)
	own := f.kind <= flightFence && c.st.token == f.token
	if ops > limit && (own || ops > limit+limit/4) {
		c.compact = true
	}
}

func (c *core) compacted(f *flight, v any) {
	if v != int64(1) {
		c.reload = true // somebody else was first, or the log is another
		return
	}
	c.store.stats.compactions.Add(1)
	c.st.base = int64(len(f.frame))
	c.st.pos = c.st.base
	c.st.token = f.token
	c.st.dropExpired()
}

// gone handles a missing key. If our copy is of a live machine, Redis has lost it, and the copy (a true earlier state,
// so at worst records come twice) is put back; whoever is first wins.
func (c *core) gone(f *flight) {
	if c.st != nil && c.family.mayReseed != nil && c.family.mayReseed(c.st.m) {
		c.undo(f)
		c.reseed = true
		return
	}
	c.st, c.reload, c.compact = nil, false, false
	err := c.fail(ErrMissing)
	for _, p := range f.pendings {
		p.finish(nil, err)
	}
	if u := c.unsettled; u != nil {
		c.unsettled = nil
		for _, p := range u.pendings {
			p.finish(nil, c.fail(errors.Join(ErrUnavailable, errors.New("the key is gone"))))
		}
	}
	c.failWaiting(f.start, err)
	c.finishReaders(f.start, err)
	c.notify()
}

func (c *core) reseeded(f *flight, v any) {
	if v == nil { // another replica was first, perhaps with another state
		c.reload = true
		return
	}
	c.store.stats.reseeds.Add(1)
	c.store.log.Warn().Str("key", c.key).Msg("Redis had lost a live log; it was put back from this replica's copy")
	c.st.base = int64(len(f.frame))
	c.st.pos = c.st.base
	c.st.token = f.token
	c.notify()
}

// failWaiting answers ops that were submitted before a flight started which found that there is no log.
func (c *core) failWaiting(start time.Time, err error) {
	live := c.waiting[:0]
	for _, p := range c.waiting {
		if p.at.After(start) {
			live = append(live, p)
			continue
		}
		p.finish(nil, err)
	}
	clear(c.waiting[len(live):])
	c.waiting = live
}
