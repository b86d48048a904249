package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"

	"kshare/proxy/login"
)

// secured is a fake cluster that wants a login, with the user kshare of each mechanism.
func secured(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	opts = append(opts, kfake.EnableSASL(), kfake.SeedTopics(1, "t"), kfake.Superuser("PLAIN", "kshare", "right"),
		kfake.Superuser("SCRAM-SHA-256", "kshare", "right"), kfake.Superuser("SCRAM-SHA-512", "kshare", "right"))
	return newCluster(t, opts...)
}

func TestAllOfKsharesConnectionsLogIn(t *testing.T) {
	for name, mechanism := range map[string]func(string, login.Secret) sasl.Mechanism{
		"PLAIN": login.Plain, "SCRAM-SHA-256": login.ScramSHA256, "SCRAM-SHA-512": login.ScramSHA512,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			cluster := secured(t)
			c := startClient(t, Config{Seeds: cluster.ListenAddrs(), Login: mechanism("kshare", login.Text("right"))})
			if err := c.WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
			if err := c.Write(ctx, OutBatch{Topic: "t", Records: []Out{{Value: []byte("v")}}}); err != nil { // a client of its own
				t.Fatal(err)
			}
			topics, err := c.TopicsByName(ctx, []string{"t"}, true)
			if err != nil {
				t.Fatal(err)
			}
			f := &fixture{T: t, ctx: ctx, c: c}
			for _, level := range []Isolation{ReadUncommitted, ReadCommitted} { // long polls
				f.tailing(f.open(TP{topics["t"].ID, 0}, level), 1)
			}
			if v := f.read(f.open(TP{topics["t"].ID, 0}, ReadUncommitted), 0, 100); len(v.Batches) != 1 { // a catch-up
				t.Errorf("read %+v", v)
			}
		})
	}
}

// TestARefusedLoginIsSaidOnceAndTriedAgain: the password is wrong at first, then put right, then changed upstream while kshare runs.
func TestARefusedLoginIsSaidOnceAndTriedAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cluster := secured(t, kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"connections.max.reauth.ms": "1500"}))
	var wanted atomic.Value
	var refusals atomic.Int32
	wanted.Store("r1ght")
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) { // a fake hangs up, Kafka says why
		cluster.KeepControl()
		req := r.(*kmsg.SASLAuthenticateRequest)
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		if password := wanted.Load().(string); !bytes.HasSuffix(req.SASLAuthBytes, []byte("\x00"+password)) {
			refusals.Add(1)
			resp.ErrorCode, resp.ErrorMessage = kerr.SaslAuthenticationFailed.Code, kmsg.StringPtr("Authentication failed: Invalid username or password")
			return resp, nil, true
		}
		req.SASLAuthBytes = []byte("\x00kshare\x00right") // for the fake's own list
		return nil, nil, false
	})
	file := filepath.Join(t.TempDir(), "password")
	password := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	password("wr0ng")
	var log lockedBuilder
	c, err := New(Config{Seeds: cluster.ListenAddrs(), MetadataMaxAge: 100 * time.Millisecond, Login: login.Plain("kshare", login.File(file))}, zerolog.New(&log).Level(zerolog.InfoLevel))
	if err != nil {
		t.Fatal(err)
	}
	runCtx, stop := context.WithCancel(ctx)
	ran := make(chan struct{})
	go func() { defer close(ran); _ = c.Run(runCtx) }()
	defer func() { stop(); <-ran }()

	refused := func(spell int) {
		t.Helper()
		before := refusals.Load()
		eventually(t, "the login is tried again and again", func() bool { return refusals.Load() >= before+4 })
		if err := c.Healthy(); !errors.Is(err, ErrLogin) || !errors.Is(err, ErrUnavailable) || !strings.Contains(fmt.Sprint(err), "Invalid username or password") {
			t.Errorf("healthy: %v", err)
		}
		if n := strings.Count(log.text(), "refuses kshare's login"); n != spell {
			t.Errorf("%d log lines in spell %d of refusals: %s", n, spell, log.text())
		}
	}
	refused(1)
	password("r1ght\n")
	if err := c.WaitReady(ctx); err != nil || c.Healthy() != nil {
		t.Fatalf("with the right password: %v, %v", err, c.Healthy())
	}
	wanted.Store("n3w")
	eventually(t, "the login fails once it has to be repeated", func() bool { return errors.Is(c.Healthy(), ErrLogin) })
	refused(2)
	password("n3w")
	eventually(t, "healthy with the new password", func() bool { return c.Healthy() == nil })
	for _, secret := range []string{"wr0ng", "r1ght", "n3w"} {
		if strings.Contains(log.text(), secret) {
			t.Errorf("a password is logged: %s", log.text())
		}
	}
}

// TestWhatIsWrongWithALoginIsSaid: the broker wants no login, another mechanism, or one when kshare has none.
func TestWhatIsWrongWithALoginIsSaid(t *testing.T) {
	for _, c := range []struct {
		name    string
		cluster []kfake.Opt
		login   sasl.Mechanism
		want    string
	}{
		{"another mechanism", []kfake.Opt{kfake.EnableSASL()}, otherName{login.Plain("u", login.Text("p"))}, "UNSUPPORTED_SASL_MECHANISM"},
		{"no file", []kfake.Opt{kfake.EnableSASL()}, login.Plain("u", login.File("/nowhere/password")), "/nowhere/password: no such file"},
		{"none where one is wanted", []kfake.Opt{kfake.EnableSASL()}, nil, "is SASL missing?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := startClient(t, Config{Seeds: newCluster(t, c.cluster...).ListenAddrs(), Login: c.login})
			eventually(t, c.want, func() bool {
				err := client.Healthy()
				return err != nil && strings.Contains(err.Error(), c.want) && errors.Is(err, ErrLogin) == (c.login != nil)
			})
		})
	}
}

// otherName is a mechanism that no broker knows.
type otherName struct{ sasl.Mechanism }

func (otherName) Name() string { return "SOMETHING" }
