//go:build e2e

package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Replicas are kshare processes over one upstream and one Redis, behind a balancer:
// replica i listens on 127.0.0.(2+i), all advertise 127.0.0.1, where the balancer
// serves the same ports.
type Replicas struct {
	Bootstrap string
	Balancer  *Balancer

	suite    *Suite
	binary   string
	kafka    *Kafka
	redis    *Redis
	port     int
	flags    []string
	replicas []*Process
}

// ports after the bootstrap one: node N at +1+N, HTTP at +portHTTP.
const (
	portNodes = 1
	portHTTP  = 12
	portCount = 13
)

// ReplicaHost is where replica i listens.
func ReplicaHost(i int) string { return fmt.Sprintf("127.0.0.%d", 2+i) }

// BuildKshare builds the binary under test, or takes E2E_BINARY.
func (s *Suite) BuildKshare() (string, error) {
	if b := os.Getenv("E2E_BINARY"); b != "" {
		return b, nil
	}
	binary := filepath.Join(s.Dir, "kshare")
	_, err := s.Output(5*time.Minute, nil, "go", "build", "-o", binary, "../cmd/kshare")
	return binary, err
}

// StartReplicas starts n replicas and the balancer, and returns when all are ready.
func (s *Suite) StartReplicas(n int, k *Kafka, r *Redis, flags ...string) (*Replicas, error) {
	binary, err := s.BuildKshare()
	if err != nil {
		return nil, err
	}
	hosts := []string{"127.0.0.1"}
	for i := range n {
		hosts = append(hosts, ReplicaHost(i))
	}
	port, err := FreePorts(portCount, hosts...)
	if err != nil {
		return nil, err
	}
	rs := &Replicas{Bootstrap: fmt.Sprintf("127.0.0.1:%d", port), suite: s, binary: binary, kafka: k, redis: r,
		port: port, flags: flags, replicas: make([]*Process, n)}
	ports := []int{port}
	for _, id := range k.NodeIDs {
		ports = append(ports, port+portNodes+int(id))
	}
	rs.Balancer, err = NewBalancer("127.0.0.1", ports, hosts[1:], UpstreamHost)
	if err != nil {
		return nil, err
	}
	for i := range n {
		if err := rs.Start(i); err != nil {
			return nil, err
		}
	}
	for i := range n {
		if err := rs.WaitReady(i, 60*time.Second); err != nil {
			return nil, err
		}
	}
	return rs, nil
}

// Start starts replica i, which must not be running.
func (rs *Replicas) Start(i int) error {
	access, env := rs.kafka.access()
	args := append([]string{"serve",
		"--redis", rs.redis.URL(),
		"--listen", fmt.Sprintf("%s:%d", ReplicaHost(i), rs.port),
		"--advertise", "127.0.0.1",
		"--log-level", "debug",
		"--http", fmt.Sprintf("%s:%d", ReplicaHost(i), rs.port+portHTTP),
	}, append(access, rs.flags...)...)
	if !slices.Contains(rs.flags, "--sni-suffix") {
		args = append(args, "--node-ports", fmt.Sprint(rs.port+portNodes))
	}
	p, err := rs.suite.Start(fmt.Sprintf("kshare-%d-replica%d", rs.port, i), env, rs.binary, args...)
	if err != nil {
		return err
	}
	rs.replicas[i] = p
	return nil
}

// WaitReady waits for the readiness line of replica i.
func (rs *Replicas) WaitReady(i int, timeout time.Duration) error {
	p := rs.replicas[i]
	deadline := time.After(timeout)
	for {
		select {
		case line, ok := <-p.Lines:
			if !ok {
				return p.Err()
			}
			if strings.HasPrefix(line, "kshare ready bootstrap=") {
				p.Discard()
				return nil
			}
		case <-deadline:
			return fmt.Errorf("%s not ready within %v:\n%s", p.Name, timeout, tailOf(p.Log, 15))
		}
	}
}

// NodeAddr is the address that clients are given of a node.
func (rs *Replicas) NodeAddr(id int32) string {
	return fmt.Sprintf("127.0.0.1:%d", rs.port+portNodes+int(id))
}

// Count of replicas.
func (rs *Replicas) Count() int { return len(rs.replicas) }

// Process is replica i as it runs now.
func (rs *Replicas) Process(i int) *Process { return rs.replicas[i] }

// HTTP is the base URL of replica i's /metrics, /livez and /readyz.
func (rs *Replicas) HTTP(i int) string {
	return fmt.Sprintf("http://%s:%d", ReplicaHost(i), rs.port+portHTTP)
}

// Err names a replica that has ended by itself.
func (rs *Replicas) Err() error {
	for _, p := range rs.replicas {
		if p != nil && !p.Running() {
			return p.Err()
		}
	}
	return nil
}

// Close ends all replicas and the balancer.
func (rs *Replicas) Close() {
	rs.Balancer.Close()
	for _, p := range rs.replicas {
		if p != nil {
			p.Kill()
		}
	}
}
