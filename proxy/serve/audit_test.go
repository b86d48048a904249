package serve

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// audit counts what happens to each record of one share-partition.
type audit struct {
	t  *testing.T
	mu sync.Mutex
	// accepted has the offsets whose acceptance was answered with success.
	accepted map[int64]bool
}

func (a *audit) delivered(by string, e entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for o := e.first; o <= e.last; o++ {
		if a.accepted[o] {
			a.t.Errorf("%s got offset %d after its acceptance was confirmed", by, o)
		}
	}
}

func (a *audit) accept(e entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for o := e.first; o <= e.last; o++ {
		a.accepted[o] = true
	}
}

func (a *audit) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.accepted)
}

// TestEveryRecordIsAcceptedAndNoneComesAfterItsAck runs members on two replicas that accept, release, move to the other
// replica, drop their connections and come back.
func TestEveryRecordIsAcceptedAndNoneComesAfterItsAck(t *testing.T) {
	const records, members = 2000, 6
	w := newWorld(t, 2)
	topic := w.topic("t", 1)
	w.produce("t", 0, records/20, 20)
	w.alter("g", "share.auto.offset.reset", "earliest", "share.delivery.count.limit", "10")
	for _, r := range w.reps {
		r.member("g", "starter").join("t")
	}
	a := &audit{t: t, accepted: map[int64]bool{}}
	var all sync.WaitGroup
	deadline := time.Now().Add(40 * time.Second)
	for i := range members {
		all.Go(func() {
			c := &consumer{member: w.reps[i%2].member("g", fmt.Sprintf("m%d", i)), topic: topic, audit: a, rnd: rand.New(rand.NewPCG(1, uint64(i)))}
			for a.count() < records && time.Now().Before(deadline) && !t.Failed() {
				c.step()
			}
			c.leave()
		})
	}
	all.Wait()
	if n := a.count(); n != records {
		t.Errorf("%d of %d records were accepted", n, records)
	}
}

// consumer is a member with a mind of its own.
type consumer struct {
	*member         // on the connection of the next request
	owner   *member // on the connection that opened the session; nil = no session
	topic   upstream.Topic
	audit   *audit
	rnd     *rand.Rand
	held    []entry
}

func (c *consumer) step() {
	switch {
	case c.owner == nil:
		c.owner, c.epoch = c.member, 0
		c.take(c.send(c.w.ctx, 0, with(c.topic, 0), maxRecords(50)))
		return
	case c.rnd.IntN(15) == 0: // the connection breaks, and the client comes back elsewhere
		c.leave()
		c.member = c.on(c.w.reps[c.rnd.IntN(2)])
		return
	case c.rnd.IntN(4) == 0: // the session goes on over another connection, perhaps to the other replica
		c.member = c.on(c.w.reps[c.rnd.IntN(2)])
	}
	acks := make([]ack, len(c.held))
	for i, e := range c.held {
		acks[i] = accept(e.first, e.last)
		if c.rnd.IntN(10) == 0 && e.count < 5 {
			acks[i] = release(e.first, e.last)
		}
	}
	mods := []mod{with(c.topic, 0, acks...), maxRecords(50), maxWait(100 * time.Millisecond)}
	if c.rnd.IntN(3) == 0 {
		mods = append(mods, recordLimit(33))
	}
	c.take(c.send(c.w.ctx, c.epoch, mods...), acks...)
}

// leave closes the connection that the session lives on.
func (c *consumer) leave() {
	if c.owner != nil {
		c.owner.r.srv.ConnClosed(c.owner.c)
	}
	c.owner, c.held = nil, nil
}

// take books a response: the fate of what was acknowledged, and what was acquired.
func (c *consumer) take(resp *kmsg.ShareFetchResponse, acks ...ack) {
	if resp.ErrorCode != 0 {
		c.audit.t.Errorf("%s at epoch %d: code %d", c.id, c.epoch, resp.ErrorCode)
		c.leave()
		return
	}
	c.epoch++
	p, _ := part(resp, c.topic.ID, 0)
	if p.ErrorCode != 0 || p.AcknowledgeErrorCode != 0 {
		c.audit.t.Errorf("%s: codes %d, %d", c.id, p.ErrorCode, p.AcknowledgeErrorCode)
	}
	for _, a := range acks {
		if a.types[0] == 1 {
			c.audit.accept(entry{first: a.first, last: a.last})
		}
	}
	c.held = got(resp, c.topic, 0)
	for _, e := range c.held {
		c.audit.delivered(c.id, e)
	}
}
