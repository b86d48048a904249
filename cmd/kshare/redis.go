package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"kshare/proxy/certs"
	"kshare/proxy/login"
	"kshare/sharestate/statelog"
)

// connectRedis makes the client for Redis, without dialling yet; c.Redis is the URL in use afterwards.
func (c *Config) connectRedis(log zerolog.Logger) (redis.UniversalClient, error) {
	if err := probeFile("redis-password-file", c.RedisAccess.Password.File); err != nil {
		return nil, err
	}
	if file := c.RedisAccess.File; file != "" {
		if err := probeFile("redis-file", file); err != nil {
			return nil, err
		}
		var err error
		if c.Redis, err = redisURLIn(file); err != nil {
			return nil, &configError{key: "redis-file", problem: file + ": " + err.Error()}
		}
		if err := c.validateRedisURL(c.Redis); err != nil {
			return nil, err
		}
	}
	access := statelog.Access{Credentials: c.redisCredentials()}
	if strings.HasPrefix(string(c.Redis), "rediss:") {
		a := &c.RedisAccess
		dialer, err := certs.NewDialer(certs.Files{CA: a.CA, Cert: a.Cert, Key: a.Key}, 0, log) // dial_timeout bounds it
		if err != nil {
			return nil, &configError{key: "redis-tls-ca, redis-tls-cert, redis-tls-key", problem: err.Error()}
		}
		access.Dial = dialer.DialContext
	}
	client, err := access.Connect(string(c.Redis))
	if err != nil {
		return nil, &configError{key: "redis", problem: strings.TrimPrefix(err.Error(), "redis: ")}
	}
	return client, nil
}

// redisCredentials is nil where those in the URL stay as they are.
func (c *Config) redisCredentials() func(context.Context) (username, password string, err error) {
	a := c.RedisAccess
	switch {
	case a.Password.given():
		password := a.Password.source()
		return func(context.Context) (string, string, error) {
			p, err := password()
			return a.Username, p, err
		}
	case a.File != "":
		return func(context.Context) (string, string, error) {
			v, err := redisURLIn(a.File)
			if err != nil {
				return "", "", fmt.Errorf("%s: %w", a.File, err)
			}
			u, err := url.Parse(string(v))
			if err != nil || u.User == nil {
				return "", "", nil //nolint:nilerr // redisURLIn has parsed it
			}
			p, _ := u.User.Password()
			return u.User.Username(), p, nil
		}
	}
	return nil
}

// redisURLIn reads a URL from a file; its errors quote nothing of it.
func redisURLIn(file string) (redisURL, error) {
	v, err := login.File(file)()
	if err != nil {
		return "", err
	}
	return redisURL(v), checkRedisURL(v)
}

// redisKeys names the keys to look at when Redis refuses the login.
func (c *Config) redisKeys() string {
	for _, key := range []string{"redis-file", "redis-password-file", "redis-password"} {
		if c.given(key) && c.given("redis-username") {
			return "redis-username and " + key
		}
		if c.given(key) {
			return key
		}
	}
	return "the user and password in redis, or redis-username and redis-password"
}
