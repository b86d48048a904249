package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Files names PEM files. Cert and Key go together; every field may be empty.
type Files struct {
	// CA holds the certificates of the authorities by which the other side is judged.
	CA string
	// Cert is what this side shows: its certificate, then the intermediate ones.
	Cert string
	// Key is the private key of Cert, not encrypted.
	Key string
}

// material is what Files hold at one time.
type material struct {
	authorities *x509.CertPool   // nil: no CA was named
	certificate *tls.Certificate // nil: no Cert was named
}

// recheck is how old what is known of the files may be, in which a renewed certificate comes into use.
const recheck = time.Second

// store keeps the latest good content of Files.
type store struct {
	files Files
	log   zerolog.Logger
	now   func() time.Time

	mu      sync.Mutex
	looked  time.Time
	raw     []byte // content that current was made of, or that failed
	current *material
	age     int // rises with current
}

// newStore reads the files for the first time; an error names the file and says what is wrong with it.
func newStore(files Files, log zerolog.Logger) (*store, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, errors.New("a certificate and its key go together, give both or neither")
	}
	s := &store{files: files, log: log, now: time.Now}
	raw, m, err := files.read()
	if err != nil {
		return nil, err
	}
	s.raw, s.current, s.looked = raw, m, s.now()
	return s, nil
}

// latest returns what the files hold, or held when they were last good, and a number that changes with it.
func (s *store) latest() (*material, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now().Sub(s.looked) < recheck {
		return s.current, s.age
	}
	s.looked = s.now()
	raw, m, err := s.files.read()
	same := bytes.Equal(raw, s.raw)
	s.raw = raw
	switch {
	case same:
	case err != nil:
		s.log.Error().Err(err).Msg("certificate files changed and are of no use, the former ones stay in use")
	default:
		s.current = m
		s.age++
		s.log.Info().Str("cert", s.files.Cert).Str("ca", s.files.CA).Msg("certificate files changed, new connections use them")
	}
	return s.current, s.age
}

// read returns the content of all files, and what it means. The content of files that cannot be read is the error's text.
func (f Files) read() (raw []byte, m *material, err error) {
	var parts [3][]byte
	for i, name := range []string{f.CA, f.Cert, f.Key} {
		if name == "" {
			continue
		}
		if parts[i], err = os.ReadFile(name); err != nil { // #nosec G304 -- the operator names it
			return []byte(err.Error()), nil, err
		}
	}
	raw = bytes.Join(parts[:], []byte{0})
	m = &material{}
	if f.CA != "" {
		m.authorities = x509.NewCertPool()
		if !m.authorities.AppendCertsFromPEM(parts[0]) {
			return raw, nil, fmt.Errorf("%s holds no certificate in PEM form", f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.X509KeyPair(parts[1], parts[2])
		if err != nil {
			return raw, nil, fmt.Errorf("%s and %s: %w", f.Cert, f.Key, err) // quotes nothing of the key
		}
		m.certificate = &pair
	}
	return raw, m, nil
}
