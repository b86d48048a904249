package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// secretOf is a value of a secret key, with what must not be shown in it.
func secretOf(key string) (value, secret string) {
	if key == "redis" {
		return "redis://u:s3cr3t@127.0.71.1:7", "s3cr3t"
	}
	return "s3cr3t", "s3cr3t"
}

// hasSecret says whether any secret is given as it is.
func (c *Config) hasSecret() bool {
	return slices.ContainsFunc(settings, func(s setting) bool { return s.noFlag && s.get(c) != "" }) || string(c.Redis) != c.Redis.String()
}

// needsOf are the flags without which a key is of no use; files among them are replaced by one that can be read.
func needsOf(key, file string) []string {
	var flags []string
	for _, flag := range slices.Concat(loginNeeds[key], redisNeeds[key]) {
		flags = append(flags, strings.Replace(flag, "-file=f", "-file="+file, 1))
	}
	return flags
}

// TestNoSecretIsShownByTheConfiguration looks at what a configuration with each of the secrets leads to, alone and with mistakes.
func TestNoSecretIsShownByTheConfiguration(t *testing.T) {
	for _, s := range settings {
		if !s.secret {
			continue
		}
		value, secret := secretOf(s.key)
		needs := needsOf(s.key, "/run/f")
		for _, mistake := range []string{"", "listen: x", "lisen: x", "max-frame: [1]", "- x", "login: {mechanism: none}", "login-username: 'u'", "redis-tls-ca: f", s.key + ": " + value, s.key + ": [" + value + "]",
			s.key + "-file: f", s.key + "x: " + value, "a: *" + value, "a: !!int " + value, "? [" + value, "\t" + value, "%" + value, value, "a: \"" + value} {
			for _, in := range []inputs{
				from(needs, []string{s.env() + "=" + value}, mistake), from(needs, nil, s.key+": "+value+"\n"+mistake), from(append(needs, "--lisen=x"), []string{s.env() + "=" + value}, mistake),
				from(append(needs, s.key+"="+value), nil, mistake), from(append(needs, "--"+s.key, value), nil, mistake), from(append(needs, "--"+s.key+"x", value), nil, mistake),
				from(needs, []string{s.env() + "X=" + value}, mistake),
			} {
				c, err := load(in, nil)
				shown := fmt.Sprint(err)
				if err == nil {
					shown = everythingOf(t, &c)
				}
				if strings.Contains(shown, secret) {
					t.Errorf("%s with %q leads to %s", s.key, mistake, shown)
				}
			}
		}
	}
}

// everythingOf prints a configuration in all ways that a careless line of code may.
func everythingOf(t *testing.T, c *Config) string {
	t.Helper()
	text, err := effectiveYAML(c)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l := zerolog.New(&log)
	l.Info().Interface("config", c).Msg("")
	return string(text) + string(asJSON) + log.String() + fmt.Sprintf("%v %+v %#v", *c, *c, *c)
}

// TestNoSecretIsShownByAProcess runs a replica with each of the secrets, without its cluster and its Redis, as talkative as it can be.
func TestNoSecretIsShownByAProcess(t *testing.T) {
	file := writeFile(t, t.TempDir(), "other", "x")
	n := 40
	for _, s := range settings {
		if !s.secret {
			continue
		}
		n++
		host := fmt.Sprintf("127.0.71.%d", n)
		t.Run(s.key, func(t *testing.T) {
			t.Parallel()
			value, secret := secretOf(s.key)
			args := append([]string{"serve", "--upstream", nowhere, "--log-level=debug", "--pprof", host + ":16060"}, append(on(host), needsOf(s.key, file)...)...)
			if s.key != "redis" && !strings.Contains(strings.Join(args, " "), "--redis=") {
				args = append(args, "--redis=redis://"+nowhere)
			}
			p := startProcess(t, []string{s.env() + "=" + value}, args...)
			eventually(t, 20*time.Second, func() string {
				if strings.Count(p.stderr.String(), "waiting for") < 2 {
					return "less than two lines of log"
				}
				return ""
			})
			seen := p.stdout.String()
			for _, path := range []string{":19080/metrics", ":19080/readyz", ":19080/debug/pprof/", ":16060/debug/pprof/", ":16060/debug/pprof/cmdline", ":16060/debug/pprof/goroutine?debug=2", ":16060/debug/vars", ":16060/metrics"} {
				status, body, err := get("http://" + host + path)
				if err != nil {
					t.Fatal(err)
				}
				wanted := !slices.Contains([]string{":19080/debug/pprof/", ":16060/debug/pprof/cmdline", ":16060/debug/vars", ":16060/metrics"}, path)
				if found := status != 404; found != wanted {
					t.Errorf("%s is answered with %d", path, status)
				}
				seen += body
			}
			p.terminate()
			if code := p.exit(10 * time.Second); code != exitOK {
				t.Errorf("exit code %d after SIGTERM", code)
			}
			seen += p.stderr.String()
			if strings.Contains(seen, secret) {
				t.Errorf("the secret is shown: %s", seen)
			}
		})
	}
}
