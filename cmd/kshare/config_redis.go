package main

import (
	"errors"
	"net/url"
	"slices"
	"strings"
)

// redisConfig is how to get into Redis where its URL does not say it all.
type redisConfig struct {
	File          string // holds the URL
	Username      string
	Password      secretValue
	CA, Cert, Key string // files
}

var redisSettings = slices.Concat(
	[]setting{
		textSetting("redis-file", "FILE", "file that holds redis, the URL; its user and password are read again for each connection",
			func(c *Config) *string { return &c.RedisAccess.File }),
		textSetting("redis-username", "NAME", "Redis' ACL user, if the URL has none",
			func(c *Config) *string { return &c.RedisAccess.Username }),
	},
	secretSettings("redis-password", "its password, if the URL has none", func(c *Config) *secretValue { return &c.RedisAccess.Password }),
	[]setting{
		textSetting("redis-tls-ca", "FILE", "PEM file of the authorities to trust in Redis' certificate; those of the system if not given",
			func(c *Config) *string { return &c.RedisAccess.CA }),
		textSetting("redis-tls-cert", "FILE", "PEM file of the certificate that kshare shows to Redis",
			func(c *Config) *string { return &c.RedisAccess.Cert }),
		textSetting("redis-tls-key", "FILE", "PEM file of its private key",
			func(c *Config) *string { return &c.RedisAccess.Key }),
	})

// validateRedis checks the redis-* keys against each other, as far as that goes without reading files.
func (c *Config) validateRedis() error {
	a := &c.RedisAccess
	fail := func(key, problem string) error {
		return &configError{key: key, source: c.origin[key], problem: problem}
	}
	if err := c.validateSecret("redis-password", a.Password); err != nil {
		return err
	}
	if err := c.validatePair("redis-tls-cert", "redis-tls-key"); err != nil {
		return err
	}
	switch {
	case a.File != "" && c.origin["redis"] != "":
		return fail("redis-file", "redis is given too (from "+c.origin["redis"]+"), leave one of them away")
	case a.Username != "" && !a.Password.given():
		return fail("redis-username", "needs redis-password or redis-password-file")
	case a.File != "":
		return nil // the rest when the URL is known
	}
	return c.validateRedisURL(c.Redis)
}

// validateRedisURL checks the keys against the URL, of which it quotes nothing.
func (c *Config) validateRedisURL(v redisURL) error {
	u, err := url.Parse(string(v))
	if err != nil {
		return &configError{key: "redis", source: c.origin["redis"], problem: errNoURL.Error()}
	}
	for _, key := range []string{"redis-tls-ca", "redis-tls-cert", "redis-tls-key"} {
		if c.given(key) && u.Scheme != "rediss" {
			return &configError{key: key, source: c.origin[key], problem: "is of use only with a rediss:// URL, write that or leave this away"}
		}
	}
	for _, key := range []string{"redis-username", "redis-password", "redis-password-file"} {
		if c.given(key) && u.User != nil {
			return &configError{key: key, source: c.origin[key], problem: "the URL has a user or a password too, leave one of them away"}
		}
	}
	return nil
}

var errNoURL = errors.New("not a URL, write redis://[user:password@]host:port[/db] and percent-encode special characters of the password")

// redisWarnings are what is risky about how Redis' password is given.
func (c *Config) redisWarnings() []string {
	if u, err := url.Parse(string(c.Redis)); err == nil && strings.HasPrefix(c.origin["redis"], "flag ") {
		if _, given := u.User.Password(); given {
			return []string{"the password in --redis can be seen by other users of the machine; use KSHARE_REDIS, redis-file or redis-password-file"}
		}
	}
	return nil
}
