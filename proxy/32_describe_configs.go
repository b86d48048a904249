package proxy

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// DescribeConfigs: v0-4 (package serve has the file for GROUP resources);
// addresses in upstream's answers about BROKER resources rewritten, in values,
// synonyms (v1) and messages
//
//   - listener lists: every listener of broker N, that of a controller
//     included, becomes kshare's address of N, with its name kept
//   - controller.quorum.voters: by the id of each voter
//   - controller.quorum.bootstrap.servers, zookeeper.connect: by address; they
//     are nothing that kshare stands for, unless a node is known by it
//   - host.name, port and the advertised ones (before Kafka 3.0) likewise
//   - in all other configs the addresses that upstream is known by
//   - a value of these that cannot be read is told as null, and logged; what is
//     null (sensitive) or empty stays so

// addressConfigs rewrite the values of broker node's configs that hold
// addresses. ok is false for a value that cannot be read.
var addressConfigs = map[string]func(n *nodes, node int32, value string) (rewritten string, ok bool){
	"listeners":                           rewriteListeners,
	"advertised.listeners":                rewriteListeners,
	"controller.quorum.voters":            rewriteVoters,
	"controller.quorum.bootstrap.servers": rewriteServers,
	"zookeeper.connect":                   rewriteServers,
	"host.name":                           rewriteHost,
	"advertised.host.name":                rewriteHost,
	"port":                                rewritePort,
	"advertised.port":                     rewritePort,
}

func rewriteDescribeConfigs(n *nodes, version int16, resp []byte) ([]byte, error) {
	decoded, err := decodeResponse(describeConfigsKey, version, resp)
	if err != nil {
		return nil, err
	}
	r := decoded.(*kmsg.DescribeConfigsResponse)
	for i := range r.Resources {
		res := &r.Resources[i]
		if res.ResourceType != kmsg.ConfigResourceTypeBroker {
			continue
		}
		node := nodeID(res.ResourceName)
		n.rewriteMessage(node, res.ErrorMessage)
		for j := range res.Configs {
			c := &res.Configs[j]
			c.Value = n.rewriteConfig(node, c.Name, c.Value)
			for k := range c.ConfigSynonyms {
				s := &c.ConfigSynonyms[k]
				s.Value = n.rewriteConfig(node, s.Name, s.Value)
			}
		}
	}
	return appendRewritten(resp, r), nil
}

// rewriteMessage puts kshare's addresses into a message about a broker.
func (n *nodes) rewriteMessage(node int32, message *string) {
	if message != nil {
		*message = n.hideAll(node, *message)
	}
}

// rewriteConfig puts kshare's addresses into a value of a broker's config.
func (n *nodes) rewriteConfig(node int32, name string, value *string) *string {
	if value == nil || *value == "" {
		return value
	}
	rewrite := addressConfigs[name]
	if rewrite == nil {
		return kmsg.StringPtr(n.hideKnown(*value))
	}
	rewritten, ok := rewrite(n, node, *value)
	if !ok {
		n.log.Warn().Int32("node", node).Str("config", name).Str("value", *value).Msg("addresses in a broker's config cannot be read; clients are told null")
		return nil
	}
	return &rewritten
}

// each rewrites the entries of a comma-separated list.
func each(list string, rewrite func(entry string) (string, bool)) (string, bool) {
	entries := strings.Split(list, ",")
	for i, entry := range entries {
		var ok bool
		if entries[i], ok = rewrite(strings.TrimSpace(entry)); !ok {
			return "", false
		}
	}
	return strings.Join(entries, ","), true
}

var listenerName = regexp.MustCompile(`^[\w.-]+$`)

// rewriteListeners is for NAME://host:port, where the host may be empty.
func rewriteListeners(n *nodes, node int32, value string) (string, bool) {
	return each(value, func(listener string) (string, bool) {
		name, _, ok := strings.Cut(listener, "://")
		return name + "://" + n.reachableAt(node), ok && listenerName.MatchString(name)
	})
}

// rewriteVoters is for id@host:port.
func rewriteVoters(n *nodes, _ int32, value string) (string, bool) {
	return each(value, func(voter string) (string, bool) {
		id, _, ok := strings.Cut(voter, "@")
		node := nodeID(id)
		return id + "@" + n.reachableAt(node), ok && node >= 0
	})
}

// rewriteServers is for host:port, where the port may be missing, and the last
// entry may end in a path (ZooKeeper's chroot).
func rewriteServers(n *nodes, _ int32, value string) (string, bool) {
	known := n.known()
	return each(value, func(server string) (string, bool) {
		addr, path, hasPath := strings.Cut(server, "/")
		node, ok := known[strings.ToLower(addr)]
		if !ok {
			node = bootstrapNode
		}
		if hasPath {
			path = "/" + path
		}
		return n.reachableAt(node) + path, !strings.Contains(path, ":")
	})
}

func rewriteHost(n *nodes, node int32, _ string) (string, bool) {
	host, _ := n.reachable(node)
	return host, true
}

func rewritePort(n *nodes, node int32, _ string) (string, bool) {
	_, port := n.reachable(node)
	return strconv.Itoa(int(port)), true
}

// namesBroker tells whether a request about configs is about a broker's.
func namesBroker(req kmsg.Request) bool {
	const broker = kmsg.ConfigResourceTypeBroker
	switch r := req.(type) {
	case *kmsg.DescribeConfigsRequest:
		return slices.ContainsFunc(r.Resources, func(x kmsg.DescribeConfigsRequestResource) bool { return x.ResourceType == broker })
	case *kmsg.AlterConfigsRequest:
		return slices.ContainsFunc(r.Resources, func(x kmsg.AlterConfigsRequestResource) bool { return x.ResourceType == broker })
	case *kmsg.IncrementalAlterConfigsRequest:
		return slices.ContainsFunc(r.Resources, func(x kmsg.IncrementalAlterConfigsRequestResource) bool { return x.ResourceType == broker })
	}
	return false
}
