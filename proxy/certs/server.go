package certs

import (
	"crypto/tls"
	"errors"
	"sync"

	"github.com/rs/zerolog"
)

// NewServer reads files for a listener: Cert is what clients are shown, and with a CA clients must show a certificate
// that one of its authorities has signed (mutual TLS).
func NewServer(files Files, log zerolog.Logger) (*tls.Config, error) {
	if files.Cert == "" {
		return nil, errors.New("a TLS listener needs a certificate and its key")
	}
	s, err := newStore(files, log)
	if err != nil {
		return nil, err
	}
	server := &server{files: s, age: -1}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return server.config(), nil
	}}, nil
}

type server struct {
	files *store

	mu     sync.Mutex
	age    int
	latest *tls.Config // kept, for it holds the keys by which clients resume their sessions
}

func (s *server) config() *tls.Config {
	m, age := s.files.latest()
	s.mu.Lock()
	defer s.mu.Unlock()
	if age != s.age {
		s.age, s.latest = age, serverConfig(m)
	}
	return s.latest
}

func serverConfig(m *material) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*m.certificate}}
	if m.authorities != nil {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, m.authorities
	}
	return c
}
