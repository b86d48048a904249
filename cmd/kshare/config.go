package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"kshare/proxy"
)

// Config is everything an operator can set. It is filled by load and has one field per key of settings.
type Config struct {
	Upstream     []string // host:port seeds of the Kafka cluster
	Redis        redisURL
	RedisAccess  redisConfig
	RedisPrefix  string        // first part of every Redis key
	RedisLease   time.Duration // a replica silent for longer than this counts as dead
	Listen       string        // host:port of the bootstrap listener; node ports bind on the same host
	Advertise    string        // host that clients are given
	NodePorts    int           // node N is served on NodePorts+N
	HTTP         string        // host:port of /metrics, /livez and /readyz
	Pprof        string        // host:port of the profiler, on loopback
	LogLevel     zerolog.Level
	CacheBytes   int64 // bound of the cache of upstream batches
	Drain        time.Duration
	MaxFrame     int64
	ListenTLS    listenTLS
	UpstreamTLS  bool              // brokers are spoken to with TLS
	UpstreamCA   string            // file of the authorities that brokers' certificates are judged by
	Login        loginConfig       // how kshare itself logs in to the brokers
	BrokerConfig map[string]string // broker-level share settings under Kafka's own names

	limitsConfig

	origin map[string]string // key, or name of a broker-level setting -> where its value comes from, for check and for error messages
}

// setting is one key of the configuration: `--key` as a flag, KSHARE_KEY in the environment, `key:` in YAML.
type setting struct {
	key     string
	arg     string // placeholder in the usage text
	meaning string
	secret  bool // never quote its value
	noFlag  bool // not to be given as a flag, for everyone on a machine sees the flags of its processes
	// set reads a value; its error says what is wrong with the value and what to write instead.
	set func(c *Config, value string) error
	get func(c *Config) string
}

// settings lists all keys in the order in which they are shown.
var settings = slices.Concat(mainSettings, listenTLSSettings, loginSettings, redisSettings, limitSettings, pprofSettings)

var mainSettings = []setting{
	{key: "upstream", arg: "HOST:PORT,...", meaning: "the Kafka cluster to serve: one or more of its brokers",
		set: func(c *Config, v string) (err error) { c.Upstream, err = parseSeeds(v); return err },
		get: func(c *Config) string { return strings.Join(c.Upstream, ",") }},
	{key: "upstream-tls", arg: "BOOL", meaning: "speak TLS with the brokers, for clients as for itself",
		set: boolInto(func(c *Config) *bool { return &c.UpstreamTLS }),
		get: func(c *Config) string { return strconv.FormatBool(c.UpstreamTLS) }},
	textSetting("upstream-tls-ca", "FILE", "PEM file of the authorities to trust in brokers' certificates; those of the system if not given",
		func(c *Config) *string { return &c.UpstreamCA }),
	{key: "redis", arg: "URL", meaning: "where the state of share groups lives: redis://[user:password@]host:port[/db], rediss:// for TLS", secret: true,
		set: func(c *Config, v string) error { c.Redis = redisURL(v); return checkRedisURL(v) },
		get: func(c *Config) string {
			if c.RedisAccess.File != "" {
				return "" // the default would not be true
			}
			return c.Redis.String()
		}},
	{key: "redis-prefix", arg: "NAME", meaning: "first part of every Redis key; replicas that share it (and the cluster) work together",
		set: func(c *Config, v string) error { c.RedisPrefix = v; return checkPrefix(v) },
		get: func(c *Config) string { return c.RedisPrefix }},
	{key: "redis-lease", arg: "DURATION", meaning: "a replica that Redis has not heard of for this long is dead; its clients' records are freed",
		set: durationInto(func(c *Config) *time.Duration { return &c.RedisLease }, time.Second, time.Minute),
		get: func(c *Config) string { return c.RedisLease.String() }},
	{key: "listen", arg: "HOST:PORT", meaning: "bootstrap listener; node ports bind on the same host",
		set: hostPortInto(func(c *Config) *string { return &c.Listen }),
		get: func(c *Config) string { return c.Listen }},
	{key: "advertise", arg: "HOST", meaning: "host that clients are told to connect to",
		set: func(c *Config, v string) error { c.Advertise = v; return checkHost(v) },
		get: func(c *Config) string { return c.Advertise }},
	{key: "node-ports", arg: "PORT", meaning: "node (broker) N is served on this port + N",
		set: intInto(func(c *Config) *int { return &c.NodePorts }, 1, 65535, "a port"),
		get: func(c *Config) string { return strconv.Itoa(c.NodePorts) }},
	{key: "http", arg: "HOST:PORT", meaning: "/metrics, /livez and /readyz",
		set: hostPortInto(func(c *Config) *string { return &c.HTTP }),
		get: func(c *Config) string { return c.HTTP }},
	{key: "cache-bytes", arg: "SIZE", meaning: "bound of the cache of record batches read upstream",
		set: sizeInto(func(c *Config) *int64 { return &c.CacheBytes }, 16<<20, 1<<40),
		get: func(c *Config) string { return formatSize(c.CacheBytes) }},
	{key: "drain", arg: "DURATION", meaning: "how long a stopping replica takes to let its clients go",
		set: durationInto(func(c *Config) *time.Duration { return &c.Drain }, 10*time.Millisecond, time.Hour),
		get: func(c *Config) string { return c.Drain.String() }},
	{key: "max-frame", arg: "SIZE", meaning: "largest request that is accepted from a client",
		set: sizeInto(func(c *Config) *int64 { return &c.MaxFrame }, 1<<16, 1<<30),
		get: func(c *Config) string { return formatSize(c.MaxFrame) }},
	{key: "log-level", arg: "LEVEL", meaning: "debug, info, warn or error; logs are JSON lines on standard error",
		set: func(c *Config, v string) (err error) { c.LogLevel, err = parseLevel(v); return err },
		get: func(c *Config) string { return c.LogLevel.String() }},
	{key: "broker-config", arg: "NAME=VALUE", meaning: "a broker-level share setting under Kafka's own name; may be repeated",
		set: addBrokerConfig,
		get: func(c *Config) string { return joinBrokerConfigs(c.BrokerConfig) }},
}

// settingOf finds a key.
func settingOf(key string) (*setting, bool) {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.key == key })
	if i < 0 {
		return nil, false
	}
	return &settings[i], true
}

// env is the name of the setting's environment variable.
func (s *setting) env() string {
	return "KSHARE_" + strings.ToUpper(strings.ReplaceAll(s.key, "-", "_"))
}

// title is the setting with the placeholder of its value, as it stands in usage texts.
func (s *setting) title() string {
	if s.noFlag {
		return s.key + " " + s.arg
	}
	return "--" + s.key + " " + s.arg
}

// defaults is the configuration of a kshare that is told nothing.
func defaults() Config {
	return Config{
		Upstream:     []string{"127.0.0.1:9092"},
		Redis:        "redis://127.0.0.1:6379/0",
		RedisPrefix:  "kshare",
		RedisLease:   5 * time.Second,
		Listen:       proxy.DefaultListen,
		Advertise:    "127.0.0.1",
		NodePorts:    proxy.DefaultNodePorts,
		HTTP:         "127.0.0.1:19080",
		LogLevel:     zerolog.InfoLevel,
		CacheBytes:   256 << 20,
		Drain:        proxy.DefaultDrain,
		MaxFrame:     proxy.DefaultMaxFrame,
		BrokerConfig: map[string]string{},
		limitsConfig: defaultLimits(),
		origin:       map[string]string{},
	}
}

// configError is a mistake in what the operator gave: one line that names the key and what to do.
type configError struct {
	key     string
	source  string // where the value comes from; empty when it does not matter
	problem string
}

func (e *configError) Error() string {
	text := e.problem
	if e.key != "" {
		text = e.key + ": " + e.problem
	}
	if e.source != "" {
		text += " (from " + e.source + ")"
	}
	return strings.Join(strings.Fields(text), " ") // one line, whatever a library put into the problem
}

// asConfigError says whether err is the operator's mistake, for which the exit code is 2.
func asConfigError(err error) bool {
	var ce *configError
	return errors.As(err, &ce)
}

func parseSeeds(v string) ([]string, error) {
	var seeds []string
	for part := range strings.SplitSeq(v, ",") {
		part = strings.TrimSpace(part)
		if strings.Contains(part, "://") {
			return nil, fmt.Errorf("%q is a URL, write host:port without a scheme", part)
		}
		if err := checkHostPort(part, false); err != nil {
			return nil, err
		}
		seeds = append(seeds, part)
	}
	return seeds, nil
}

func checkHostPort(v string, anyHost bool) error {
	host, port, err := net.SplitHostPort(v)
	if err != nil {
		return fmt.Errorf("%q is not host:port, write for example 127.0.0.1:9092", v)
	}
	if host == "" && !anyHost {
		return fmt.Errorf("%q has no host, write for example 127.0.0.1%s", v, v)
	}
	if host != "" {
		if err := checkHost(host); err != nil {
			return err
		}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 || (n == 0 && !anyHost) {
		return fmt.Errorf("%q has no valid port, give a number from 1 to 65535", v)
	}
	return nil
}

func checkHost(v string) error {
	if v == "" || strings.ContainsAny(v, " \t\r\n/@,\"") || (strings.Contains(v, ":") && net.ParseIP(strings.SplitN(v, "%", 2)[0]) == nil) {
		return fmt.Errorf("%q is not a host, give a name or an IP address without a port", v)
	}
	return nil
}

func checkPrefix(v string) error {
	if v == "" || len(v) > 100 || strings.ContainsAny(v, "{} \t\r\n:*") {
		return fmt.Errorf("%q cannot start Redis keys, give a short name without spaces, colons, stars and braces", v)
	}
	return nil
}

// checkRedisURL never quotes the URL or any part of it, for a password that is not percent-encoded turns up in any part.
func checkRedisURL(v string) error {
	u, err := url.Parse(v)
	switch {
	case err != nil:
		return errNoURL
	case u.Scheme == "redis+sentinel", u.Scheme == "redis+cluster":
		return errors.New("redis+sentinel:// and redis+cluster:// are not supported yet, give the redis:// or rediss:// URL of one server")
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return errors.New("unknown kind of URL, write redis://host:port[/db], or rediss:// for TLS")
	case u.Hostname() == "":
		return errors.New("the URL has no host, write redis://host:port[/db]")
	case u.Fragment != "" || !onlyRedisOptions(u.Query()):
		return errors.New("the URL has an unknown option or a fragment, percent-encode special characters of the password; options are " +
			strings.Join(redisOptions, ", "))
	}
	if db := strings.TrimPrefix(u.Path, "/"); db != "" {
		if n, err := strconv.Atoi(db); err != nil || n < 0 {
			return errors.New("the URL's path is not a database number, write redis://host:port/0 and percent-encode special characters of the password")
		}
	}
	return nil
}

// redisOptions are what may follow the question mark; their meaning and form are those of go-redis.
var redisOptions = []string{
	"client_name", "conn_max_idle_time", "conn_max_lifetime", "dial_timeout", "max_idle_conns", "min_idle_conns", "pool_size", "pool_timeout",
	"protocol", "read_timeout", "write_timeout",
}

func onlyRedisOptions(query url.Values) bool {
	for name := range query {
		if !slices.Contains(redisOptions, name) {
			return false
		}
	}
	return true
}

// redisURL is the URL of a Redis. It may hold a password, which is hidden by whatever prints it.
type redisURL string

func (v redisURL) String() string {
	u, err := url.Parse(string(v))
	if err != nil || checkRedisURL(string(v)) != nil {
		return "(not a Redis URL)"
	}
	return u.Redacted()
}

// GoString is for %#v.
func (v redisURL) GoString() string { return v.String() }

// MarshalText is for JSON, and so for the log.
func (v redisURL) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

func parseLevel(v string) (zerolog.Level, error) {
	for _, level := range []zerolog.Level{zerolog.DebugLevel, zerolog.InfoLevel, zerolog.WarnLevel, zerolog.ErrorLevel} {
		if strings.EqualFold(v, level.String()) {
			return level, nil
		}
	}
	return zerolog.InfoLevel, fmt.Errorf("%q is not a level, give debug, info, warn or error", v)
}

func addBrokerConfig(c *Config, v string) error {
	name, value, ok := strings.Cut(strings.TrimSpace(v), "=")
	if !ok || name == "" {
		return fmt.Errorf("%q is not NAME=VALUE, write for example group.share.delivery.count.limit=7", v)
	}
	c.BrokerConfig[name] = value
	return nil
}

func joinBrokerConfigs(m map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, name+"="+m[name])
	}
	return strings.Join(parts, ",")
}
