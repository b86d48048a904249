package proxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// scripted is an upstream that answers the nth frame of a connection by a
// function: what stands behind the size field; nil ends the connection.
func scripted(t testing.TB, answer func(n int, frame []byte) []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", upstreamHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for n := 0; ; n++ {
					size := make([]byte, 4)
					if _, err := io.ReadFull(in, size); err != nil {
						return
					}
					frame := make([]byte, binary.BigEndian.Uint32(size))
					if _, err := io.ReadFull(in, frame); err != nil {
						return
					}
					out := answer(n, frame)
					if out == nil {
						return
					}
					_, _ = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(out))), out...))
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return l.Addr().String()
}

func TestBootstrapSurvivesDeadSeed(t *testing.T) {
	up := startUpstream(t)
	dead, err := net.Listen("tcp", upstreamHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	seeds := append([]string{dead.Addr().String()}, up.ListenAddrs()...)
	cluster := &fakeCluster{ready: make(chan struct{})} // that knows no nodes to fall back to
	close(cluster.ready)
	f := startProxy(t, setup{addrs: seeds, cluster: cluster})
	for range 2 * len(seeds) {
		f.dial().ask(1, &kmsg.ListGroupsRequest{Version: 4})
	}
}

func TestBootstrapFallsBackToKnownNodes(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: []string{upstreamHost + ":1"}, cluster: lookAt(t, up.ListenAddrs())})
	f.dial().ask(1, &kmsg.MetadataRequest{Version: 9})
}

func TestEachNodeIsServedOnItsPort(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	for node := range int32(3) {
		// KIP-1242 makes upstream say whether it is this node.
		req := apiVersionsRequest(5)
		req.ClusterID, req.NodeID = &f.cluster.id, node
		if resp := dialWire(t, f.nodeAddr(node)).ask(1, req).(*kmsg.ApiVersionsResponse); resp.ErrorCode != 0 {
			t.Errorf("port of node %d leads elsewhere: error %d", node, resp.ErrorCode)
		}
	}
}

func TestNewNodeIsServedOnceMetadataNamesIt(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	id, _, err := up.AddNode(5, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Learned from a client's own metadata, before our own refresh.
	resp := f.dial().ask(1, &kmsg.MetadataRequest{Version: 9}).(*kmsg.MetadataResponse)
	if len(resp.Brokers) != 4 {
		t.Fatalf("%d brokers", len(resp.Brokers))
	}
	dialWire(t, f.nodeAddr(id)).ask(1, &kmsg.MetadataRequest{Version: 9})

	next, _, err := up.AddNode(6, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.cluster.refresh(t, up.ListenAddrs())
	dialWire(t, f.nodeAddr(next)).ask(1, &kmsg.MetadataRequest{Version: 9})
}

func TestMovedNodeIsFollowed(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	list := f.cluster.Nodes()
	moved := []upstream.Node{{ID: list[0].ID, Host: list[1].Host, Port: list[1].Port}}
	f.cluster.set(moved)
	req := apiVersionsRequest(5)
	req.ClusterID, req.NodeID = &f.cluster.id, list[1].ID
	if resp := dialWire(t, f.nodeAddr(list[0].ID)).ask(1, req).(*kmsg.ApiVersionsResponse); resp.ErrorCode != 0 {
		t.Error("still dialled at the old address")
	}
}

func TestNodeOutOfPortRangeIsNamedAndItsAddressWithheld(t *testing.T) {
	const far = 50000
	addr := scripted(t, func(_ int, frame []byte) []byte {
		resp := kmsg.NewPtrMetadataResponse()
		resp.Version = 1
		resp.Brokers = []kmsg.MetadataResponseBroker{{NodeID: far, Host: upstreamHost, Port: 9092}, {NodeID: 1, Host: upstreamHost, Port: 9093}}
		return resp.AppendTo(frame[4:8:8])
	})
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster})
	w := f.dial()
	for range 2 {
		req := &kmsg.MetadataRequest{Version: 1}
		w.send(frameOf(1, req))
		b, err := w.receive()
		if err != nil {
			t.Fatal(err)
		}
		mustNotLeak(t, "metadata", b)
	}
	want := fmt.Sprintf("node-ports: node %d has no port", far)
	if n := strings.Count(f.log.String(), want); n != 1 {
		t.Errorf("%d log lines %q, want 1:\n%s", n, want, f.log)
	}
}

func TestPortClashAtStartNamesKeyAndFix(t *testing.T) {
	taken, err := net.Listen("tcp", proxyHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := int32(taken.Addr().(*net.TCPAddr).Port)
	cluster := &fakeCluster{ready: make(chan struct{}), list: []upstream.Node{{ID: 2, Host: upstreamHost, Port: 9092}}}
	close(cluster.ready)
	for _, tt := range []struct {
		cfg  Config
		want []string
	}{
		{Config{Listen: taken.Addr().String()}, []string{"listen: ", taken.Addr().String(), "--listen"}},
		{Config{Listen: proxyHost + ":0", NodePorts: port - 2}, []string{"node-ports: ", "node 2", taken.Addr().String(), "--node-ports"}},
	} {
		tt.cfg.Upstream = []string{"127.0.0.1:1"}
		s, err := newServer(tt.cfg, deps{cluster: cluster, serve: &fakeServe{drained: make(chan struct{})}}, zerolog.Nop(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err = s.Run(ctx)
		cancel()
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("Run: %v", err)
		}
		for _, part := range tt.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
		if s.Ready() == nil {
			t.Error("ready")
		}
	}
}

func TestNotReadyUntilUpstreamAnswers(t *testing.T) {
	cluster := &fakeCluster{ready: make(chan struct{})}
	s, err := newServer(Config{Upstream: []string{"127.0.0.1:1"}, Listen: proxyHost + ":0"}, deps{cluster: cluster, serve: &fakeServe{drained: make(chan struct{})}}, zerolog.Nop(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	eventually(t, "waiting for upstream", func() bool {
		err := s.Ready()
		return err != nil && strings.HasPrefix(err.Error(), "upstream: ")
	})
	close(cluster.ready)
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := s.WaitReady(context.Background()); err == nil {
		t.Error("ready after the end")
	}
}

func TestConfigValidateNamesKey(t *testing.T) {
	good := Config{Upstream: []string{"a:9092"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for key, break_ := range map[string]func(*Config){
		"upstream":      func(c *Config) { c.Upstream = []string{"nohost"} },
		"listen":        func(c *Config) { c.Listen = "127.0.0.1" },
		"advertise":     func(c *Config) { c.Advertise = "host:9092" },
		"node-ports":    func(c *Config) { c.NodePorts = 70000 },
		"max-frame":     func(c *Config) { c.MaxFrame = 5 },
		"max-in-flight": func(c *Config) { c.MaxInFlight = -1 },
		"dial-timeout":  func(c *Config) { c.Drain = -1 },
	} {
		c := good
		break_(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := (Config{}).Validate(); err == nil || !strings.HasPrefix(err.Error(), "upstream") {
		t.Error(err)
	}
}
