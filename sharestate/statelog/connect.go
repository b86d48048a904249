package statelog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ErrEvicts: Redis is configured to drop keys that have no TTL when it runs out of memory, which would lose state.
var ErrEvicts = errors.New("statelog: Redis may evict keys that have no TTL")

// Access is how to get in where a URL does not say it all. Zero values leave it at the URL.
type Access struct {
	// Dial connects, for a rediss:// URL with the TLS handshake.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Credentials are asked for by each new connection, so that they may be renewed. An empty password is no login.
	Credentials func(ctx context.Context) (username, password string, err error)
}

// Connect makes the client of every kshare process for a URL: redis:// or rediss:// (TLS) with the query options of
// go-redis' ParseURL. Nothing is dialled yet.
func Connect(rawURL string) (redis.UniversalClient, error) { return Access{}.Connect(rawURL) }

// Connect is the function of that name, with this access.
func (a Access) Connect(rawURL string) (redis.UniversalClient, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		var uerr *url.Error
		if errors.As(err, &uerr) {
			err = uerr.Err // the whole error holds the password
		}
		return nil, fmt.Errorf("redis: not a URL: %w", err)
	}
	switch u.Scheme {
	case "redis", "rediss":
	case "redis+sentinel", "redis+cluster":
		return nil, fmt.Errorf("redis: %s:// is not supported yet; use redis:// or rediss://", u.Scheme)
	default:
		return nil, fmt.Errorf("redis: %q is not a known scheme; use redis://host:port/db or rediss://", u.Scheme)
	}
	silence.Do(func() { redis.SetLogger(noLog{}) })
	o, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	o.MaxRetries = -1 // a retried script would run twice; unknown outcomes are settled by fences
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.DisableIdentity = true
	o.DialerRetries = 1
	q := u.Query()
	setDefault := func(name string, d *time.Duration, v time.Duration) {
		if !q.Has(name) {
			*d = v
		}
	}
	setDefault("dial_timeout", &o.DialTimeout, time.Second)
	setDefault("read_timeout", &o.ReadTimeout, 1500*time.Millisecond)
	setDefault("write_timeout", &o.WriteTimeout, 1500*time.Millisecond)
	setDefault("pool_timeout", &o.PoolTimeout, time.Second)
	o.CredentialsProviderContext = a.Credentials
	if a.Dial != nil {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := a.Dial(ctx, network, addr)
			if err != nil {
				return nil, notSent{err}
			}
			return conn, nil
		}
	}
	return redis.NewClient(o), nil
}

// noLog keeps the client's own lines, one for every failed dial, off stderr: a [Store] says when Redis is away.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

var silence sync.Once

// CheckServer looks for settings under which Redis would lose state. An error that wraps [ErrEvicts] names the fix; one
// that wraps [ErrUnavailable] means that Redis does not answer. What could not be found out is a warning.
func CheckServer(ctx context.Context, client redis.UniversalClient) (warnings []string, err error) {
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	policy, known := info(ctx, client, "memory")["maxmemory_policy"]
	switch {
	case !known:
		warnings = append(warnings, "the eviction policy of Redis is not known (INFO memory); it must be noeviction")
	case strings.HasPrefix(policy, "allkeys-"):
		return nil, fmt.Errorf("%w (maxmemory-policy %s): set maxmemory-policy noeviction", ErrEvicts, policy)
	case strings.HasPrefix(policy, "volatile-"):
		warnings = append(warnings, fmt.Sprintf("maxmemory-policy %s lets Redis evict leases when memory is short; noeviction is better", policy))
	}
	if w := persistence(ctx, client); w != "" {
		warnings = append(warnings, w)
	}
	if w := tooOld(info(ctx, client, "server")); w != "" {
		warnings = append(warnings, w)
	}
	return warnings, nil
}

// info returns a section of INFO, nil if the server does not tell.
func info(ctx context.Context, client redis.UniversalClient, section string) map[string]string {
	text, err := client.Info(ctx, section).Result()
	if err != nil {
		return nil
	}
	fields := make(map[string]string)
	for line := range strings.SplitSeq(text, "\n") {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[k] = v
		}
	}
	return fields
}

func persistence(ctx context.Context, client redis.UniversalClient) string {
	aof, known := info(ctx, client, "persistence")["aof_enabled"]
	switch {
	case !known:
		return "whether Redis keeps its data over a restart is not known (INFO persistence)"
	case aof == "1":
		return ""
	}
	save, err := client.ConfigGet(ctx, "save").Result() // blocked on some managed services
	switch {
	case err != nil:
		return "Redis has no append-only file; a restart loses what is not in its last snapshot, and records are delivered again"
	case save["save"] == "":
		return "Redis keeps nothing over a restart (appendonly no, save \"\"): set appendonly yes, or records are delivered again after it"
	}
	return "Redis keeps snapshots only: a restart loses what came after the last one, and records are delivered again; appendonly yes is better"
}

func tooOld(server map[string]string) string {
	version := server["redis_version"]
	if server["valkey_version"] != "" || version == "" {
		return ""
	}
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return ""
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err1 == nil && err2 == nil && (major < 6 || major == 6 && minor < 2) {
		return fmt.Sprintf("Redis %s is older than 6.2, the oldest version that is tested", version)
	}
	return ""
}
