package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Config says where kshare listens, what it tells clients and which limits it
// keeps. The zero value of every limit means its default.
type Config struct {
	// Upstream holds the seed brokers of the real cluster, host:port each.
	Upstream []string
	// Listen is the host:port of the bootstrap listener. Node ports bind on
	// the same host.
	Listen string
	// Advertise is the host that clients are given for every node; empty is
	// the host of Listen.
	Advertise string
	// NodePorts is the base of the node ports: node N is served on
	// NodePorts+N by every replica, unless TLS tells nodes apart by name.
	NodePorts int32

	// TLS is how clients are spoken to; the zero value is plain text.
	TLS ListenTLS

	// Dial connects to a broker on behalf of a client, with TLS where upstream
	// wants that, but without a certificate of kshare's: whatever upstream
	// grants to that would be the client's. Default is plain TCP with
	// DialTimeout.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// MaxFrame is the largest request in bytes, Kafka's
	// socket.request.max.bytes (default 100 MiB). It also bounds those
	// responses that have to be held whole to be rewritten.
	MaxFrame int32
	Limits
	// DialTimeout bounds one attempt to connect upstream (default 5 s).
	DialTimeout time.Duration
	// Drain is how long Run goes on for existing connections once its
	// context ended (default 20 s).
	Drain time.Duration
}

// Defaults of Config.
const (
	DefaultListen      = "127.0.0.1:19092"
	DefaultNodePorts   = 19100
	DefaultMaxFrame    = 100 << 20
	DefaultDialTimeout = 5 * time.Second
	DefaultDrain       = 20 * time.Second
)

// WithDefaults returns c with every unset field at its default.
func (c Config) WithDefaults() Config {
	setDefault(&c.Listen, DefaultListen)
	setDefault(&c.NodePorts, DefaultNodePorts)
	setDefault(&c.MaxFrame, DefaultMaxFrame)
	setDefault(&c.DialTimeout, DefaultDialTimeout)
	c.Limits.setDefaults()
	setDefault(&c.Drain, DefaultDrain)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: c.DialTimeout}).DialContext
	}
	if c.Advertise == "" {
		c.Advertise, _, _ = net.SplitHostPort(c.Listen)
	}
	c.TLS = c.TLS.withDefaults(c.Listen)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports the first setting that cannot work, by its key and with
// the fix. Unset fields are judged at their defaults.
func (c Config) Validate() error {
	c = c.WithDefaults()
	if len(c.Upstream) == 0 {
		return errors.New("upstream: no seed broker given; set it to one or more host:port")
	}
	for _, seed := range c.Upstream {
		if err := checkHostPort(seed, 1); err != nil {
			return fmt.Errorf("upstream: %q %w", seed, err)
		}
	}
	if err := checkHostPort(c.Listen, 0); err != nil {
		return fmt.Errorf("listen: %q %w", c.Listen, err)
	}
	if c.Advertise == "" || strings.ContainsAny(c.Advertise, " /") {
		return fmt.Errorf("advertise: %q is not a host; set it to the name or address that clients reach kshare by, without a port", c.Advertise)
	}
	if _, _, err := net.SplitHostPort(c.Advertise); err == nil {
		return fmt.Errorf("advertise: %q has a port; give the host only, node-ports says the ports", c.Advertise)
	}
	if c.NodePorts < 1 || c.NodePorts > 65535 {
		return fmt.Errorf("node-ports: %d is outside 1-65535", c.NodePorts)
	}
	if err := c.TLS.validate(); err != nil {
		return err
	}
	switch {
	case c.MaxFrame < 1024:
		return fmt.Errorf("max-frame: %d is less than 1024 bytes", c.MaxFrame)
	case c.DialTimeout < 0, c.Drain < 0:
		return errors.New("dial-timeout, drain: must not be negative")
	}
	return c.Limits.validate()
}

func checkHostPort(s string, lowest int) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" && lowest > 0 {
		return errors.New("is not host:port")
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < lowest || n > 65535 {
		return fmt.Errorf("has no port in %d-65535", lowest)
	}
	return nil
}
