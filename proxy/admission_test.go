package proxy

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// gauge reads a metric without labels.
func (f *fixture) gauge(name string) float64 {
	families, err := f.reg.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	f.t.Fatalf("no metric %s", name)
	return 0
}

func TestConnectionsAboveTheLimitWaitUntilOneEnds(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) { c.MaxConnections = 2 }})
	metadata := &kmsg.MetadataRequest{Version: 9}
	first, second := f.dial(), dialWire(t, f.nodeAddr(0))
	first.ask(1, metadata)
	second.ask(1, metadata)
	// One more at each of two listeners, and one behind another.
	var later []*wire
	for _, addr := range []string{f.Addr().String(), f.nodeAddr(1), f.nodeAddr(1)} {
		w := dialWire(t, addr)
		w.send(frameOf(1, metadata))
		later = append(later, w)
	}
	eventually(t, "both listeners wait", func() bool { return f.gauge("kshare_proxy_connections_held") == 2 })
	if n := f.gauge("kshare_proxy_connections"); n != 2 {
		t.Errorf("%v connections are served", n)
	}
	first.ask(2, metadata) // who is in is not held up
	_ = second.conn.Close()
	_ = first.conn.Close()
	for _, w := range later {
		w.expect(1, metadata)
		_ = w.conn.Close()
	}
	if n := strings.Count(f.log.String(), "as many connections are open as may be"); n != 1 {
		t.Errorf("%d log lines", n)
	}
	eventually(t, "all gone", func() bool {
		return f.gauge("kshare_proxy_connections") == 0 && f.gauge("kshare_proxy_connections_held") == 0
	})
}

func TestStopDoesNotWaitForHeldConnections(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) { c.MaxConnections, c.Drain = 1, time.Minute }})
	metadata := &kmsg.MetadataRequest{Version: 9}
	in := f.dial()
	in.ask(1, metadata)
	held := f.dial()
	eventually(t, "the second is held", func() bool { return f.gauge("kshare_proxy_connections_held") == 1 })
	f.stop()
	held.expectClosed()
	in.ask(2, metadata)
	_ = in.conn.Close()
	if err := <-f.done; err != nil {
		t.Error(err)
	}
	f.done <- nil
}

func TestConnectionsAboveTheLimitOfAnAddressAreClosed(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) { c.MaxConnectionsPerAddress = 2 }})
	from := func(host string) *wire {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
		conn, err := d.Dial("tcp", f.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		return &wire{t, conn}
	}
	metadata := &kmsg.MetadataRequest{Version: 9}
	a, b := from("127.0.0.51"), from("127.0.0.51")
	a.ask(1, metadata)
	b.ask(1, metadata)
	for range 20 {
		from("127.0.0.51").expectClosed()
	}
	from("127.0.0.52").ask(1, metadata)
	if n := f.closedWith(CloseTooManyFromAddress); n != 20 {
		t.Errorf("%d are counted", n)
	}
	if n := strings.Count(f.log.String(), string(CloseTooManyFromAddress)); n != 1 {
		t.Errorf("%d log lines", n)
	}
	_ = a.conn.Close()
	counted := func(host string) int {
		f.admission.mu.Lock()
		defer f.admission.mu.Unlock()
		return f.admission.from[netip.MustParseAddr(host)]
	}
	eventually(t, "one ended", func() bool { return counted("127.0.0.51") == 1 })
	from("127.0.0.51").ask(1, metadata)
	b.ask(2, metadata)
	f.CloseClients(CloseShutdown)
	eventually(t, "no address is kept", func() bool {
		f.admission.mu.Lock()
		defer f.admission.mu.Unlock()
		return len(f.admission.from) == 0
	})
}
