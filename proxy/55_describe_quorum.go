package proxy

import "github.com/twmb/franz-go/pkg/kmsg"

// DescribeQuorum: v0-2, relayed; the response's listeners rewritten
//
//   - v2: the nodes of the quorum with their listeners (KIP-853): those of a
//     node that is a broker too become kshare's address of it, those of a node
//     that is controller alone the bootstrap address

func rewriteDescribeQuorum(n *nodes, version int16, resp []byte) ([]byte, error) {
	decoded, err := decodeResponse(describeQuorumKey, version, resp)
	if err != nil {
		return nil, err
	}
	r := decoded.(*kmsg.DescribeQuorumResponse)
	for i := range r.Nodes {
		host, port := n.reachable(r.Nodes[i].NodeID)
		for j := range r.Nodes[i].Listeners {
			l := &r.Nodes[i].Listeners[j]
			l.Host, l.Port = host, uint16(port)
		}
	}
	return appendRewritten(resp, r), nil
}
