package main

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// nowhere is an address that nobody listens on.
const nowhere = "127.0.71.1:7"

// on gives a replica an address of its own, so that default ports do not collide.
func on(host string) []string {
	return []string{"--listen", host + ":19092", "--advertise", host, "--http", host + ":19080"}
}

func serveArgs(host, upstream, redis string, more ...string) []string {
	return append(append([]string{"serve", "--upstream", upstream, "--redis", redis}, on(host)...), more...)
}

// TestMistakesExitWithTwoAndOneLine runs what must not start, as scripts do.
func TestMistakesExitWithTwoAndOneLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.71.2:19092")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	takenHTTP, err := net.Listen("tcp", "127.0.71.3:19080")
	if err != nil {
		t.Fatal(err)
	}
	defer takenHTTP.Close()
	file := filepath.Join(t.TempDir(), "kshare.yaml")
	if err := os.WriteFile(file, []byte("redis-url: redis://:s3cr3t@h\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	redis := "redis://" + startEvictingRedis(t)
	for _, c := range []struct {
		name string
		env  []string
		args []string
		want []string
	}{
		{"unknown flag", nil, []string{"serve", "--lisen=a:1"}, []string{"--lisen", "--listen"}},
		{"unknown variable", []string{"KSHARE_LISEN=a:1"}, []string{"serve"}, []string{"KSHARE_LISEN", "KSHARE_LISTEN"}},
		{"unknown key", nil, []string{"serve", "--config", file}, []string{"redis-url", `"redis"`, file + ":1"}},
		{"unknown key in check", nil, []string{"check", "--config", file}, []string{"redis-url", `"redis"`}},
		{"bad Redis URL", nil, []string{"serve", "--redis=http://h:1"}, []string{"redis:", "redis://host:port"}},
		{"bad upstream", nil, []string{"serve", "--upstream=http://h:1"}, []string{"upstream:", "host:port"}},
		{"port of listen taken", nil, serveArgs("127.0.71.2", nowhere, "redis://"+nowhere), []string{"listen:", "127.0.71.2:19092", "--listen", "KSHARE_LISTEN"}},
		{"port of http taken", nil, serveArgs("127.0.71.3", nowhere, "redis://"+nowhere), []string{"http:", "127.0.71.3:19080", "--http"}},
		{"evicting Redis", nil, serveArgs("127.0.71.4", nowhere, redis), []string{"redis:", "allkeys-lru", "noeviction"}},
		{"no password file", nil, serveArgs("127.0.71.4", nowhere, "redis://"+nowhere, "--login-mechanism=PLAIN", "--login-username=u", "--login-password-file=/nowhere/p"),
			[]string{"login-password-file:", "/nowhere/p: no such file"}},
		{"password as a flag", nil, []string{"serve", "--login-password=s3cr3t"}, []string{"login-password:", "KSHARE_LOGIN_PASSWORD", "login-password-file"}},
		{"dev with a login", []string{"KSHARE_LOGIN_MECHANISM=PLAIN", "KSHARE_LOGIN_USERNAME=u", "KSHARE_LOGIN_PASSWORD=s3cr3t"}, []string{"dev"}, []string{"login-mechanism:", "kshare serve"}},
		{"unknown command", nil, []string{"server"}, []string{`"server"`, "kshare serve"}},
		{"no replicas", nil, []string{"dev", "--replicas=0"}, []string{"replicas:", "1 to 9"}},
		{"replicas in words", nil, []string{"dev", "--replicas=two"}, []string{"replicas:", `"two"`, "1 to 9"}},
		{"dev with an upstream", nil, []string{"dev", "--upstream=a:1"}, []string{"upstream:", "kshare serve"}},
		{"number of replicas", nil, []string{"dev", "--replicas=x"}, []string{"replicas"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startProcess(t, c.env, c.args...)
			if code := p.exit(10 * time.Second); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			text := p.stderr.String()
			if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "kshare: ") || p.stdout.String() != "" {
				t.Errorf("not one line on standard error")
			}
			for _, word := range c.want {
				if !strings.Contains(text, word) {
					t.Errorf("%q does not say %q", text, word)
				}
			}
			if strings.Contains(text, "s3cr3t") {
				t.Error("the password is shown")
			}
		})
	}
}

// TestTakenNodePortExitsWithTwo: which ports are needed is known only once the cluster has answered.
func TestTakenNodePortExitsWithTwo(t *testing.T) {
	redis, brokers := servers(t)
	taken, err := net.Listen("tcp", "127.0.71.9:19101")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "kshare: node-ports: 127.0.71.9:19101 is in use by another process, stop it or give another port with --node-ports or KSHARE_NODE_PORTS\n"},
		{[]string{"--node-ports=65534"}, "kshare: node-ports: the cluster has node 2, and 65534 + 2 is no port, give a lower number with --node-ports or KSHARE_NODE_PORTS\n"},
	} {
		p := startProcess(t, nil, serveArgs("127.0.71.9", brokers[0], redis, append(c.args, "--log-level=error")...)...)
		if code := p.exit(15 * time.Second); code != exitUsage || p.stderr.String() != c.want {
			t.Errorf("exit code %d and %q, want %q", code, p.stderr.String(), c.want)
		}
	}
}

// startEvictingRedis is a Redis that may throw keys away.
func startEvictingRedis(t *testing.T) (address string) {
	t.Helper()
	s, err := server.NewServer("127.0.71.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	reply := func(write func(*server.Peer)) server.Cmd {
		return func(c *server.Peer, _ string, _ []string) { write(c) }
	}
	for name, cmd := range map[string]server.Cmd{
		"PING":  reply(func(c *server.Peer) { c.WriteInline("PONG") }),
		"HELLO": reply(func(c *server.Peer) { c.WriteError("ERR unknown command 'HELLO'") }),
		"INFO":  reply(func(c *server.Peer) { c.WriteBulk("# Memory\r\nmaxmemory:1000000\r\nmaxmemory_policy:allkeys-lru\r\n") }),
	} {
		if err := s.Register(name, cmd); err != nil {
			t.Fatal(err)
		}
	}
	return s.Addr().String()
}

// startMute starts a server that hears a client out and hangs up.
func startMute(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.71.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Read(make([]byte, 4096))
			}()
		}
	}()
	return l.Addr().String()
}

// TestUnreachableServersAreWaitedForAndNamed: nothing answers, kshare stays and says so.
func TestUnreachableServersAreWaitedForAndNamed(t *testing.T) {
	redis, err := startRedis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close) // after the parallel subtests
	cluster, err := startCluster()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	up, upRedis := strings.Join(cluster.ListenAddrs(), ","), "redis://"+redis.Addr()
	mute := startMute(t)
	for _, c := range []struct {
		name, host, upstream, redis string
		named, silent               string
	}{
		{"upstream", "127.0.71.5", nowhere, upRedis, "upstream: " + nowhere, "redis"},
		{"Redis", "127.0.71.6", up, "redis://:s3cr3t@" + nowhere, "redis: redis://:xxxxx@" + nowhere, "upstream"},
		{"both", "127.0.71.7", nowhere, "redis://" + nowhere, "redis: redis://" + nowhere, "s3cr3t"},
		{"what is no such broker", "127.0.71.20", mute, upRedis, "is it a broker's listener, with TLS only where upstream-tls is set, and SASL only where login-mechanism is?", "redis"},
		{"what is no Redis", "127.0.71.21", up, "redis://" + mute, "is it a plaintext port of Redis? rediss:// is for TLS", "upstream"},
		{"what is no Redis with TLS", "127.0.71.22", up, "rediss://" + mute, "is it a TLS port of Redis? redis:// is for plaintext", "upstream"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, nil, serveArgs(c.host, c.upstream, c.redis)...)
			began := time.Now()
			eventually(t, 15*time.Second, answers("http://"+c.host+":19080/readyz", 503, c.named))
			eventually(t, 5*time.Second, func() string {
				if _, body, _ := get("http://" + c.host + ":19080/readyz"); strings.Contains(body, c.silent) {
					return "the body also names " + c.silent + ": " + body
				}
				return ""
			})
			eventually(t, 5*time.Second, answers("http://"+c.host+":19080/livez", 200, "alive"))
			eventually(t, 10*time.Second, func() string {
				if strings.Count(p.stderr.String(), "waiting for") < 2 {
					return "less than two lines of log"
				}
				return ""
			})
			log := p.stderr.String()
			if n, limit := strings.Count(log, "waiting for"), int(time.Since(began).Seconds())+2; n > limit {
				t.Errorf("%d lines of log about waiting in %v", n, time.Since(began))
			}
			for _, line := range strings.Split(strings.TrimSpace(log), "\n") {
				if !strings.HasPrefix(line, "{") || strings.Contains(line, "s3cr3t") {
					t.Errorf("bad line of log: %s", line)
				}
			}
			healthy := startProcess(t, []string{"KSHARE_HTTP=" + c.host + ":19080"}, "healthcheck")
			if code := healthy.exit(10 * time.Second); code != exitError || !strings.Contains(healthy.stderr.String(), c.named) {
				t.Errorf("healthcheck exits with %d and says %q", code, healthy.stderr.String())
			}
			if !p.running() {
				t.Fatal("kshare gave up")
			}
			p.terminate()
			if code := p.exit(10 * time.Second); code != exitOK {
				t.Errorf("exit code %d after SIGTERM", code)
			}
		})
	}
}

// TestReadinessLineComesOnceClientsAreServed goes through the life of a replica.
func TestReadinessLineComesOnceClientsAreServed(t *testing.T) {
	const host = "127.0.71.8"
	redis, brokers := servers(t)
	p := startProcess(t, []string{"KSHARE_UPSTREAM=" + strings.Join(brokers, ",")}, append([]string{"serve", "--redis", redis, "--drain=1s"}, on(host)...)...)
	line := regexp.MustCompile(`(?m)^kshare ready bootstrap=127\.0\.71\.8:19092 upstream=kshare-dev nodes=3$`)
	eventually(t, 20*time.Second, func() string {
		if !p.running() {
			t.Fatal("kshare ended")
		}
		if !line.MatchString(p.stdout.String()) {
			return "no readiness line"
		}
		return ""
	})
	for _, port := range []string{"19092", "19100", "19101", "19102"} {
		conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Errorf("ready, but %v", err)
			continue
		}
		_ = conn.Close()
	}
	eventually(t, time.Second, answers("http://"+host+":19080/readyz", 200, "ready"))
	eventually(t, time.Second, answers("http://"+host+":19080/metrics", 200, "go_goroutines", "process_resident_memory_bytes",
		"kshare_redis_up 1", "kshare_upstream_up 1", "kshare_redis_commands_total", "kshare_upstream_cache_bytes"))
	healthy := startProcess(t, nil, append([]string{"healthcheck"}, on(host)...)...)
	if code := healthy.exit(10 * time.Second); code != exitOK {
		t.Errorf("healthcheck exits with %d", code)
	}
	p.terminate()
	if code := p.exit(15 * time.Second); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if n := strings.Count(p.stdout.String(), "\n"); n != 1 {
		t.Errorf("%d lines on standard output, want the readiness line only", n)
	}
}
