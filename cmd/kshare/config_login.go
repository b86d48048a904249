package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"

	"kshare/proxy/login"
)

// loginConfig is how kshare itself logs in to the brokers. Clients' connections have nothing of it.
type loginConfig struct {
	Mechanism string
	Username  string
	Password  secretValue
	Cert, Key string // files of the certificate that kshare shows to brokers
}

var loginSettings = slices.Concat(
	[]setting{
		{key: "login-mechanism", arg: "NAME", meaning: "how kshare itself logs in to the brokers, with SASL: " + strings.Join(mechanismNames(), ", "),
			set: func(c *Config, v string) (err error) { c.Login.Mechanism, err = parseMechanism(v); return err },
			get: func(c *Config) string { return c.Login.Mechanism }},
		{key: "login-username", arg: "NAME", meaning: "user of PLAIN and SCRAM",
			set: func(c *Config, v string) error { c.Login.Username = v; return nil },
			get: func(c *Config) string { return c.Login.Username }},
	},
	secretSettings("login-password", "password of PLAIN and SCRAM", func(c *Config) *secretValue { return &c.Login.Password }),
	[]setting{
		{key: "login-tls-cert", arg: "FILE", meaning: "PEM file of the certificate that kshare shows to brokers on its own connections (mTLS)",
			set: func(c *Config, v string) error { c.Login.Cert = v; return nil },
			get: func(c *Config) string { return c.Login.Cert }},
		{key: "login-tls-key", arg: "FILE", meaning: "PEM file of its private key",
			set: func(c *Config, v string) error { c.Login.Key = v; return nil },
			get: func(c *Config) string { return c.Login.Key }},
	})

// mechanism is one way to log in.
type mechanism struct {
	name  string
	needs [][]string // keys that must be given; of each row one
	may   []string   // keys that may be given beside these
	make  func(*loginConfig) sasl.Mechanism
}

var passwordKeys = [][]string{{"login-username"}, {"login-password", "login-password-file"}}

func mechanisms() []mechanism {
	return []mechanism{
		{name: "PLAIN", needs: passwordKeys, make: func(l *loginConfig) sasl.Mechanism { return login.Plain(l.Username, l.Password.source()) }},
		{name: "SCRAM-SHA-256", needs: passwordKeys, make: func(l *loginConfig) sasl.Mechanism { return login.ScramSHA256(l.Username, l.Password.source()) }},
		{name: "SCRAM-SHA-512", needs: passwordKeys, make: func(l *loginConfig) sasl.Mechanism { return login.ScramSHA512(l.Username, l.Password.source()) }},
	}
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

func parseMechanism(v string) (string, error) {
	name := strings.ToUpper(v)
	if _, known := mechanismOf(name); !known {
		return "", fmt.Errorf("%q is no mechanism, give one of %s", v, strings.Join(mechanismNames(), ", "))
	}
	return name, nil
}

// takes says whether the mechanism has a use for a key.
func (m *mechanism) takes(key string) bool {
	return slices.Contains(m.may, key) || slices.ContainsFunc(m.needs, func(row []string) bool { return slices.Contains(row, key) })
}

// validateLogin checks the login-* keys against each other.
func (c *Config) validateLogin() error {
	if err := c.validateSecret("login-password", c.Login.Password); err != nil {
		return err
	}
	m, _ := mechanismOf(c.Login.Mechanism) // of none, the keys below are of no use
	for _, s := range loginSettings {
		if s.get(c) == "" || s.key == "login-mechanism" || strings.HasPrefix(s.key, "login-tls-") || m.takes(s.key) {
			continue
		}
		return &configError{key: s.key, source: c.origin[s.key], problem: "is of use only with login-mechanism " + strings.Join(takers(s.key), " or ")}
	}
	var missing []string
	for _, row := range m.needs {
		if !slices.ContainsFunc(row, c.given) {
			missing = append(missing, strings.Join(row, " or "))
		}
	}
	if len(missing) > 0 {
		return &configError{key: "login-mechanism", source: c.origin["login-mechanism"], problem: m.name + " needs " + strings.Join(missing, ", and ")}
	}
	return c.validateLoginTLS()
}

func (c *Config) validateLoginTLS() error {
	cert, key := "login-tls-cert", "login-tls-key"
	switch {
	case c.Login.Cert != "" && c.Login.Key == "":
		return &configError{key: cert, source: c.origin[cert], problem: "goes together with " + key + ", give both or neither"}
	case c.Login.Key != "" && c.Login.Cert == "":
		return &configError{key: key, source: c.origin[key], problem: "goes together with " + cert + ", give both or neither"}
	case c.Login.Cert != "" && !c.UpstreamTLS:
		return &configError{key: cert, source: c.origin[cert], problem: "is of use only with upstream-tls: true, set that or leave this away"}
	}
	return nil
}

// given says whether a key has a value.
func (c *Config) given(key string) bool {
	s, ok := settingOf(key)
	return ok && s.get(c) != ""
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
	if err := probeSecret("login-password", c.Login.Password); err != nil {
		return nil, err
	}
	return m.make(&c.Login), nil
}

// loginWarnings are what is risky about the login.
func (c *Config) loginWarnings() []string {
	if c.Login.Mechanism == "PLAIN" && !c.UpstreamTLS {
		return []string{"PLAIN without upstream-tls shows kshare's password to everyone between it and the brokers; set upstream-tls, or use SCRAM"}
	}
	return nil
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
