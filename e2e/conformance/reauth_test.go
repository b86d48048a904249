//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
)

// plainMember is a member whose connection has logged in by PLAIN, for as long as the response says.
func (w *world) plainMember(user string) (*member, time.Duration) {
	w.Helper()
	m := w.member()
	m.c.Close()
	m.c = w.stranger(w.node)
	return m, m.authenticates(user)
}

// authenticates logs in, or does so again, by PLAIN.
func (m *member) authenticates(user string) time.Duration {
	m.w.Helper()
	resp := m.w.authenticated(m.c, "PLAIN", plainly(user, passwords[user]))
	m.w.code("SaslAuthenticate", resp.ErrorCode, nil)
	return time.Duration(resp.SessionLifetimeMillis) * time.Millisecond
}

// KIP-368: a connection whose client authenticates again in time goes on, with its session and what it holds.
func TestSessionOutlivesReauthentications(t *testing.T) {
	w := enter(t, setup{secured: true})
	w.granted("bob", readers(w)...)
	w.produce(w.p(0), 2)
	m, lifetime := w.plainMember("bob")
	if lifetime <= 0 || lifetime > reauth {
		t.Fatalf("session lifetime %v", lifetime)
	}
	m.takes("0-1x1", w.p(0))
	offset, again := int64(2), time.Now().Add(lifetime/2)
	for times := 0; times < 5; {
		w.produce(w.p(0), 1)
		m.takes(fmt.Sprintf("%d-%dx1", offset, offset))
		m.ack(nil, w.p(0), accept(offset, offset))
		offset++
		if time.Now().After(again) {
			m.authenticates("bob")
			times++
			again = time.Now().Add(lifetime / 2)
		}
		m.getsNone() // after half a second
	}
	m.ack(nil, w.p(0), accept(0, 1))
}

// A client that does not is closed at a request after the end, at the latest when what it may do is asked for again.
func TestLoginThatHasEndedClosesTheConnection(t *testing.T) {
	w := enter(t, setup{secured: true})
	w.granted("bob", readers(w)...)
	m, lifetime := w.plainMember("bob")
	began := time.Now()
	m.fetch(w.p(0))
	var err error
	w.until("the connection to end", lifetime+revocation(), func() error {
		var resp kmsg.Response
		if resp, err = m.c.do(m.quickly()); err == nil {
			m.w.code("ShareFetch", resp.(*kmsg.ShareFetchResponse).ErrorCode, nil)
			m.advance(m.epoch)
			return errors.New("still served")
		}
		return nil
	})
	if errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Fatalf("the connection did not end: %v", err)
	}
	if took := time.Since(began); took < lifetime-time.Second {
		t.Fatalf("a login for %v ended after %v", lifetime, took)
	}
	if w.listed(w.group) == "" { // others go on
		t.Fatal("the group is gone")
	}
}

func TestReauthenticationAsAnotherIsRefused(t *testing.T) {
	w := enter(t, setup{secured: true})
	w.granted("bob", readers(w)...)
	for what, as := range map[string]struct {
		mechanism string
		message   []byte
	}{
		"another user":     {"PLAIN", plainly("alice", passwords["alice"])},
		"a wrong password": {"PLAIN", plainly("bob", "not-his")},
	} {
		m, _ := w.plainMember("bob")
		m.fetch(w.p(0))
		resp := w.authenticated(m.c, as.mechanism, as.message)
		w.code(what, resp.ErrorCode, kerr.SaslAuthenticationFailed)
		if what == "another user" && !strings.Contains(w.message(resp.ErrorMessage), "Cannot change principals during re-authentication") {
			t.Fatalf("message %q", *resp.ErrorMessage)
		}
		w.ends(what, m.c)
	}
}

// Clients of all kinds authenticate again by themselves, and lose nothing by it.
func TestClientsOutliveReauthentications(t *testing.T) {
	w := enter(t, setup{secured: true})
	w.granted("alice", readers(w)...)
	for _, kind := range []client.Kind{client.Franz{Suite: suite}, client.Python{Suite: suite}, client.Java{Suite: suite, Version: suite.Version("KAFKA_NEW")}} {
		w.within(kind.Name(), func(w *world) {
			w.Parallel()
			w.group += "-" + kind.Name()
			w.admin = w.dial(w.tg.bootstrap)
			w.outlives(kind)
		})
	}
}

func (w *world) outlives(kind client.Kind) {
	w.Helper()
	w.main = w.createTopic(w.main.name+"-"+kind.Name(), 1, nil)
	w.set(w.group, "share.auto.offset.reset", "earliest")
	w.granted("alice", readers(w)...)
	c, err := kind.Start(client.Config{Name: w.group, Bootstrap: w.tg.bootstrap, Group: w.group, Topic: w.main.name, Explicit: true,
		Login: &client.Login{Mechanism: "PLAIN", User: "alice", Password: passwords["alice"]}})
	if err != nil {
		w.Fatal(err)
	}
	defer c.Kill()
	lifetimes := time.Duration(3)
	if full() {
		lifetimes = 20
	}
	w.produce(w.p(0), 1)
	next, end := int64(0), time.Time{}
	for end.IsZero() || time.Now().Before(end) {
		var records []client.Record
		w.until(fmt.Sprintf("offset %d", next), 40*time.Second, func() error {
			if records, err = c.Poll(time.Second); err != nil {
				w.Fatal(err)
			}
			if len(records) == 0 {
				return errors.New("nothing")
			}
			return nil
		})
		if len(records) != 1 || records[0].Offset != next || records[0].Count != 1 {
			w.Fatalf("%v, want offset %d for the first time", records, next)
		}
		if err := c.Ack(records[0], client.Accept); err != nil {
			w.Fatal(err)
		}
		if failed, err := c.Commit(); err != nil || len(failed) > 0 {
			w.Fatalf("commit of %d: %v %v", next, failed, err)
		}
		if end.IsZero() {
			end = time.Now().Add(lifetimes * reauth)
		}
		next++
		w.produce(w.p(0), 1)
	}
	if err := c.Close(); err != nil {
		w.Error(err)
	}
}
