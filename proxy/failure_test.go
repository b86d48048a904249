package proxy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

func TestClientIsClosedWhenUpstreamDies(t *testing.T) {
	up := startUpstream(t)
	waiting := make(chan struct{}, 1)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		if r.Body.(*kmsg.ShareGroupHeartbeatRequest).MemberID == "wait" {
			waiting <- struct{}{}
			<-ctx.Done()
		}
		return nil
	})}})
	idle, polling, serving := f.dial(), dialWire(t, f.nodeAddr(1)), f.dial()
	idle.ask(1, &kmsg.MetadataRequest{Version: 9})
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version, fetch.MaxWaitMillis, fetch.MinBytes = 11, 15000, 1
	polling.ask(1, &kmsg.MetadataRequest{Version: 9}) // else upstream may be gone before it is dialled
	polling.send(frameOf(2, fetch))
	serving.ask(1, heartbeat("m"))
	serving.send(frameOf(2, heartbeat("wait")))
	<-waiting
	up.Close()
	for _, w := range []*wire{idle, polling, serving} {
		w.expectClosed()
	}
	eventually(t, "ConnClosed for each", func() bool { return f.fake.closedConns() == 3 })
	// A new connection finds nobody, and says so.
	w := f.dial()
	w.send(frameOf(1, &kmsg.MetadataRequest{Version: 9}))
	w.expectClosed()
	eventually(t, "counted", func() bool { return f.closedWith(CloseUpstreamDial) == 1 })
}

func TestUpstreamThatBreaksProtocolIsCutOff(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer []byte
		req    kmsg.Request
	}{
		{"another correlation id", []byte{0, 0, 0, 99, 0, 0}, &kmsg.HeartbeatRequest{}},
		{"no correlation id", []byte{0, 0}, &kmsg.HeartbeatRequest{}},
		{"garbage to rewrite", []byte{0, 0, 0, 1, 0xff, 0xff}, &kmsg.MetadataRequest{Version: 9}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := scripted(t, func(int, []byte) []byte { return tt.answer })
			cluster := &fakeCluster{ready: make(chan struct{})}
			close(cluster.ready)
			f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster})
			w := f.dial()
			w.send(frameOf(1, tt.req))
			w.expectClosed()
			eventually(t, "counted", func() bool { return f.closedWith(CloseUpstreamProtocol) == 1 })
		})
	}
}

func TestHalfClosedClientGetsItsLastAnswer(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	w := f.dial()
	req := &kmsg.MetadataRequest{Version: 9}
	w.send(frameOf(1, req))
	_ = w.conn.(*net.TCPConn).CloseWrite()
	w.expect(1, req)
	w.expectClosed()
}

func TestInFlightRequestsAreBounded(t *testing.T) {
	var mu sync.Mutex
	arrived, release := 0, make(chan struct{})
	addr := scripted(t, func(n int, frame []byte) []byte {
		mu.Lock()
		arrived++
		mu.Unlock()
		<-release
		return append(frame[4:8:8], 0, 0, 0, 0)
	})
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	const limit = 4
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster, cfg: func(c *Config) { c.MaxInFlight = limit }})
	w := f.dial()
	const n = 50
	for i := range n {
		w.send(frameOf(int32(i), &kmsg.HeartbeatRequest{}))
	}
	eventually(t, "the first request at upstream", func() bool { mu.Lock(); defer mu.Unlock(); return arrived == 1 })
	conn := f.openConns()[0]
	eventually(t, "the queue is full", func() bool { return len(conn.pending) == limit })
	close(release)
	for i := range n {
		b, err := w.receive()
		if err != nil || int(b[3]) != i {
			t.Fatalf("answer %d: % x %v", i, b, err)
		}
	}
}

func TestDrainAnswersWaitersAndClosesIdleOnesSpreadOut(t *testing.T) {
	up := startUpstream(t)
	var f *fixture
	waiting := make(chan struct{}, 1)
	f = startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		waiting <- struct{}{}
		select {
		case <-f.fake.drained:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})}, cfg: func(c *Config) { c.Drain = 2 * time.Second }})
	var idle []*wire
	for range 8 {
		w := f.dial()
		w.ask(1, &kmsg.MetadataRequest{Version: 9})
		idle = append(idle, w)
	}
	waiter := f.dial()
	waiter.send(frameOf(1, heartbeat("m")))
	<-waiting
	began := time.Now()
	f.stop()
	waiter.expect(1, heartbeat("m"))
	if f.Ready() == nil {
		t.Error("ready while draining")
	}
	if conn, err := net.Dial("tcp", f.nodeAddr(0)); err == nil {
		_ = conn.Close()
		t.Error("a new connection was accepted while draining")
	}
	for _, w := range idle {
		w.expectClosed()
	}
	err := <-f.done
	f.done <- nil
	if err != nil {
		t.Fatal(err)
	}
	if n := f.closedWith(CloseDrain); n != 9 {
		t.Errorf("%d closed by the drain, want 9", n)
	}
	// The idle ones had all the window; nine closing in its first tenth
	// happens once in 10^8 runs.
	if took := time.Since(began); took < 80*time.Millisecond || took > 2*time.Second {
		t.Errorf("drain took %v of its 2 s", took)
	}
}

func TestDrainCutsAtTheDeadlineAndFinishesWorkBeforeIt(t *testing.T) {
	up := startUpstream(t)
	stuck, finish := make(chan struct{}, 2), make(chan struct{})
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		stuck <- struct{}{}
		if r.Body.(*kmsg.ShareGroupHeartbeatRequest).MemberID == "finishes" {
			<-finish
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})}, cfg: func(c *Config) { c.Drain = 300 * time.Millisecond }})
	ends, never := f.dial(), f.dial()
	ends.send(frameOf(1, heartbeat("finishes")))
	never.send(frameOf(1, heartbeat("never")))
	<-stuck
	<-stuck
	f.stop()
	for _, c := range f.openConns() {
		<-c.retire // its turn came, but it is busy
	}
	close(finish)
	ends.expect(1, heartbeat("finishes"))
	ends.expectClosed()
	never.expectClosed()
	<-f.done
	f.done <- nil
	if f.closedWith(CloseDrain) != 1 || f.closedWith(CloseDrainDeadline) != 1 {
		t.Errorf("drain %d, deadline %d", f.closedWith(CloseDrain), f.closedWith(CloseDrainDeadline))
	}
}

func TestShareFetchDoesNotSpinWhileDraining(t *testing.T) {
	up := startUpstream(t)
	var fetched atomic.Int32
	api := serve.API{Key: 78, Min: 1, Max: 2, Serve: func(ctx context.Context, r *serve.Request) (kmsg.Response, error) {
		fetched.Add(1)
		return r.Body.(*kmsg.ShareFetchRequest).ResponseKind(), nil
	}}
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}, cfg: func(c *Config) { c.Drain = 500 * time.Millisecond }})
	w := f.dial()
	req := kmsg.NewPtrShareFetchRequest()
	req.Version = 2
	w.ask(1, req)
	f.stop()
	<-f.draining
	for corr := int32(2); ; corr++ {
		if _, err := w.conn.Write(frameOf(corr, req)); err != nil {
			break
		}
		if _, err := w.receive(); err != nil {
			break
		}
	}
	if n := fetched.Load(); n > 3 {
		t.Errorf("%d fetches served, want one before and at most one or two in the drain", n)
	}
}

func TestTombstoneClosesAllClients(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	a, b := f.dial(), dialWire(t, f.nodeAddr(0))
	for _, w := range []*wire{a, b} {
		w.ask(1, &kmsg.MetadataRequest{Version: 9})
	}
	f.CloseClients(CloseTombstone)
	a.expectClosed()
	b.expectClosed()
	eventually(t, "both told to serve and counted", func() bool {
		return f.fake.closedConns() == 2 && f.closedWith(CloseTombstone) == 2
	})
	f.dial().ask(1, &kmsg.MetadataRequest{Version: 9})
}
