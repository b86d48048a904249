package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"kshare/proxy/certs"
	"kshare/sharestate/statelog"
)

// writeFile writes a file into a folder and returns its name.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// certificate makes an authority in dir, and a certificate of it for an address, which serves both sides.
func certificate(t *testing.T, dir, address string) certs.Files {
	t.Helper()
	sign := func(c, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), parentKey)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	keys := make([]*ecdsa.PrivateKey, 2)
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	ca := sign(authority, authority, keys[0], keys[0])
	leaf := sign(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kshare"}, IPAddresses: []net.IP{net.ParseIP(address)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, authority, keys[1], keys[0])
	secret, err := x509.MarshalPKCS8PrivateKey(keys[1])
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, kind string, der []byte) string {
		return writeFile(t, dir, name, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	}
	return certs.Files{CA: file("ca.pem", "CERTIFICATE", ca), Cert: file("cert.pem", "CERTIFICATE", leaf), Key: file("key.pem", "PRIVATE KEY", secret)}
}

// secureRedis is a real Redis that speaks TLS only, and only with those who show a certificate of its authority. It has
// the user kshare with the rights that kshare needs.
type secureRedis struct {
	*testing.T
	address string
	files   certs.Files
	admin   redis.UniversalClient // may do everything
}

func startSecureRedis(t *testing.T, host string) *secureRedis {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("TEST_REQUIRE_REDIS") == "1" {
			t.Fatal("TEST_REQUIRE_REDIS=1 but redis-server is not in PATH: install Debian's redis-server")
		}
		t.Skip("SKIPPED: redis-server is not in PATH, so nothing was tested on a Redis with TLS: install Debian's redis-server")
	}
	dir := t.TempDir()
	r := &secureRedis{T: t, address: host + ":16390", files: certificate(t, dir, host)}
	cmd := exec.Command("redis-server", append([]string{"--port", "0", "--tls-port", "16390", "--bind", host, "--dir", dir, "--save", "", "--appendonly", "yes",
		"--loglevel", "warning", "--logfile", filepath.Join(dir, "log"), "--tls-cert-file", r.files.Cert, "--tls-key-file", r.files.Key, "--tls-ca-cert-file", r.files.CA,
		"--tls-auth-clients", "yes", "--user", "kshare", "on", ">f1rst"}, statelog.Rights("kshare")...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	dialer, err := certs.NewDialer(r.files, 0, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if r.admin, err = (statelog.Access{Dial: dialer.DialContext}).Connect("rediss://" + r.address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.admin.Close() })
	eventually(t, 10*time.Second, func() string {
		if err := r.admin.Ping(context.Background()).Err(); err != nil {
			return err.Error()
		}
		return ""
	})
	return r
}

// acl changes the user kshare and cuts its connections, as an operator does who renews a password.
func (r *secureRedis) acl(rules ...any) {
	r.Helper()
	for _, command := range [][]any{append([]any{"ACL", "SETUSER", "kshare"}, rules...), {"CLIENT", "KILL", "USER", "kshare"}} {
		if err := r.admin.Do(context.Background(), command...).Err(); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *secureRedis) flags(password string) []string {
	return []string{"--redis-tls-ca=" + r.files.CA, "--redis-tls-cert=" + r.files.Cert, "--redis-tls-key=" + r.files.Key, "--redis-username=kshare", "--redis-password-file=" + password}
}

// TestRedisWithTLSAUserAndACertificate takes a replica through what goes wrong with the access to Redis, and through a new password.
func TestRedisWithTLSAUserAndACertificate(t *testing.T) {
	const host = "127.0.71.11"
	store := startSecureRedis(t, host)
	store.acl("-publish")
	_, brokers := servers(t)
	dir := t.TempDir()
	password := writeFile(t, dir, "password", "wr0ng")
	p := startProcess(t, nil, serveArgs(host, brokers[0], "rediss://"+store.address, append(store.flags(password), "--log-level=debug", "--drain=100ms")...)...)
	at := "http://" + host + ":19080"

	eventually(t, 15*time.Second, answers(at+"/readyz", 503, "redis: rediss://"+store.address+" refuses the login: ", "WRONGPASS", "check redis-username and redis-password-file"))
	writeFile(t, dir, "password", "f1rst\n")
	eventually(t, 15*time.Second, answers(at+"/readyz", 503, "Redis denies what kshare needs", "'publish'", "README"))
	store.acl("+publish")
	eventually(t, 15*time.Second, answers(at+"/readyz", 200, "ready"))
	eventually(t, 5*time.Second, answers(at+"/metrics", 200, "kshare_redis_up 1\n"))

	store.acl("resetpass", ">n3xt")
	eventually(t, 15*time.Second, answers(at+"/metrics", 200, "kshare_redis_up 0\n"))
	eventually(t, 10*time.Second, func() string {
		if !strings.Contains(p.stderr.String(), "Redis refuses the login; share groups wait") {
			return "the log does not tell that the new password is wanted"
		}
		return ""
	})
	writeFile(t, dir, "password", "n3xt")
	eventually(t, 15*time.Second, answers(at+"/metrics", 200, "kshare_redis_up 1\n"))
	_, metrics, err := get(at + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	p.terminate()
	if code := p.exit(10 * time.Second); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	var loud []string
	for line := range strings.Lines(p.stderr.String()) {
		if strings.Contains(line, `"level":"error"`) {
			loud = append(loud, line)
		}
	}
	if len(loud) != 1 || !strings.Contains(loud[0], "check redis-username and redis-password-file") {
		t.Errorf("lines at level error: %v", loud)
	}
	for _, secret := range []string{"wr0ng", "f1rst", "n3xt"} {
		if strings.Contains(p.stderr.String()+p.stdout.String()+metrics, secret) {
			t.Errorf("%s is shown", secret)
		}
	}
}

// checkRedisOf does what start-up does, once.
func checkRedisOf(t *testing.T, in inputs) error {
	t.Helper()
	c, err := load(in, nil)
	if err != nil {
		return err
	}
	r, err := newReplica(c, zerolog.Nop(), nil)
	if err != nil {
		return err
	}
	defer r.redis.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return r.checkRedis(ctx)
}

func TestWhatIsWrongWithTLSToRedisIsSaid(t *testing.T) {
	const host = "127.0.71.12"
	store := startSecureRedis(t, host)
	other := certificate(t, t.TempDir(), host)
	url := "--redis=rediss://kshare:f1rst@" + store.address
	ca, own := "--redis-tls-ca="+store.files.CA, []string{"--redis-tls-cert=" + store.files.Cert, "--redis-tls-key=" + store.files.Key}
	for _, c := range []struct {
		name string
		args []string
		want string // "" is no error
	}{
		{"all is well", append([]string{url, ca}, own...), ""},
		{"no authority", append([]string{url}, own...), "unknown authority; check redis-tls-ca"},
		{"another authority", append([]string{url, "--redis-tls-ca=" + other.CA}, own...), "; check redis-tls-ca"},
		{"no certificate", []string{url, ca}, "certificate required"},
		{"another's certificate", []string{url, ca, "--redis-tls-cert=" + other.Cert, "--redis-tls-key=" + other.Key}, "does not answer"},
		{"another name", append([]string{"--redis=rediss://kshare:f1rst@localhost:16390", ca}, own...), "does not answer"},
		{"no TLS", []string{"--redis=redis://kshare:f1rst@" + store.address}, "does not answer"},
		{"no such file", []string{url, "--redis-tls-ca=/nowhere/ca.pem"}, "/nowhere/ca.pem: no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkRedisOf(t, from(c.args, nil, ""))
			if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "f1rst") {
				t.Errorf("the password is shown: %v", err)
			}
		})
	}
}

func TestTheURLsFileIsReadForEachConnection(t *testing.T) {
	const host = "127.0.71.13"
	store := startSecureRedis(t, host)
	dir := t.TempDir()
	file := writeFile(t, dir, "url", "rediss://kshare:f1rst@"+store.address+"\n")
	c, err := load(from([]string{"--redis-file=" + file, "--redis-tls-ca=" + store.files.CA, "--redis-tls-cert=" + store.files.Cert, "--redis-tls-key=" + store.files.Key}, nil, ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := effectiveYAML(&c); err != nil || strings.Contains(string(text), "redis: ") || !strings.Contains(string(text), "redis-file: "+file) {
		t.Errorf("check prints %s, %v", text, err)
	}
	client, err := c.connectRedis(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ping := func() error { return client.Ping(context.Background()).Err() }
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	store.acl("resetpass", ">n3xt")
	eventually(t, 5*time.Second, func() string {
		if !statelog.LoginRefused(ping()) {
			return "the old password is taken"
		}
		return ""
	})
	writeFile(t, dir, "url", "rediss://kshare:n3xt@"+store.address)
	if err := ping(); err != nil {
		t.Errorf("with the new password: %v", err)
	}

	for text, want := range map[string]string{"": "is empty", "http://u:s3cr3t@h": "unknown kind of URL", "redis://u:s3cr3t@h:1": "rediss://", "\n": "is empty"} {
		writeFile(t, dir, "url", text)
		err := checkRedisOf(t, from([]string{"--redis-file=" + file, "--redis-tls-ca=" + store.files.CA}, nil, ""))
		if !asConfigError(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q leads to %v", text, err)
		}
	}
}
