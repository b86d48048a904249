package main

import (
	"strings"
	"testing"
)

// loginValues and loginNeeds are a value of each login-* key, and the flags without which it is of no use.
var (
	loginValues = map[string]string{
		"login-mechanism": "SCRAM-SHA-512", "login-username": "u", "login-password": "p", "login-password-file": "/run/p",
		"login-token-file": "/run/t", "login-oauth-url": "https://sso/token", "login-oauth-client-id": "c", "login-oauth-client-secret": "s",
		"login-oauth-client-secret-file": "/run/s", "login-oauth-scope": "kafka more", "login-tls-cert": "/etc/c.pem", "login-tls-key": "/etc/k.pem",
	}
	loginNeeds = map[string][]string{
		"login-mechanism":                {"--login-username=u", "--login-password-file=f"},
		"login-username":                 {"--login-mechanism=PLAIN", "--login-password-file=f"},
		"login-password":                 {"--login-mechanism=PLAIN", "--login-username=u"},
		"login-password-file":            {"--login-mechanism=PLAIN", "--login-username=u"},
		"login-token-file":               {"--login-mechanism=OAUTHBEARER"},
		"login-oauth-url":                {"--login-mechanism=OAUTHBEARER", "--login-oauth-client-id=c", "--login-oauth-client-secret-file=f"},
		"login-oauth-client-id":          {"--login-mechanism=OAUTHBEARER", "--login-oauth-url=https://h/t", "--login-oauth-client-secret-file=f"},
		"login-oauth-client-secret":      {"--login-mechanism=OAUTHBEARER", "--login-oauth-url=https://h/t", "--login-oauth-client-id=c"},
		"login-oauth-client-secret-file": {"--login-mechanism=OAUTHBEARER", "--login-oauth-url=https://h/t", "--login-oauth-client-id=c"},
		"login-oauth-scope":              {"--login-mechanism=OAUTHBEARER", "--login-oauth-url=https://h/t", "--login-oauth-client-id=c", "--login-oauth-client-secret-file=f"},
		"login-tls-cert":                 {"--upstream-tls=true", "--login-tls-key=k"},
		"login-tls-key":                  {"--upstream-tls=true", "--login-tls-cert=c"},
	}
)

func TestSecretsAreNoFlags(t *testing.T) {
	seen := 0
	for _, s := range settings {
		if !s.noFlag {
			continue
		}
		seen++
		for _, args := range [][]string{{"--" + s.key + "=s3cr3t"}, {"-" + s.key, "s3cr3t"}, {"--" + s.key, "s3cr3t", "--listen=a:1"}} {
			_, err := load(from(args, nil, ""), nil)
			if !asConfigError(err) {
				t.Errorf("%v: %v", args, err)
				continue
			}
			for _, part := range []string{s.key + ": must not be a flag", s.env(), s.key + "-file"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("the secret is shown: %v", err)
			}
		}
	}
	if seen == 0 {
		t.Error("there are no secrets")
	}
}

func TestMistakesOfALoginNameTheKeys(t *testing.T) {
	scram, bearer := []string{"--login-mechanism=SCRAM-SHA-256"}, []string{"--login-mechanism=OAUTHBEARER"}
	for _, c := range []struct {
		name string
		in   inputs
		want []string // parts of the message
	}{
		{"mechanism", from([]string{"--login-mechanism=GSSAPI"}, nil, ""), []string{"login-mechanism:", `"GSSAPI" is no mechanism`, "SCRAM-SHA-512"}},
		{"nothing else", from(scram, nil, ""), []string{"login-mechanism:", "needs login-username, and login-password or login-password-file", "flag --login-mechanism"}},
		{"no password", from(append(scram, "--login-username=u"), nil, ""), []string{"needs login-password or login-password-file"}},
		{"no user", from(scram, []string{"KSHARE_LOGIN_PASSWORD=p"}, ""), []string{"SCRAM-SHA-256 needs login-username (from"}},
		{"no mechanism", from(nil, nil, "login: {username: u, password: p}"), []string{"login-username:", "only with login-mechanism PLAIN or SCRAM", "kshare.yaml:1"}},
		{"password twice", from(append(scram, "--login-username=u", "--login-password-file=f"), []string{"KSHARE_LOGIN_PASSWORD=p"}, ""),
			[]string{"login-password-file:", "login-password is given too", "KSHARE_LOGIN_PASSWORD", "leave one"}},
		{"no token", from(bearer, nil, ""), []string{"OAUTHBEARER needs login-token-file or login-oauth-url"}},
		{"half a grant", from(append(bearer, "--login-oauth-scope=s"), nil, ""),
			[]string{"OAUTHBEARER needs login-oauth-url, and login-oauth-client-id, and login-oauth-client-secret or login-oauth-client-secret-file"}},
		{"token and grant", from(append(bearer, "--login-token-file=f", "--login-oauth-url=https://h/t", "--login-oauth-client-id=c", "--login-oauth-client-secret-file=f"), nil, ""),
			[]string{"either in login-token-file or comes from login-oauth-url"}},
		{"token of PLAIN", from([]string{"--login-mechanism=PLAIN", "--login-token-file=f"}, nil, ""), []string{"login-token-file:", "only with login-mechanism OAUTHBEARER"}},
		{"token endpoint", from([]string{"--login-oauth-url=sso.example.org"}, nil, ""), []string{"login-oauth-url:", "https://host/path"}},
		{"secret in the URL", from([]string{"--login-oauth-url=https://c:p@h/t"}, nil, ""), []string{"login-oauth-url:", "login-oauth-client-secret"}},
		{"AWS without TLS", from([]string{"--login-mechanism=AWS_MSK_IAM"}, nil, ""), []string{"login-mechanism:", "upstream-tls: true"}},
		{"what check shows", from(append(scram, "--login-username=u"), []string{"KSHARE_LOGIN_PASSWORD=(secret)"}, ""), []string{"login-password:", "kshare check"}},
		{"certificate without key", from([]string{"--upstream-tls=true", "--login-tls-cert=c"}, nil, ""), []string{"login-tls-cert:", "login-tls-key"}},
		{"key without certificate", from([]string{"--upstream-tls=true", "--login-tls-key=k"}, nil, ""), []string{"login-tls-key:", "login-tls-cert"}},
		{"certificate without TLS", from([]string{"--login-tls-cert=c", "--login-tls-key=k"}, nil, ""), []string{"login-tls-cert:", "upstream-tls: true"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mistake(t, c.in, c.want)
		})
	}
}
