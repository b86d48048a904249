package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/certs/certstest"
	"kshare/proxy/serve"
)

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

// deadlined notes the write deadlines that it is given.
type deadlined struct {
	net.Conn
	given []time.Time
}

func (*deadlined) Write(p []byte) (int, error) { return len(p), nil }

func (d *deadlined) SetWriteDeadline(t time.Time) error {
	d.given = append(d.given, t)
	return nil
}

// TestWriteLeavesNoDeadlineBehind: a TLS client that asks for new keys is
// answered by whoever reads from it. With a deadline of an earlier response,
// long past, that answer would fail and the connection with it.
func TestWriteLeavesNoDeadlineBehind(t *testing.T) {
	d := &deadlined{}
	if err := patience(time.Minute).write(d, make([]byte, stallPiece+1)); err != nil {
		t.Fatal(err)
	}
	if n := len(d.given); n != 3 || d.given[0].IsZero() || d.given[1].IsZero() || !d.given[2].IsZero() {
		t.Errorf("deadlines %v", d.given)
	}
}
