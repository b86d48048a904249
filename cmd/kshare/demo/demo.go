// Package demo is the traffic of `kshare dev --demo`: an ordinary producer and share consumers of franz-go that use kshare as any
// application would, and an audit of what they saw.
//
// Some records are meant to be released at their first delivery, some to be rejected; one consumer dies with records in its hands and
// one sits on its records until their lock expires. Whatever happens, each record must end accepted or rejected exactly once.
package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Replica is one kshare process as clients see it.
type Replica struct {
	Name      string
	Bootstrap string // host:port
}

// Options of a run. Zero values mean the defaults of a demo that takes about 20 seconds.
type Options struct {
	Replicas []Replica // at least one; consumers are spread over them
	Out      io.Writer
	Color    bool
	Topic    string
	Group    string
	Records  int           // to produce in all
	Rate     int           // records per second
	Work     time.Duration // time that a consumer takes for a record
	Lock     time.Duration // acquisition lock of the group, at least a second
	Limit    time.Duration // give up after this
	// GroupConfigs are set on the group beside those that the demo itself needs.
	GroupConfigs map[string]string
}

func (o *Options) setDefaults() {
	setDefault(&o.Topic, "orders")
	setDefault(&o.Group, "packers")
	setDefault(&o.Records, 800)
	setDefault(&o.Rate, 60)
	setDefault(&o.Work, 20*time.Millisecond)
	setDefault(&o.Lock, 4*time.Second)
	setDefault(&o.Limit, 50*time.Second)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Run plays the demo to its end. An error says what did not work or which counts do not add up.
func Run(ctx context.Context, o Options) error {
	o.setDefaults()
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	p := &play{o: o, ledger: newLedger(), screen: newScreen(o.Out, o.Color), bursts: make(chan int, 2)}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	if err := p.perform(ctx); err != nil {
		return fmt.Errorf("%w; so far: %s", err, p.ledger.counts())
	}
	p.screen.summary(p.ledger, p.names)
	return p.ledger.audit(p.steady)
}

// play is one run under way.
type play struct {
	o      Options
	ledger *ledger
	screen *screen
	names  []castMember // in order of appearance
	steady []string     // consumers that must have got a share of the work
	bursts chan int     // records to produce at once, so that a newcomer finds something to take
}

type castMember struct{ name, replica string }

// replica deals out the replicas in turn.
func (p *play) replica(i int) Replica { return p.o.Replicas[i%len(p.o.Replicas)] }

// perform runs the producer, the steady consumers and the two special ones, until every record has found its end.
func (p *play) perform(ctx context.Context) error {
	consumers, stopConsumers := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stopConsumers()

	failures := make(chan error, 8)
	start := func(name string, i int, role func(context.Context, *consumer) error) {
		at := p.replica(i)
		p.names = append(p.names, castMember{name, at.Name})
		running.Go(func() {
			if err := p.consume(consumers, name, at, role); err != nil && consumers.Err() == nil {
				failures <- fmt.Errorf("consumer %s: %w", name, err)
			}
		})
	}
	for i, name := range []string{"amber", "blue", "coral", "dusk"} {
		p.steady = append(p.steady, name)
		start(name, i, p.work)
	}
	p.screen.event("amber, blue, coral and dusk share the work on topic %s in group %s", p.o.Topic, p.o.Group)
	running.Go(func() {
		if err := p.produce(consumers); err != nil && consumers.Err() == nil {
			failures <- fmt.Errorf("producer: %w", err)
		}
	})

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for second := 1; ; second++ {
		select {
		case err := <-failures:
			return err
		case <-ctx.Done():
			if ctx.Err() == context.DeadlineExceeded {
				return fmt.Errorf("not done after %v", p.o.Limit)
			}
			return ctx.Err()
		case <-tick.C:
		}
		p.screen.progress(second, p.ledger, p.steady)
		switch made := p.ledger.counts().produced; {
		case len(p.names) == len(p.steady) && made*4 >= p.o.Records:
			start("frail", 1, p.die)
			p.bursts <- p.o.Records / 10
		case len(p.names) == len(p.steady)+1 && made*2 >= p.o.Records:
			start("sleepy", 1, p.oversleep)
			p.bursts <- p.o.Records / 10
		case len(p.names) == len(p.steady)+2 && p.ledger.done(p.o.Records):
			return nil
		}
	}
}

// lifeline dials for one client and can cut all that it dialled, as a crash or a pulled cable does.
type lifeline struct {
	mu    sync.Mutex
	conns []net.Conn
	cut   bool
}

func (l *lifeline) dial(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

func (l *lifeline) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}
