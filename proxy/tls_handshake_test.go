package proxy

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/certs"
	"kshare/proxy/certs/certstest"
)

func TestBootstrapAndNodePortsSpeakTLS(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withTLS(tlsFiles(a, t.TempDir()))})
	for _, addr := range []string{f.Addr().String(), f.nodeAddr(0), f.nodeAddr(1), f.nodeAddr(2)} {
		w := dialTLS(t, addr, trusting(a))
		if n := len(metadataOver(w, 1).Brokers); n != 3 {
			t.Errorf("%s: %d brokers", addr, n)
		}
		if p := w.conn.(*tls.Conn).ConnectionState().NegotiatedProtocol; p != "" {
			t.Errorf("%s: application protocol %q", addr, p)
		}
	}
}

// TestClientsWithoutTheRightCertificateAreRefused: in TLS 1.3 a client has
// shaken hands, and may have sent its first request, before it is refused.
func TestClientsWithoutTheRightCertificateAreRefused(t *testing.T) {
	up, ours, theirs := startUpstream(t), certstest.New(t, "ours"), certstest.New(t, "theirs")
	dir := t.TempDir()
	files := certs.Files(ours.Issue(dir, "kshare", proxyHost))
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withTLS(files)})
	refused := 0
	for _, tt := range []struct {
		name   string
		pair   *tls.Certificate
		client string // what the client is told, nothing if it is let in
		log    string
	}{
		{"its own", ptr(ours.Pair("client")), "", ""},
		{"none", nil, "certificate", "didn't provide a certificate"},
		{"of another authority", ptr(theirs.Pair("stranger")), "certificate", "unknown authority"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(tt.name+" "+tls.VersionName(version), func(t *testing.T) {
				config := trusting(ours)
				config.MaxVersion = version
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // whoever's signature is asked for
					if tt.pair == nil {
						return &tls.Certificate{}, nil
					}
					return tt.pair, nil
				}
				w := dialWire(t, f.Addr().String())
				client := tls.Client(w.conn, config)
				w.conn = client
				err := client.Handshake()
				if err == nil {
					_, err = client.Write(frameOf(1, &kmsg.MetadataRequest{Version: 9}))
				}
				if err == nil {
					_, err = w.receive()
				}
				if tt.client == "" {
					if err != nil {
						t.Error(err)
					}
					_ = client.Close()
					eventually(t, "the client's end", func() bool { return f.closedWith(CloseClient) == len(f.closings())-refused })
					return
				}
				told := tt.client
				if tt.pair == nil && version == tls.VersionTLS12 {
					told = "handshake failure" // it has no better word
				}
				if err == nil || !strings.Contains(err.Error(), told) || !strings.Contains(err.Error(), "remote error") {
					t.Errorf("the client is told %v", err)
				}
				refused++
				eventually(t, "counted", func() bool { return f.closedWith(CloseCertificate) == refused })
				lines := f.closings()
				if line := lines[len(lines)-1]; !strings.Contains(line, tt.log) || !strings.Contains(line, "listen-tls-client-ca") || !strings.Contains(line, `"warn"`) {
					t.Errorf("logged: %s", line)
				}
			})
		}
	}
}

// TestAuthorityThatWasTakenAwayEndsResumption: a client may not resume a
// session that it could not begin any more.
func TestAuthorityThatWasTakenAwayEndsResumption(t *testing.T) {
	up, first, second, dir := startUpstream(t), certstest.New(t, "first"), certstest.New(t, "second"), t.TempDir()
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withTLS(certs.Files(first.Issue(dir, "kshare", proxyHost)))})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		first.Issue(dir, "kshare", proxyHost)
		config := trusting(first)
		config.MaxVersion, config.InsecureSkipVerify = version, true // it goes on with whatever server
		config.Certificates = []tls.Certificate{first.Pair("client")}
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		come := func() (resumed bool, err error) {
			w := dialWire(t, f.Addr().String())
			client := tls.Client(w.conn, config)
			defer client.Close()
			w.conn = client
			if err := client.Handshake(); err != nil {
				return false, err
			}
			if _, err := client.Write(frameOf(1, &kmsg.MetadataRequest{Version: 9})); err != nil {
				return false, err
			}
			_, err = w.receive()
			return client.ConnectionState().DidResume, err
		}
		eventually(t, "sessions are resumed", func() bool { resumed, err := come(); return err == nil && resumed })
		second.Issue(dir, "kshare", proxyHost)
		eventually(t, tls.VersionName(version)+": refused", func() bool { _, err := come(); return err != nil })
	}
}

func TestHandshakesThatFailEndWithOneLineAndTheirReason(t *testing.T) {
	up, ours, theirs := startUpstream(t), certstest.New(t, "ours"), certstest.New(t, "theirs")
	files := tlsFiles(ours, t.TempDir())
	for _, tt := range []struct {
		name   string
		come   func(conn net.Conn)
		reason CloseReason
		says   string
	}{
		{"Kafka without TLS", func(conn net.Conn) { _, _ = conn.Write(frameOf(1, apiVersionsRequest(3))) }, ClosePlain, "security.protocol"},
		{"HTTP", func(conn net.Conn) { _, _ = io.WriteString(conn, "GET /metrics HTTP/1.1\r\n\r\n") }, ClosePlain, "--http"},
		{"HTTPS", func(conn net.Conn) {
			c := tls.Client(conn, trusting(ours))
			_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		}, CloseHTTP, "--http"},
		{"client that does not trust", func(conn net.Conn) { _ = tls.Client(conn, trusting(theirs)).Handshake() }, CloseHandshake, "bad certificate"},
		{"client that means another host", func(conn net.Conn) { _ = tls.Client(conn, named(trusting(ours), "127.0.0.1")).Handshake() }, CloseHandshake, "bad certificate"},
		{"old TLS", func(conn net.Conn) {
			c := trusting(ours)
			c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			_ = tls.Client(conn, c).Handshake()
		}, CloseHandshake, "unsupported versions"},
		{"garbage in a TLS record", func(conn net.Conn) { _, _ = io.WriteString(conn, "\x16\x03\x01\x00\x05hello") }, CloseHandshake, ""},
		{"SSL 2", func(conn net.Conn) { _, _ = io.WriteString(conn, "\x80\x2e\x01\x00\x02") }, CloseHandshake, "SSLv2"},
		{"half a hello, then silence", func(conn net.Conn) { _, _ = conn.Write(hello(t)[:99]) }, CloseHandshake, "did not go on"},
		{"a hello, then silence", func(conn net.Conn) { _, _ = conn.Write(hello(t)); _, _ = io.Copy(io.Discard, conn) }, CloseHandshake, "did not go on"},
		{"half a hello, then the end", func(conn net.Conn) { _, _ = conn.Write(hello(t)[:99]); _ = conn.Close() }, CloseHandshake, "broke off"},
		{"a hello, then the end", func(conn net.Conn) { _, _ = conn.Write(hello(t)); _ = conn.(*net.TCPConn).CloseWrite() }, CloseHandshake, "broke off"},
		{"silence", func(net.Conn) {}, CloseSilent, ""},
		{"a look at the port", func(conn net.Conn) { _ = conn.Close() }, CloseClient, ""},
		{"a hard look at the port", func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0); _ = conn.Close() }, CloseClient, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) {
				c.TLS.Files = files
				if tt.reason == CloseSilent || strings.Contains(tt.name, "silence") {
					c.AuthTimeout = 100 * time.Millisecond
				}
			}})
			w := f.dial()
			tt.come(w.conn)
			line := f.expectEnd(tt.reason, 1)
			if !strings.Contains(line, tt.says) || strings.Contains(line, `"warn"`) == quiet[tt.reason] {
				t.Error(line)
			}
			if !strings.Contains(tt.name, "the port") && !strings.Contains(tt.name, "the end") {
				_, _ = io.Copy(io.Discard, w.conn) // an alert, perhaps
				w.expectClosed()
			}
		})
	}
}

// TestHandshakesHoldUpNobody: whoever takes his time has a connection to himself.
func TestHandshakesHoldUpNobody(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withTLS(tlsFiles(a, t.TempDir()))})
	half := hello(t)[:50]
	for range 50 {
		f.dial().send(half)
	}
	metadataOver(dialTLS(t, f.Addr().String(), trusting(a)), 1)
	if n := len(f.closings()); n != 0 {
		t.Errorf("%d connections were ended", n)
	}
}

func TestTLSSettingsThatDoNotFitAreNamed(t *testing.T) {
	files := certs.Files{Cert: "c", Key: "k"}
	for _, tt := range []struct {
		tls ListenTLS
		key string // the error's, none for a good setting
	}{
		{ListenTLS{Files: files}, ""},
		{ListenTLS{Files: files, SNISuffix: "kafka.example.org"}, ""},
		{ListenTLS{Files: files, SNISuffix: "Kafka.Example.ORG."}, ""},
		{ListenTLS{Files: files, SNISuffix: "localhost", SNIPort: 443}, ""},
		{ListenTLS{Files: certs.Files{CA: "ca"}}, "listen-tls-client-ca"},
		{ListenTLS{Files: certs.Files{Key: "k"}}, "listen-tls-key"},
		{ListenTLS{SNISuffix: "kafka.example.org"}, "sni-suffix"},
		{ListenTLS{Files: files, SNISuffix: "*.example.org"}, "sni-suffix"},
		{ListenTLS{Files: files, SNISuffix: ".example.org"}, "sni-suffix"},
		{ListenTLS{Files: files, SNISuffix: "example.org:9092"}, "sni-suffix"},
		{ListenTLS{Files: files, SNISuffix: "example..org"}, "sni-suffix"},
		{ListenTLS{Files: files, SNISuffix: "127.0.0.1"}, "sni-suffix"},
		{ListenTLS{Files: files, SNISuffix: "a-.org"}, "sni-suffix"},
		{ListenTLS{Files: files, SNISuffix: strings.Repeat("a.", 118) + "org"}, "sni-suffix"},
		{ListenTLS{Files: files, SNISuffix: "example.org", SNIPort: 70000}, "sni-port"},
		{ListenTLS{Files: files, SNISuffix: "example.org", SNIPort: -1}, "sni-port"},
		{ListenTLS{Files: files, SNIPort: 443}, "sni-port"},
	} {
		err := Config{Upstream: []string{"a:9092"}, TLS: tt.tls}.Validate()
		if tt.key == "" && err != nil || tt.key != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.key+": ")) {
			t.Errorf("%+v: %v", tt.tls, err)
		}
	}
	noPort := Config{Upstream: []string{"a:9092"}, Listen: "127.0.0.1:0", TLS: ListenTLS{Files: files, SNISuffix: "example.org"}}
	if err := noPort.Validate(); err == nil || !strings.HasPrefix(err.Error(), "sni-port: ") {
		t.Error(err)
	}
	_, err := newServer(Config{Upstream: []string{"a:9092"}, TLS: ListenTLS{Files: certs.Files{Cert: "no-such.pem", Key: "no-such.pem"}}}, deps{}, zerolog.Nop(), nil)
	if err == nil || !strings.HasPrefix(err.Error(), "listen-tls-cert: ") || !strings.Contains(err.Error(), "no-such.pem") {
		t.Error(err)
	}
}
