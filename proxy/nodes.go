package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kshare/proxy/upstream"
)

// bootstrapNode stands for the bootstrap listener where a node id is asked for.
const bootstrapNode int32 = -1

// Endpoint gives the address at which clients reach a node through kshare. It
// is the same on every replica. ok is false when the node's port would not be
// a port.
func (c Config) Endpoint(node int32) (host string, port int32, ok bool) {
	c = c.WithDefaults()
	if c.TLS.byName() {
		return c.TLS.nodeName(node), c.TLS.SNIPort, node >= 0
	}
	if node < 0 || int64(c.NodePorts)+int64(node) > 65535 {
		return "", 0, false
	}
	return c.Advertise, c.NodePorts + node, true
}

// nodes knows where each upstream node is and holds the listener of each.
// Nodes are never forgotten: a broker that restarts is missing from metadata
// for a while, and its clients come back to the same port.
type nodes struct {
	cfg     Config
	log     zerolog.Logger
	accept  func(net.Listener, int32) // runs the accept loop of one listener
	next    atomic.Uint32             // rotates over the seeds
	unbound prometheus.Counter        // counts failed binds

	mu        sync.Mutex
	addrs     map[int32]string
	listeners map[int32]net.Listener
	failed    map[int32]time.Time // when binding was last tried in vain
	closed    bool
}

func newNodes(cfg Config, log zerolog.Logger, m *metrics, accept func(net.Listener, int32)) *nodes {
	return &nodes{cfg: cfg, log: log, unbound: m.unbound, accept: accept,
		addrs: map[int32]string{}, listeners: map[int32]net.Listener{}, failed: map[int32]time.Time{}}
}

// bindBootstrap opens the bootstrap listener.
func (n *nodes) bindBootstrap() (net.Listener, error) {
	l, err := net.Listen("tcp", n.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: cannot bind %s (%w); set --listen to a free address or stop what uses this one", n.cfg.Listen, errors.Unwrap(err))
	}
	return l, n.start(bootstrapNode, l)
}

// errClosed: the proxy is draining and opens nothing any more.
var errClosed = errors.New("proxy is closing")

func (n *nodes) start(node int32, l net.Listener) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		_ = l.Close()
		return errClosed
	}
	n.listeners[node] = l
	n.accept(l, node)
	return nil
}

// bindRetry is how soon a port that could not be bound is tried again.
const bindRetry = 10 * time.Second

// learn notes where a node is and sees to it that its port is open, unless all
// nodes share one. The error names the node, the key and the fix; a failed bind
// is not tried again, nor reported again, for bindRetry.
func (n *nodes) learn(node int32, host string, port int32) error {
	addr := net.JoinHostPort(host, strconv.Itoa(int(port)))
	n.mu.Lock()
	defer n.mu.Unlock()
	if host != "" && port > 0 {
		if _, known := n.addrs[node]; !known && n.cfg.TLS.byName() {
			n.log.Info().Int32("node", node).Str("name", n.cfg.TLS.nodeName(node)).Str("upstream", addr).Msg("serving node")
		}
		n.addrs[node] = addr
	}
	if n.cfg.TLS.byName() {
		return nil
	}
	if n.closed || n.listeners[node] != nil || time.Since(n.failed[node]) < bindRetry {
		return nil
	}
	l, err := n.bind(node)
	if err != nil {
		n.failed[node] = time.Now()
		n.unbound.Inc()
		return err
	}
	delete(n.failed, node)
	n.listeners[node] = l
	n.log.Info().Int32("node", node).Str("listen", l.Addr().String()).Str("upstream", addr).Msg("serving node")
	n.accept(l, node)
	return nil
}

// knows tells whether a node's address was learnt.
func (n *nodes) knows(node int32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, known := n.addrs[node]
	return known
}

// forgetFailures has every port that could not be bound tried again at once.
func (n *nodes) forgetFailures() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.failed)
}

func (n *nodes) bind(node int32) (net.Listener, error) {
	_, port, ok := n.cfg.Endpoint(node)
	if !ok {
		return nil, fmt.Errorf("node-ports: node %d has no port above base %d (highest is 65535); lower --node-ports", node, n.cfg.NodePorts)
	}
	host, _, _ := net.SplitHostPort(n.cfg.Listen)
	addr := net.JoinHostPort(host, strconv.Itoa(int(port)))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("node-ports: cannot bind %s for node %d (%w); move --node-ports or free the port", addr, node, errors.Unwrap(err))
	}
	return l, nil
}

// learnAll is for a whole node list; the errors of all nodes are joined.
func (n *nodes) learnAll(list []upstream.Node) error {
	var errs []error
	for _, node := range list {
		errs = append(errs, n.learn(node.ID, node.Host, node.Port))
	}
	return errors.Join(errs...)
}

// close shuts every listener; no new one opens afterwards.
func (n *nodes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	for _, l := range n.listeners {
		_ = l.Close()
	}
}

// candidates are the addresses to try for a listener's upstream connection, in
// order. Bootstrap rotates over the seeds and falls back to known nodes.
func (n *nodes) candidates(node int32) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if node != bootstrapNode {
		if addr, ok := n.addrs[node]; ok {
			return []string{addr}
		}
		return nil
	}
	seeds := n.cfg.Upstream
	first := int(n.next.Add(1)-1) % len(seeds)
	list := make([]string, 0, len(seeds)+len(n.addrs))
	list = append(append(list, seeds[first:]...), seeds[:first]...)
	for _, addr := range n.addrs {
		list = append(list, addr)
	}
	return list
}

// dial connects to the node that a listener stands for.
func (n *nodes) dial(ctx context.Context, node int32) (net.Conn, error) {
	list := n.candidates(node)
	if len(list) == 0 {
		return nil, fmt.Errorf("no address known for node %d", node)
	}
	var errs []error
	for _, addr := range list {
		conn, err := n.cfg.Dial(ctx, "tcp", addr)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// rewrite turns a node's upstream address into the one that clients are given.
// ok is false when the node cannot be served; its address must then be left
// out, for the real one must not be told.
func (n *nodes) rewrite(node int32, host string, port int32) (string, int32, bool) {
	h, p, ok := n.cfg.Endpoint(node)
	if err := n.learn(node, host, port); err != nil {
		n.log.Error().Err(err).Int32("node", node).Msg("clients cannot reach this node")
	}
	return h, p, ok
}
