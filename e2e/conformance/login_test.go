//go:build e2e

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
)

// plainly is what a client of mechanism PLAIN says.
func plainly(user, password string) []byte { return []byte("\x00" + user + "\x00" + password) }

// authenticated is a SaslAuthenticate on a connection after its SaslHandshake.
func (w *world) authenticated(c *conn, mechanism string, message []byte) *kmsg.SASLAuthenticateResponse {
	w.Helper()
	shake := kmsg.NewPtrSASLHandshakeRequest()
	shake.Version, shake.Mechanism = 1, mechanism
	w.code("SaslHandshake", ask[*kmsg.SASLHandshakeResponse](w, c, shake).ErrorCode, nil)
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.Version, req.SASLAuthBytes = 2, message
	return ask[*kmsg.SASLAuthenticateResponse](w, c, req)
}

// stranger connects without a login.
func (w *world) stranger(address string) *conn {
	w.Helper()
	c, err := dial(address)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	return c
}

// closing is the time for a connection that is to be closed at once.
const closing = 5 * time.Second

// ends fails the test unless the server ends the connection, without another byte.
func (w *world) ends(what string, c *conn) {
	w.Helper()
	if rest := w.last(what, c); len(rest) > 0 {
		w.Fatalf("%s: %d bytes come: %q", what, len(rest), rest[:min(len(rest), 80)])
	}
}

// last is what comes until the server ends the connection.
func (w *world) last(what string, c *conn) []byte {
	w.Helper()
	c.SetDeadline(time.Now().Add(closing))
	rest, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.Fatalf("%s: the connection is open after %v", what, closing)
	}
	return rest
}

// Nobody is answered before the login but for what is asked on the way to it.
func TestNothingIsServedBeforeTheLogin(t *testing.T) {
	w := enter(t, setup{secured: true})
	before := map[string]func(c *conn){
		"at once":          func(*conn) {},
		"after a look":     func(c *conn) { w.versions(c) },
		"in the handshake": func(c *conn) { w.versions(c); w.shakes(c, "PLAIN") },
	}
	for how, prepare := range before {
		w.within(how, func(w *world) {
			asked := map[*conn]kmsg.Request{}
			for key := int16(0); key <= kmsg.MaxKey; key++ {
				req := kmsg.RequestForKey(key)
				if req == nil || key == 17 || key == 18 || key == 36 { // SaslHandshake, ApiVersions, SaslAuthenticate
					continue
				}
				if how != "at once" && !mine(key) {
					continue
				}
				c := w.stranger(w.tg.at(int(key)%w.tg.count(), w.node))
				prepare(c)
				req.SetVersion(min(req.MaxVersion(), 6))
				fill(req, w)
				if err := c.send(req); err != nil {
					t.Fatal(err)
				}
				asked[c] = req
			}
			for c, req := range asked {
				what := kmsg.NameForKey(req.Key())
				if how != "in the handshake" {
					w.ends(what, c)
					continue
				}
				// A broker says ILLEGAL_SASL_STATE here, in the form of the API, before it ends the connection.
				w.saysNothing(what, c, req)
			}
		})
	}
}

// saysNothing fails the test unless the last thing to come is a refusal for the state of the login, or nothing.
func (w *world) saysNothing(what string, c *conn, req kmsg.Request) {
	w.Helper()
	rest := w.last(what, c)
	if len(rest) == 0 {
		return
	}
	resp, err := (&conn{Conn: &replay{Conn: c.Conn, left: rest}, correlation: c.correlation}).receive(req)
	if err != nil {
		w.Fatalf("%s: %q: %v", what, rest, err)
	}
	const content = 40 // more than the frame of an answer
	for failure := range strings.SplitSeq(failures(resp), ", ") {
		if failure == "" && len(rest) > content || failure != "" && !strings.HasSuffix(failure, " ILLEGAL_SASL_STATE") {
			w.Fatalf("%s: %s, %q", what, failure, rest)
		}
	}
}

// replay gives what has been read once more.
type replay struct {
	net.Conn
	left []byte
}

func (r *replay) Read(p []byte) (int, error) {
	n := copy(p, r.left)
	r.left = r.left[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// mine are the keys that kshare answers itself, wholly or in part.
func mine(key int16) bool {
	switch key {
	case 3, 9, 10, 11, 15, 16, 21, 32, 33, 42, 44, 60, 68, 69, 74, 76, 77, 78, 79, 90, 91, 92:
		return true
	}
	return false
}

// fill names the world's group where a share request names one, so that it would be served.
func fill(req kmsg.Request, w *world) {
	id := w.unique()
	switch req := req.(type) {
	case *kmsg.ShareGroupHeartbeatRequest:
		req.GroupID, req.MemberID, req.SubscribedTopicNames = w.group, id, []string{w.main.name}
	case *kmsg.ShareFetchRequest:
		req.GroupID, req.MemberID = &w.group, &id
		carry(req, w.p(0))
	case *kmsg.ShareAcknowledgeRequest:
		req.GroupID, req.MemberID = &w.group, &id
	case *kmsg.ShareGroupDescribeRequest:
		req.GroupIDs = []string{w.group}
	case *kmsg.FindCoordinatorRequest:
		req.CoordinatorType, req.CoordinatorKeys = 2, []string{w.group + ":" + base64ID(w.main.id) + ":0"}
	}
}

func (w *world) versions(c *conn) *kmsg.ApiVersionsResponse {
	w.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, "conformance", "1"
	resp := ask[*kmsg.ApiVersionsResponse](w, c, req)
	w.code("ApiVersions", resp.ErrorCode, nil)
	return resp
}

func (w *world) shakes(c *conn, mechanism string) *kmsg.SASLHandshakeResponse {
	w.Helper()
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.Version, req.Mechanism = 1, mechanism
	return ask[*kmsg.SASLHandshakeResponse](w, c, req)
}

func TestWrongLoginsAreRefused(t *testing.T) {
	w := enter(t, setup{secured: true})
	for what, message := range map[string][]byte{
		"wrong password": plainly("alice", "bobs-secret"), "unknown user": plainly("nobody", "x"), "no password": plainly("alice", ""),
	} {
		c := w.stranger(w.node)
		resp := w.authenticated(c, "PLAIN", message)
		w.code(what, resp.ErrorCode, kerr.SaslAuthenticationFailed)
		if what == "wrong password" {
			w.is("message", w.message(resp.ErrorMessage), "Authentication failed: Invalid username or password")
		}
		w.ends(what, c)
	}
	c := w.stranger(w.node)
	resp := w.shakes(c, "GSSAPI")
	w.code("unknown mechanism", resp.ErrorCode, kerr.UnsupportedSaslMechanism)
	if len(resp.SupportedMechanisms) != 4 {
		t.Fatalf("mechanisms %q", resp.SupportedMechanisms)
	}
	w.ends("unknown mechanism", c)
	c = w.stranger(w.node)
	expired := w.authenticated(c, "OAUTHBEARER", bearer(client.UnsignedToken("alice", -time.Hour)))
	w.code("a token that has ended", expired.ErrorCode, nil) // RFC 7628: the client is told why, and has to confirm that
	w.is("why", string(expired.SASLAuthBytes), `{"status":"invalid_token"}`)
	confirm := kmsg.NewPtrSASLAuthenticateRequest()
	confirm.Version, confirm.SASLAuthBytes = 2, []byte{1}
	w.code("a token that has ended", ask[*kmsg.SASLAuthenticateResponse](w, c, confirm).ErrorCode, kerr.SaslAuthenticationFailed)
	w.ends("a token that has ended", c)
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		err := w.ping(client.Login{Mechanism: mechanism, User: "alice", Password: "not-hers"})
		if !errors.Is(err, kerr.SaslAuthenticationFailed) {
			t.Errorf("%s with a wrong password: %v", mechanism, err)
		}
	}
}

// ping logs in as franz-go does.
func (w *world) ping(l client.Login) error {
	w.Helper()
	opts, err := l.Franz()
	if err != nil {
		w.Fatal(err)
	}
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(w.node), kgo.RequestRetries(0), kgo.DisableClientMetrics())...)
	if err != nil {
		w.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return cl.Ping(ctx)
}

// Consumers and producers of all kinds log in through kshare by all mechanisms.
func TestClientsLogInByAllMechanisms(t *testing.T) {
	w := enter(t, setup{secured: true})
	w.granted("alice", readers(w)...)
	w.granted("alice", onTopic(kmsg.ACLOperationWrite, w.main))
	kinds := map[string]client.Kind{
		"java":   client.Java{Suite: suite, Version: suite.Version("KAFKA_NEW")},
		"franz":  client.Franz{Suite: suite},
		"python": client.Python{Suite: suite},
	}
	mechanisms := map[string][]string{
		"franz": {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"},
		"java":  {"SCRAM-SHA-512", "OAUTHBEARER"}, "python": {"SCRAM-SHA-256", "OAUTHBEARER"},
	}
	w.produce(w.p(0), 5)
	for name, kind := range kinds {
		if full() {
			mechanisms[name] = mechanisms["franz"]
		}
		for _, mechanism := range mechanisms[name] {
			w.within(name+" "+mechanism, func(w *world) {
				w.Parallel()
				w.admin = w.dial(w.tg.bootstrap)
				w.logsIn(kind, mechanism)
			})
		}
	}
}

func (w *world) logsIn(kind client.Kind, mechanism string) {
	w.Helper()
	user := "alice"
	login := &client.Login{Mechanism: mechanism, User: user, Password: passwords[user]}
	w.group += "-" + kind.Name() + "-" + strings.ToLower(mechanism)
	w.set(w.group, "share.auto.offset.reset", "earliest")
	w.granted(user, onGroup(opRead, w.group))
	c := w.consumesAll(kind, client.Config{Name: w.group, Bootstrap: w.tg.bootstrap, Group: w.group, Topic: w.main.name, Explicit: true, Login: login}, 5)
	if d, ok := c.(*client.Driver); ok && kind.Name() == "java" {
		config := login.Java()
		config["bootstrap.servers"] = w.tg.bootstrap
		if n, err := d.ProduceOrdinary(w.main.name, 1, config); err != nil || n != 1 {
			w.Errorf("%d records produced: %v", n, err)
		}
	}
	if err := c.Close(); err != nil {
		w.Error(err)
	}
}

// consumesAll starts a consumer, which gets and accepts so many records.
func (w *world) consumesAll(kind client.Kind, config client.Config, n int) client.ShareClient {
	w.Helper()
	c, err := kind.Start(config)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(c.Kill)
	got := 0
	w.until("records", 40*time.Second, func() error {
		records, err := c.Poll(5 * time.Second)
		if err != nil {
			w.Fatal(err)
		}
		for _, r := range records {
			if err := c.Ack(r, client.Accept); err != nil {
				w.Fatal(err)
			}
		}
		if failed, err := c.Commit(); err != nil || len(failed) > 0 {
			w.Fatalf("commit: %v %v", failed, err)
		}
		if got += len(records); got < n {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
	return c
}
