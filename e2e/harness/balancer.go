//go:build e2e

package harness

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Balancer forwards TCP connections to one of several hosts, same port, at random
// (in turn, the connections of a client that opens two would fall into step); hosts
// that do not answer are skipped. It reads along: what servers send is searched for
// byte strings that no client may learn.
type Balancer struct {
	hosts     []string
	listeners []net.Listener
	only      atomic.Int32 // index of the host that new connections must go to, -1 = any

	mu      sync.Mutex
	closed  bool
	conns   map[net.Conn]bool
	needles [][]byte
	found   []string
	scanned int64
}

// NewBalancer listens on each port of host. needles may be empty.
func NewBalancer(host string, ports []int, backends []string, needles ...string) (*Balancer, error) {
	b := &Balancer{hosts: backends, conns: map[net.Conn]bool{}}
	b.only.Store(-1)
	for _, n := range needles {
		b.needles = append(b.needles, []byte(n))
	}
	for _, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, port))
		if err != nil {
			b.Close()
			return nil, err
		}
		b.listeners = append(b.listeners, l)
		go b.accept(l, func(backend string) string { return fmt.Sprintf("%s:%d", backend, port) })
	}
	return b, nil
}

func (b *Balancer) accept(l net.Listener, address func(backend string) string) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go b.serve(client, address)
	}
}

func (b *Balancer) serve(client net.Conn, address func(string) string) {
	server := b.dial(address)
	if server == nil || !b.track(client, server) {
		client.Close()
		return
	}
	defer b.untrack(client, server)
	go func() {
		io.Copy(server, client)
		server.Close()
	}()
	s := scanner{needles: b.needles, hit: b.report}
	io.Copy(client, io.TeeReader(server, &s))
	b.mu.Lock()
	b.scanned += s.n
	b.mu.Unlock()
}

func (b *Balancer) dial(address func(string) string) net.Conn {
	start := rand.IntN(len(b.hosts))
	for i := range b.hosts {
		host := (start + i) % len(b.hosts)
		if only := b.only.Load(); only >= 0 && int(only) != host {
			continue
		}
		if c, err := net.DialTimeout("tcp", address(b.hosts[host]), time.Second); err == nil {
			return c
		}
	}
	return nil
}

// Only sends new connections to one backend, by index; -1 goes back to all.
func (b *Balancer) Only(backend int) { b.only.Store(int32(backend)) }

// Leaks returns where a needle was seen, with the bytes around it, and how many
// bytes of closed connections have been searched.
func (b *Balancer) Leaks() (found []string, scanned int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.found, b.scanned
}

func (b *Balancer) report(around []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.found) < 20 {
		b.found = append(b.found, fmt.Sprintf("%q", around))
	}
}

func (b *Balancer) track(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		if b.closed {
			c.Close()
			continue
		}
		b.conns[c] = true
	}
	return !b.closed
}

func (b *Balancer) untrack(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(b.conns, c)
	}
}

// Close stops listening and cuts every connection.
func (b *Balancer) Close() {
	for _, l := range b.listeners {
		l.Close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for c := range b.conns {
		c.Close()
	}
}

// scanner searches a stream, across the borders of its chunks.
type scanner struct {
	needles [][]byte
	hit     func(around []byte)
	tail    []byte
	n       int64
}

func (s *scanner) Write(p []byte) (int, error) {
	s.n += int64(len(p))
	for _, needle := range s.needles {
		window := append(bytes.Clone(s.tail), p[:min(len(p), len(needle))]...)
		for _, hay := range [][]byte{window, p} {
			if i := bytes.Index(hay, needle); i >= 0 {
				s.hit(bytes.Clone(hay[max(0, i-40):min(len(hay), i+len(needle)+24)]))
			}
		}
	}
	const longest = 64
	s.tail = append(s.tail, p[max(0, len(p)-longest):]...)
	s.tail = s.tail[max(0, len(s.tail)-longest):]
	return len(p), nil
}
