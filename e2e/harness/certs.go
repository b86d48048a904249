//go:build e2e

package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Authority is a certificate authority of a run, with a folder for what it signs.
type Authority struct {
	CA string // PEM file

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	made int64
}

// Pair is a certificate with its key, as PEM files.
type Pair struct {
	Cert, Key string
	Both      string // key and certificate in one file, which Kafka wants
}

// NewAuthority makes an authority; name is of its folder.
func (s *Suite) NewAuthority(name string) (*Authority, error) {
	a := &Authority{dir: filepath.Join(s.Dir, name)}
	a.CA = filepath.Join(a.dir, "ca.pem")
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	template := a.template(name)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return a, os.WriteFile(a.CA, certPEM(der), 0o644)
}

func (a *Authority) template(name string) *x509.Certificate {
	a.made++
	return &x509.Certificate{SerialNumber: big.NewInt(a.made), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
}

// Sign makes a certificate for clients and servers with this common name, which holds for the hosts: addresses, or
// names, of which *.example is one.
func (a *Authority) Sign(name string, hosts ...string) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	template := a.template(name)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	file := func(kind string) string { return filepath.Join(a.dir, fmt.Sprintf("%s-%d.%s.pem", name, a.made, kind)) }
	p := Pair{Cert: file("cert"), Key: file("key"), Both: file("both")}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	for to, content := range map[string][]byte{p.Cert: certPEM(der), p.Key: keyPEM, p.Both: append(keyPEM, certPEM(der)...)} {
		if err := os.WriteFile(to, content, 0o600); err != nil {
			return Pair{}, err
		}
	}
	return p, nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
