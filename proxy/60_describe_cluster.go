package proxy

import "github.com/twmb/franz-go/pkg/kmsg"

// DescribeCluster: v0-2, relayed; the response's brokers rewritten
//
//   - v1: endpoint type (KIP-919). Controllers' endpoints are left out: kshare
//     has no port for them, and their addresses are nobody's business
//   - v2: fenced brokers (KIP-1073)

const brokerEndpoints = 1

func rewriteDescribeCluster(n *nodes, version int16, resp []byte) ([]byte, error) {
	decoded, err := decodeResponse(describeClusterKey, version, resp)
	if err != nil {
		return nil, err
	}
	r := decoded.(*kmsg.DescribeClusterResponse)
	kept := r.Brokers[:0]
	for _, b := range r.Brokers {
		if r.EndpointType != brokerEndpoints {
			break
		}
		host, port, ok := n.rewrite(b.NodeID, b.Host, b.Port)
		if ok {
			b.Host, b.Port = host, port
			kept = append(kept, b)
		}
	}
	r.Brokers = kept
	return appendRewritten(resp, r), nil
}
