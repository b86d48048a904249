package proxy

import (
	"net"
	"regexp"
	"strconv"
	"strings"
)

// Addresses of nodes in text. Clients are told the one by which they reach the
// node through kshare; for what kshare does not stand for, be it a controller
// or a ZooKeeper, they are told the bootstrap address.

// reachable gives the address at which clients reach a node through kshare,
// the bootstrap address if they cannot.
func (n *nodes) reachable(node int32) (host string, port int32) {
	if host, port, ok := n.cfg.Endpoint(node); ok && n.knows(node) {
		return host, port
	}
	return n.cfg.Advertise, n.bootstrapPort()
}

func (n *nodes) bootstrapPort() int32 {
	if n.cfg.TLS.byName() {
		return n.cfg.TLS.SNIPort // the one port that clients know
	}
	addr := n.cfg.Listen
	n.mu.Lock()
	if l := n.listeners[bootstrapNode]; l != nil {
		addr = l.Addr().String() // the port of Listen may be 0
	}
	n.mu.Unlock()
	_, port, _ := net.SplitHostPort(addr)
	p, _ := strconv.ParseUint(port, 10, 16)
	return int32(p)
}

// reachableAt is reachable as text.
func (n *nodes) reachableAt(node int32) string {
	host, port := n.reachable(node)
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// known are the addresses that upstream is known by: those of nodes, and the
// seeds, which stand for no certain node.
func (n *nodes) known() map[string]int32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[string]int32, len(n.addrs)+len(n.cfg.Upstream))
	for _, seed := range n.cfg.Upstream {
		all[strings.ToLower(seed)] = bootstrapNode
	}
	for node, addr := range n.addrs {
		all[strings.ToLower(addr)] = node
	}
	return all
}

// addressPattern finds what may be an address: an optional listener name or
// node id, host (which listeners may lack), port.
var addressPattern = regexp.MustCompile(`([\w.-]+://|\b\d+@)?(\[[^][\s]*\]|[\w.%-]*):(-?\d+)`)

// hideKnown replaces the known addresses in text and leaves all else alone.
func (n *nodes) hideKnown(text string) string {
	if !strings.Contains(text, ":") {
		return text
	}
	known := n.known()
	return replaceAddresses(text, func(prefix, addr string) (string, bool) {
		node, ok := known[strings.ToLower(addr)]
		return n.reachableAt(node), ok
	})
}

// hideAll replaces, besides the known addresses, all that a listener name or a
// node id shows to be one. It is for messages about a node: those have any
// address of its configuration in them, such as a controller's.
func (n *nodes) hideAll(node int32, text string) string {
	known := n.known()
	return replaceAddresses(text, func(prefix, addr string) (string, bool) {
		if id, ok := strings.CutSuffix(prefix, "@"); ok {
			return n.reachableAt(nodeID(id)), true
		}
		if prefix != "" {
			return n.reachableAt(node), true
		}
		at, ok := known[strings.ToLower(addr)]
		return n.reachableAt(at), ok
	})
}

func replaceAddresses(text string, with func(prefix, addr string) (string, bool)) string {
	var out strings.Builder
	rest := 0
	for _, m := range addressPattern.FindAllStringSubmatchIndex(text, -1) {
		prefix := ""
		if m[2] >= 0 {
			prefix = text[m[2]:m[3]]
		}
		if addr, ok := with(prefix, text[m[4]:m[7]]); ok {
			out.WriteString(text[rest:m[4]])
			out.WriteString(addr)
			rest = m[7]
		}
	}
	if rest == 0 {
		return text
	}
	out.WriteString(text[rest:])
	return out.String()
}

// nodeID reads a node id, bootstrapNode where there is none.
func nodeID(s string) int32 {
	id, err := strconv.ParseInt(s, 10, 32)
	if err != nil || id < 0 {
		return bootstrapNode
	}
	return int32(id)
}
