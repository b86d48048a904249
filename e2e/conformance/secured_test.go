//go:build e2e

package conformance

import (
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// Who is who on a secured target. By OAUTHBEARER there are as many users as a test likes, each with what it is granted.
const (
	superUser   = "admin"
	serviceUser = "kshare-service"
)

// passwords are of the users that log in by PLAIN or SCRAM.
var passwords = map[string]string{
	superUser:   "admins-secret",
	serviceUser: "services-secret",
	"alice":     "alices-secret",
	"bob":       "bobs-secret",
}

// serviceGrants are all that kshare's own user has; the README lists them.
var serviceGrants = []harness.Grant{
	{User: serviceUser, Op: kmsg.ACLOperationRead, Resource: kmsg.ACLResourceTypeTopic, Name: "*"},
	{User: serviceUser, Op: kmsg.ACLOperationDescribe, Resource: kmsg.ACLResourceTypeGroup, Name: "*"},
	{User: serviceUser, Op: kmsg.ACLOperationRead, Resource: kmsg.ACLResourceTypeGroup, Name: "kshare.", Prefixed: true},
	{User: serviceUser, Op: kmsg.ACLOperationDelete, Resource: kmsg.ACLResourceTypeGroup, Name: "kshare.", Prefixed: true},
	{User: serviceUser, Op: kmsg.ACLOperationWrite, Resource: kmsg.ACLResourceTypeTopic, Name: "dlq.", Prefixed: true},
	// Only with errors.deadletterqueue.auto.create.topics.enable.
	{User: serviceUser, Op: kmsg.ACLOperationCreate, Resource: kmsg.ACLResourceTypeTopic, Name: "dlq.", Prefixed: true},
}

// reauth is for how long a login by PLAIN or SCRAM-SHA-512, which is kshare's own, is good on a secured target.
const reauth = 3 * time.Second

// startSecured starts what secured tests share.
var startSecured = sync.OnceValues(func() (*target, error) { return startSecuredTarget(1, openSettings, nil) })

// startSecuredTarget starts brokers with logins; with an authority, kshare goes to them by TLS.
func startSecuredTarget(brokers int, settings map[string]string, tls *harness.Authority) (*target, error) {
	sec := &harness.Security{Users: passwords, Super: []string{superUser}, Reauth: reauth, TLS: tls}
	if native() {
		return startSecuredNative(brokers, settings, sec)
	}
	sec.Service, sec.Grants = serviceUser, serviceGrants
	return startSecuredKshare(brokers, settings, sec)
}

// bearer is what a client that logs in by a token says first.
func bearer(token string) []byte { return []byte("n,,\x01auth=Bearer " + token + "\x01\x01") }

// login authenticates a connection.
func (w *world) login(c *conn, user string) {
	w.Helper()
	if err := c.authenticate("OAUTHBEARER", bearer(client.UnsignedToken(user, time.Hour))); err != nil {
		w.Fatalf("login as %s: %v", user, err)
	}
}

// dialAs connects as a user.
func (w *world) dialAs(user, address string) *conn {
	w.Helper()
	c, err := dial(address)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	w.login(c, user)
	return c
}

// authenticate goes through a mechanism whose client has it all said in one message.
func (c *conn) authenticate(mechanism string, message []byte) error {
	shake := kmsg.NewPtrSASLHandshakeRequest()
	shake.Version, shake.Mechanism = 1, mechanism
	resp, err := c.do(shake)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.(*kmsg.SASLHandshakeResponse).ErrorCode); err != nil {
		return fmt.Errorf("SaslHandshake: %w", err)
	}
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.Version, req.SASLAuthBytes = 2, message
	if resp, err = c.do(req); err != nil {
		return err
	}
	got := resp.(*kmsg.SASLAuthenticateResponse)
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
		return fmt.Errorf("SaslAuthenticate: %w", err)
	}
	return nil
}

// granted gives a user grants.
func (w *world) granted(user string, grants ...harness.Grant) {
	w.Helper()
	if err := w.tg.kafka.Grant(of(user, grants)...); err != nil {
		w.Fatal(err)
	}
}

// revoked takes them back.
func (w *world) revoked(user string, grants ...harness.Grant) {
	w.Helper()
	if err := w.tg.kafka.Revoke(of(user, grants)...); err != nil {
		w.Fatal(err)
	}
}

// of are grants for a user.
func of(user string, grants []harness.Grant) []harness.Grant {
	out := make([]harness.Grant, len(grants))
	for i, g := range grants {
		g.User = user
		out[i] = g
	}
	return out
}

func onTopic(op kmsg.ACLOperation, t topic) harness.Grant {
	return harness.Grant{Op: op, Resource: kmsg.ACLResourceTypeTopic, Name: t.name}
}

func onGroup(op kmsg.ACLOperation, group string) harness.Grant {
	return harness.Grant{Op: op, Resource: kmsg.ACLResourceTypeGroup, Name: group}
}

func onCluster(op kmsg.ACLOperation) harness.Grant {
	return harness.Grant{Op: op, Resource: kmsg.ACLResourceTypeCluster, Name: "kafka-cluster"}
}
