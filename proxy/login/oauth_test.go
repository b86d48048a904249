package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
)

// firstMessage is what a client sends first, by RFC 7628, section 3.1: no channel binding, no other identity, the token.
func firstMessage(token string) string { return "n,,\x01auth=Bearer " + token + "\x01\x01" }

func TestATokenFileIsReadAtEachLogin(t *testing.T) {
	name := filepath.Join(t.TempDir(), "token")
	m := OAuthToken(File(name))
	if m.Name() != "OAUTHBEARER" {
		t.Errorf("it is called %s", m.Name())
	}
	if _, _, err := m.Authenticate(context.Background(), "b:1"); !errors.Is(err, ErrNoCredentials) {
		t.Errorf("without a file: %v", err)
	}
	for _, token := range []string{"eyJhbGciOi.one.sig", "two"} {
		write(t, name, token+"\n")
		if _, first, err := m.Authenticate(context.Background(), "b:1"); err != nil || string(first) != firstMessage(token) {
			t.Errorf("%q, %v", first, err)
		}
	}
}

// tokenServer grants numbered tokens to the client kshare with the secret that it wants.
type tokenServer struct {
	*httptest.Server
	inBody bool // takes the secret in the body only, not in the header

	mu      sync.Mutex
	wants   string
	lasts   int // seconds; 0 does not tell
	granted int
	asked   []string // scopes
}

func startTokenServer(t *testing.T) *tokenServer {
	s := &tokenServer{wants: "s3cr3t", lasts: 3600}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *tokenServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, secret, _ := r.BasicAuth()
	if s.inBody {
		id, secret = r.FormValue("client_id"), r.FormValue("client_secret")
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Method != http.MethodPost || r.FormValue("grant_type") != "client_credentials" || id != "kshare" || secret != s.wants {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":"invalid_client","error_description":"%s is wrong"}`, secret)
		return
	}
	s.granted++
	s.asked = append(s.asked, r.FormValue("scope"))
	answer := map[string]any{"access_token": fmt.Sprintf("token-%d", s.granted), "token_type": "Bearer"}
	if s.lasts > 0 {
		answer["expires_in"] = s.lasts
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *tokenServer) mechanism(secret Secret) sasl.Mechanism {
	return OAuthClient(Client{URL: s.URL + "/token", ID: "kshare", Secret: secret, Scopes: []string{"kafka", "read"}})
}

// login begins a login and wants it to show the given token.
func login(t *testing.T, m sasl.Mechanism, token string) sasl.Session {
	t.Helper()
	session, first, err := m.Authenticate(context.Background(), "b:1")
	if err != nil || string(first) != firstMessage(token) {
		t.Fatalf("%q, %v, want %s", first, err, token)
	}
	return session
}

func TestAGrantedTokenServesUntilItIsOldOrRefused(t *testing.T) {
	s := startTokenServer(t)
	m := s.mechanism(Text("s3cr3t"))
	session := login(t, m, "token-1")
	if done, next, err := session.Challenge(nil); !done || next != nil || err != nil {
		t.Errorf("after the broker's yes: %v %q %v", done, next, err)
	}
	login(t, m, "token-1")

	g := m.(*granted)
	if left := time.Until(g.until); left < 53*time.Minute || left > 54*time.Minute {
		t.Errorf("a token of an hour is used for %v", left)
	}
	g.until = time.Now()
	old := login(t, m, "token-2")

	refused := login(t, m, "token-2")
	if done, next, err := refused.Challenge([]byte(`{"status":"invalid_token"}`)); done || string(next) != "\x01" || err != nil {
		t.Errorf("after the broker's no: %v %q %v", done, next, err)
	}
	login(t, m, "token-3")
	if _, _, err := old.Challenge([]byte(`{"status":"invalid_token"}`)); err != nil { // of a token that is replaced already
		t.Error(err)
	}
	login(t, m, "token-3")

	s.lasts = 0
	g.until = time.Now()
	login(t, m, "token-4")
	login(t, m, "token-5") // the server does not say how long one lasts
	if scopes := strings.Join(s.asked, ";"); scopes != strings.Repeat("kafka read;", 4)+"kafka read" {
		t.Errorf("asked for %s", scopes)
	}
}

func TestAClientSecretFileIsReadForEachToken(t *testing.T) {
	for _, inBody := range []bool{false, true} {
		s := startTokenServer(t)
		s.inBody = inBody
		name := filepath.Join(t.TempDir(), "secret")
		write(t, name, "s3cr3t\n")
		m := s.mechanism(File(name))
		login(t, m, "token-1")
		s.wants = "n3w"
		login(t, m, "token-1")
		m.(*granted).until = time.Now()
		if _, _, err := m.Authenticate(context.Background(), "b:1"); !errors.Is(err, ErrNoCredentials) || !strings.Contains(err.Error(), "the token server: invalid_client (401 Unauthorized)") ||
			strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("with an old secret: %v", err)
		}
		write(t, name, "n3w\n")
		login(t, m, "token-2")
	}
}

// TestATokenServersTroubleIsSaidWithoutTheSecret: it may repeat what it was sent.
func TestATokenServersTroubleIsSaidWithoutTheSecret(t *testing.T) {
	var elsewhere int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	t.Cleanup(other.Close)
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"no OAuth": {func(w http.ResponseWriter, r *http.Request) {
			_, secret, _ := r.BasicAuth()
			http.Error(w, secret, http.StatusInternalServerError)
		}, "500 Internal Server Error"},
		"no token": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{}`)
		}, "missing access_token"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, "307"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(c.serve)
			t.Cleanup(s.Close)
			m := OAuthClient(Client{URL: s.URL + "/token?hidden", ID: "kshare", Secret: Text("s3cr3t")})
			_, _, err := m.Authenticate(context.Background(), "b:1")
			if err == nil || !errors.Is(err, ErrNoCredentials) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if text := fmt.Sprint(err); strings.Contains(text, "s3cr3t") || strings.Contains(text, "hidden") {
				t.Errorf("shown: %v", err)
			}
			s.Close()
			if _, _, err := m.Authenticate(context.Background(), "b:1"); err == nil || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "hidden") {
				t.Errorf("with nobody there: %v", err)
			}
		})
	}
	if elsewhere > 0 {
		t.Error("the secret went to another server")
	}
}

func TestALoginDoesNotOutliveItsClient(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	}))
	t.Cleanup(func() { close(release); s.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	m := OAuthClient(Client{URL: s.URL, ID: "kshare", Secret: Text("s3cr3t")})
	if _, _, err := m.Authenticate(ctx, "b:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
