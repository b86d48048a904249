package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"kshare/proxy/serve"
)

// conn is one client connection with its upstream connection.
type conn struct {
	s      *Server
	node   int32
	client net.Conn
	in     *bufio.Reader // nil before the first byte
	peer   *serve.Conn
	auth   *authorizer
	log    zerolog.Logger

	// ctx ends when the connection does.
	ctx    context.Context
	cancel context.CancelFunc

	// Owned by the reading goroutine, and lent to the one request served.
	clientID  *string                // of the latest request that was read whole
	ranges    map[int16]versionRange // what upstream advertises, once known
	rawTokens int                    // SASL tokens without header to come (17_sasl_handshake.go)
	frame     frameClock

	stage     atomic.Int32 // how far the client has come (deadlines.go)
	authClock *time.Timer
	doubted   atomic.Bool // the clock has run out, and upstream is asked whether it accepted the client

	// upMu orders what goes upstream: place in pending, then bytes.
	upMu     sync.Mutex
	up       net.Conn
	upIn     *bufio.Reader
	pending  chan slot
	answered chan struct{} // closed when the answering goroutine ended

	mu      sync.Mutex
	busy    bool          // a request is being read or served
	waiting int           // relayed requests whose response is due
	settled chan struct{} // closed when waiting is 0 again
	retired bool          // to be closed at the next idle moment
	retire  chan struct{} // closed when retired
	ending  error         // why the connection was closed, set once
}

func newConn(s *Server, node int32, client net.Conn, id uint64) *conn {
	c := &conn{s: s, node: node, client: client, retire: make(chan struct{})}
	c.authClock = time.AfterFunc(math.MaxInt64, c.authExpired)
	c.frame.expired = c.frameExpired
	c.ctx, c.cancel = context.WithCancel(context.Background())
	host, _, _ := net.SplitHostPort(client.RemoteAddr().String())
	c.auth = newAuthorizer(c)
	c.peer = &serve.Conn{Nonce: id, RemoteIP: host, Auth: c.auth}
	c.setNode(node)
	return c
}

// setNode says which node the client means, before its first request.
func (c *conn) setNode(node int32) {
	c.node, c.peer.Node = node, node
	c.log = c.s.log.With().Str("client", c.client.RemoteAddr().String()).Int32("node", node).Logger()
}

// run lives as long as the connection.
func (c *conn) run() {
	err := c.shakeHands()
	if err == nil {
		c.authClock.Reset(c.s.cfg.AuthTimeout)
		err = ifBroken(c.readRequests())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, errGone) {
		c.sayFarewell()
	}
	c.close(err)
	c.upMu.Lock()
	answered := c.answered
	c.upMu.Unlock()
	if answered != nil {
		<-answered
	}
	c.s.deps.serve.ConnClosed(c.peer)
	c.report()
}

// report writes the one log line and the count of how the connection ended.
func (c *conn) report() {
	c.mu.Lock()
	err := c.ending
	c.mu.Unlock()
	reason := reasonOf(err, CloseClient)
	level := zerolog.WarnLevel
	if quiet[reason] || reason == CloseUpstreamDial && !c.s.moan() {
		level = zerolog.DebugLevel
	}
	var closed *closeError
	event := c.log.WithLevel(level).Str("reason", string(reason))
	if errors.As(err, &closed) && closed.cause != nil {
		event = event.Err(closed.cause)
	}
	event.Msg("client connection closed")
	c.s.metrics.closed.WithLabelValues(string(reason)).Inc() // last: who sees the count finds the line
}

// discard ends a connection that was not run.
func (c *conn) discard() {
	c.authClock.Stop()
	_ = c.client.Close()
	c.cancel()
}

// close ends the connection; only the first reason counts.
func (c *conn) close(err error) {
	c.authClock.Stop() // at the second time too: run may have set it after the first
	c.mu.Lock()
	if c.ending != nil {
		c.mu.Unlock()
		return
	}
	c.ending = err
	c.mu.Unlock()
	c.cancel()
	hangUp(c.client)
	// Taken without upMu: a writer that is stuck holds it until the close.
	if up := c.upstreamConn(); up != nil {
		hangUp(up)
	}
}

// readRequests takes one request after the other until the connection ends.
func (c *conn) readRequests() error {
	if err := c.firstByte(); err != nil {
		return err
	}
	defer c.frame.stop()
	for {
		h, err := c.nextHeader()
		if err != nil {
			return err
		}
		if err := c.route(h); err != nil {
			return err
		}
		if c.rest() {
			if err := c.settle(); err != nil {
				return err
			}
			return closing(CloseDrain, nil)
		}
	}
}

func (c *conn) nextHeader() (header, error) {
	if _, err := c.in.Peek(1); err != nil {
		return header{}, err
	}
	c.clockFrame(sizeLen+headerLen, 0)
	read := c.readHeader
	if c.rawTokens > 0 {
		read = c.readToken
	}
	h, err := read()
	if err != nil {
		return h, err
	}
	c.clockFrame(sizeLen+int64(h.size), h.size)
	c.mu.Lock()
	c.busy = true
	c.mu.Unlock()
	return h, nil
}

func (c *conn) readHeader() (header, error) { return readHeader(c.in, c.s.cfg.MaxFrame) }

// rest marks the reader idle; true when no more requests are to be taken.
func (c *conn) rest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = c.retired
	return c.retired
}

// setRetired ends the connection as soon as it is idle.
func (c *conn) setRetired() {
	c.mu.Lock()
	if !c.retired {
		c.retired = true
		close(c.retire)
	}
	idle := !c.busy && c.waiting == 0
	c.mu.Unlock()
	if idle {
		c.close(closing(CloseDrain, nil))
	}
}

// route sends one request on its way.
func (c *conn) route(h header) error {
	if c.rawTokens > 0 {
		return c.relayToken(h)
	}
	r := c.s.table.of(h.key)
	if c.headIsTheirs(h, r) {
		r.kind = relayed
	}
	c.s.metrics.request(h.key, r.kind)
	if h.version < r.min || r.max >= 0 && h.version > r.max {
		return closing(CloseUnsupported, fmt.Errorf("%s v%d", apiName(h.key), h.version))
	}
	switch r.kind {
	case relayed, rewritten:
		if h.key == saslAuthenticateKey {
			c.auth.forget()
		}
		return c.relay(h, r)
	case handled, served:
		return c.serveWhole(h, r)
	case unknown:
		if err := c.checkUpstreamHas(h); err != nil {
			return err
		}
		return c.relay(h, r)
	}
	return closing(CloseUnsupportedAPI, fmt.Errorf("key %d is not for clients", h.key))
}

// relay passes the waiting request on as it is.
func (c *conn) relay(h header, r route) error {
	silent := false
	if h.key == produceKey {
		var err error
		if silent, err = producesSilently(c.in, h); err != nil {
			return err
		}
	}
	sl := slot{corr: h.corr, key: h.key, version: h.version, client: true}
	if r.rewrite != nil && h.version >= r.from {
		sl.rewrite = r.rewrite
	}
	return c.relayAs(sl, h, silent)
}

// relayAs streams the waiting frame upstream.
func (c *conn) relayAs(sl slot, h header, silent bool) error {
	c.frame.stop() // until its turn has come the client may wait for kshare
	return c.sendUp(sl, silent, func(up net.Conn) error {
		n := sizeLen + int64(h.size)
		c.clockFrame(n, h.size)
		defer c.frame.stop()
		if n <= readerSize { // then it is held until it is whole, and upstream may take its time
			if _, err := c.in.Peek(int(n)); err != nil {
				return ifBroken(unexpectedEnd(err))
			}
			c.frame.stop()
		}
		c.s.metrics.toUpstream.Add(float64(n))
		err := copyFrame(up, c.in, c.client, n, 0)
		if errors.Is(err, errWrite) {
			return err
		}
		return ifBroken(err)
	})
}

// sendUp gives a request its place in the order of answers and writes it.
// silent requests get no answer and take no place.
func (c *conn) sendUp(sl slot, silent bool, write func(up net.Conn) error) error {
	c.upMu.Lock()
	defer c.upMu.Unlock()
	if err := c.connect(); err != nil {
		return err
	}
	if !silent {
		if sl.client {
			c.mu.Lock()
			c.waiting++
			c.mu.Unlock()
		}
		select {
		case c.pending <- sl:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
	err := write(c.up)
	switch {
	case reasonOf(err, "") != "":
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return closing(CloseTruncated, err)
	case err != nil:
		return closing(CloseUpstream, err)
	}
	if !openToAll(sl.key) {
		c.judged()
	}
	return nil
}

// connect dials upstream at the first request, so that port probes and
// strangers cost upstream nothing. Called with upMu held.
func (c *conn) connect() error {
	if c.up != nil {
		return nil
	}
	up, err := c.s.nodes.dial(c.ctx, c.node)
	if err != nil {
		return closing(CloseUpstreamDial, err)
	}
	c.mu.Lock()
	ended := c.ending != nil
	c.up = up
	c.mu.Unlock()
	if ended {
		_ = up.Close()
		return context.Canceled
	}
	c.upIn, c.pending = newReader(up), make(chan slot, c.s.cfg.MaxInFlight)
	c.answered = make(chan struct{})
	go c.readAnswers()
	return nil
}

func (c *conn) upstreamConn() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}
