package statelog

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const longestPause = 500 * time.Millisecond

// outage knows whether Redis answers. While it does not, nothing is sent but a PING by one goroutine; logs with
// something to do are parked and go on when an answer comes. So an outage costs one goroutine, however many keys wait.
type outage struct {
	store *Store

	mu        sync.Mutex
	err       error     // why Redis counts as away; nil = it answers
	since     time.Time // of err
	contact   bool      // Redis answered at least once
	answering time.Time // since when every command was answered; zero = not
	strikes   int       // failures without a good pipeline in between
	parked    map[*core]struct{}
	probing   bool
	closed    bool
	quit      chan struct{}
	probes    sync.WaitGroup
}

func (o *outage) down() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err != nil
}

// downFor reports whether Redis has been away for at least d.
func (o *outage) downFor(d time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err != nil && time.Since(o.since) >= d
}

func (o *outage) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// answered notes a pipeline whose every command was answered.
func (o *outage) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return // the probe says when the outage is over
	}
	o.contact = true
	o.strikes = 0
	if o.answering.IsZero() {
		o.answering = time.Now()
	}
}

// lost notes a command without an answer.
func (o *outage) lost(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answering = time.Time{}
	o.strikes++
	if o.err == nil {
		o.since = time.Now()
	}
	o.err = err
	if !o.probing && !o.closed {
		o.probing = true
		o.probes.Add(1)
		go o.probe(o.strikes)
	}
}

// restart makes the time of continuous answers begin anew: Redis answers, but it is not the Redis it was.
func (o *outage) restart() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.answering.IsZero() {
		o.answering = time.Now()
	}
}

// answeredFor returns for how long Redis has answered without a gap.
func (o *outage) answeredFor() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.answering.IsZero() {
		return 0
	}
	return time.Since(o.answering)
}

// park notes a log that wants to go on when Redis answers.
func (o *outage) park(c *core) {
	o.mu.Lock()
	away, closed := o.err != nil, o.closed
	if away {
		o.parked[c] = struct{}{}
	}
	o.mu.Unlock()
	if !away && !closed {
		// Redis came back meanwhile. Not here: the caller holds the log's lock.
		go c.resume()
	}
}

// probe asks until Redis answers. The first question comes at once unless failures follow one another: a cut connection
// then costs one round trip.
func (o *outage) probe(strikes int) {
	defer o.probes.Done()
	log := &o.store.log
	said := false
	for try := strikes - 1; ; try++ {
		if try > 0 {
			pause := min(longestPause, 2*time.Millisecond<<min(try, 10))
			select {
			case <-time.After(pause/2 + rand.N(pause/2)):
			case <-o.quit:
				return
			}
		}
		err := o.ping()
		if err == nil {
			break
		}
		o.mu.Lock()
		o.err = err
		away := time.Since(o.since)
		closed := o.closed
		o.mu.Unlock()
		if closed {
			return
		}
		if !said && away > 100*time.Millisecond {
			said = true
			text := "Redis does not answer"
			if LoginRefused(err) {
				text = "Redis refuses the login"
			}
			log.Warn().Err(err).Msg(text + "; share groups wait, asking again")
		}
	}
	o.mu.Lock()
	away := time.Since(o.since)
	parked := o.parked
	o.err, o.parked, o.probing, o.contact = nil, make(map[*core]struct{}), false, true
	o.answering = time.Now()
	o.mu.Unlock()
	if said {
		log.Info().Dur("away", away.Round(time.Millisecond)).Msg("Redis answers again")
	}
	for c := range parked {
		c.resume()
	}
	o.store.pipe.kick()
}

func (o *outage) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), o.store.opt.Timeout)
	defer cancel()
	o.store.stats.commands.Add(1)
	return o.store.client.Ping(ctx).Err()
}

// close ends the probe.
func (o *outage) close() {
	o.mu.Lock()
	if !o.closed {
		o.closed = true
		close(o.quit)
	}
	o.mu.Unlock()
	o.probes.Wait()
}
