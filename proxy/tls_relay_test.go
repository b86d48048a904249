package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/certs"
	"kshare/proxy/certs/certstest"
	"kshare/proxy/upstream"
)

// upstreamTLS is a cluster's TLS that notes who comes and asks everybody for a
// certificate.
type upstreamTLS struct {
	mu    sync.Mutex
	names map[string]int // server names asked for
	shown []*x509.Certificate
}

func (u *upstreamTLS) config(pair tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, VerifyConnection: func(s tls.ConnectionState) error {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.names[s.ServerName]++
		u.shown = append(u.shown, s.PeerCertificates...)
		return nil
	}}
}

// relayDial is how clients' connections to brokers with TLS are made.
func relayDial(t *testing.T, a *certstest.Authority) func(*Config) {
	t.Helper()
	d, err := certs.NewDialer(certs.Files{CA: a.Issue(t.TempDir(), "unused").CA}, 10*time.Second, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Dial = d.DialContext }
}

// TestRelayShowsUpstreamNoCertificate: what a client shows to kshare stays with
// kshare, which has none of its own on a client's connection.
func TestRelayShowsUpstreamNoCertificate(t *testing.T) {
	a := certstest.New(t, "ours")
	u := &upstreamTLS{names: map[string]int{}}
	up := startUpstream(t, kfake.TLS(u.config(a.Pair("broker", upstreamHost, "localhost"))))
	// Nodes are known by a name, as is one seed, and the others by address.
	direct := kgo.DialTLSConfig(&tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12})
	cluster := lookAt(t, up.ListenAddrs(), direct)
	u.mu.Lock()
	clear(u.names)
	u.mu.Unlock()
	var nodes []upstream.Node
	for _, n := range cluster.Nodes() {
		nodes = append(nodes, upstream.Node{ID: n.ID, Host: "localhost", Port: n.Port})
	}
	cluster.set(nodes)
	dir := t.TempDir()
	f := startProxy(t, setup{addrs: up.ListenAddrs()[:1], cluster: cluster, cfg: func(c *Config) {
		relayDial(t, a)(c)
		c.TLS.Files = certs.Files(a.Issue(dir, "kshare", proxyHost)) // which wants certificates of clients
	}})
	config := trusting(a)
	config.Certificates = []tls.Certificate{a.Pair("client")}
	for node := range int32(3) {
		dialTLS(t, f.nodeAddr(node), config).ask(1, &kmsg.ListGroupsRequest{Version: 4})
	}
	u.mu.Lock()
	if len(u.names) != 1 || u.names["localhost"] != 3 {
		t.Errorf("nodes of a name were asked for as %v", u.names)
	}
	clear(u.names)
	u.mu.Unlock()
	dialTLS(t, f.Addr().String(), config).ask(1, &kmsg.ListGroupsRequest{Version: 4})
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.names) != 1 || u.names[""] != 1 {
		t.Errorf("an address was asked for as %v", u.names)
	}
	if len(u.shown) > 0 {
		t.Errorf("upstream was shown the certificate of %s", u.shown[0].Subject)
	}
}

// TestUpstreamThatIsNotTrustedIsNotRelayedTo, whoever it may be.
func TestUpstreamThatIsNotTrustedIsNotRelayedTo(t *testing.T) {
	ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
	u := &upstreamTLS{names: map[string]int{}}
	up := startUpstream(t, kfake.TLS(u.config(theirs.Pair("broker", upstreamHost))))
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cluster: cluster, cfg: relayDial(t, ours)})
	w := f.dial()
	w.send(frameOf(1, &kmsg.MetadataRequest{Version: 9}))
	w.expectClosed()
	if line := f.expectEnd(CloseUpstreamDial, 1); !strings.Contains(line, "unknown authority") || !strings.Contains(line, up.ListenAddrs()[0]) {
		t.Error(line)
	}
}

// TestFramesPassAnyMixOfTLS: from tiny to far over every buffer, with TLS on
// either side, on both and on none.
func TestFramesPassAnyMixOfTLS(t *testing.T) {
	a := certstest.New(t, "ours")
	u := &upstreamTLS{names: map[string]int{}}
	for _, tt := range []struct{ listener, upstream bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprintf("listener %v upstream %v", tt.listener, tt.upstream), func(t *testing.T) {
			var opts []kfake.Opt
			var direct []kgo.Opt
			if tt.upstream {
				opts = append(opts, kfake.TLS(u.config(a.Pair("broker", upstreamHost))))
				direct = append(direct, kgo.DialTLSConfig(&tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12}))
			}
			up := startUpstream(t, opts...)
			f := startProxy(t, setup{addrs: up.ListenAddrs(), cluster: lookAt(t, up.ListenAddrs(), direct...), cfg: func(c *Config) {
				if tt.upstream {
					relayDial(t, a)(c)
				}
				if tt.listener {
					c.TLS.Files = tlsFiles(a, t.TempDir())
				}
			}})
			var through []kgo.Opt
			if tt.listener {
				through = append(through, kgo.Dialer(tlsDialer(trusting(a), nil)))
			}
			in := newClient(t, []string{f.Addr().String()}, append(through, kgo.DefaultProduceTopic("orders"), kgo.ConsumeTopics("orders"), kgo.ProducerBatchCompression(kgo.NoCompression()),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
			defer in.Close()
			out := newClient(t, up.ListenAddrs(), append(direct, kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
			defer out.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			const n = 60
			for i := range n {
				value := bytes.Repeat([]byte{byte(i)}, 1+i*i*i*4)
				if err := in.ProduceSync(ctx, &kgo.Record{Key: fmt.Appendf(nil, "k%03d", i), Value: value}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(drainRecords(ctx, t, out, n), drainRecords(ctx, t, in, n)); diff != "" {
				t.Errorf("through the proxy (-direct +through):\n%s", diff)
			}
		})
	}
}
