package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/certs/certstest"
)

// TestServeByNameTakesOnePort runs a replica that tells nodes apart by name, and a client for which all names lead to it.
func TestServeByNameTakesOnePort(t *testing.T) {
	redis, brokers := servers(t)
	a := certstest.New(t, "ours")
	files := a.Issue(t.TempDir(), "kshare", "*.kafka.example.org")
	const host, listen = "127.0.71.12", "127.0.71.12:19092"
	p := startProcess(t, nil, "serve", "--upstream", brokers[0], "--redis", redis, "--listen", listen, "--http", host+":19080", "--advertise", "kafka.example.org",
		"--listen-tls-cert", files.Cert, "--listen-tls-key", files.Key, "--sni-suffix", "kafka.example.org", "--sni-port", "443", "--drain", "1s")
	eventually(t, 20*time.Second, func() string {
		if want := "kshare ready bootstrap=" + listen + " upstream=kshare-dev nodes=3\n"; p.stdout.String() != want {
			return "not ready: " + p.stdout.String()
		}
		return ""
	})
	for node := range 3 {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, 19100+node))
		if err != nil {
			t.Errorf("the port of node %d: %v", node, err)
			continue
		}
		_ = l.Close()
	}
	var named safeBuffer
	client, err := kgo.NewClient(kgo.SeedBrokers("bootstrap.kafka.example.org:443"), kgo.DefaultProduceTopic("orders"), kgo.AllowAutoTopicCreation(), kgo.DisableClientMetrics(),
		kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
			name, port, _ := net.SplitHostPort(addr)
			_, _ = named.Write([]byte(name + ":" + port + "\n"))
			d := tls.Dialer{Config: &tls.Config{RootCAs: a.Pool(), ServerName: name, MinVersion: tls.VersionTLS12}}
			return d.DialContext(ctx, network, listen)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := client.ProduceSync(ctx, kgo.StringRecord("v")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for node := range 3 {
		if _, err := client.Broker(node).RetriableRequest(ctx, kmsg.NewPtrMetadataRequest()); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("broker-%d.kafka.example.org:443\n", node); !strings.Contains(named.String(), want) {
			t.Errorf("no connection to %s\n%s", want, named.String())
		}
	}
	if text := p.stderr.String(); strings.Contains(text, "listen-tls-cert") {
		t.Error(text)
	}
	p.terminate()
	if code := p.exit(30 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestBadCertificateFileEndsServeAtOnce, even if upstream and Redis do not answer.
func TestBadCertificateFileEndsServeAtOnce(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "tls.crt")
	p := startProcess(t, nil, serveArgs("127.0.71.13", nowhere, "redis://"+nowhere, "--listen-tls-cert", missing, "--listen-tls-key", missing)...)
	if code := p.exit(10 * time.Second); code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
	if text := p.stderr.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "listen-tls-cert: ") || !strings.Contains(text, missing) {
		t.Errorf("standard error: %s", text)
	}
}

func TestCertificateThatClientsWillRefuseIsWarnedOf(t *testing.T) {
	a := certstest.New(t, "ours")
	good := a.Issue(t.TempDir(), "good", "kshare.example.org", "*.kafka.example.org")
	a.NotAfter = time.Now().Add(-time.Minute)
	expired := a.Issue(t.TempDir(), "expired", "kshare.example.org")
	for _, c := range []struct {
		name  string
		files certstest.Files
		args  []string
		want  string // in the only warning; none if empty
	}{
		{"good for advertise", good, []string{"--advertise=kshare.example.org"}, ""},
		{"good for names of nodes", good, []string{"--sni-suffix=kafka.example.org"}, ""},
		{"not for advertise", good, nil, "127.0.0.1"},
		{"not for names of nodes", good, []string{"--sni-suffix=example.org"}, "broker-0.example.org"},
		{"expired", expired, []string{"--advertise=kshare.example.org"}, "expired"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := load(from(append(c.args, "--listen-tls-cert", c.files.Cert, "--listen-tls-key", c.files.Key), nil, ""), nil)
			if err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			if err := config.checkListenTLS(zerolog.New(&log)); err != nil {
				t.Fatal(err)
			}
			if text := log.String(); (text == "") != (c.want == "") || !strings.Contains(text, c.want) || strings.Count(text, "\n") > 1 {
				t.Errorf("logged: %s", text)
			}
		})
	}
}

// TestBootstrapIsToldAsClientsReachIt: an address that stands for all of the machine's tells clients nothing.
func TestBootstrapIsToldAsClientsReachIt(t *testing.T) {
	tls := []string{"--listen-tls-cert=a", "--listen-tls-key=b", "--sni-suffix=kafka.example.org"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen=127.0.0.9:9092"}, "127.0.0.9:9092"},
		{[]string{"--listen=0.0.0.0:9092", "--advertise=kshare.example.org"}, "kshare.example.org:9092"},
		{append(tls, "--listen=0.0.0.0:9092", "--advertise=kshare.example.org"), "kshare.example.org:9092"},
		{append(tls, "--listen=0.0.0.0:9092", "--advertise=kshare.example.org", "--sni-port=443"), "kshare.example.org:443"},
		{append(tls, "--listen=127.0.0.9:9092", "--sni-port=443"), "127.0.0.9:9092"},
	} {
		config, err := load(from(c.args, nil, ""), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := config.bootstrap(); got != c.want {
			t.Errorf("%v: %s, want %s", c.args, got, c.want)
		}
	}
}
