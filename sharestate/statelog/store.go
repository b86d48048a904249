package statelog

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
)

var (
	// ErrMissing: the key does not exist in Redis. The op was not applied.
	ErrMissing = errors.New("statelog: key does not exist in Redis")
	// ErrUnavailable: Redis did not answer in time. Whether the op was or will be applied is not known; it is not applied
	// twice. Retriable.
	ErrUnavailable = errors.New("statelog: Redis is not available")
	// ErrStopped: the log holds something that this replica does not understand (a newer version, an unknown op kind, a
	// bad checksum). Other replicas may serve the key. Where ErrUnavailable is wrapped beside it, an op's outcome is not
	// known; else it was not applied.
	ErrStopped = errors.New("statelog: key is stopped on this replica")
	// ErrFull: the log has reached Options.MaxLog and cannot be compacted below it. The op was not applied.
	ErrFull = errors.New("statelog: log is too large")
)

// Options of a [Store]. Zero values take the defaults named here.
type Options struct {
	// Prefix and ClusterID begin every key: "<Prefix>:<ClusterID>:". Default prefix: kshare.
	Prefix, ClusterID string
	Log               zerolog.Logger
	// CatchUp is about how often a watched key is read when nothing else is heard of it. Default 1 s.
	CatchUp time.Duration
	// Lease is how long a replica counts as alive after its last sign. Default 5 s.
	Lease time.Duration
	// CacheKeys bounds the states kept in memory per [Logs]. Default 4096. Keys in use are kept beyond it.
	CacheKeys int
	// MaxLog is the size in bytes at which a log takes no more ops. Default 8 MiB.
	MaxLog int
	// Timeout is how long a call waits for Redis before it answers ErrUnavailable. Default 2 s.
	Timeout time.Duration
	// TombstoneTTL is how long a replica that was declared dead can find that out. Default 24 h.
	TombstoneTTL time.Duration
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = "kshare"
	}
	if o.CatchUp <= 0 {
		o.CatchUp = time.Second
	}
	if o.Lease <= 0 {
		o.Lease = 5 * time.Second
	}
	if o.CacheKeys <= 0 {
		o.CacheKeys = 4096
	}
	if o.MaxLog <= 0 {
		o.MaxLog = 8 << 20
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	if o.TombstoneTTL <= 0 {
		o.TombstoneTTL = 24 * time.Hour
	}
	return o
}

// Store is one replica's access to Redis: all logs, sessions, leases and wake-ups go through it. Safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	opt    Options
	log    zerolog.Logger
	prefix string // of every key, with its last colon

	writer  uint64        // writer nonce of all frames of this process
	counter atomic.Uint64 // of the last frame; one count for all keys, so it never repeats for a key that was forgotten

	pipe   pipeline
	outage outage
	clock  clock
	stats  stats
	wake   wakes
	lease  lease

	complained atomic.Int64 // when something that may happen with every op was logged

	mu       sync.Mutex
	families []*family
}

// NewStore makes a store on a client from [Connect]; the client stays the caller's to close. Nothing is sent before the
// first call or [Store.Run].
func NewStore(client redis.UniversalClient, o Options) *Store {
	o = o.withDefaults()
	s := &Store{client: client, opt: o, log: o.Log, prefix: o.Prefix + ":" + o.ClusterID + ":", writer: randomNonce()}
	s.pipe.store = s
	s.outage = outage{store: s, parked: make(map[*core]struct{}), quit: make(chan struct{})}
	s.lease.nonce.Store(randomNonce())
	s.wake.init()
	return s
}

// randomNonce returns a random number that is not 0.
func randomNonce() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		if n := binary.BigEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// Run keeps the replica's lease, finds dead replicas and listens for wake-ups until ctx ends. It goes on by itself when
// Redis was away.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.listen(ctx) })
	wg.Go(func() { s.keepLease(ctx) })
	wg.Go(func() { s.watchReplicas(ctx) })
	wg.Wait()
	return ctx.Err()
}

// Close ends this replica's life cleanly, after [Store.Run] has returned: its lease goes. If sessions of it are left, the
// other replicas treat it as dead at once, else they forget it.
func (s *Store) Close(ctx context.Context) {
	if !s.outage.down() {
		s.dropLease(ctx)
	}
	s.outage.close()
}

// Healthy returns nil while Redis answers, else an error that wraps [ErrUnavailable].
func (s *Store) Healthy() error {
	s.outage.mu.Lock()
	err, contact := s.outage.err, s.outage.contact
	s.outage.mu.Unlock()
	switch {
	case err != nil:
		return s.unavailable(err)
	case !contact:
		return fmt.Errorf("%w: not reached yet", ErrUnavailable)
	}
	return nil
}

// Now estimates Redis' clock in µs. For timers only: what an op sees is the time in the log.
func (s *Store) Now() int64 { return s.clock.now() }

// Kick sends what is queued now. Waiting for a result does that too.
func (s *Store) Kick() { s.pipe.kick() }

// mayComplain allows one line a second about what may happen with every op.
func (s *Store) mayComplain() bool {
	last, now := s.complained.Load(), time.Now().UnixNano()
	return now-last > int64(time.Second) && s.complained.CompareAndSwap(last, now)
}

func (s *Store) nextToken() token { return token{writer: s.writer, counter: s.counter.Add(1)} }

func (s *Store) unavailable(cause error) error {
	if cause == nil || errors.Is(cause, ErrUnavailable) {
		return ErrUnavailable
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, cause)
}

// Escape makes part safe between the braces and slashes of a key: { } : / % and control characters are percent-encoded.
func Escape(part string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(part) {
		c := part[i]
		if c <= ' ' || c == 0x7f || strings.IndexByte("{}:/%", c) >= 0 {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// clock estimates Redis' clock from the stamps in its replies.
type clock struct {
	offset atomic.Int64 // Redis minus local, µs
	known  atomic.Bool
}

func (c *clock) now() int64 { return time.Now().UnixMicro() + c.offset.Load() }

// learn takes a stamp that Redis made between sent and now.
func (c *clock) learn(stamp int64, sent time.Time) {
	half := time.Since(sent) / 2
	offset := stamp - sent.Add(half).UnixMicro()
	if c.known.Swap(true) {
		offset = (3*c.offset.Load() + offset) / 4
	}
	c.offset.Store(offset)
}
