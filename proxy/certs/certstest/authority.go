// Package certstest issues certificates for tests.
package certstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority of one test.
type Authority struct {
	// NotAfter is the end of what is issued, in an hour unless set.
	NotAfter time.Time

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64
}

// Files are the PEM files of one certificate: certs.Files by another name, which package certs' own tests need.
type Files struct{ CA, Cert, Key string }

// New makes an authority of the given name, good for an hour.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &Authority{NotAfter: time.Now().Add(time.Hour), t: t, key: key, cert: &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// Pool trusts the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue makes a certificate for servers and clients alike, with name as its common name, good for hosts (127.0.0.1 if
// there are none), and writes it, its key and the authority's own certificate into dir, over what was written before.
func (a *Authority) Issue(dir, name string, hosts ...string) Files {
	a.t.Helper()
	a.last++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(a.last + 1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: a.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if len(hosts) == 0 {
		hosts = []string{"127.0.0.1"}
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	f := Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for file, block := range map[string]*pem.Block{f.CA: {Type: "CERTIFICATE", Bytes: a.cert.Raw}, f.Cert: {Type: "CERTIFICATE", Bytes: der}, f.Key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return f
}

// Pair is what Issue makes, for a tls.Config of a test.
func (a *Authority) Pair(name string, hosts ...string) tls.Certificate {
	a.t.Helper()
	f := a.Issue(a.t.TempDir(), name, hosts...)
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pair
}
