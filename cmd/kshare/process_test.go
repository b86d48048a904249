package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// asCommand makes the test binary act as kshare: processes under test are this binary, race detector included.
const asCommand = "RUN_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// process is a kshare under test.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr safeBuffer
	ended          chan struct{} // closed when the process is gone
}

type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// startProcess starts kshare with the given arguments and no KSHARE variables but the given ones.
func startProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), ended: make(chan struct{})}
	p.cmd.Env = append(append(withoutOurs(os.Environ()), asCommand+"=1"), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit code is read from ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("kshare %s\nstdout: %s\nstderr: %s", strings.Join(args, " "), p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

func withoutOurs(environ []string) []string {
	var kept []string
	for _, line := range environ {
		if !strings.HasPrefix(line, "KSHARE_") {
			kept = append(kept, line)
		}
	}
	return kept
}

// exit waits for the end of the process and returns its exit code.
func (p *process) exit(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.t.Fatalf("kshare still runs after %v", limit)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

// eventually polls until ok returns "" or the limit passes; what ok returns is the complaint.
func eventually(t *testing.T, limit time.Duration, ok func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		complaint := ok()
		if complaint == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %v: %s", limit, complaint)
		case <-tick.C:
		}
	}
}

// get asks an HTTP endpoint once.
func get(url string) (status int, body string, err error) {
	client := http.Client{Timeout: 2 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// answers is a condition for eventually: the endpoint answers with the status and all the words.
func answers(url string, status int, words ...string) func() string {
	return func() string {
		got, body, err := get(url)
		if err != nil {
			return err.Error()
		}
		err = nil
		if got != status {
			err = fmt.Errorf("status %d, want %d", got, status)
		}
		for _, word := range words {
			if !strings.Contains(body, word) {
				err = errors.Join(err, fmt.Errorf("no word of %q", word))
			}
		}
		if err != nil {
			return fmt.Sprintf("%s: %v in %q", url, err, body)
		}
		return ""
	}
}

// servers starts the Redis and the cluster of kshare dev, and gives the one's URL and the other's brokers.
func servers(t *testing.T) (redis string, brokers []string) {
	t.Helper()
	store, err := startRedis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	cluster, err := startCluster()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return "redis://" + store.Addr(), cluster.ListenAddrs()
}
