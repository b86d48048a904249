package upstream

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
)

// Config of a Client. The zero value of every field but Seeds means its default.
type Config struct {
	// Seeds are the host:port addresses that upstream is first met at.
	Seeds []string
	// CacheBytes bounds the memory that read batches pin, all partitions together. Default 256 MiB. Reads under way
	// come on top: at most a quarter of this, and FetchMaxBytes per node and isolation level.
	CacheBytes int64
	// FetchMaxBytes bounds one fetch response. Default 8 MiB.
	FetchMaxBytes int32
	// FetchPartitionBytes bounds one partition's share of a fetch response. Default 1 MiB.
	FetchPartitionBytes int32
	// PrefetchBytes bounds how far a partition is read ahead of what is wanted of it. Default 8 MiB; less while so
	// many partitions are read that together they would take more than half of the cache.
	PrefetchBytes int64
	// CatchUps bounds how many catch-up fetches are under way at once. Default 16.
	CatchUps int
	// MaxWait is how long a fetch at the log end waits for records. Default and most: 500 ms.
	MaxWait time.Duration
	// MetadataMaxAge is the time between two looks at the nodes and the topics in use. Default 10 s.
	MetadataMaxAge time.Duration
	// Dial connects to a broker, with TLS where upstream wants that. Default is plain TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Login authenticates kshare's own connections; nil where upstream wants no login.
	Login sasl.Mechanism
	// Opts are added to all kgo clients: hooks, version pins.
	Opts []kgo.Opt
}

func (c Config) withDefaults() Config {
	setDefault(&c.CacheBytes, 256<<20)
	setDefault(&c.FetchMaxBytes, 8<<20)
	setDefault(&c.FetchPartitionBytes, min(1<<20, c.FetchMaxBytes))
	setDefault(&c.PrefetchBytes, 8<<20)
	setDefault(&c.CatchUps, 16)
	setDefault(&c.MaxWait, 500*time.Millisecond)
	setDefault(&c.MetadataMaxAge, 10*time.Second)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate names the key that is wrong and how to put it right.
func (c Config) Validate() error {
	c = c.withDefaults()
	if len(c.Seeds) == 0 {
		return fmt.Errorf("upstream: no seeds: name at least one host:port")
	}
	for _, seed := range c.Seeds {
		if _, _, err := net.SplitHostPort(seed); err != nil {
			return fmt.Errorf("upstream: seed %q is not host:port: %w", seed, err)
		}
	}
	const maxFetch = 1 << 30
	switch {
	case c.FetchMaxBytes < 64<<10 || c.FetchMaxBytes > maxFetch:
		return fmt.Errorf("upstream: fetch-max-bytes is %d: give 64 KiB to 1 GiB", c.FetchMaxBytes)
	case c.FetchPartitionBytes < 16<<10 || c.FetchPartitionBytes > c.FetchMaxBytes:
		return fmt.Errorf("upstream: fetch-partition-bytes is %d: give 16 KiB to fetch-max-bytes (%d)", c.FetchPartitionBytes, c.FetchMaxBytes)
	case c.CacheBytes < 2*int64(c.FetchMaxBytes):
		return fmt.Errorf("upstream: cache-bytes is %d: give at least twice fetch-max-bytes (%d)", c.CacheBytes, c.FetchMaxBytes)
	case c.PrefetchBytes < 64<<10:
		return fmt.Errorf("upstream: prefetch-bytes is %d: give at least 64 KiB", c.PrefetchBytes)
	case c.CatchUps < 1:
		return fmt.Errorf("upstream: catch-ups is %d: give at least 1", c.CatchUps)
	case c.MaxWait < 10*time.Millisecond || c.MaxWait > 500*time.Millisecond:
		return fmt.Errorf("upstream: max-wait is %v: give 10 ms to 500 ms", c.MaxWait)
	case c.MetadataMaxAge < 100*time.Millisecond:
		return fmt.Errorf("upstream: metadata-max-age is %v: give at least 100 ms", c.MetadataMaxAge)
	}
	return nil
}
