package demo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// maxPoll bounds what one poll takes, so that no consumer sits on much while others are idle.
const maxPoll = 10

// fate is what a consumer does with a record.
type fate int

const (
	accept fate = iota
	release
	reject
)

// fateOf plays the application: every 25th record fails at its first delivery and works at the second, every 40th is poison.
func fateOf(id int, deliveryCount int32) fate {
	switch {
	case id%40 == 17:
		return reject
	case id%25 == 7 && deliveryCount == 1:
		return release
	}
	return accept
}

func (f fate) status() kgo.AckStatus {
	return map[fate]kgo.AckStatus{accept: kgo.AckAccept, release: kgo.AckRelease, reject: kgo.AckReject}[f]
}

// delivery is a record in the hands of a consumer.
type delivery struct {
	record *kgo.Record
	id     int
	count  int32
}

// consumer is one share consumer of the cast.
type consumer struct {
	name string
	*kgo.Client
	line    *lifeline
	abandon context.CancelFunc // lets Close return without the good-byes that a dead consumer cannot say

	mu       sync.Mutex
	ackFails map[int32]error // by partition, since the last settle
}

// consume connects a share consumer to a replica and lets it play its role.
func (p *play) consume(ctx context.Context, name string, at Replica, role func(context.Context, *consumer) error) error {
	life, abandon := context.WithCancel(context.Background())
	defer abandon()
	c := &consumer{name: name, line: &lifeline{}, abandon: abandon, ackFails: map[int32]error{}}
	client, err := kgo.NewClient(kgo.WithContext(life), kgo.SeedBrokers(at.Bootstrap), kgo.DisableClientMetrics(), kgo.ClientID(name), kgo.Dialer(c.line.dial),
		kgo.ConsumeTopics(p.o.Topic), kgo.ShareGroup(p.o.Group), kgo.ShareMaxRecords(maxPoll), kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) { c.noteAcks(results) }))
	if err != nil {
		return err
	}
	c.Client = client
	defer client.Close()
	return role(ctx, c)
}

func (c *consumer) noteAcks(results kgo.ShareAckResults) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range results {
		if r.Err != nil {
			c.ackFails[r.Partition] = r.Err
		}
	}
}

// take polls once; it returns nothing only with an error.
func (p *play) take(ctx context.Context, c *consumer) ([]delivery, error) {
	for {
		fetches := c.PollRecords(ctx, maxPoll)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for _, e := range fetches.Errors() {
			if !kerr.IsRetriable(e.Err) {
				return nil, fmt.Errorf("poll %s-%d: %w", e.Topic, e.Partition, e.Err)
			}
		}
		var taken []delivery
		for _, r := range fetches.Records() {
			id, err := strconv.Atoi(string(r.Value))
			if err != nil {
				return nil, fmt.Errorf("a record that nobody produced: %q", r.Value)
			}
			taken = append(taken, delivery{r, id, r.DeliveryCount()})
			p.ledger.delivered(c.name, id, r.DeliveryCount())
		}
		if len(taken) > 0 {
			return taken, nil
		}
	}
}

// settle sends the acknowledgements and writes into the ledger what kshare answered.
func (p *play) settle(ctx context.Context, c *consumer, taken []delivery, fates []fate) error {
	if err := c.FlushAcks(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	fails := c.ackFails
	c.ackFails = map[int32]error{}
	c.mu.Unlock()
	for i, d := range taken {
		switch err := fails[d.record.Partition]; {
		case err == nil:
			p.ledger.confirmed(c.name, d.id, d.count, fates[i])
		case errors.Is(err, kerr.InvalidRecordState):
			p.ledger.refused(c.name, d.id)
		default:
			p.ledger.failed(c.name, d.id)
			p.screen.event("%s could not acknowledge record %d: %v", c.name, d.id, err)
		}
	}
	return nil
}

// work is the role of a steady consumer.
func (p *play) work(ctx context.Context, c *consumer) error {
	for {
		taken, err := p.take(ctx, c)
		if err != nil {
			return err
		}
		fates := make([]fate, len(taken))
		for i, d := range taken {
			if err := sleep(ctx, p.o.Work); err != nil {
				return err
			}
			fates[i] = fateOf(d.id, d.count)
			d.record.Ack(fates[i].status())
		}
		if err := p.settle(ctx, c, taken, fates); err != nil {
			return err
		}
		for i, d := range taken {
			p.narrate(c, d, fates[i])
		}
	}
}

// narrate shows the first of each interesting thing.
func (p *play) narrate(c *consumer, d delivery, f fate) {
	switch {
	case f == release:
		p.screen.once("release", "%s releases record %d: it could not do it now", c.name, d.id)
	case f == reject:
		p.screen.once("reject", "%s rejects record %d: nobody can do it, it does not come back", c.name, d.id)
	case d.count == 2 && p.ledger.wasReleased(d.id):
		p.screen.once("redelivery", "%s gets record %d again, with delivery count 2, and accepts it", c.name, d.id)
	}
}

// die is the role of a consumer that crashes with records in its hands.
func (p *play) die(ctx context.Context, c *consumer) error {
	taken, err := p.take(ctx, c)
	if err != nil {
		return err
	}
	p.ledger.holds(c.name, taken, "died")
	p.screen.event("%s holds %s and dies: its connections are cut without a word", c.name, count(len(taken), "record"))
	began := time.Now()
	c.line.sever()
	c.abandon()
	if err := p.awaitOthers(ctx, taken); err != nil {
		return err
	}
	p.screen.event("all %d are in other hands %v later", len(taken), time.Since(began).Round(time.Millisecond))
	return nil
}

// oversleep is the role of a consumer that is alive but does not acknowledge in time.
func (p *play) oversleep(ctx context.Context, c *consumer) error {
	taken, err := p.take(ctx, c)
	if err != nil {
		return err
	}
	p.ledger.holds(c.name, taken, "overslept")
	p.screen.event("%s takes %s and falls asleep; the lock is %v", c.name, count(len(taken), "record"), p.o.Lock)
	began := time.Now()
	if err := p.awaitOthers(ctx, taken); err != nil {
		return err
	}
	p.screen.event("all %d are in other hands %.1f s later, the lock is gone", len(taken), time.Since(began).Seconds())
	fates := make([]fate, len(taken))
	for _, d := range taken {
		d.record.Ack(kgo.AckAccept)
	}
	if err := p.settle(ctx, c, taken, fates); err != nil {
		return err
	}
	p.screen.event("%s wakes up and accepts them: refused, as they are no longer its own", c.name)
	return nil
}

// awaitOthers waits until each of the records was delivered once more.
func (p *play) awaitOthers(ctx context.Context, taken []delivery) error {
	for {
		missing := false
		for _, d := range taken {
			missing = missing || !p.ledger.deliveredAgain(d.id, d.count)
		}
		if !missing {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
