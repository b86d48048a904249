package login

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// OAuthToken logs in with OAUTHBEARER and a token that someone else keeps fresh, mostly in a file.
func OAuthToken(token Secret) sasl.Mechanism {
	return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
		text, err := token()
		if err != nil {
			return oauth.Auth{}, noCredentials(err)
		}
		return oauth.Auth{Token: text}, nil
	})
}

// Client is what a token server knows kshare by.
type Client struct {
	URL    string // of the server's token endpoint
	ID     string
	Secret Secret
	Scopes []string
}

// grantTime bounds one question to a token server.
const grantTime = 10 * time.Second

// OAuthClient logs in with OAUTHBEARER and a token that it asks a server for by the client credentials grant (RFC 6749,
// section 4.4). A token serves all connections until a tenth of its life is left, or a broker refuses it.
func OAuthClient(c Client) sasl.Mechanism {
	return &granted{secret: c.Secret, grant: clientcredentials.Config{ClientID: c.ID, TokenURL: c.URL, Scopes: c.Scopes}}
}

// granted keeps the latest token.
type granted struct {
	secret Secret

	mu    sync.Mutex // held while asking, so that all who want a token wait for the same
	grant clientcredentials.Config
	token string
	until time.Time // when another one is asked for
}

func (*granted) Name() string { return "OAUTHBEARER" }

func (g *granted) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	token, err := g.latest(ctx)
	if err != nil {
		return nil, nil, noCredentials(err)
	}
	session, first, err := oauth.Auth{Token: token}.AsMechanism().Authenticate(ctx, host)
	return grantedSession{session, func() { g.forget(token) }}, first, err
}

func (g *granted) latest(ctx context.Context) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token != "" && time.Now().Before(g.until) {
		return g.token, nil
	}
	secret, err := g.secret()
	if err != nil {
		return "", err
	}
	g.grant.ClientSecret = secret
	ctx, cancel := context.WithTimeout(ctx, grantTime)
	defer cancel()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }} // the secret is for that server alone
	token, err := g.grant.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		return "", fmt.Errorf("the token server: %w", plainly(err))
	}
	g.token, g.until = token.AccessToken, token.Expiry.Add(-time.Until(token.Expiry)/10) // at once, if it does not tell
	return g.token, nil
}

// forget drops a token, if it has not been replaced yet.
func (g *granted) forget(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token == token {
		g.token = ""
	}
}

// plainly is a token server's error without the body of its answer, which may repeat what it was sent, and without its URL.
func plainly(err error) error {
	var answer *oauth2.RetrieveError
	var transport *url.Error
	switch {
	case errors.As(err, &answer) && answer.ErrorCode != "":
		return fmt.Errorf("%s (%s)", answer.ErrorCode, answer.Response.Status)
	case errors.As(err, &answer):
		return errors.New(answer.Response.Status)
	case errors.As(err, &transport):
		return transport.Err
	}
	return err
}

// grantedSession notices that a broker refuses the token.
type grantedSession struct {
	sasl.Session
	refused func()
}

func (s grantedSession) Challenge(answer []byte) (done bool, next []byte, err error) {
	if len(answer) > 0 { // what is wrong with the token (RFC 7628, section 3.2.2)
		s.refused()
	}
	return s.Session.Challenge(answer)
}
