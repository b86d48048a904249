package upstream

import (
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// flight is a catch-up fetch of one partition from one position, queued or under way. There is one per line and
// position, whoever waits for it.
type flight struct {
	line    *line
	from    int64
	size    int32
	urgent  bool // somebody waits in Read
	started bool
}

// startFlight queues a catch-up fetch.
func (r *reader) startFlight(l *line, from int64, size int32, urgent bool) {
	f := &flight{line: l, from: from, size: size, urgent: urgent}
	l.flights[from] = f
	if urgent {
		r.urgent = append(r.urgent, f)
	} else {
		r.ahead = append(r.ahead, f)
	}
	r.dispatch()
}

// promote puts a queued fetch before those that nobody waits for.
func (r *reader) promote(f *flight) {
	if f.started || f.urgent {
		return
	}
	f.urgent = true
	r.ahead = slices.DeleteFunc(r.ahead, func(x *flight) bool { return x == f })
	r.urgent = append(r.urgent, f)
}

// dispatch starts queued fetches while there is room, for their answers too.
func (r *reader) dispatch() {
	for r.running && r.inFlight < r.c.cfg.CatchUps {
		queue := &r.urgent
		if len(*queue) == 0 {
			queue = &r.ahead
		}
		if len(*queue) == 0 {
			return
		}
		f := (*queue)[0]
		if r.inFlight > 0 && r.inFlightBytes+int64(f.size) > r.c.cfg.CacheBytes/4 {
			return
		}
		*queue = slices.Delete(*queue, 0, 1)
		f.started = true
		if len(f.line.tails)+len(f.line.demands) == 0 {
			delete(f.line.flights, f.from)
			r.drop(f.line)
			continue
		}
		r.inFlight++
		r.inFlightBytes += int64(f.size)
		r.stats.CatchUps++
		r.wg.Go(func() { r.fly(f) })
	}
}

// fly makes one fetch and takes what it brings.
func (r *reader) fly(f *flight) {
	a, got, err := r.fetch(f)
	hint := partitionLeader{-1, -1}
	var found ends
	if err == nil {
		hint, err = got.hint, got.err
		if errors.Is(err, ErrOffsetOutOfRange) {
			if found, err = r.ends(f.line.key.tp); err == nil {
				err = ErrOffsetOutOfRange
			}
		}
	}

	r.mu.Lock()
	l := f.line
	r.inFlight--
	r.inFlightBytes -= int64(f.size)
	delete(l.flights, f.from)
	if r.running {
		switch {
		case errors.Is(err, ErrOffsetOutOfRange):
			r.outOfRange(l, a, found)
		case err != nil:
			r.refused(l, f.from, err)
		default:
			r.landed(l, a, got)
		}
		r.schedule(l)
		r.dispatch()
	}
	r.drop(l)
	r.mu.Unlock()
	if hint.node >= 0 {
		r.c.topics.hint(l.key.tp, hint)
	}
}

// fetch asks the partition's leader.
func (r *reader) fetch(f *flight) (asked, *fetched, error) {
	l := f.line
	topic, leader, err := r.c.leader(r.ctx, l.key.tp)
	if err != nil {
		return asked{}, nil, err
	}
	r.mu.Lock()
	r.newEpoch(l, leader.epoch)
	r.mu.Unlock()
	a := asked{line: l, topic: topic.Name, from: f.from, epoch: leader.epoch, maxBytes: f.size}
	parts := map[TP]asked{l.key.tp: a}
	req := r.newFetch(l.key.iso, 0)
	askFor(req, parts)
	resp, err := ask[*kmsg.FetchResponse](r.ctx, r.c.kgo, leader.node, req)
	if err != nil {
		return a, nil, err
	}
	if resp.ErrorCode != 0 {
		return a, nil, codeError(resp.ErrorCode)
	}
	got := decode(resp, l.key.iso, parts)
	if len(got) != 1 {
		return a, nil, fmt.Errorf("%w: node %d left partition %v out of its answer", ErrUnavailable, leader.node, l.key.tp)
	}
	return a, &got[0], nil
}

// landed takes a good answer. Who waits for it is answered from the answer itself: the cache may be too small to hold it.
func (r *reader) landed(l *line, a asked, f *fetched) {
	if a.epoch != l.epoch {
		return // read by an older leader epoch; schedule has it read again
	}
	delete(l.blocked, a.from)
	moved := r.apply(l, a, f)
	next := f.run.next()
	for d := range l.demands {
		inRun := d.from >= f.run.from && d.from < next
		if !inRun && (d.from != a.from || d.from < l.end()) {
			continue
		}
		v := View{LogStart: l.logStart, HighWatermark: l.hw, LastStable: l.lso, Epoch: l.epoch}
		if inRun {
			batches := f.run.batches[firstAt(f.run.batches, d.from):]
			n := fitting(batches, int64(d.maxBytes), true)
			v.Batches = batches[:n:n]
		}
		l.satisfy(d, v)
	}
	if len(f.run.batches) == 0 {
		switch end := l.end(); {
		case a.from < end:
			r.later(l) // nothing, though there is something: a node may do so to keep a quota
		case a.from > end:
			r.block(l, a.from, r.patient.beyond/4, nil) // behind the high watermark, before the log's end
		}
		r.notify(l)
		return
	}
	r.notifyRun(l, f.run, moved)
}

// ends are a log's ends as ListOffsets says them.
type ends struct{ logStart, hw int64 }

// ends asks for the ends of a log. OFFSET_OUT_OF_RANGE does not tell them.
func (r *reader) ends(tp TP) (e ends, err error) {
	if e.logStart, _, err = r.c.listOffset(r.ctx, tp, AtLogStart); err != nil {
		return e, err
	}
	e.hw, _, err = r.c.listOffset(r.ctx, tp, AtEnd)
	return e, err
}

// outOfRange takes the news that a position is not in the log.
func (r *reader) outOfRange(l *line, a asked, e ends) {
	if a.epoch != l.epoch {
		return
	}
	r.succeed(l)
	l.hw = max(l.hw, e.hw)
	if e.logStart > l.logStart {
		l.logStart = e.logStart
		l.dropBelow(r.cache, l.logStart)
	}
	switch {
	case a.from < l.logStart:
		r.notify(l)
	case a.from > e.hw:
		r.block(l, a.from, r.patient.beyond, l.outOfRange(a.from))
	default: // in range by now
		r.later(l)
	}
}

// refused takes a partition's error.
func (r *reader) refused(l *line, from int64, err error) {
	switch {
	case errors.Is(err, ErrOffsetOutOfRange): // at a log end; a catch-up fetch will find out more
		l.hw, l.lso = -1, -1
		l.leave()
		r.schedule(l)
	case errors.Is(err, ErrCorrupt):
		r.c.log.Error().Err(err).Stringer("partition", l.key.tp).Int64("offset", from).Msg("records cannot be read")
		r.block(l, from, r.patient.slow, err)
		r.schedule(l)
	default:
		r.fail(l, err)
	}
}
