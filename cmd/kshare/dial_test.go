package main

import (
	"context"
	"crypto/tls"
	"sync"
	"testing"
	"time"

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
