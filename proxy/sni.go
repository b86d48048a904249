package proxy

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// Names of nodes where one port serves them all. A client says in its TLS
// handshake which name it connects to (Server Name Indication, RFC 6066).

const (
	namePrefix = "broker-"
	// longestName is what DNS allows (RFC 1035).
	longestName = 253
	highestNode = 1<<31 - 1
)

// byName tells whether nodes are told apart by name, not by port.
func (l ListenTLS) byName() bool { return l.SNISuffix != "" }

// nodeName is the name of a node.
func (l ListenTLS) nodeName(node int32) string {
	return namePrefix + strconv.Itoa(int(node)) + "." + l.SNISuffix
}

// withDefaults brings the suffix into the form that names are compared in.
func (l ListenTLS) withDefaults(listen string) ListenTLS {
	l.SNISuffix = canonicalName(l.SNISuffix)
	if l.byName() && l.SNIPort == 0 {
		_, port, _ := net.SplitHostPort(listen)
		p, _ := strconv.ParseUint(port, 10, 16)
		l.SNIPort = int32(p)
	}
	return l
}

func canonicalName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

var domain = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

func (l ListenTLS) validateNames() error {
	if !l.byName() {
		if l.SNIPort != 0 {
			return errors.New("sni-port: is of use only with sni-suffix, give that or leave this away")
		}
		return nil
	}
	switch {
	case !l.on():
		return errors.New("sni-suffix: is of use only with TLS, for only there clients say which name they mean: give listen-tls-cert and listen-tls-key too")
	case !domain.MatchString(l.SNISuffix) || net.ParseIP(l.SNISuffix) != nil:
		return fmt.Errorf("sni-suffix: %q is not a domain; set it to what stands behind %sN. in the names of nodes, such as kafka.example.org", l.SNISuffix, namePrefix)
	case len(l.nodeName(highestNode)) > longestName:
		return fmt.Errorf("sni-suffix: %d characters are too many, for with the name of a node in front it has to keep to %d", len(l.SNISuffix), longestName)
	case l.SNIPort == 0:
		return errors.New("sni-port: not set, and listen has no fixed port that clients could be given")
	case l.SNIPort < 1 || l.SNIPort > 65535:
		return fmt.Errorf("sni-port: %d is outside 1-65535", l.SNIPort)
	}
	return nil
}

// nodeOf tells which node a name stands for; bootstrapNode if it has not the
// form of a node's name. ok is false for a number that no node has.
func (l ListenTLS) nodeOf(name string) (node int32, ok bool) {
	label, ours := strings.CutSuffix(canonicalName(name), "."+l.SNISuffix)
	number, prefixed := strings.CutPrefix(label, namePrefix)
	if !l.byName() || !ours || !prefixed || number == "" || strings.Trim(number, "0123456789") != "" {
		return bootstrapNode, true
	}
	id, err := strconv.ParseInt(number, 10, 32)
	if err != nil || strconv.FormatInt(id, 10) != number {
		return 0, false // too high, or zeros in front: told to nobody
	}
	return int32(id), true
}

// goTo makes the connection one to the node that the client named. Whether
// there is such a node is said only now that hands are shaken: to Kafka's
// clients a handshake that fails is a mistake in their configuration that they
// do not try again, but the node may be one that this replica has yet to learn
// of.
func (c *conn) goTo(name string) error {
	if !c.s.cfg.TLS.byName() {
		return nil
	}
	node, ok := c.s.cfg.TLS.nodeOf(name)
	if !ok || node != bootstrapNode && !c.s.nodes.knows(node) {
		return closing(CloseUnknownNode, fmt.Errorf("upstream has no node of the name %s", name))
	}
	c.setNode(node)
	return nil
}
