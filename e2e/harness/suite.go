//go:build e2e

// Package harness starts the processes of an e2e test (Kafka brokers, Redis, kshare
// replicas) on loopback addresses with ports below 32768, and ends each of them by
// its pid: at Close, and also when the test process itself dies.
package harness

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Suite owns a run's working folder and processes.
type Suite struct {
	Root string // the e2e folder
	Dir  string // this run's folder under .work

	mu        sync.Mutex
	processes []*Process
	closers   []func()
	versions  map[string]string
}

const keptRuns = 4

// NewSuite makes a fresh working folder; old ones beyond the newest few are removed.
func NewSuite() (*Suite, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	work := filepath.Join(root, ".work")
	removeOldRuns(work)
	dir := filepath.Join(work, fmt.Sprintf("run-%s-%d", time.Now().UTC().Format("20060102-150405"), os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	versions, err := readVersions(filepath.Join(root, "versions"))
	if err != nil {
		return nil, err
	}
	return &Suite{Root: root, Dir: dir, versions: versions}, nil
}

// removeOldRuns keeps the newest few and those whose process still lives.
func removeOldRuns(work string) {
	runs, _ := filepath.Glob(filepath.Join(work, "run-*"))
	slices.Sort(runs)
	for _, run := range runs[:max(0, len(runs)-keptRuns)] {
		pid, err := strconv.Atoi(run[strings.LastIndex(run, "-")+1:])
		if err == nil && syscall.Kill(pid, 0) != nil {
			os.RemoveAll(run)
		}
	}
}

// findRoot returns the e2e folder, from wherever inside the module a test runs.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "e2e"), nil
		}
	}
	return "", fmt.Errorf("no go.mod above the working folder")
}

func readVersions(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			value, _, _ = strings.Cut(value, " #")
			versions[key] = strings.Trim(value, `"`)
		}
	}
	return versions, nil
}

// Version reads a line of e2e/versions, KAFKA_OLD for example.
func (s *Suite) Version(key string) string { return s.versions[key] }

// OnClose registers f to run at Close, last registered first.
func (s *Suite) OnClose(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, f)
}

// Close runs what OnClose registered and ends every process that still runs.
func (s *Suite) Close() {
	s.mu.Lock()
	closers := s.closers
	s.closers = nil
	processes := slices.Clone(s.processes)
	s.mu.Unlock()
	for _, f := range slices.Backward(closers) {
		f()
	}
	for _, p := range slices.Backward(processes) {
		p.Kill()
	}
}

// Explain prints the ends of the logs when t fails: of kshare, of the clients of t,
// and a little of the rest.
func (s *Suite) Explain(t *testing.T, clients string) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		logs, _ := filepath.Glob(filepath.Join(s.Dir, "*.log"))
		for _, log := range logs {
			name, lines := filepath.Base(log), 4
			switch {
			case strings.HasPrefix(name, "kshare-"):
				lines = 40
			case strings.HasPrefix(name, "client-") && (clients == "" || !strings.Contains(name, clients)):
				continue
			case strings.HasPrefix(name, "client-"):
				lines = 15
			}
			if tail := tailOf(log, lines); tail != "" {
				t.Logf("---- end of %s\n%s", name, tail)
			}
		}
		t.Logf("whole logs: %s", s.Dir)
	})
}

// tailOf returns the last lines of a file that changed lately; logs of processes
// that had no part in the failure would only hide it.
func tailOf(file string, lines int) string {
	st, err := os.Stat(file)
	if err != nil || time.Since(st.ModTime()) > 2*time.Minute {
		return ""
	}
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 16 << 10
	off := max(0, st.Size()-most)
	b := make([]byte, st.Size()-off)
	n, _ := f.ReadAt(b, off)
	all := strings.Split(strings.TrimRight(string(b[:n]), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

var (
	portMu   sync.Mutex
	nextPort = 20000 + os.Getpid()%4000*2
)

// FreePorts returns the first of n consecutive ports below 32768 that are free on
// every given host.
func FreePorts(n int, hosts ...string) (int, error) {
	portMu.Lock()
	defer portMu.Unlock()
	for range 2000 {
		if nextPort+n >= 32000 {
			nextPort = 20000
		}
		first := nextPort
		if portsFree(first, n, hosts) {
			nextPort += n
			return first, nil
		}
		nextPort += 7
	}
	return 0, fmt.Errorf("no %d free ports below 32768 on %v", n, hosts)
}

func portsFree(first, n int, hosts []string) bool {
	for port := first; port < first+n; port++ {
		for _, host := range hosts {
			l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, port))
			if err != nil {
				return false
			}
			l.Close()
		}
	}
	return true
}

// Until polls cond until it holds. The error names what was waited for and what
// cond said last.
func Until(what string, timeout time.Duration, cond func() error) error {
	deadline := time.Now().Add(timeout)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, timeout, err)
		}
		<-ticker.C
	}
}
