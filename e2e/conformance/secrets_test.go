//go:build e2e

package conformance

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
)

// What kshare logs, even for debugging, and tells by HTTP has no password and no token in it: neither clients' nor its own.
func TestSecretsAreNotToBeSeen(t *testing.T) {
	if native() {
		t.Skip("about kshare")
	}
	w := enter(t, setup{secured: true})
	wrong, unsigned := "wrong-"+w.unique(), client.UnsignedToken("user-"+w.unique(), time.Hour)
	secrets := map[string]string{"a wrong password": wrong, "a token": unsigned, "a token's claims": strings.Split(unsigned, ".")[1]}
	for name, password := range passwords {
		secrets[name+"'s password"] = password
		secrets[name+"'s password in base64"] = base64.StdEncoding.EncodeToString(plainly(name, password))
	}
	for i := range w.tg.count() {
		w.leavesTraces(w.tg.at(i, w.node), wrong, unsigned)
		var logged []byte
		w.until("a debug line", closing, func() (err error) {
			logged, err = os.ReadFile(w.tg.replicas.Process(i).Log)
			if err == nil && !bytes.Contains(logged, []byte(`"level":"debug"`)) {
				err = errors.New("there is none")
			}
			return err
		})
		seen := map[string][]byte{"the log": logged}
		for _, path := range []string{"/metrics", "/readyz", "/livez", "/debug/pprof/cmdline"} {
			resp, err := http.Get(w.tg.replicas.HTTP(i) + path)
			if err != nil {
				t.Fatal(err)
			}
			if seen[path], err = io.ReadAll(resp.Body); err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		for where, text := range seen {
			for what, secret := range secrets {
				if bytes.Contains(text, []byte(secret)) {
					t.Errorf("%s of replica %d has %s", where, i, what)
				}
			}
		}
	}
}

// leavesTraces logs in by right and by wrong, and has a request refused, over connections that end.
func (w *world) leavesTraces(address, wrong, token string) {
	w.Helper()
	var c *conn
	for _, password := range []string{passwords["alice"], wrong} {
		c = w.stranger(address)
		w.authenticated(c, "PLAIN", plainly("alice", password))
		c.Close()
	}
	c = w.stranger(address)
	if err := c.authenticate("OAUTHBEARER", bearer(token)); err != nil {
		w.Fatal(err)
	}
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.SubscribedTopicNames = 1, w.group, w.unique(), []string{w.main.name}
	w.code("heartbeat", ask[*kmsg.ShareGroupHeartbeatResponse](w, c, req).ErrorCode, kerr.GroupAuthorizationFailed)
	c.Close()
}
