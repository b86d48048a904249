package main

import (
	"strconv"
	"time"

	"kshare/proxy"
	"kshare/proxy/serve"
)

// limitsConfig is what an operator can set about how much clients may take.
type limitsConfig struct {
	proxy.Limits
	MaxWaitingFetches int
}

func defaultLimits() limitsConfig {
	return limitsConfig{Limits: proxy.Limits{}.WithDefaults(), MaxWaitingFetches: serve.DefaultMaxWaitingFetches}
}

// limitSettings are the keys of limitsConfig.
var limitSettings = []setting{
	{key: "max-connections", arg: "NUMBER", meaning: "client connections served at a time; further ones wait until one ends",
		set: intInto(func(c *Config) *int { return &c.MaxConnections }, 1, 1_000_000, "a number of connections"),
		get: func(c *Config) string { return strconv.Itoa(c.MaxConnections) }},
	{key: "max-connections-per-address", arg: "NUMBER", meaning: "connections of one client address; further ones are closed at once. 0 = any number. Behind a balancer all clients may have one address",
		set: intInto(func(c *Config) *int { return &c.MaxConnectionsPerAddress }, 0, 1_000_000, "a number of connections"),
		get: func(c *Config) string { return strconv.Itoa(c.MaxConnectionsPerAddress) }},
	{key: "max-in-flight", arg: "NUMBER", meaning: "requests of one connection that may await their responses before no more are read",
		set: intInto(func(c *Config) *int { return &c.MaxInFlight }, 1, 10_000, "a number of requests"),
		get: func(c *Config) string { return strconv.Itoa(c.MaxInFlight) }},
	{key: "max-waiting-fetches", arg: "NUMBER", meaning: "ShareFetch requests that wait for records at a time; further ones look for records when they come and when their time is over",
		set: intInto(func(c *Config) *int { return &c.MaxWaitingFetches }, 1, 1_000_000, "a number of requests"),
		get: func(c *Config) string { return strconv.Itoa(c.MaxWaitingFetches) }},
	{key: "auth-timeout", arg: "DURATION", meaning: "time for a new connection to log in; where brokers want no login, to send its first request",
		set: durationInto(func(c *Config) *time.Duration { return &c.AuthTimeout }, time.Second, time.Hour),
		get: func(c *Config) string { return c.AuthTimeout.String() }},
	{key: "frame-timeout", arg: "DURATION", meaning: "time for a request to arrive once it has begun, and a second more for each 16 KiB of it",
		set: durationInto(func(c *Config) *time.Duration { return &c.FrameTimeout }, time.Second, time.Hour),
		get: func(c *Config) string { return c.FrameTimeout.String() }},
	{key: "stall-timeout", arg: "DURATION", meaning: "how long a client may leave a response unread; consumers do so for up to their max.poll.interval.ms",
		set: durationInto(func(c *Config) *time.Duration { return &c.StallTimeout }, time.Second, 24*time.Hour),
		get: func(c *Config) string { return c.StallTimeout.String() }},
}
