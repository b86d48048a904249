package upstream

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// pollIdle is how long a poll without lines is kept.
	pollIdle = 10 * time.Second
	// bridgeGap is the time between two looks at lines that wait to join a poll.
	bridgeGap = 10 * time.Millisecond
	// sessionTries is how many session errors in a row are met with nothing but a new session.
	sessionTries = 5
)

type pollKey struct {
	node int32
	iso  Isolation
}

// poll follows the log ends of all lines that one node leads, by long polls that are never cancelled. A line that comes
// while a request is waiting cannot be in it: until the next request it is looked at by short fetches on the other
// connection (a bridge), so that it misses nothing.
type poll struct {
	r   *reader
	key pollKey

	lines    map[*line]struct{}
	waiting  bool // a request is under way
	bridging bool
	kick     chan struct{} // cap 1: there are lines

	session session // of the poll's own goroutine
	quick   int     // answers without news in a row that came at once
}

// follow has the line read on from its log end, in the poll of its leader.
func (r *reader) follow(l *line, leader partitionLeader, at int64) {
	key := pollKey{leader.node, l.key.iso}
	p := r.polls[key]
	if p == nil {
		p = &poll{r: r, key: key, lines: make(map[*line]struct{}), kick: make(chan struct{}, 1)}
		r.polls[key] = p
		r.wg.Go(p.run)
	}
	if l.poll == p {
		l.pos = max(l.pos, at)
		return
	}
	l.leave()
	r.newEpoch(l, leader.epoch)
	l.poll, l.pos, l.joined = p, at, false
	p.lines[l] = struct{}{}
	select {
	case p.kick <- struct{}{}:
	default:
	}
	if p.waiting && !p.bridging {
		p.bridging = true
		r.wg.Go(p.bridge)
	}
}

// leave takes a line out of its poll; the next request says so.
func (l *line) leave() {
	if l.poll != nil {
		delete(l.poll.lines, l)
		l.poll, l.joined = nil, false
	}
}

// run polls until it has had no lines for a while, or Run's ctx ends.
func (p *poll) run() {
	client := p.r.c.polls[p.key.iso]
	for p.await() {
		req := p.r.newFetch(p.key.iso, int32(p.r.c.cfg.MaxWait.Milliseconds()))
		p.begin(req)
		sent := time.Now()
		resp, err := ask[*kmsg.FetchResponse](p.r.ctx, client, p.key.node, req)
		var wait time.Duration
		if err == nil {
			wait, err = p.answer(resp, time.Since(sent))
		}
		if err != nil {
			client.ForceMetadataRefresh() // the node's address may have changed
			p.failed(err)
		}
		if wait > 0 && !pause(p.r.ctx, wait) {
			return
		}
	}
}

// await waits for lines; false ends the poll.
func (p *poll) await() bool {
	idle := time.NewTimer(pollIdle)
	defer idle.Stop()
	for over := false; ; {
		p.r.mu.Lock()
		switch {
		case !p.r.running:
			p.r.mu.Unlock()
			return false
		case len(p.lines) > 0:
			p.r.mu.Unlock()
			return true
		case over:
			delete(p.r.polls, p.key)
			p.r.mu.Unlock()
			return false
		}
		p.r.mu.Unlock()
		select {
		case <-p.kick:
		case <-idle.C:
			over = true
		case <-p.r.ctx.Done():
		}
	}
}

// begin puts all lines into a request.
func (p *poll) begin(req *kmsg.FetchRequest) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	want := make(map[TP]asked, len(p.lines))
	for l := range p.lines {
		want[l.key.tp] = p.r.ask(l)
		l.joined = true
	}
	p.session.fill(req, want)
	p.waiting = true
	p.r.stats.Polls++
}

// ask is how a line at its log end is read on.
func (r *reader) ask(l *line) asked {
	a := asked{line: l, from: l.pos, epoch: l.epoch, maxBytes: int32(min(r.budget(), int64(r.c.cfg.FetchPartitionBytes)))}
	if e := r.c.topics.cachedID(l.key.tp.ID); e != nil {
		a.topic = e.Name
	}
	return a
}

// answer takes a response, and says how long to wait before the next request: not at all, except where the node answers
// at once and there is no news.
func (p *poll) answer(resp *kmsg.FetchResponse, took time.Duration) (time.Duration, error) {
	parts := p.session.parts
	if err := p.session.answered(resp); err != nil {
		if !sessionError(resp.ErrorCode) || p.session.fails > sessionTries {
			return 0, codeError(resp.ErrorCode)
		}
		p.r.c.log.Debug().Err(err).Int32("node", p.key.node).Msg("fetch session begins anew")
		if p.session.fails == 1 {
			return 0, nil
		}
		return min(bridgeGap<<min(p.session.fails, 10), retryMax), nil
	}
	got := decode(resp, p.key.iso, parts)
	news := p.r.applyTails(p, parts, got)
	if news || took > 2*bridgeGap {
		p.quick = 0
		return 0, nil
	}
	p.quick++
	return min(time.Duration(p.quick)*bridgeGap/2, 10*bridgeGap), nil
}

// sessionError says whether a fetch was refused for its session, not for its partitions.
func sessionError(code int16) bool {
	switch kerr.ErrorForCode(code) {
	case kerr.FetchSessionIDNotFound, kerr.InvalidFetchSessionEpoch, kerr.FetchSessionTopicIDError, kerr.UnknownTopicID, kerr.InconsistentTopicID:
		return true
	}
	return false
}

// failed ends a request that brought nothing: its lines are in trouble.
func (p *poll) failed(err error) {
	p.session.reset()
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.waiting = false
	if !p.r.running {
		return
	}
	for l := range p.lines {
		p.r.fail(l, err)
	}
}

// applyTails takes what came for lines at their log ends, by a poll's request or a bridge's.
func (r *reader) applyTails(p *poll, parts map[TP]asked, got []fetched) (news bool) {
	hints := make(map[TP]partitionLeader)
	r.mu.Lock()
	if p != nil {
		p.waiting = false
	}
	for i := range got {
		f := &got[i]
		a := parts[f.tp]
		l := a.line
		if r.lines[l.key] != l || !r.running {
			continue
		}
		if f.err != nil {
			news = true
			if f.hint.node >= 0 {
				hints[f.tp] = f.hint
			}
			if a.epoch == l.epoch && l.poll != nil {
				r.refused(l, a.from, f.err)
			}
			continue
		}
		moved := r.apply(l, a, f)
		if !moved && len(f.run.batches) == 0 {
			continue
		}
		news = true
		if l.poll != nil && a.from <= l.pos {
			l.pos = max(l.pos, f.run.next())
		}
		r.schedule(l)
		r.notifyRun(l, f.run, moved)
	}
	r.mu.Unlock()
	for tp, hint := range hints {
		r.c.topics.hint(tp, hint)
	}
	return news
}

// bridge looks at the lines that wait to join the poll, until there are none.
func (p *poll) bridge() {
	for {
		req := p.r.newFetch(p.key.iso, 0)
		p.r.mu.Lock()
		want := make(map[TP]asked)
		for l := range p.lines {
			if !l.joined {
				want[l.key.tp] = p.r.ask(l)
			}
		}
		if len(want) == 0 || !p.waiting || !p.r.running {
			p.bridging = false
			p.r.mu.Unlock()
			return
		}
		p.r.stats.Bridges++
		p.r.mu.Unlock()
		askFor(req, want)
		sent := time.Now()
		resp, err := ask[*kmsg.FetchResponse](p.r.ctx, p.r.c.kgo, p.key.node, req)
		if err == nil && resp.ErrorCode == 0 { // else the poll will meet the trouble too, and handle it
			p.r.applyTails(nil, want, decode(resp, p.key.iso, want))
		}
		pause(p.r.ctx, max(bridgeGap, time.Since(sent))) // many lines make a large request: leave the node some air
	}
}
