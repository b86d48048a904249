package main

import (
	"strings"
	"testing"
)

// redisValues and redisNeeds are a value of each key of redisSettings, and the flags without which it is of no use.
var (
	redisValues = map[string]string{
		"redis-file": "/run/redis", "redis-username": "u", "redis-password": "p", "redis-password-file": "/run/p",
		"redis-tls-ca": "/etc/ca.pem", "redis-tls-cert": "/etc/c.pem", "redis-tls-key": "/etc/k.pem",
	}
	redisNeeds = map[string][]string{
		"redis-file": nil, "redis-username": {"--redis-password-file=f"}, "redis-password": nil, "redis-password-file": nil,
		"redis-tls-ca":   {"--redis=rediss://h:1"},
		"redis-tls-cert": {"--redis=rediss://h:1", "--redis-tls-key=k"},
		"redis-tls-key":  {"--redis=rediss://h:1", "--redis-tls-cert=c"},
	}
)

func TestMistakesOfRedisAccessNameTheKeys(t *testing.T) {
	for _, c := range []struct {
		name string
		in   inputs
		want []string // parts of the message
	}{
		{"URL twice", from([]string{"--redis-file=f"}, []string{"KSHARE_REDIS=redis://h:1"}, ""), []string{"redis-file:", "redis is given too", "KSHARE_REDIS", "leave one"}},
		{"user without password", from([]string{"--redis-username=u"}, nil, ""), []string{"redis-username:", "redis-password or redis-password-file"}},
		{"password twice", from([]string{"--redis-password-file=f"}, []string{"KSHARE_REDIS_PASSWORD=p"}, ""), []string{"redis-password-file:", "redis-password is given too"}},
		{"password in the URL too", from([]string{"--redis=redis://:s3cr3t@h:1"}, []string{"KSHARE_REDIS_PASSWORD=p"}, ""), []string{"redis-password:", "the URL has a user or a password too"}},
		{"user in the URL too", from([]string{"--redis=redis://u@h:1", "--redis-username=u", "--redis-password-file=f"}, nil, ""), []string{"redis-username:", "the URL has a user"}},
		{"authorities without TLS", from([]string{"--redis-tls-ca=f"}, nil, ""), []string{"redis-tls-ca:", "rediss://"}},
		{"certificate without key", from([]string{"--redis=rediss://h:1", "--redis-tls-cert=f"}, nil, ""), []string{"redis-tls-cert:", "redis-tls-key"}},
		{"key without certificate", from([]string{"--redis=rediss://h:1", "--redis-tls-key=f"}, nil, ""), []string{"redis-tls-key:", "redis-tls-cert"}},
		{"certificate without TLS", from([]string{"--redis-tls-cert=f", "--redis-tls-key=f"}, nil, ""), []string{"redis-tls-cert:", "rediss://"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := mistake(t, c.in, c.want)
			if strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("a password is shown: %v", err)
			}
		})
	}
}
