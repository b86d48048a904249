package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/certs/certstest"
)

// TestOnlyOwnConnectionsShowKsharesCertificate: upstream may know kshare by it, and would take a client for kshare.
func TestOnlyOwnConnectionsShowKsharesCertificate(t *testing.T) {
	store, err := startRedis()
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	a := certstest.New(t, "ours")
	var mu sync.Mutex
	by := map[string]int{} // connections by the name in the certificate that was shown
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{a.Pair("broker")}, ClientAuth: tls.RequestClientCert,
		VerifyConnection: func(s tls.ConnectionState) error {
			mu.Lock()
			defer mu.Unlock()
			name := "nobody"
			if len(s.PeerCertificates) > 0 {
				name = s.PeerCertificates[0].Subject.CommonName
			}
			by[name]++
			return nil
		}}))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	own := a.Issue(t.TempDir(), "kshare")
	p := startProcess(t, nil, serveArgs("127.0.71.14", cluster.ListenAddrs()[0], "redis://"+store.Addr(),
		"--upstream-tls=true", "--upstream-tls-ca", own.CA, "--login-tls-cert", own.Cert, "--login-tls-key", own.Key, "--drain=1s")...)
	eventually(t, 20*time.Second, func() string {
		if p.stdout.String() == "" {
			return "not ready"
		}
		return ""
	})
	mu.Lock()
	if by["kshare"] == 0 || len(by) != 1 {
		t.Errorf("before any client: %v", by)
	}
	mu.Unlock()
	client, err := kgo.NewClient(kgo.SeedBrokers("127.0.71.14:19092"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if by["nobody"] == 0 || len(by) != 2 {
		t.Errorf("with a client: %v", by)
	}
}

// TestWhatIsWrongWithTLSToBrokersIsSaidByTheKey: a broker's port is plain or not, and its certificate trusted or not.
func TestWhatIsWrongWithTLSToBrokersIsSaidByTheKey(t *testing.T) {
	a, other := certstest.New(t, "ours"), certstest.New(t, "another")
	secure, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{a.Pair("broker")}}))
	if err != nil {
		t.Fatal(err)
	}
	defer secure.Close()
	// What a TLS port of Kafka says to who does not speak TLS: an alert. The fake hangs up.
	alerts := answering(t, "\x15\x03\x03\x00\x02\x02\x50")
	plain := answering(t, "\x00\x00\x00\x06\x00\x00\x00\x00\x00\x23")
	for _, c := range []struct {
		name, upstream string
		args           []string
		want           string
	}{
		{"authority not known", secure.ListenAddrs()[0], []string{"--upstream-tls=true", "--upstream-tls-ca", other.Issue(t.TempDir(), "x").CA}, "unknown authority; check upstream-tls-ca"},
		{"plain to TLS", alerts, nil, "; check upstream-tls"},
		{"TLS to plain", plain, []string{"--upstream-tls=true"}, "; check upstream-tls"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := load(from(append(c.args, "--upstream="+c.upstream), nil, ""), nil)
			if err != nil {
				t.Fatal(err)
			}
			r, err := newReplica(conf, zerolog.Nop(), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			defer r.redis.Close()
			ctx, cancel := context.WithCancel(context.Background())
			ran := make(chan struct{})
			go func() { defer close(ran); _ = r.upstream.Run(ctx) }()
			defer func() { cancel(); <-ran }()
			eventually(t, 10*time.Second, func() string {
				try, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
				if err := r.checkUpstream(try); err == nil || !strings.HasSuffix(err.Error(), c.want) {
					return fmt.Sprint(err)
				}
				return ""
			})
		})
	}
}

// answering gives the address of a server that answers whatever comes with the same bytes and hangs up.
func answering(t *testing.T, text string) string {
	l, err := net.Listen("tcp", "127.0.71.14:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1024))
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}
