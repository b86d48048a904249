package proxy

import (
	"fmt"
	"time"
)

// Limits bound what clients may take of a Server, above all those that upstream does not know yet. The zero value of
// each means its default.
type Limits struct {
	// MaxConnections is how many client connections are served at a time, Kafka's max.connections (default 10,000).
	// Further ones wait unread, one per listener here and the others in the listeners' queues, until one ends.
	MaxConnections int
	// MaxConnectionsPerAddress is Kafka's max.connections.per.ip: what a client address has above it is closed at once
	// (default 0, no limit). Behind a balancer all clients may have one address.
	MaxConnectionsPerAddress int
	// MaxInFlight is how many requests of one connection may await their responses before kshare stops reading from it
	// (default 64).
	MaxInFlight int
	// AuthTimeout is how long a connection may take until upstream has accepted the client, SASL login included; where
	// upstream wants no login, until the first request is there (default 30 s). Later on upstream's idle time-out ends it.
	AuthTimeout time.Duration
	// FrameTimeout is how long a request that has begun may take to arrive, and a second more for each 16 KiB of its
	// size (default 60 s).
	FrameTimeout time.Duration
	// StallTimeout is how long a client may leave a response unread (default 10 min, Kafka's connections.max.idle.ms).
	// Consumers do so for up to their max.poll.interval.ms.
	StallTimeout time.Duration
}

// Defaults of Limits.
const (
	DefaultMaxConnections = 10_000
	DefaultMaxInFlight    = 64
	DefaultAuthTimeout    = 30 * time.Second
	DefaultFrameTimeout   = time.Minute
	DefaultStallTimeout   = 10 * time.Minute
)

// WithDefaults returns l with every unset field at its default.
func (l Limits) WithDefaults() Limits {
	l.setDefaults()
	return l
}

func (l *Limits) setDefaults() {
	setDefault(&l.MaxConnections, DefaultMaxConnections)
	setDefault(&l.MaxInFlight, DefaultMaxInFlight)
	setDefault(&l.AuthTimeout, DefaultAuthTimeout)
	setDefault(&l.FrameTimeout, DefaultFrameTimeout)
	setDefault(&l.StallTimeout, DefaultStallTimeout)
}

func (l *Limits) validate() error {
	for _, n := range []struct {
		key            string
		value, atLeast int
	}{
		{"max-connections", l.MaxConnections, 1},
		{"max-connections-per-address", l.MaxConnectionsPerAddress, 0},
		{"max-in-flight", l.MaxInFlight, 1},
	} {
		if n.value < n.atLeast {
			return fmt.Errorf("%s: %d is less than %d", n.key, n.value, n.atLeast)
		}
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{
		{"auth-timeout", l.AuthTimeout}, {"frame-timeout", l.FrameTimeout}, {"stall-timeout", l.StallTimeout},
	} {
		if d.value < 0 {
			return fmt.Errorf("%s: %v is negative", d.key, d.value)
		}
	}
	return nil
}

// slowestFrame is the rate in bytes per second that large requests are given time for.
const slowestFrame = 16 << 10

// frameTime is how long a request of size bytes may take to arrive.
func (l *Limits) frameTime(size int32) time.Duration {
	return l.FrameTimeout + time.Duration(size)*time.Second/slowestFrame
}
