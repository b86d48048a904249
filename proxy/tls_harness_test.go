package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/certs"
	"kshare/proxy/certs/certstest"
)

const testSuffix = "kafka.example.org"

// tlsFiles are a listener's certificate, good for the proxy's address and for
// all names of nodes, without an authority to judge clients by.
func tlsFiles(a *certstest.Authority, dir string) certs.Files {
	f := certs.Files(a.Issue(dir, "kshare", proxyHost, "*."+testSuffix, testSuffix))
	f.CA = ""
	return f
}

// withTLS has the listeners speak TLS.
func withTLS(files certs.Files) func(*Config) {
	return func(c *Config) { c.TLS.Files = files }
}

// withSNI has all nodes served by name on the bootstrap port.
func withSNI(t testing.TB, files certs.Files) func(*Config) {
	return func(c *Config) {
		c.TLS = ListenTLS{Files: files, SNISuffix: testSuffix}
		c.Listen = net.JoinHostPort(proxyHost, itoa(freeBase(t, 1)))
	}
}

// trusting is a client's TLS that trusts the authority.
func trusting(a *certstest.Authority) *tls.Config {
	return &tls.Config{RootCAs: a.Pool(), ServerName: proxyHost, MinVersion: tls.VersionTLS12}
}

// named is config for a server of another name.
func named(config *tls.Config, name string) *tls.Config {
	config = config.Clone()
	config.ServerName = name
	return config
}

// dialTLS is dialWire with TLS, hands shaken.
func dialTLS(t testing.TB, addr string, config *tls.Config) *wire {
	t.Helper()
	w := dialWire(t, addr)
	conn := tls.Client(w.conn, config)
	if err := conn.Handshake(); err != nil {
		t.Fatalf("handshake: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{t, conn}
}

// tlsDialer is for kgo.Dialer: every host's port is looked for on the proxy's
// address, as if all names led there.
func tlsDialer(config *tls.Config, seen func(host string)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		if seen != nil {
			seen(host)
		}
		d := tls.Dialer{Config: named(config, host)}
		return d.DialContext(ctx, network, net.JoinHostPort(proxyHost, port))
	}
}

// closings are the log lines about ended connections, the debug ones included.
func (f *fixture) closings() (lines []string) {
	for line := range strings.Lines(f.log.String()) {
		if strings.Contains(line, "client connection closed") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// expectEnd waits for n connections to have ended for the reason, no others
// for another, and returns the log line of the last.
func (f *fixture) expectEnd(reason CloseReason, n int) string {
	f.t.Helper()
	eventually(f.t, string(reason), func() bool { return f.closedWith(reason) >= n })
	lines := f.closings()
	if len(lines) != n || !strings.Contains(lines[n-1], `"reason":"`+string(reason)+`"`) {
		f.t.Fatalf("%d lines for %d connections that end with %s:\n%s", len(lines), n, reason, strings.Join(lines, "\n"))
	}
	return lines[n-1]
}

// hello is a whole ClientHello with its record header.
func hello(t testing.TB) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: "broker-1." + testSuffix, MinVersion: tls.VersionTLS12}).Handshake()
	}()
	_ = server.SetDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 4096)
	n, err := server.Read(b)
	_ = server.Close()
	_ = client.Close()
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

// metadataOver asks for metadata and fails the test without an answer.
func metadataOver(w *wire, corr int32) *kmsg.MetadataResponse {
	w.t.Helper()
	return w.ask(corr, &kmsg.MetadataRequest{Version: 9}).(*kmsg.MetadataResponse)
}

func ptr[T any](v T) *T { return &v }
