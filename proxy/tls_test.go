package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/certs"
	"kshare/proxy/certs/certstest"
	"kshare/proxy/serve"
)

func itoa(n int32) string { return strconv.Itoa(int(n)) }

// metadataOver asks for metadata and fails the test without an answer.
func metadataOver(w *wire, corr int32) *kmsg.MetadataResponse {
	w.t.Helper()
	return w.ask(corr, &kmsg.MetadataRequest{Version: 9}).(*kmsg.MetadataResponse)
}

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

func ptr[T any](v T) *T { return &v }

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

// TestCertificateIsRenewedUnderConnections: a connection goes on, with a
// request that is served over the change, and those to come see the new
// certificate.
func TestCertificateIsRenewedUnderConnections(t *testing.T) {
	up, a, dir := startUpstream(t), certstest.New(t, "ours"), t.TempDir()
	entered, goOn := make(chan struct{}), make(chan struct{})
	api := echoHeartbeat(func(_ context.Context, r *serve.Request) error {
		if r.Body.(*kmsg.ShareGroupHeartbeatRequest).MemberID == "wait" {
			close(entered)
			<-goOn
		}
		return nil
	})
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}, cfg: withTLS(tlsFiles(a, dir))})
	idle, serving := dialTLS(t, f.Addr().String(), trusting(a)), dialTLS(t, f.Addr().String(), trusting(a))
	metadataOver(idle, 1)
	serving.send(frameOf(1, heartbeat("wait")))
	<-entered
	a.Issue(dir, "renewed", proxyHost)
	eventually(t, "the new certificate is shown", func() bool {
		w := dialTLS(t, f.Addr().String(), trusting(a))
		defer w.conn.Close()
		metadataOver(w, 1)
		metadataOver(idle, 2)
		return w.conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName == "renewed"
	})
	close(goOn)
	serving.expect(1, heartbeat("wait"))
	metadataOver(idle, 3)
	metadataOver(serving, 2)
}

func TestHalfClosedTLSClientGetsItsLastAnswer(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withTLS(tlsFiles(a, t.TempDir()))})
	w := dialTLS(t, f.Addr().String(), trusting(a))
	req := &kmsg.MetadataRequest{Version: 9}
	w.send(frameOf(1, req))
	if err := w.conn.(*tls.Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	w.expect(1, req)
	w.expectClosed()
	if line := f.expectEnd(CloseClient, 1); strings.Contains(line, `"error"`) {
		t.Error(line)
	}
}

// TestTLSThatBreaksIsToldApartFromClientsThatLeave goes through the ends that a
// connection may have once hands are shaken.
func TestTLSThatBreaksIsToldApartFromClientsThatLeave(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	for _, tt := range []struct {
		name   string
		spoil  func(raw *slow, client *tls.Conn)
		reason CloseReason
		says   string
	}{
		{"a record that was tampered with", func(raw *slow, client *tls.Conn) {
			raw.letGo(0)
			_, _ = client.Write(frameOf(2, &kmsg.MetadataRequest{Version: 9}))
			raw.parked[len(raw.parked)-1] ^= 1
			raw.letGo(-1)
		}, CloseTLSBroken, "bad record MAC"},
		{"a record in a large request that was tampered with", func(raw *slow, client *tls.Conn) {
			large := kmsg.NewPtrFetchRequest()
			large.Version, large.Rack = 11, strings.Repeat("r", 30_000)
			frame := frameOf(2, large)
			_, _ = client.Write(frame[:20_000])
			raw.letGo(0)
			_, _ = client.Write(frame[20_000:])
			raw.parked[len(raw.parked)-1] ^= 1
			raw.letGo(-1)
		}, CloseTLSBroken, "bad record MAC"},
		{"no TLS any more", func(raw *slow, _ *tls.Conn) { _, _ = raw.Write(frameOf(2, &kmsg.MetadataRequest{Version: 9})) }, CloseTLSBroken, ""},
		{"half a record, then the end", func(raw *slow, client *tls.Conn) {
			raw.letGo(20)
			_, _ = client.Write(frameOf(2, &kmsg.MetadataRequest{Version: 9}))
			_ = raw.Close()
		}, CloseTruncated, "unexpected EOF"},
		{"half a request, then the end", func(raw *slow, client *tls.Conn) {
			_, _ = client.Write(frameOf(2, &kmsg.MetadataRequest{Version: 9})[:6])
			_ = client.Close()
		}, CloseTruncated, "unexpected EOF"},
		{"the end without a word", func(raw *slow, _ *tls.Conn) { _ = raw.Close() }, CloseClient, ""},
		{"the end", func(_ *slow, client *tls.Conn) { _ = client.Close() }, CloseClient, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withTLS(tlsFiles(a, t.TempDir()))})
			raw := &slow{Conn: f.dial().conn, let: -1}
			w := &wire{t, tls.Client(raw, trusting(a))}
			metadataOver(w, 1)
			tt.spoil(raw, w.conn.(*tls.Conn))
			if line := f.expectEnd(tt.reason, 1); !strings.Contains(line, tt.says) {
				t.Error(line)
			}
		})
	}
}

// slow is a connection that holds back what stands behind the next few bytes.
type slow struct {
	net.Conn
	mu     sync.Mutex
	let    int // bytes to let through, then none; -1 for all
	parked []byte
}

func (s *slow) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(p)
	if s.let >= 0 {
		k := min(s.let, n)
		s.let -= k
		s.parked = append(s.parked, p[k:]...)
		p = p[:k]
	}
	if _, err := s.Conn.Write(p); err != nil {
		return 0, err
	}
	return n, nil
}

func (s *slow) letGo(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.let = n
	if n < 0 {
		_, _ = s.Conn.Write(s.parked)
		s.parked = nil
	}
}

// TestRecordMayArriveInHalvesWhileARequestIsServed: what watches the client
// meanwhile is interrupted in the middle of a TLS record, which must not cost
// the half that has come.
func TestRecordMayArriveInHalvesWhileARequestIsServed(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	entered, goOn := make(chan struct{}, 1), make(chan struct{})
	api := echoHeartbeat(func(context.Context, *serve.Request) error {
		entered <- struct{}{}
		<-goOn
		return nil
	})
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}, cfg: withTLS(tlsFiles(a, t.TempDir()))})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		plain := dialWire(t, f.Addr().String())
		between := &slow{Conn: plain.conn, let: -1}
		config := trusting(a)
		config.MaxVersion = version
		w := &wire{t, tls.Client(between, config)}
		metadataOver(w, 1)
		for corr := int32(2); corr < 20; corr += 2 {
			w.send(frameOf(corr, heartbeat("m")))
			<-entered
			between.letGo(3 + int(corr)) // in the record's header and behind it
			w.send(frameOf(corr+1, &kmsg.MetadataRequest{Version: 9}))
			goOn <- struct{}{}
			w.expect(corr, heartbeat("m"))
			between.letGo(-1)
			w.expect(corr+1, &kmsg.MetadataRequest{Version: 9})
		}
	}
	if lines := f.closings(); len(lines) != 0 {
		t.Error(lines)
	}
}

// TestDrainEndsTLSConnections: those that are in the handshake, those that are
// idle, and these with a last word of TLS.
func TestDrainEndsTLSConnections(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) {
		c.TLS.Files, c.Drain = tlsFiles(a, t.TempDir()), 200*time.Millisecond
	}})
	silent, half := f.dial(), f.dial()
	half.send(hello(t)[:50])
	seen := &tap{}
	plain := dialWire(t, f.Addr().String())
	config := trusting(a)
	config.MaxVersion = tls.VersionTLS12 // its records say what they are
	w := &wire{t, tls.Client(&tappedConn{plain.conn, seen}, config)}
	metadataOver(w, 1)
	f.stop()
	if err := <-f.done; err != nil {
		t.Fatal(err)
	}
	f.done <- nil
	for _, c := range []*wire{silent, half, w} {
		c.expectClosed()
	}
	records := recordTypes(seen.b.Bytes())
	if last := records[len(records)-1]; last != 21 {
		t.Errorf("the last record is of type %d, no alert: %v", last, records)
	}
	if n := f.closedWith(CloseDrain); n != 3 {
		t.Errorf("%d of 3 connections were drained:\n%s", n, strings.Join(f.closings(), "\n"))
	}
}

func recordTypes(b []byte) (types []byte) {
	for len(b) >= 5 {
		types = append(types, b[0])
		b = b[min(len(b), 5+int(b[3])<<8+int(b[4])):]
	}
	return types
}

// TestHangingUpDoesNotWaitForWhoDoesNotRead: by itself crypto/tls waits 5 s to
// say its last word.
func TestHangingUpDoesNotWaitForWhoDoesNotRead(t *testing.T) {
	a := certstest.New(t, "ours")
	raw, other := net.Pipe()
	server := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{a.Pair("kshare", proxyHost)}})
	client := tls.Client(other, trusting(a))
	shaken := make(chan error, 1)
	go func() { shaken <- client.Handshake() }()
	got := make(chan error, 1)
	go func() { _, err := client.Read(make([]byte, 1)); got <- err }() // takes the session tickets too
	if _, err := server.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-shaken, <-got); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	hangUp(server)
	if took := time.Since(started); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("still open")
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
		{ListenTLS{Files: certs.Files{CA: "ca"}}, "listen-tls-cert"},
		{ListenTLS{Files: certs.Files{Key: "k"}}, "listen-tls-cert"},
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
