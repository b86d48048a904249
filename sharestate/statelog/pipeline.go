package statelog

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// lanes is how many pipelines may be under way at once: while one waits for Redis the next fills.
	lanes = 2
	// pipelineCalls bounds a pipeline, so that one reply does not wait for thousands of others.
	pipelineCalls = 256
	// linger is how long a call waits for company when nobody waits for it yet.
	linger = time.Millisecond
)

// call is one command on its way to Redis. done is called once with the reply, and not on the goroutine that queued it.
type call struct {
	script *script // nil: a plain command
	args   []any   // of the script: key first; else the command
	// unsent is when the call is given up if it has not been sent; zero = never.
	unsent time.Time
	done   func(reply any, err error)
}

// errNotSent is what a call's error is when its command certainly did not reach Redis.
var errNotSent = errors.New("not sent")

// notSent makes an error errNotSent.
type notSent struct{ error }

func (n notSent) Unwrap() error      { return n.error }
func (notSent) Is(target error) bool { return target == errNotSent }

// pipeline collects calls and sends them in few round trips. Calls queued in the same instant share one pipeline: a call
// is sent when somebody waits for one (kick), when a pipeline is full, or after linger.
type pipeline struct {
	store *Store

	mu      sync.Mutex
	queue   []*call
	wakes   map[string]struct{} // to be published with the next pipeline
	running int
	timer   *time.Timer
	armed   bool
}

// add queues a call. It reports false, and never calls done, while Redis is away.
func (p *pipeline) add(c *call) bool {
	if p.store.outage.down() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, c)
	if len(p.queue) >= pipelineCalls {
		p.start()
	} else {
		p.arm()
	}
	return true
}

// publish notes a key for the wake-up message of the next pipeline.
func (p *pipeline) publish(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wakes == nil {
		p.wakes = make(map[string]struct{})
	}
	p.wakes[name] = struct{}{}
	p.arm()
}

// kick sends what is queued.
func (p *pipeline) kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start()
}

// arm makes sure that what is queued goes out soon. p.mu is held.
func (p *pipeline) arm() {
	if p.armed {
		return
	}
	p.armed = true
	if p.timer == nil {
		p.timer = time.AfterFunc(linger, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.armed = false
			p.start()
		})
		return
	}
	p.timer.Reset(linger)
}

// start puts a lane to work if one is idle. p.mu is held.
func (p *pipeline) start() {
	if len(p.queue)+len(p.wakes) > 0 && p.running < lanes {
		p.running++
		go p.lane()
	}
}

// lane sends pipelines until the queue is empty.
func (p *pipeline) lane() {
	for {
		p.mu.Lock()
		calls := p.take()
		if len(calls) == 0 {
			p.running--
			p.mu.Unlock()
			return
		}
		if len(p.queue) > 0 {
			p.start()
		}
		p.mu.Unlock()
		p.send(calls)
	}
}

// take removes the next pipeline's calls from the queue. p.mu is held.
func (p *pipeline) take() []*call {
	n := min(len(p.queue), pipelineCalls)
	calls := make([]*call, 0, n+1)
	if len(p.wakes) > 0 {
		calls = append(calls, p.store.wakeCall(p.wakes))
		p.wakes = nil
	}
	calls = append(calls, p.queue[:n]...)
	if p.queue = p.queue[n:]; len(p.queue) == 0 {
		p.queue = nil
	}
	return calls
}

// send makes one round trip and hands out the replies.
func (p *pipeline) send(calls []*call) {
	// What queued up behind a server that hangs is not sent to it one time-out after the other, nor when its callers have
	// long been answered.
	now, down := time.Now(), p.store.outage.down()
	live := calls[:0]
	for _, c := range calls {
		if down || !c.unsent.IsZero() && now.After(c.unsent) {
			c.done(nil, errNotSent)
			continue
		}
		live = append(live, c)
	}
	if len(live) == 0 {
		return
	}
	replies := p.exec(live, func(c *call) []any { return c.command(false) })
	// The script cache is lost on restart, promotion and SCRIPT FLUSH. Only the command that missed is sent again.
	var missed []int
	for i, r := range replies {
		if live[i].script != nil && redis.HasErrorPrefix(r.err, "NOSCRIPT") {
			missed = append(missed, i)
		}
	}
	if len(missed) > 0 {
		again := make([]*call, len(missed))
		for i, at := range missed {
			again[i] = live[at]
		}
		for i, r := range p.exec(again, func(c *call) []any { return c.command(true) }) {
			replies[missed[i]] = r
		}
	}
	for i, c := range live {
		c.done(replies[i].value, replies[i].err)
	}
}

type reply struct {
	value any
	err   error
}

// exec sends the calls as one pipeline and tells the outage watch how it went.
func (p *pipeline) exec(calls []*call, command func(*call) []any) []reply {
	commands := make([][]any, len(calls))
	for i, c := range calls {
		commands[i] = command(c)
	}
	p.store.stats.pipelines.Add(1)
	p.store.stats.commands.Add(int64(len(calls)))
	replies := sendAll(context.Background(), p.store.client, commands)
	var lost error
	answered := false
	for _, r := range replies {
		switch {
		case away(r.err):
			lost = r.err
		default:
			answered = true
		}
	}
	switch {
	case lost != nil:
		p.store.outage.lost(lost)
	case answered:
		p.store.outage.answered()
	}
	return replies
}

// sendAll sends commands as one pipeline.
func sendAll(ctx context.Context, client redis.UniversalClient, commands [][]any) []reply {
	pipe := client.Pipeline()
	cmds := make([]*redis.Cmd, len(commands))
	for i, args := range commands {
		cmds[i] = pipe.Do(ctx, args...)
	}
	_, failed := pipe.Exec(ctx)
	replies := make([]reply, len(cmds))
	for i, cmd := range cmds {
		value, err := cmd.Result()
		replies[i] = reply{value, classify(err)}
		if err != nil {
			failed = nil // it is a command's
		}
	}
	if failed == nil {
		return replies
	}
	// Redis refused the connection itself: the login, or the choice of a database. Go-redis does not put that into the
	// commands, which look as if they were answered with nothing.
	for i := range replies {
		replies[i] = reply{err: notSent{failed}}
	}
	return replies
}

func (c *call) command(whole bool) []any {
	if c.script == nil {
		return c.args
	}
	name, what := "EVALSHA", c.script.sha
	if whole {
		name, what = "EVAL", c.script.body
	}
	cmd := make([]any, 0, 3+len(c.args))
	cmd = append(cmd, name, what, 1)
	return append(cmd, c.args...)
}

// classify drops the error of a nil reply and marks errors of commands that cannot have reached Redis.
func classify(err error) error {
	var op *net.OpError
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return nil
	case errors.As(err, &op) && op.Op == "dial",
		errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return notSent{err}
	}
	return err
}

// refused reports an error that Redis itself answered: the command was not carried out.
func refused(err error) bool {
	var r redis.Error
	return errors.As(err, &r)
}

// away reports an error after which Redis must first be heard of again: no answer, or an answer that says to wait, or that
// refuses the login.
func away(err error) bool {
	if err == nil {
		return false
	}
	return !refused(err) || errors.Is(err, errNotSent) || redis.IsLoadingError(err) || redis.IsMasterDownError(err) || redis.IsClusterDownError(err) ||
		redis.IsReadOnlyError(err) || redis.IsTryAgainError(err) || redis.IsMaxClientsError(err) ||
		LoginRefused(err) || redis.HasErrorPrefix(err, "BUSY") || redis.HasErrorPrefix(err, "NOREPLICAS")
}

// LoginRefused reports that Redis wants another user or password than it was given.
func LoginRefused(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGPASS") || redis.HasErrorPrefix(err, "NOAUTH")
}

// roundTrip sends plain commands in one pipeline and returns their replies. It fails with [ErrUnavailable] when any of
// them has no answer.
func (s *Store) roundTrip(ctx context.Context, commands ...[]any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	type answer struct {
		i int
		reply
	}
	answers := make(chan answer, len(commands))
	deadline := time.Now().Add(s.opt.Timeout)
	for i, args := range commands {
		c := &call{args: args, unsent: deadline, done: func(v any, err error) { answers <- answer{i, reply{v, err}} }}
		if !s.pipe.add(c) {
			return nil, s.unavailable(s.outage.cause())
		}
	}
	s.pipe.kick()
	values := make([]any, len(commands))
	for range commands {
		select {
		case a := <-answers:
			if a.err != nil {
				return nil, s.unavailable(a.err)
			}
			values[a.i] = a.value
		case <-ctx.Done():
			return nil, s.unavailable(context.Cause(ctx))
		}
	}
	return values, nil
}
