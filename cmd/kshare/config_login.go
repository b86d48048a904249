package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// loginConfig is how kshare itself logs in to the brokers. Clients' connections have nothing of it.
type loginConfig struct {
	Mechanism string
	Username  string
	Password  secretValue

	TokenFile                         string
	OAuthURL, OAuthClient, OAuthScope string
	OAuthSecret                       secretValue

	Cert, Key string // files of the certificate that kshare shows to brokers
}

var loginSettings = slices.Concat(
	[]setting{
		{key: "login-mechanism", arg: "NAME", meaning: "how kshare itself logs in to the brokers, with SASL: " + strings.Join(mechanismNames(), ", "),
			set: func(c *Config, v string) (err error) { c.Login.Mechanism, err = parseMechanism(v); return err },
			get: func(c *Config) string { return c.Login.Mechanism }},
		textSetting("login-username", "NAME", "user of PLAIN and SCRAM",
			func(c *Config) *string { return &c.Login.Username }),
	},
	secretSettings("login-password", "password of PLAIN and SCRAM", func(c *Config) *secretValue { return &c.Login.Password }),
	[]setting{
		textSetting("login-token-file", "FILE", "file that holds the token of OAUTHBEARER, read again at each login",
			func(c *Config) *string { return &c.Login.TokenFile }),
		{key: "login-oauth-url", arg: "URL", meaning: "token endpoint that OAUTHBEARER's tokens are asked of, by the client credentials grant",
			set: func(c *Config, v string) error { c.Login.OAuthURL = v; return checkTokenURL(v) },
			get: func(c *Config) string { return c.Login.OAuthURL }},
		textSetting("login-oauth-client-id", "NAME", "kshare's client id there",
			func(c *Config) *string { return &c.Login.OAuthClient }),
	},
	secretSettings("login-oauth-client-secret", "kshare's client secret there", func(c *Config) *secretValue { return &c.Login.OAuthSecret }),
	[]setting{
		textSetting("login-oauth-scope", "NAMES", "scopes to ask for, with spaces between",
			func(c *Config) *string { return &c.Login.OAuthScope }),
		textSetting("login-tls-cert", "FILE", "PEM file of the certificate that kshare shows to brokers on its own connections (mTLS)",
			func(c *Config) *string { return &c.Login.Cert }),
		textSetting("login-tls-key", "FILE", "PEM file of its private key",
			func(c *Config) *string { return &c.Login.Key }),
	})

// checkTokenURL never quotes the URL.
func checkTokenURL(v string) error {
	u, err := url.Parse(v)
	switch {
	case err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "":
		return errors.New("is no URL of a token endpoint, write https://host/path")
	case u.User != nil:
		return errors.New("must not hold a user or a password, use login-oauth-client-id and login-oauth-client-secret")
	}
	return nil
}

func parseMechanism(v string) (string, error) {
	name := strings.ToUpper(v)
	if _, known := mechanismOf(name); !known {
		return "", fmt.Errorf("%q is no mechanism, give one of %s", v, strings.Join(mechanismNames(), ", "))
	}
	return name, nil
}

// validateLogin checks the login-* keys against each other.
func (c *Config) validateLogin() error {
	for _, s := range c.loginSecrets() {
		if err := c.validateSecret(s.key, s.value); err != nil {
			return err
		}
	}
	m, some := mechanismOf(c.Login.Mechanism)
	for _, s := range loginSettings {
		if s.get(c) == "" || s.key == "login-mechanism" || strings.HasPrefix(s.key, "login-tls-") || m.takes(s.key) {
			continue
		}
		return &configError{key: s.key, source: c.origin[s.key], problem: "is of use only with login-mechanism " + strings.Join(takers(s.key), " or ")}
	}
	if some {
		if err := c.validateMechanism(m); err != nil {
			return err
		}
	}
	return c.validateLoginTLS()
}

func (c *Config) validateMechanism(m mechanism) error {
	var missing []string
	for _, row := range m.needs(&c.Login) {
		if !slices.ContainsFunc(row, c.given) {
			missing = append(missing, strings.Join(row, " or "))
		}
	}
	fail := func(problem string) error {
		return &configError{key: "login-mechanism", source: c.origin["login-mechanism"], problem: problem}
	}
	switch {
	case len(missing) > 0:
		return fail(m.name + " needs " + strings.Join(missing, ", and "))
	case c.Login.TokenFile != "" && c.Login.OAuthURL != "":
		return fail("the token is either in login-token-file or comes from login-oauth-url, leave one of them away")
	case m.name == "AWS_MSK_IAM" && !c.UpstreamTLS:
		return fail("AWS_MSK_IAM needs upstream-tls: true, for AWS takes it with TLS only")
	}
	return nil
}

// namedSecret is a secret with the key of its value.
type namedSecret struct {
	key   string
	value secretValue
}

func (c *Config) loginSecrets() []namedSecret {
	return []namedSecret{{"login-password", c.Login.Password}, {"login-oauth-client-secret", c.Login.OAuthSecret}}
}

func (c *Config) validateLoginTLS() error {
	if err := c.validatePair("login-tls-cert", "login-tls-key"); err != nil {
		return err
	}
	if c.Login.Cert != "" && !c.UpstreamTLS {
		return &configError{key: "login-tls-cert", source: c.origin["login-tls-cert"], problem: "is of use only with upstream-tls: true, set that or leave this away"}
	}
	return nil
}
