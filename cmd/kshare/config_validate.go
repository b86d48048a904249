package main

import (
	"maps"
	"net"
	"slices"
	"strings"

	"kshare/coordinator"
	"kshare/proxy"
	"kshare/proxy/upstream"
)

// validate checks what no single key can know: the packages' own rules, and keys against each other.
func (c *Config) validate() error {
	if c.Listen == c.HTTP && !strings.HasSuffix(c.HTTP, ":0") {
		return &configError{key: "http", problem: "is the same address as listen, give another port"}
	}
	if c.Pprof != "" && (c.Pprof == c.HTTP || c.Pprof == c.Listen) && !strings.HasSuffix(c.Pprof, ":0") {
		return &configError{key: "pprof", source: c.origin["pprof"], problem: "is the same address as http or listen, give another port"}
	}
	if _, err := c.broker(); err != nil {
		return err
	}
	if c.UpstreamCA != "" && !c.UpstreamTLS {
		return &configError{key: "upstream-tls-ca", source: c.origin["upstream-tls-ca"], problem: "is of use only with upstream-tls: true, set that or leave this away"}
	}
	if err := c.validateListenTLS(); err != nil {
		return err
	}
	if err := c.validateLogin(); err != nil {
		return err
	}
	if err := c.validateRedis(); err != nil {
		return err
	}
	if err := c.proxy().Validate(); err != nil {
		key, problem, _ := strings.Cut(err.Error(), ": ")
		return &configError{key: key, source: c.origin[key], problem: problem}
	}
	if err := c.upstream().Validate(); err != nil {
		return &configError{problem: err.Error()} // it names the key itself
	}
	return nil
}

// given says whether a key has a value.
func (c *Config) given(key string) bool {
	s, ok := settingOf(key)
	return ok && s.get(c) != ""
}

// validatePair refuses a certificate without its private key, and a key without its certificate.
func (c *Config) validatePair(cert, key string) error {
	switch {
	case c.given(cert) && !c.given(key):
		return &configError{key: cert, source: c.origin[cert], problem: "goes together with " + key + ", give both or neither"}
	case c.given(key) && !c.given(cert):
		return &configError{key: key, source: c.origin[key], problem: "goes together with " + cert + ", give both or neither"}
	}
	return nil
}

// broker is the broker-level share settings, defaults included.
func (c *Config) broker() (coordinator.BrokerConfig, error) {
	b := coordinator.DefaultBrokerConfig()
	for _, name := range slices.Sorted(maps.Keys(c.BrokerConfig)) {
		if err := b.Set(name, c.BrokerConfig[name]); err != nil {
			return b, &configError{key: "broker-config", source: c.origin[name], problem: err.Error() + brokerSuggestion(&b, name)}
		}
	}
	if err := b.Validate(); err != nil {
		return b, &configError{key: "broker-config", problem: err.Error()}
	}
	return b, nil
}

// brokerSuggestion helps with a mistyped name; a known name has another problem.
func brokerSuggestion(b *coordinator.BrokerConfig, name string) string {
	var known []string
	for _, s := range b.All() {
		if s.Key == name {
			return ""
		}
		known = append(known, s.Key)
	}
	if best := nearest(name, known); best != "" {
		return `, did you mean "` + best + `"?`
	}
	return ", `kshare check` lists all names"
}

func (c *Config) proxy() proxy.Config {
	return proxy.Config{
		Upstream: c.Upstream, Listen: c.Listen, Advertise: c.Advertise, NodePorts: int32(c.NodePorts), // #nosec G115 -- a port
		MaxFrame: int32(c.MaxFrame), Drain: c.Drain, TLS: c.ListenTLS.proxy(), Limits: c.Limits, // #nosec G115 -- 1 GiB at most
	}
}

func (c *Config) upstream() upstream.Config {
	return upstream.Config{Seeds: c.Upstream, CacheBytes: c.CacheBytes}
}

// bootstrap is the address that clients start from, as far as this replica knows.
func (c *Config) bootstrap() string {
	host, _, err := net.SplitHostPort(c.Listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || (ip != nil && ip.IsUnspecified())) {
		return net.JoinHostPort(c.Advertise, c.clientPort())
	}
	return c.Listen
}
