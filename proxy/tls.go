package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"kshare/proxy/certs"
)

// ListenTLS says how clients are spoken to with TLS: on the bootstrap port and
// on every node port, or with SNISuffix on the bootstrap port alone.
type ListenTLS struct {
	// Files are what clients are shown (Cert, Key) and, with CA, judged by:
	// then a client must show a certificate of one of these authorities, which
	// lets it in and says nothing about who it is. They may be renewed while
	// they are in use. Without Cert listeners speak plain text.
	Files certs.Files
	// SNISuffix is a domain under which every node has a name of its own,
	// broker-N.SNISuffix for node N. Clients say in the TLS handshake which
	// name they mean, so that one port is enough: node ports are not bound. Any
	// other name, and none, means the bootstrap listener.
	SNISuffix string
	// SNIPort is the port that clients are given with those names (default:
	// the port of Listen).
	SNIPort int32
}

// on tells whether listeners speak TLS.
func (l ListenTLS) on() bool { return l.Files.Cert != "" }

func (l ListenTLS) validate() error {
	switch {
	case l.Files.Cert == "" && l.Files.Key != "":
		return errors.New("listen-tls-key: goes together with listen-tls-cert, give both or neither")
	case l.Files.Cert == "" && l.Files.CA != "":
		return errors.New("listen-tls-client-ca: is of use only with TLS, give listen-tls-cert and listen-tls-key too or leave it away")
	}
	return l.validateNames()
}

// listenTLS makes what listeners shake hands with, nil for plain text.
func (s *Server) listenTLS() (*tls.Config, error) {
	if !s.cfg.TLS.on() {
		return nil, nil
	}
	config, err := certs.NewServer(s.cfg.TLS.Files, s.log)
	if err != nil {
		return nil, fmt.Errorf("listen-tls-cert: %w", err)
	}
	return config, nil
}

// toListener is the server's side of a connection that a listener accepted.
// The handshake is for the goroutine of the connection.
func (s *Server) toListener(client net.Conn) net.Conn {
	if s.tls == nil {
		return client
	}
	return tls.Server(&arriving{Conn: client}, s.tls)
}

// arriving remembers what came first. Only one goroutine reads.
type arriving struct {
	net.Conn
	first [5]byte // as long as the header of a TLS record
	known int     // how many of them have come
}

func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	a.known += copy(a.first[a.known:], p[:n])
	return n, err
}

// shakeHands makes the connection a TLS one, if its listener is, and learns
// which node the client means. Nothing was read before.
func (c *conn) shakeHands() error {
	client, ok := c.client.(*tls.Conn)
	if !ok {
		return nil
	}
	raw := client.NetConn().(*arriving)
	if err := client.SetDeadline(time.Now().Add(c.s.cfg.AuthTimeout)); err != nil {
		return err
	}
	if err := client.HandshakeContext(c.ctx); err != nil {
		return handshakeError(err, raw)
	}
	if err := client.SetDeadline(time.Time{}); err != nil {
		return err
	}
	return c.goTo(client.ConnectionState().ServerName)
}

// noCertificate is how crypto/tls says that a client showed no certificate, an
// error that has no type.
const noCertificate = "client didn't provide a certificate"

// handshakeError says why a handshake failed.
func handshakeError(err error, raw *arriving) error {
	var record tls.RecordHeaderError
	switch {
	case raw.known == 0 && errors.Is(err, os.ErrDeadlineExceeded):
		return closing(CloseSilent, nil)
	case raw.known == 0: // somebody who only wants to know whether the port is open
		return closing(CloseClient, err)
	case errors.As(err, &record) && record.Conn != nil && record.RecordHeader == raw.first: // not that of a later record
		return closing(ClosePlain, notTLS(raw.first))
	case errors.As(err, new(*tls.CertificateVerificationError)), strings.Contains(err.Error(), noCertificate):
		return closing(CloseCertificate, fmt.Errorf("%w; listen-tls-client-ca says whose certificates are accepted", err))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return closing(CloseHandshake, errors.New("the client did not go on with the TLS handshake"))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return closing(CloseHandshake, errors.New("the client broke off the TLS handshake; it may not trust the certificate that it was shown"))
	}
	return closing(CloseHandshake, err)
}

// ifBroken gives a reason to errors that TLS itself makes once hands are shaken:
// what came is half a record, is none or cannot be decrypted, or it is an
// alert. A reason that an error has already stays.
func ifBroken(err error) error {
	if reasonOf(err, "") != "" {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return closing(CloseTruncated, err)
	}
	var op *net.OpError
	alert := errors.As(err, &op) && (op.Op == "local error" || op.Op == "remote error")
	if alert || errors.As(err, new(tls.RecordHeaderError)) {
		return closing(CloseTLSBroken, err)
	}
	return err
}

// notTLS tells what it was that came instead of a handshake.
func notTLS(first [5]byte) error {
	if isHTTP(first[:]) {
		return errors.New("an HTTP request came to a Kafka port with TLS; metrics and health are on the --http address")
	}
	return errors.New("no TLS handshake came to a port with TLS; set security.protocol to SSL or SASL_SSL")
}

// hangUp closes a connection. With TLS that includes a last word, which may
// not wait long for a side that does not read.
func hangUp(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		cut := time.AfterFunc(farewell, func() { _ = t.NetConn().Close() })
		defer cut.Stop()
	}
	_ = conn.Close()
}
