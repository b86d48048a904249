package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/goleak"

	"kshare/proxy/serve"
	"kshare/proxy/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The proxy listens and advertises on an address of its own, so that
// upstream's host in any byte a client gets is a leak.
const (
	upstreamHost = "127.0.0.1"
	proxyHost    = "127.0.0.41"
)

// withoutShareGroups is what Kafka 3.9 looks like in this respect.
func withoutShareGroups() *kversion.Versions {
	v := kversion.Stable()
	for _, key := range []int16{76, 77, 78, 79, 90, 91, 92} {
		v.SetMaxKeyVersion(key, -1)
	}
	return v
}

func startUpstream(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	opts = append([]kfake.Opt{kfake.NumBrokers(3), kfake.MaxVersions(withoutShareGroups()), kfake.SeedTopics(3, "orders")}, opts...)
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// fakeCluster is upstream as the proxy's own client would see it.
type fakeCluster struct {
	id string

	mu    sync.Mutex
	list  []upstream.Node
	ready chan struct{}
	hook  func([]upstream.Node)
}

func (f *fakeCluster) ClusterID() string { return f.id }
func (f *fakeCluster) Nodes() []upstream.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list
}
func (f *fakeCluster) OnNodes(hook func([]upstream.Node)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}
func (f *fakeCluster) WaitReady(ctx context.Context) error {
	select {
	case <-f.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeCluster) set(list []upstream.Node) {
	f.mu.Lock()
	f.list = list
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		hook(list)
	}
}

// lookAt fills a fakeCluster from a real cluster.
func lookAt(t testing.TB, addrs []string, opts ...kgo.Opt) *fakeCluster {
	t.Helper()
	f := &fakeCluster{ready: make(chan struct{})}
	close(f.ready)
	f.refresh(t, addrs, opts...)
	return f
}

func (f *fakeCluster) refresh(t testing.TB, addrs []string, opts ...kgo.Opt) {
	t.Helper()
	cl := newClient(t, addrs, opts...)
	defer cl.Close()
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(context.Background(), cl)
	if err != nil {
		t.Fatal(err)
	}
	f.id = *resp.ClusterID
	var list []upstream.Node
	for _, b := range resp.Brokers {
		list = append(list, upstream.Node{ID: b.NodeID, Host: b.Host, Port: b.Port})
	}
	f.set(list)
}

// fakeServe stands for package serve.
type fakeServe struct {
	mu      sync.Mutex
	closed  []uint64
	drained chan struct{}
	once    sync.Once
}

func (f *fakeServe) ConnClosed(c *serve.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = append(f.closed, c.Nonce)
}
func (f *fakeServe) Drain() { f.once.Do(func() { close(f.drained) }) }

func (f *fakeServe) closedConns() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.closed)
}

// fixture is one running proxy.
type fixture struct {
	*Server
	t       testing.TB
	cluster *fakeCluster
	fake    *fakeServe
	reg     *prometheus.Registry
	log     *lockedBuffer
	stop    context.CancelFunc
	done    chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type setup struct {
	addrs   []string
	cluster *fakeCluster
	apis    []serve.API
	split   *serve.Server
	cfg     func(*Config)
}

func startProxy(t testing.TB, o setup) *fixture {
	t.Helper()
	if o.cluster == nil {
		o.cluster = lookAt(t, o.addrs)
	}
	cfg := Config{Upstream: o.addrs, Listen: proxyHost + ":0", NodePorts: freeBase(t, 8), Drain: 2 * time.Second}
	if o.cfg != nil {
		o.cfg(&cfg)
	}
	f := &fixture{t: t, cluster: o.cluster, fake: &fakeServe{drained: make(chan struct{})}, reg: prometheus.NewRegistry(),
		log: &lockedBuffer{}, done: make(chan error, 1)}
	s, err := newServer(cfg, deps{cluster: o.cluster, serve: f.fake, apis: o.apis, split: o.split}, zerolog.New(f.log), f.reg)
	if err != nil {
		t.Fatal(err)
	}
	f.Server = s
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	go func() { f.done <- s.Run(ctx) }()
	wait, stopWaiting := context.WithTimeout(ctx, 10*time.Second)
	defer stopWaiting()
	if err := s.WaitReady(wait); err != nil {
		t.Fatalf("not ready: %v; %s", err, f.log)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("proxy's log:\n%s", f.log)
		}
		s.CloseClients(CloseShutdown)
		cancel()
		if err := <-f.done; err != nil {
			t.Errorf("Run: %v", err)
		}
		f.done <- nil
	})
	return f
}

// freeBase finds n neighbouring ports below the ephemeral range.
func freeBase(t testing.TB, n int) int32 {
	t.Helper()
	start := 20000 + int(time.Now().UnixNano()/1000)%11000
	for base := start; base < 32700-n; base += n {
		free := true
		for i := 0; i < n && free; i++ {
			l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", proxyHost, base+i))
			free = err == nil
			if free {
				_ = l.Close()
			}
		}
		if free {
			return int32(base)
		}
	}
	t.Fatal("no free ports")
	return 0
}

func (f *fixture) nodeAddr(node int32) string {
	host, port, _ := f.cfg.Endpoint(node)
	return fmt.Sprintf("%s:%d", host, port)
}

// closedWith counts the connections that ended for a reason.
func (f *fixture) closedWith(reason CloseReason) int {
	families, err := f.reg.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "kshare_proxy_connections_closed_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == string(reason) {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func newClient(t testing.TB, addrs []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addrs...), kgo.DisableClientMetrics(), kgo.RetryTimeout(5 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

// wire is a client that speaks frames.
type wire struct {
	t    testing.TB
	conn net.Conn
}

func dialWire(t testing.TB, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return &wire{t, conn}
}

func (f *fixture) dial() *wire { return dialWire(f.t, f.Addr().String()) }

var testClientID = "wire"

func frameOf(corr int32, req kmsg.Request) []byte {
	return appendRequest(nil, corr, &testClientID, req)
}

func (w *wire) send(b []byte) {
	w.t.Helper()
	if _, err := w.conn.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

// receive reads one response frame and returns all behind its size.
func (w *wire) receive() ([]byte, error) {
	size := make([]byte, 4)
	if _, err := io.ReadFull(w.conn, size); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size))
	_, err := io.ReadFull(w.conn, b)
	return b, err
}

// expect reads the response to corr and decodes it.
func (w *wire) expect(corr int32, req kmsg.Request) kmsg.Response {
	w.t.Helper()
	b, err := w.receive()
	if err != nil {
		w.t.Fatalf("response %d: %v", corr, err)
	}
	if got := int32(binary.BigEndian.Uint32(b)); got != corr {
		w.t.Fatalf("response to %d, want %d", got, corr)
	}
	resp, err := decodeResponse(req.Key(), req.GetVersion(), b[4:])
	if err != nil {
		w.t.Fatal(err)
	}
	return resp
}

func (w *wire) ask(corr int32, req kmsg.Request) kmsg.Response {
	w.t.Helper()
	w.send(frameOf(corr, req))
	return w.expect(corr, req)
}

// expectClosed waits for the other side to end the connection.
func (w *wire) expectClosed() {
	w.t.Helper()
	b, err := w.receive()
	var netErr net.Error
	if err == nil {
		w.t.Fatalf("got a response of %d bytes where the connection should end", len(b))
	}
	if errors.As(err, &netErr) && netErr.Timeout() {
		w.t.Fatal("connection still open")
	}
}

func mustNotLeak(t testing.TB, what string, b []byte) {
	t.Helper()
	if i := bytes.Index(b, []byte(upstreamHost)); i >= 0 {
		t.Errorf("%s: upstream's address at byte %d: %q", what, i, b[max(0, i-20):min(len(b), i+30)])
	}
}

// tap records what a kgo client receives.
type tap struct{ lockedBuffer }

func (r *tap) dialer(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	return &tappedConn{conn, r}, nil
}

type tappedConn struct {
	net.Conn
	to io.Writer
}

func (c *tappedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	_, _ = c.to.Write(p[:n])
	return n, err
}
