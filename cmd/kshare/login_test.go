package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// refusing makes a cluster answer a PLAIN login with a password that is not the given one as Kafka does; a fake hangs up.
func refusing(cluster *kfake.Cluster, password string) {
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		req := r.(*kmsg.SASLAuthenticateRequest)
		if bytes.HasSuffix(req.SASLAuthBytes, []byte("\x00"+password)) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode, resp.ErrorMessage = kerr.SaslAuthenticationFailed.Code, kmsg.StringPtr("Authentication failed: Invalid username or password")
		return resp, nil, true
	})
}

// TestAReplicaWhoseLoginIsRefusedSaysSoAndGoesOnTrying starts with a password that the cluster does not take.
func TestAReplicaWhoseLoginIsRefusedSaysSoAndGoesOnTrying(t *testing.T) {
	const host = "127.0.71.10"
	redis, _ := servers(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "kshare", "r1ght"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	refusing(cluster, "r1ght")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("wr0ng\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, nil, serveArgs(host, cluster.ListenAddrs()[0], redis,
		"--login-mechanism=plain", "--login-username=kshare", "--login-password-file="+file, "--log-level=debug", "--drain=100ms")...)
	said := []string{"kshare's own login failed", "Invalid username or password", "check login-mechanism, login-username, login-password-file"}
	eventually(t, 15*time.Second, answers("http://"+host+":19080/readyz", 503, said...))
	eventually(t, 10*time.Second, func() string {
		if strings.Count(p.stderr.String(), "waiting for") < 2 {
			return "less than two lines of log about waiting"
		}
		return ""
	})
	var loud []string
	for line := range strings.Lines(p.stderr.String()) {
		if strings.Contains(line, `"level":"error"`) {
			loud = append(loud, line)
		}
	}
	if len(loud) != 1 || !strings.Contains(loud[0], said[2]) {
		t.Errorf("lines at level error: %v", loud)
	}
	if !strings.Contains(p.stderr.String(), "PLAIN without upstream-tls") {
		t.Error("no warning that the password travels in plain text")
	}
	if err := os.WriteFile(file, []byte("r1ght\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, 15*time.Second, answers("http://"+host+":19080/readyz", 200, "ready"))
	_, metrics, err := get("http://" + host + ":19080/metrics")
	if err != nil {
		t.Fatal(err)
	}
	p.terminate()
	if code := p.exit(10 * time.Second); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	for _, secret := range []string{"wr0ng", "r1ght"} {
		if strings.Contains(p.stderr.String()+p.stdout.String()+metrics, secret) {
			t.Errorf("%s is shown", secret)
		}
	}
}

// TestAMissingLoginIsNamed: the cluster wants a login and kshare has none.
func TestAMissingLoginIsNamed(t *testing.T) {
	const host = "127.0.71.14"
	redis, _ := servers(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	p := startProcess(t, nil, serveArgs(host, cluster.ListenAddrs()[0], redis)...)
	eventually(t, 15*time.Second, answers("http://"+host+":19080/readyz", 503, "upstream: ", "SASL only where login-mechanism is"))
	p.terminate()
	p.exit(10 * time.Second)
}
