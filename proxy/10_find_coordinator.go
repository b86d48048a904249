package proxy

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// FindCoordinator: v0-6, upstream's answer with kshare's addresses
//
//   - v1: key type; v3: flexible; v4: several keys at once (KIP-699)
//   - v5, v6: as v4 on the wire, so an upstream that knows v4 serves them
//   - key type 0 (group) and 1 (transaction) are upstream's, share groups
//     included: the node is the one whose answers about the group count
//   - v6: key type 2 (share-partition, brokers only) is answered here, by any
//     node, for every replica serves every share-partition

const (
	batchedCoordinators int16 = 4
	shareKeyVersion     int16 = 6
	shareKeyType        int8  = 2
)

func (c *conn) findCoordinator(r request) error {
	body, err := r.decode()
	if err != nil {
		return err
	}
	req := body.(*kmsg.FindCoordinatorRequest)
	if req.Version >= 1 && req.CoordinatorType == shareKeyType {
		return c.findShareCoordinator(r, req)
	}
	if req.Version > batchedCoordinators {
		ranges, err := c.upstreamRanges()
		if err != nil {
			return err
		}
		if known, ok := ranges[findCoordinatorKey]; ok && known.max >= batchedCoordinators {
			req.Version = min(req.Version, known.max)
		}
	}
	answer, err := c.askWatching(req)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.FindCoordinatorResponse)
	rewriteCoordinators(c.s.nodes, resp)
	resp.Version = r.version
	return c.respond(r.corr, resp)
}

// rewriteCoordinators puts kshare's addresses into both forms of the response.
func rewriteCoordinators(n *nodes, resp *kmsg.FindCoordinatorResponse) {
	if resp.Version < batchedCoordinators {
		rewriteCoordinator(n, &resp.NodeID, &resp.Host, &resp.Port, &resp.ErrorCode)
	}
	for i := range resp.Coordinators {
		k := &resp.Coordinators[i]
		rewriteCoordinator(n, &k.NodeID, &k.Host, &k.Port, &k.ErrorCode)
	}
}

func rewriteCoordinator(n *nodes, node *int32, host *string, port *int32, code *int16) {
	if *host == "" {
		return // no node, as with every error
	}
	h, p, ok := n.rewrite(*node, *host, *port)
	if !ok {
		*node, h, p, *code = -1, "", -1, kerr.CoordinatorNotAvailable.Code
	}
	*host, *port = h, p
}

func (c *conn) findShareCoordinator(r request, req *kmsg.FindCoordinatorRequest) error {
	keys := req.CoordinatorKeys
	if req.Version < batchedCoordinators {
		keys = []string{req.CoordinatorKey}
	}
	allowed := false
	var err error
	failed := c.working(func(ctx context.Context) {
		if err = c.checkAccepted(ctx); err == nil && req.Version >= shareKeyVersion {
			allowed, err = c.auth.Cluster(ctx, opClusterAction)
		}
	})
	if failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	for _, key := range keys {
		resp.Coordinators = append(resp.Coordinators, c.shareCoordinator(req.Version, key, allowed))
	}
	if req.Version < batchedCoordinators {
		only := resp.Coordinators[0]
		resp.Coordinators = nil
		resp.NodeID, resp.Host, resp.Port, resp.ErrorCode, resp.ErrorMessage = only.NodeID, only.Host, only.Port, only.ErrorCode, only.ErrorMessage
	}
	return c.respond(r.corr, resp)
}

func (c *conn) shareCoordinator(version int16, key string, allowed bool) kmsg.FindCoordinatorResponseCoordinator {
	k := kmsg.NewFindCoordinatorResponseCoordinator()
	k.Key, k.NodeID, k.Port = key, -1, -1
	nodes := c.s.deps.cluster.Nodes()
	switch {
	case version < shareKeyVersion:
		k.ErrorCode = kerr.InvalidRequest.Code
	case !allowed:
		k.ErrorCode = kerr.ClusterAuthorizationFailed.Code
	case !isSharePartitionKey(key):
		k.ErrorCode = kerr.InvalidRequest.Code
	case len(nodes) == 0:
		k.ErrorCode = kerr.CoordinatorNotAvailable.Code
	default:
		node := nodes[xxhash.Sum64String(key)%uint64(len(nodes))].ID
		if host, port, ok := c.s.cfg.Endpoint(node); ok {
			k.NodeID, k.Host, k.Port = node, host, port
		} else {
			k.ErrorCode = kerr.CoordinatorNotAvailable.Code
		}
	}
	// A broker tells keys apart from v4 on, without messages but for what its authorizer throws.
	k.ErrorMessage = kmsg.StringPtr("")
	if version < batchedCoordinators || k.ErrorCode == kerr.ClusterAuthorizationFailed.Code {
		if e := kerr.ErrorForCode(k.ErrorCode); e != nil {
			k.ErrorMessage = kmsg.StringPtr(e.(*kerr.Error).Description)
		}
	}
	return k
}

// isSharePartitionKey: groupId:topicId:partition, where the group id itself
// may hold colons.
func isSharePartitionKey(key string) bool {
	i := strings.LastIndexByte(key, ':')
	if i < 0 {
		return false
	}
	partition, err := strconv.ParseInt(key[i+1:], 10, 32)
	if err != nil || partition < 0 {
		return false
	}
	j := strings.LastIndexByte(key[:i], ':')
	if j < 1 {
		return false
	}
	id, err := base64.RawURLEncoding.DecodeString(key[j+1 : i])
	return err == nil && len(id) == 16
}
