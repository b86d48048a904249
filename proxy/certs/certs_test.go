package certs

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"kshare/proxy/certs/certstest"
)

// authority issues certificates as this package's Files.
type authority struct{ *certstest.Authority }

func newAuthority(t *testing.T, name string) authority { return authority{certstest.New(t, name)} }

func (a authority) write(dir, name string) Files { return Files(a.Issue(dir, name)) }

// echo serves TLS and sends back what it is sent.
func echo(t *testing.T, config *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	return l.Addr().String()
}

// meet connects, exchanges a word, and returns the connection.
func meet(d *Dialer, addr string) (*tls.Conn, error) {
	conn, err := d.DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), word(conn)
}

func word(conn net.Conn) error {
	if _, err := conn.Write([]byte("word")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4)) // TLS 1.3 tells of a refused client certificate only now
	return err
}

func dialer(t *testing.T, files Files) *Dialer {
	t.Helper()
	d, err := NewDialer(files, 10*time.Second, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestEachSideJudgesTheOther(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	server, client, stranger := ours.write(t.TempDir(), "server"), ours.write(t.TempDir(), "client"), theirs.write(t.TempDir(), "stranger")
	mutual, err := NewServer(server, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	open, err := NewServer(Files{Cert: server.Cert, Key: server.Key}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	toMutual, toOpen := echo(t, mutual), echo(t, open)
	tests := []struct {
		name, addr string
		client     Files
		refused    bool
	}{
		{"client that trusts", toOpen, Files{CA: client.CA}, false},
		{"client that trusts another authority", toOpen, Files{CA: stranger.CA}, true},
		{"client that trusts the system's", toOpen, Files{}, true},
		{"client with a certificate", toMutual, client, false},
		{"client without one", toMutual, Files{CA: client.CA}, true},
		{"client with a certificate of another authority", toMutual, Files{CA: client.CA, Cert: stranger.Cert, Key: stranger.Key}, true},
		{"host that the certificate is not for", "localhost" + toOpen[len("127.0.0.1"):], Files{CA: client.CA}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := meet(dialer(t, tt.client), tt.addr)
			if conn != nil {
				defer conn.Close()
			}
			if (err != nil) != tt.refused {
				t.Errorf("error %v", err)
			}
		})
	}
}

// clocked sets the clock of a store ahead, so that it looks at its files again.
func clocked(s *store) (later func()) {
	var mu sync.Mutex
	offset := time.Duration(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(offset) }
	return func() { mu.Lock(); defer mu.Unlock(); offset += recheck }
}

func TestRenewedCertificateIsUsedAndConnectionsStay(t *testing.T) {
	a, dir := newAuthority(t, "ours"), t.TempDir()
	files := a.write(dir, "first")
	var lines strings.Builder
	s, err := newStore(Files{Cert: files.Cert, Key: files.Key}, zerolog.New(&lines))
	if err != nil {
		t.Fatal(err)
	}
	later := clocked(s)
	srv := &server{files: s, age: -1}
	addr := echo(t, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return srv.config(), nil }})
	d := dialer(t, Files{CA: files.CA})
	name := func() string {
		t.Helper()
		conn, err := meet(d, addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	old, err := meet(d, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()

	a.write(dir, "second")
	later()
	if n := name(); n != "second" {
		t.Errorf("after the renewal clients are shown %q", n)
	}
	before := srv.config()
	later()
	if srv.config() != before {
		t.Error("files that did not change made a new configuration: clients cannot resume their sessions")
	}
	if err := os.WriteFile(files.Cert, []byte("half a cert"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		later()
		if n := name(); n != "second" {
			t.Errorf("with a broken file clients are shown %q", n)
		}
	}
	if n := strings.Count(lines.String(), `"level":"error"`); n != 1 || !strings.Contains(lines.String(), files.Cert) {
		t.Errorf("%d lines about the broken file: %s", n, lines.String())
	}
	a.write(dir, "third")
	later()
	if n := name(); n != "third" {
		t.Errorf("after the file was mended clients are shown %q", n)
	}
	if err := word(old); err != nil {
		t.Errorf("the connection from before: %v", err)
	}
}

func TestRenewedAuthorityIsTrustedWhenDialling(t *testing.T) {
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	served := second.write(t.TempDir(), "server")
	config, err := NewServer(Files{Cert: served.Cert, Key: served.Key}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	addr, dir := echo(t, config), t.TempDir()
	d := dialer(t, Files{CA: first.write(dir, "client").CA})
	later := clocked(d.files)
	if _, err := meet(d, addr); err == nil {
		t.Fatal("a server of an unknown authority was trusted")
	}
	second.write(dir, "client")
	later()
	conn, err := meet(d, addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestFilesOfNoUseAreRefusedByName(t *testing.T) {
	a := newAuthority(t, "ours")
	one, two := a.write(t.TempDir(), "one"), a.write(t.TempDir(), "two")
	tests := []struct {
		name  string
		files Files
		says  string
	}{
		{"no such file", Files{CA: one.CA + "x"}, one.CA + "x"},
		{"no certificate in it", Files{CA: one.Key}, one.Key},
		{"certificate without key", Files{Cert: one.Cert}, "go together"},
		{"key without certificate", Files{Key: one.Key}, "go together"},
		{"key of another certificate", Files{Cert: one.Cert, Key: two.Key}, two.Key},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := NewDialer(tt.files, 0, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v does not say %q", err, tt.says)
			}
		})
	}
	if _, err := NewServer(Files{CA: one.CA}, zerolog.Nop()); err == nil {
		t.Error("a listener without a certificate")
	}
}
