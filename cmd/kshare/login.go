package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"

	"kshare/proxy/login"
)

// mechanism is one way to log in.
type mechanism struct {
	name  string
	keys  []string                        // that it has a use for
	needs func(l *loginConfig) [][]string // keys that must be given: one of each row
	make  func(l *loginConfig) sasl.Mechanism
}

func mechanisms() []mechanism {
	passwordKeys := []string{"login-username", "login-password", "login-password-file"}
	user := func(*loginConfig) [][]string {
		return [][]string{{"login-username"}, {"login-password", "login-password-file"}}
	}
	return []mechanism{
		{"PLAIN", passwordKeys, user, func(l *loginConfig) sasl.Mechanism { return login.Plain(l.Username, l.Password.source()) }},
		{"SCRAM-SHA-256", passwordKeys, user, func(l *loginConfig) sasl.Mechanism { return login.ScramSHA256(l.Username, l.Password.source()) }},
		{"SCRAM-SHA-512", passwordKeys, user, func(l *loginConfig) sasl.Mechanism { return login.ScramSHA512(l.Username, l.Password.source()) }},
		{"OAUTHBEARER", append([]string{"login-token-file"}, grantKeys...), tokenNeeds, bearer},
		{"AWS_MSK_IAM", nil, func(*loginConfig) [][]string { return nil }, func(*loginConfig) sasl.Mechanism { return login.AWS() }},
	}
}

// grantKeys are the keys of the client credentials grant.
var grantKeys = []string{"login-oauth-url", "login-oauth-client-id", "login-oauth-client-secret", "login-oauth-client-secret-file", "login-oauth-scope"}

// tokenNeeds depends on where the token comes from.
func tokenNeeds(l *loginConfig) [][]string {
	if l.OAuthURL+l.OAuthClient+l.OAuthScope != "" || l.OAuthSecret.given() {
		return [][]string{{"login-oauth-url"}, {"login-oauth-client-id"}, {"login-oauth-client-secret", "login-oauth-client-secret-file"}}
	}
	return [][]string{{"login-token-file", "login-oauth-url"}}
}

func bearer(l *loginConfig) sasl.Mechanism {
	if l.TokenFile != "" {
		return login.OAuthToken(login.File(l.TokenFile))
	}
	return login.OAuthClient(login.Client{URL: l.OAuthURL, ID: l.OAuthClient, Secret: l.OAuthSecret.source(), Scopes: strings.Fields(l.OAuthScope)})
}

func mechanismNames() []string {
	var names []string
	for _, m := range mechanisms() {
		names = append(names, m.name)
	}
	return names
}

func mechanismOf(name string) (mechanism, bool) {
	for _, m := range mechanisms() {
		if m.name == name {
			return m, true
		}
	}
	return mechanism{}, false
}

// takes says whether the mechanism has a use for a key.
func (m *mechanism) takes(key string) bool {
	return slices.Contains(m.keys, key)
}

// takers are the mechanisms that have a use for a key.
func takers(key string) []string {
	var names []string
	for _, m := range mechanisms() {
		if m.takes(key) {
			names = append(names, m.name)
		}
	}
	return names
}

// login makes what kshare's own connections log in with, nil for nothing.
func (c *Config) login() (sasl.Mechanism, error) {
	m, ok := mechanismOf(c.Login.Mechanism)
	if !ok {
		return nil, nil
	}
	for _, s := range c.loginSecrets() {
		if err := probeFile(s.key+"-file", s.value.File); err != nil {
			return nil, err
		}
	}
	if err := probeFile("login-token-file", c.Login.TokenFile); err != nil {
		return nil, err
	}
	return m.make(&c.Login), nil
}

// loginWarnings are what is risky about the login.
func (c *Config) loginWarnings() (warnings []string) {
	if what := map[string]string{"PLAIN": "password", "OAUTHBEARER": "token"}[c.Login.Mechanism]; what != "" && !c.UpstreamTLS {
		warnings = append(warnings, fmt.Sprintf("%s without upstream-tls shows kshare's %s to everyone between it and the brokers; set upstream-tls, or use SCRAM",
			c.Login.Mechanism, what))
	}
	if strings.HasPrefix(c.Login.OAuthURL, "http:") {
		warnings = append(warnings, "login-oauth-url without TLS shows kshare's client secret to everyone between it and the token server; use https://")
	}
	return warnings
}

// loginKeys names the keys to look at when a login is refused: those given, or the first one.
func (c *Config) loginKeys() string {
	keys := []string{"login-mechanism"}
	for _, s := range loginSettings {
		if s.key != "login-mechanism" && c.given(s.key) {
			keys = append(keys, s.key)
		}
	}
	return strings.Join(keys, ", ")
}
