package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"kshare/proxy/serve"
	"kshare/proxy/upstream"
)

// Deps are the parts that a Server works with. Upstream is run by the caller,
// and for longer than the Server: draining still needs it.
type Deps struct {
	Upstream *upstream.Client
	Serve    *serve.Server
	Log      zerolog.Logger
	Registry prometheus.Registerer // nil: no metrics are exported
}

// deps is what the proxy uses of Deps.
type deps struct {
	cluster clusterView
	serve   interface {
		ConnClosed(*serve.Conn)
		Drain()
	}
	apis  []serve.API
	split *serve.Server
}

// clusterView is what the proxy wants to know of upstream beyond what clients'
// own connections tell.
type clusterView interface {
	ClusterID() string
	Nodes() []upstream.Node
	OnNodes(func([]upstream.Node))
	WaitReady(ctx context.Context) error
}

// Server accepts clients and relays or serves what they ask.
type Server struct {
	cfg     Config
	deps    deps
	log     zerolog.Logger
	metrics *metrics
	table   *table
	nodes   *nodes
	tls     *tls.Config // what listeners speak, nil for plain text

	apiVersionsMax sync.Map // node int32 -> newestKnown
	lastConn       atomic.Uint64
	draining       chan struct{} // closed when drain begins
	state          atomic.Pointer[readiness]
	admission      *admission

	mu      sync.Mutex
	conns   map[*conn]struct{}
	moaned  time.Time      // when an unreachable upstream was last logged
	running sync.WaitGroup // accept loops and connections
}

// New checks cfg; nothing is bound before Run.
func New(cfg Config, d Deps) (*Server, error) {
	if d.Upstream == nil || d.Serve == nil {
		return nil, errors.New("proxy: Deps lacks Upstream or Serve")
	}
	return newServer(cfg, deps{cluster: d.Upstream, serve: d.Serve, apis: d.Serve.APIs(), split: d.Serve}, d.Log, d.Registry)
}

func newServer(cfg Config, d deps, log zerolog.Logger, reg prometheus.Registerer) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg.WithDefaults(), deps: d, log: log, metrics: newMetrics(reg), table: newTable(d.apis),
		draining: make(chan struct{}), conns: map[*conn]struct{}{}}
	var err error
	if s.tls, err = s.listenTLS(); err != nil {
		return nil, err
	}
	s.admission = newAdmission(s.cfg.Limits, log, s.metrics)
	s.nodes = newNodes(s.cfg, log, s.metrics, s.acceptLoop)
	s.state.Store(newReadiness(errors.New("ports: not bound yet")))
	return s, nil
}

// Run binds the bootstrap port and, once upstream is known, a port per node;
// then it serves until ctx ends, and drains. An address that cannot be bound at
// the start is an error that names the key and the fix; nil after a drain.
func (s *Server) Run(ctx context.Context) error {
	bootstrap, err := s.nodes.bindBootstrap()
	if err != nil {
		return err
	}
	defer s.stop()
	s.log.Info().Str("listen", bootstrap.Addr().String()).Msg("bootstrap port open")
	s.setState(fmt.Errorf("upstream: no answer yet from %s", strings.Join(s.cfg.Upstream, ",")))
	if err := s.deps.cluster.WaitReady(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("upstream: %w", err)
	}
	s.nodes.forgetFailures()
	if err := s.nodes.learnAll(s.deps.cluster.Nodes()); err != nil {
		return err
	}
	s.deps.cluster.OnNodes(s.learnNodes)
	s.learnNodes(s.deps.cluster.Nodes()) // what changed between the two
	s.setState(nil)
	<-ctx.Done()
	s.drain()
	return nil
}

func (s *Server) learnNodes(list []upstream.Node) {
	if err := s.nodes.learnAll(list); err != nil {
		s.log.Error().Err(err).Msg("clients cannot reach some nodes")
	}
}

// Addr is where the bootstrap listener is bound, nil before.
func (s *Server) Addr() net.Addr {
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	if l := s.nodes.listeners[bootstrapNode]; l != nil {
		return l.Addr()
	}
	return nil
}

// acceptLoop runs one listener in a goroutine until it is closed.
func (s *Server) acceptLoop(l net.Listener, node int32) {
	s.running.Go(func() {
		for {
			client, err := l.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				// Out of file descriptors, mostly: it passes, or the
				// operator reads this once a second.
				s.log.Error().Err(err).Str("listen", l.Addr().String()).Msg("cannot accept")
				select {
				case <-time.After(time.Second):
				case <-s.draining:
				}
			default:
				if leave, ok := s.admission.enter(client, s.draining); ok {
					s.serveConn(newConn(s, node, s.toListener(client), s.lastConn.Add(1)), leave)
				}
			}
		}
	})
}

func (s *Server) serveConn(c *conn, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.draining:
		c.discard()
		leave()
		return
	default:
	}
	s.conns[c] = struct{}{}
	s.metrics.accepted.Inc()
	s.metrics.open.Inc()
	s.running.Go(func() {
		c.run()
		s.metrics.open.Dec()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		leave()
	})
}

func (s *Server) openConns() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	return list
}

// moan tells whether an unreachable upstream may be logged again: at most once
// a second, however many clients try.
func (s *Server) moan() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.moaned) < time.Second {
		return false
	}
	s.moaned = time.Now()
	return true
}

// CloseClients closes every client connection at once, above all when this
// replica was declared dead (CloseTombstone) and its sessions are void.
func (s *Server) CloseClients(reason CloseReason) {
	var closed sync.WaitGroup
	for _, c := range s.openConns() {
		closed.Go(func() { c.close(closing(reason, nil)) }) // none waits for the last word to another
	}
	closed.Wait()
}
