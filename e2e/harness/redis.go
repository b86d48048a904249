//go:build e2e

package harness

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is a running redis-server with an append-only file, fsync once a second.
type Redis struct {
	Addr    string
	Client  *redis.Client
	Process *Process
}

// StartRedis starts a server with an empty data set.
func (s *Suite) StartRedis() (*Redis, error) {
	port, err := FreePorts(1, "127.0.0.1")
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("redis-%d", port)
	dir := filepath.Join(s.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p, err := s.Start(name, nil, "redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1",
		"--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--logfile", filepath.Join(s.Dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("redis-server is missing? run e2e/setup.sh redis: %w", err)
	}
	r := &Redis{Addr: fmt.Sprintf("127.0.0.1:%d", port), Process: p.Discard()}
	r.Client = redis.NewClient(&redis.Options{Addr: r.Addr})
	return r, Until("Redis", 20*time.Second, func() error {
		if !p.Running() {
			return p.Err()
		}
		return r.Client.Ping(context.Background()).Err()
	})
}

// URL is what kshare's --redis takes.
func (r *Redis) URL() string { return "redis://" + r.Addr + "/0" }

// Close ends the server.
func (r *Redis) Close() {
	r.Client.Close()
	r.Process.Kill()
}

// Command is one command that some client, or a script, made the server run.
type Command struct {
	At     time.Time
	Script bool // run inside a script
	Name   string
	Line   string // the whole command as MONITOR shows it
}

// Monitor watches every command until stop is called, which returns them.
func (r *Redis) Monitor() (stop func() []Command, err error) {
	conn, err := net.Dial("tcp", r.Addr)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(conn, 1<<20)
	if ok, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(ok, "+OK") {
		return nil, fmt.Errorf("MONITOR: %q %v", ok, err)
	}
	var seen []Command
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if c, ok := parseMonitor(line); ok {
				seen = append(seen, c)
			}
		}
	})
	return func() []Command {
		conn.Close()
		wg.Wait()
		return seen
	}, nil
}

var monitorLine = regexp.MustCompile(`^\+([0-9.]+) \[\d+ ([^\]]+)\] "([^"]+)"`)

func parseMonitor(line string) (Command, bool) {
	m := monitorLine.FindStringSubmatch(line)
	if m == nil {
		return Command{}, false
	}
	return Command{At: time.Now(), Script: m[2] == "lua", Name: strings.ToLower(m[3]), Line: strings.TrimSpace(line)}, true
}

// Calls reads how often each command has run (INFO commandstats).
func (r *Redis) Calls(ctx context.Context) (map[string]int64, error) {
	info, err := r.Client.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	calls := map[string]int64{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		var n int64
		fmt.Sscanf(rest, "%d", &n)
		calls[name] = n
	}
	return calls, nil
}
