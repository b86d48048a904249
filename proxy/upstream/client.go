package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Client is kshare's own view of upstream. Make one with New, keep Run going, and use everything else from any goroutine.
type Client struct {
	cfg Config
	log zerolog.Logger

	kgo    *kgo.Client    // metadata, offsets, groups, catch-up fetches
	polls  [2]*kgo.Client // long polls, by isolation level: a broker serves a connection in order
	nodes  *nodes
	topics *topics
	reader *reader
	writer writer

	versions   atomic.Pointer[apiVersions]
	versioning chan struct{} // cap 1: held while asking for versions
	ended      chan struct{} // closed when Run returns
}

// New makes a client; upstream need not be up. Without Run nothing is ever asked.
func New(cfg Config, log zerolog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg.withDefaults(), log: log, versioning: make(chan struct{}, 1), ended: make(chan struct{})}
	c.nodes = newNodes(log)
	c.topics = newTopics(c)
	c.reader = newReader(c)
	c.writer.options = c.options
	for _, slot := range []**kgo.Client{&c.kgo, &c.polls[ReadUncommitted], &c.polls[ReadCommitted]} {
		client, err := kgo.NewClient(c.options()...)
		if err != nil {
			c.closeAll()
			return nil, fmt.Errorf("upstream: %w", err)
		}
		*slot = client
	}
	return c, nil
}

func (c *Client) options() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.cfg.Seeds...),
		kgo.ClientID("kshare"),
		kgo.DisableClientMetrics(),
		// A response may exceed the limit by one batch, and a response above this kills the connection.
		kgo.BrokerMaxReadBytes(max(100<<20, 2*c.cfg.FetchMaxBytes)),
		kgo.MaxDecompressBatchBytes(MostUnpacked),
		kgo.RequestTimeoutOverhead(5 * time.Second),
		kgo.ConnIdleTimeout(2 * time.Minute),
		kgo.MetadataMaxAge(c.cfg.MetadataMaxAge),
		kgo.MetadataMinAge(min(250*time.Millisecond, c.cfg.MetadataMaxAge)),
		kgo.RetryTimeoutFn(func(key int16) time.Duration {
			if key == int16(kmsg.Metadata) {
				return time.Second // the refresh loop tries again, and says so
			}
			return 10 * time.Second
		}),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return min(time.Duration(tries)*100*time.Millisecond, time.Second) }),
	}
	if c.cfg.Dial != nil {
		opts = append(opts, kgo.Dialer(c.cfg.Dial))
	} else {
		opts = append(opts, kgo.DialTimeout(3*time.Second))
	}
	if c.cfg.Login != nil {
		opts = append(opts, kgo.SASL(markedLogin{c.cfg.Login}))
	}
	if c.log.GetLevel() <= zerolog.DebugLevel {
		opts = append(opts, kgo.WithLogger(kgoLog{c.log}))
	}
	return append(opts, c.cfg.Opts...)
}

// Run keeps the view of upstream fresh and reads what is wanted, until ctx ends. It may be called once.
func (c *Client) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer close(c.ended)
	defer c.closeAll()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.topics.run(ctx) })
	c.reader.run(ctx)
	return ctx.Err()
}

func (c *Client) closeAll() {
	for _, client := range []*kgo.Client{c.kgo, c.polls[0], c.polls[1]} {
		if client != nil {
			client.Close()
		}
	}
	c.writer.close()
}

// Healthy is nil while upstream answers; else it wraps ErrUnavailable and says what failed last.
func (c *Client) Healthy() error { return c.nodes.healthy() }

// ask sends a request to one node, and makes transport errors ErrUnavailable.
func ask[R kmsg.Response](ctx context.Context, client *kgo.Client, node int32, req kmsg.Request) (R, error) {
	resp, err := client.Broker(int(node)).Request(ctx, req)
	if err != nil {
		var none R
		return none, unavailable(ctx, fmt.Errorf("node %d: %w", node, err))
	}
	return resp.(R), nil
}

// unavailable marks a failed request as such, unless the caller is who gave up.
func unavailable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, kgo.ErrClientClosed):
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, marked(err))
}

// pause waits for d, or less if ctx ends; it says whether to go on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// kgoLog passes franz-go's own log on, as debug lines: whatever matters is logged here in kshare's words.
type kgoLog struct{ log zerolog.Logger }

func (l kgoLog) Level() kgo.LogLevel { return kgo.LogLevelInfo }

func (l kgoLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	l.log.Debug().Str("kgo", level.String()).Fields(keyvals).Msg(msg)
}
