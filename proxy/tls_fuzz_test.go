package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"

	"github.com/rs/zerolog"

	"kshare/proxy/certs/certstest"
	"kshare/proxy/serve"
)

// said is a connection on which a client said something and closed its side.
type said struct {
	in   io.Reader
	took bytes.Buffer // what it was told
}

func (s *said) Read(p []byte) (int, error)     { return s.in.Read(p) }
func (s *said) Write(p []byte) (int, error)    { return s.took.Write(p) }
func (*said) Close() error                     { return nil }
func (*said) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*said) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*said) SetDeadline(time.Time) error      { return nil }
func (*said) SetReadDeadline(time.Time) error  { return nil }
func (*said) SetWriteDeadline(time.Time) error { return nil }

// FuzzFirstBytes has the same bytes come to a plain port and to one with TLS:
// each tells TLS from what is none, and what neither can make sense of ends
// with a reason too.
func FuzzFirstBytes(f *testing.F) {
	f.Add([]byte{})
	f.Add(frameOf(1, apiVersionsRequest(3)))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f.Add(hello(f))
	f.Add(hello(f)[:40])
	f.Add([]byte{0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0})
	f.Add([]byte{0x16, 3, 1, 0, 4, 1, 0, 0, 9, 's', 'o', 'm', 'e', 't', 'h', 'i', 'n', 'g'}) // a hello in pieces that ends otherwise
	f.Add([]byte{0x15, 3, 3, 0, 2, 2, 40})
	f.Add([]byte{0x17, 3, 3, 0, 1, 0})
	f.Add([]byte{0x80, 0x2e, 1, 0, 2})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 18, 0, 0})
	a := certstest.New(f, "ours")
	s := &Server{cfg: Config{}.WithDefaults(), log: zerolog.Nop(), tls: &tls.Config{Certificates: []tls.Certificate{a.Pair("kshare", proxyHost)}, MinVersion: tls.VersionTLS12}}
	f.Fuzz(func(t *testing.T, b []byte) {
		onTLS := func(in io.Reader) (CloseReason, int) {
			raw := &said{in: in}
			c := &conn{s: s, client: s.toListener(raw), peer: &serve.Conn{}, ctx: context.Background()}
			err := c.shakeHands()
			if err == nil {
				t.Fatal("hands were shaken with nobody")
			}
			var closed *closeError
			if !errors.As(err, &closed) {
				t.Fatalf("no reason: %v", err)
			}
			return closed.reason, raw.took.Len()
		}
		reason, told := onTLS(bytes.NewReader(b))
		if again, _ := onTLS(iotest.OneByteReader(bytes.NewReader(b))); again != reason {
			t.Fatalf("%s, byte by byte %s", reason, again)
		}
		// What a record may begin with, as crypto/tls has it before it knows the version.
		record := len(b) >= 5 && (b[0] == 0x15 || b[0] == 0x16) && b[1] < 0x10 || len(b) >= 5 && b[0] == 0x80
		want := CloseHandshake
		switch {
		case len(b) == 0:
			want = CloseClient
		case len(b) >= 5 && !record:
			want = ClosePlain
		}
		if reason != want {
			t.Fatalf("%s, want %s", reason, want)
		}
		if reason == ClosePlain && told > 0 {
			t.Fatalf("who speaks no TLS is told %d bytes", told)
		}
		_, err := readHeader(bufio.NewReaderSize(bytes.NewReader(b), readerSize), DefaultMaxFrame)
		plain := reasonOf(err, "")
		if len(b) >= 5 && (err == nil || plain == CloseHTTP) && reason != ClosePlain {
			t.Fatalf("a request, or %s, where TLS is not spoken, is %s where it is", plain, reason)
		}
		if plain == CloseTLS && reason == ClosePlain {
			t.Fatal("TLS for one, none for the other")
		}
	})
}

// FuzzNodeOf: a name stands for a node exactly if it is that node's name.
func FuzzNodeOf(f *testing.F) {
	f.Add("broker-1.kafka.example.org", "kafka.example.org")
	f.Add("BROKER-01.a.", "A.")
	f.Add("broker-99999999999.a", "a")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, name, suffix string) {
		l := ListenTLS{SNISuffix: suffix}.withDefaults(DefaultListen)
		node, ok := l.nodeOf(name)
		if !ok || node == bootstrapNode {
			return
		}
		if node < 0 || canonicalName(name) != l.nodeName(node) {
			t.Fatalf("%q under %q stands for node %d", name, suffix, node)
		}
	})
}
