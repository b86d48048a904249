package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"kshare/coordinator"
	"kshare/proxy"
	"kshare/proxy/serve"
	"kshare/proxy/upstream"
	"kshare/sharestate/statelog"
)

// replica is one kshare: all packages wired together, brought up and taken down in order.
type replica struct {
	c         Config
	broker    coordinator.BrokerConfig
	log       zerolog.Logger
	announce  io.Writer // gets the readiness line
	registry  *prometheus.Registry
	redis     redis.UniversalClient
	dials     brokerDials
	upstream  *upstream.Client
	missing   *missing                     // what start-up waits for
	redisSays []string                     // warnings of its settings at start
	proxy     atomic.Pointer[proxy.Server] // nil until start-up has what it needs
	up        chan struct{}                // closed when clients are served
}

// newReplica checks everything that can be checked without the network.
func newReplica(c Config, log zerolog.Logger, announce io.Writer) (*replica, error) {
	r := &replica{c: c, log: log, announce: announce, registry: prometheus.NewRegistry(), missing: newMissing(), up: make(chan struct{})}
	r.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var err error
	if r.broker, err = c.broker(); err != nil {
		return nil, err
	}
	if r.redis, err = r.c.connectRedis(r.part("redis")); err != nil {
		return nil, err
	}
	for _, w := range c.redisWarnings() {
		log.Warn().Str("key", "redis").Msg(w)
	}
	if err = c.checkListenTLS(r.part("proxy")); err != nil {
		return nil, err
	}
	if r.dials, err = c.brokerDials(r.part("upstream")); err != nil {
		return nil, err
	}
	reading := c.upstream()
	reading.Dial = r.dials.own
	if reading.Login, err = c.login(); err != nil {
		return nil, err
	}
	for _, w := range c.loginWarnings() {
		log.Warn().Str("key", "login-mechanism").Msg(w)
	}
	if r.upstream, err = upstream.New(reading, r.part("upstream").Hook(zerolog.HookFunc(r.hushAtStart))); err != nil {
		return nil, &configError{key: "upstream", problem: err.Error()}
	}
	return r, nil
}

// run serves until ctx ends, then drains. Errors are configErrors where the operator can put it right.
func (r *replica) run(ctx context.Context) error {
	defer r.redis.Close()
	listener, err := r.bind()
	if err != nil {
		return err
	}
	profiler, err := r.c.listenPprof()
	if err != nil {
		_ = listener.Close()
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	parts := newParts(ctx, fail)
	defer parts.end()

	if profiler != nil {
		parts.start("pprof", func(life context.Context) error { return serveHTTP(life, profiler, pprofEndpoints()) })
	}
	parts.start("http", func(life context.Context) error {
		return serveHTTP(life, listener, httpEndpoints(r.ready, r.registry))
	})
	parts.start("upstream", r.upstream.Run)
	if err := r.await(ctx); err != nil {
		return parts.verdict(ctx, err)
	}
	return parts.verdict(ctx, r.serve(ctx, parts))
}

// serve builds what needs Redis and the cluster id, and runs until the proxy has drained.
func (r *replica) serve(ctx context.Context, parts *parts) error {
	if err := r.probeNodes(); err != nil {
		return err
	}
	store := statelog.NewStore(r.redis, statelog.Options{
		Prefix: r.c.RedisPrefix, ClusterID: r.upstream.ClusterID(), Lease: r.c.RedisLease, Log: r.part("statelog"),
	})
	checkpoints := serve.NewCheckpoints(r.upstream, r.c.RedisPrefix, r.part("checkpoints"), r.registry)
	letters := serve.NewDeadLetters(r.upstream, r.part("dead-letters"), r.registry)
	groups := coordinator.New(coordinator.Options{
		Store: store, Topics: serve.UpstreamTopics{Client: r.upstream}, Use: serve.UpstreamGroups{Client: r.upstream}, Checkpoints: checkpoints, Broker: r.broker, Log: r.part("coordinator"),
	})
	server := serve.New(serve.Options{
		Store: store, Groups: groups, Upstream: r.upstream, Checkpoints: checkpoints, DeadLetters: letters, Broker: r.broker, Endpoint: r.endpoint,
		MaxWaitingFetches: r.c.MaxWaitingFetches,
		Log:               r.part("serve"), Registry: r.registry,
	})
	facing := r.c.proxy()
	facing.Dial = r.dials.clients
	front, err := proxy.New(facing, proxy.Deps{Upstream: r.upstream, Serve: server, Log: r.part("proxy"), Registry: r.registry})
	if err != nil {
		return &configError{problem: err.Error()}
	}
	r.registry.MustRegister(counted(store, r.upstream)...)
	store.OnReplicaDead(server.ReplicaDead)
	store.OnOwnTombstone(func() { front.CloseClients(proxy.CloseTombstone) })
	r.proxy.Store(front)

	parts.start("statelog", store.Run)
	parts.start("coordinator", groups.Run)
	parts.start("checkpoints", checkpoints.Run)
	parts.start("dead letters", letters.Run)
	if r.c.origin["redis"] != originEmbedded {
		check := func(ctx context.Context) ([]string, error) { return statelog.CheckServer(ctx, r.redis) }
		parts.start("redis settings", func(life context.Context) error { return watchRedis(life, check, r.redisSays, r.warnOfRedis) })
	}
	parts.start("ready", func(life context.Context) error { return r.announceWhenReady(ctx, front) })
	err = front.Run(ctx) // drains when ctx ends
	goodbye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	letters.Close(goodbye)
	checkpoints.Close(goodbye)
	store.Close(goodbye)
	return bindTrouble(err)
}

func (r *replica) part(name string) zerolog.Logger { return r.log.With().Str("part", name).Logger() }

// hushAtStart keeps back what upstream logs while start-up says itself that upstream does not answer.
func (r *replica) hushAtStart(e *zerolog.Event, _ zerolog.Level, _ string) {
	if r.proxy.Load() == nil {
		e.Discard()
	}
}

func (r *replica) announceWhenReady(ctx context.Context, front *proxy.Server) error {
	if err := front.WaitReady(ctx); err != nil {
		return nil //nolint:nilerr // stopped before it was ready, which Run reports
	}
	_, err := fmt.Fprintf(r.announce, "kshare ready bootstrap=%s upstream=%s nodes=%d\n", r.c.bootstrap(), r.upstream.ClusterID(), len(r.upstream.Nodes()))
	close(r.up)
	return err
}

// ready says what stands in the way of serving clients.
func (r *replica) ready() error {
	if front := r.proxy.Load(); front != nil {
		return front.Ready()
	}
	if text := r.missing.String(); text != "" {
		return errors.New(text)
	}
	return errors.New("starting")
}

// endpoint is where clients reach a node through this replica and all its kind.
func (r *replica) endpoint(node int32) (host string, port int32, ok bool) {
	return r.c.proxy().Endpoint(node)
}

// bind takes the HTTP port, and makes sure at once that the bootstrap port is free, even when upstream does not answer for a long time.
func (r *replica) bind() (net.Listener, error) {
	listener, err := net.Listen("tcp", r.c.HTTP)
	if err != nil {
		return nil, bindError("http", r.c.HTTP, err)
	}
	if err := probe("listen", r.c.Listen); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// probeNodes does the same for the nodes that upstream has now, unless all are served on the bootstrap port.
func (r *replica) probeNodes() error {
	if r.c.ListenTLS.SNISuffix != "" {
		return nil
	}
	host, _, err := net.SplitHostPort(r.c.Listen)
	if err != nil {
		return &configError{key: "listen", problem: err.Error()}
	}
	for _, node := range r.upstream.Nodes() {
		_, port, ok := r.endpoint(node.ID)
		if !ok {
			return &configError{key: "node-ports", problem: fmt.Sprintf("the cluster has node %d, and %d + %d is no port, give a lower number with --node-ports or KSHARE_NODE_PORTS",
				node.ID, r.c.NodePorts, node.ID)}
		}
		if err := probe("node-ports", net.JoinHostPort(host, strconv.Itoa(int(port)))); err != nil {
			return err
		}
	}
	return nil
}

// probe makes sure that an address can be listened on.
func probe(key, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return bindError(key, address, err)
	}
	return listener.Close()
}

// bindError says what to do about a port that cannot be had.
func bindError(key, address string, err error) error {
	s, _ := settingOf(key)
	fix := "give an address of this machine with --" + key + " or " + s.env()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return &configError{key: key, problem: address + " is in use by another process, stop it or give another port with --" + key + " or " + s.env()}
	case errors.Is(err, syscall.EACCES):
		return &configError{key: key, problem: address + " needs rights that this process does not have, give a port above 1023 with --" + key + " or " + s.env()}
	}
	return &configError{key: key, problem: fmt.Sprintf("cannot listen on %s, %s: %v", address, fix, err)}
}

// bindTrouble turns the proxy's failure to get its ports, which its message names, into a mistake of the operator.
func bindTrouble(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EACCES) {
		return &configError{problem: err.Error()}
	}
	return err
}

// parts runs what lives in the background until end, and stops everything when one of them fails.
type parts struct {
	life    context.Context // outlives the replica's own context, for draining needs the parts
	stop    context.CancelFunc
	fail    context.CancelCauseFunc
	running sync.WaitGroup
}

func newParts(ctx context.Context, fail context.CancelCauseFunc) *parts {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	return &parts{life: life, stop: stop, fail: fail}
}

func (p *parts) start(name string, run func(context.Context) error) {
	p.running.Go(func() {
		if err := run(p.life); err != nil && p.life.Err() == nil {
			p.fail(fmt.Errorf("%s stopped: %w", name, err))
		}
	})
}

func (p *parts) end() {
	p.stop()
	p.running.Wait()
}

// verdict prefers the failure of a part over its consequences, and takes being told to stop for no error.
func (p *parts) verdict(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
