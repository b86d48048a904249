package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/rs/zerolog"
)

// Dialer makes TLS connections. The other side's certificate must be good for the host that is dialled, which is also
// what is sent as the server name (SNI).
type Dialer struct {
	files   *store
	timeout time.Duration
}

// NewDialer reads files: CA are the authorities to trust, those of the system if empty; Cert is shown to a server that
// asks for one. timeout bounds connecting and handshake together; 0 is none beyond the context's.
func NewDialer(files Files, timeout time.Duration, log zerolog.Logger) (*Dialer, error) {
	s, err := newStore(files, log)
	if err != nil {
		return nil, err
	}
	return &Dialer{files: s, timeout: timeout}, nil
}

// DialContext connects to host:port and shakes hands.
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if d.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.timeout)
		defer cancel()
	}
	plain, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	m, _ := d.files.latest()
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, RootCAs: m.authorities}
	if m.certificate != nil {
		config.Certificates = []tls.Certificate{*m.certificate}
	}
	conn := tls.Client(plain, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, fmt.Errorf("TLS handshake with %s: %w", addr, err)
	}
	return conn, nil
}
