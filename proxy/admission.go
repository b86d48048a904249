package proxy

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// admission keeps the number of connections within Limits.
type admission struct {
	limits  Limits
	log     zerolog.Logger
	metrics *metrics
	places  chan struct{} // one element for each connection that is served

	mu   sync.Mutex
	from map[netip.Addr]int // open connections by client address; nil where they are not limited
	told map[string]time.Time
}

func newAdmission(l Limits, log zerolog.Logger, m *metrics) *admission {
	a := &admission{limits: l, log: log, metrics: m, places: make(chan struct{}, l.MaxConnections), told: map[string]time.Time{}}
	if l.MaxConnectionsPerAddress > 0 {
		a.from = map[netip.Addr]int{}
	}
	return a
}

// enter gives a connection that was just accepted its place, for which it may have to wait: meanwhile its listener
// accepts no other. The caller calls leave when the connection has ended. ok is false where it is not to be served: it is
// closed already then.
func (a *admission) enter(client net.Conn, stop <-chan struct{}) (leave func(), ok bool) {
	addr := addressOf(client)
	if !a.count(addr) {
		_ = client.Close()
		a.metrics.accepted.Inc()
		a.metrics.closed.WithLabelValues(string(CloseTooManyFromAddress)).Inc()
		if a.mayTell("max-connections-per-address") {
			a.log.Warn().Str("client", client.RemoteAddr().String()).Str("reason", string(CloseTooManyFromAddress)).
				Int("max-connections-per-address", a.limits.MaxConnectionsPerAddress).Msg("client connection closed")
		}
		return nil, false
	}
	select {
	case a.places <- struct{}{}:
	default:
		if !a.wait(stop) {
			a.uncount(addr)
			_ = client.Close()
			return nil, false
		}
	}
	return func() {
		<-a.places
		a.uncount(addr)
	}, true
}

// wait is for a place when all are taken.
func (a *admission) wait(stop <-chan struct{}) bool {
	a.metrics.held.Inc()
	defer a.metrics.held.Dec()
	if a.mayTell("max-connections") {
		a.log.Warn().Int("max-connections", a.limits.MaxConnections).Msg("as many connections are open as may be; new ones wait until one ends")
	}
	select {
	case a.places <- struct{}{}:
		return true
	case <-stop:
		return false
	}
}

// count takes note of one more connection from an address, if it may have one more.
func (a *admission) count(addr netip.Addr) bool {
	if a.from == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.from[addr] >= a.limits.MaxConnectionsPerAddress {
		return false
	}
	a.from[addr]++
	return true
}

func (a *admission) uncount(addr netip.Addr) {
	if a.from == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.from[addr]--; a.from[addr] == 0 {
		delete(a.from, addr)
	}
}

// tellEvery is how often it is logged that a limit was reached, however many connections come.
const tellEvery = time.Minute

func (a *admission) mayTell(limit string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last, ok := a.told[limit]; ok && time.Since(last) < tellEvery {
		return false
	}
	a.told[limit] = time.Now()
	return true
}

// addressOf is the client's address without the port. An IPv4 client of an IPv6 listener is the same client.
func addressOf(client net.Conn) netip.Addr {
	ap, err := netip.ParseAddrPort(client.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}
