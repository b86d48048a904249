package proxy

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

// API keys that the proxy itself has a file for.
const (
	produceKey          int16 = 0
	fetchKey            int16 = 1
	metadataKey         int16 = 3
	findCoordinatorKey  int16 = 10
	saslHandshakeKey    int16 = 17
	apiVersionsKey      int16 = 18
	saslAuthenticateKey int16 = 36
	describeQuorumKey   int16 = 55
	describeClusterKey  int16 = 60
	shareFetchKey       int16 = 78

	describeConfigsKey         int16 = 32
	alterConfigsKey            int16 = 33
	incrementalAlterConfigsKey int16 = 44
)

type routeKind uint8

const (
	relayed   routeKind = iota // bytes as they are
	rewritten                  // request as it is, response rewritten
	handled                    // the proxy answers, asking upstream as it needs
	served                     // package serve answers, wholly or in part
	refused                    // no client's business
	unknown                    // no kmsg type: relayed if upstream has it
)

func (k routeKind) String() string {
	return [...]string{"relay", "rewrite", "handle", "serve", "refuse", "unknown"}[k]
}

// route says what becomes of a request with some API key.
type route struct {
	kind routeKind
	// max is the highest version let through, -1 for whatever upstream takes.
	// It is set for keys that are decoded here and for those whose later
	// versions carry addresses.
	max int16
	// min is the lowest version let through: share APIs lost their v0.
	min int16
	// rewrite makes the client's response of upstream's. Versions below from
	// need none, nor do answers to requests that concerns does not pick.
	from     int16
	rewrite  rewriter
	concerns func(req kmsg.Request) bool
	handle   func(c *conn, r request) error
	api      *serve.API
	// flexible is the lowest flexible version, where api.Head needs to know.
	flexible int16
	// raw: handle decodes by itself, because it must answer versions that
	// nobody knows.
	raw bool
}

// A rewriter makes the client's response of upstream's; both are what stands
// behind the correlation id.
type rewriter func(n *nodes, version int16, resp []byte) ([]byte, error)

// ownRoutes are the keys that are not plainly relayed, apart from those that
// package serve brings.
var ownRoutes = map[int16]route{
	// NodeEndpoints came with Produce v10 (KIP-951).
	produceKey: {kind: rewritten, max: kmsgMax(produceKey), from: 10, rewrite: rewriteProduce},
	// Fetch has NodeEndpoints from v16 on. They stand behind the records, so
	// until the frame is walked, clients are kept to v15.
	fetchKey:           {kind: relayed, max: 15},
	metadataKey:        {kind: rewritten, max: kmsgMax(metadataKey), rewrite: rewriteMetadata},
	findCoordinatorKey: {kind: handled, max: kmsgMax(findCoordinatorKey), handle: (*conn).findCoordinator},
	saslHandshakeKey:   {kind: handled, max: -1, handle: (*conn).saslHandshake},
	apiVersionsKey:     {kind: handled, max: -1, handle: (*conn).apiVersions, raw: true},
	// DescribeQuorum lists the nodes' listeners from v2 on (KIP-853).
	describeQuorumKey:  {kind: rewritten, max: kmsgMax(describeQuorumKey), from: 2, rewrite: rewriteDescribeQuorum},
	describeClusterKey: {kind: rewritten, max: kmsgMax(describeClusterKey), rewrite: rewriteDescribeCluster},
}

// configRewrites are for what upstream answers to requests about configs, of
// which package serve has its part.
var configRewrites = map[int16]rewriter{
	describeConfigsKey:         rewriteDescribeConfigs,
	alterConfigsKey:            rewriteAlterConfigs,
	incrementalAlterConfigsKey: rewriteIncrementalAlterConfigs,
}

// brokerKeys are spoken among brokers and controllers only. Upstreams of some
// kinds advertise them to everybody; kshare does not.
var brokerKeys = []int16{
	4, 5, 6, 7, // LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown
	52, 53, 54, // Vote, BeginQuorumEpoch, EndQuorumEpoch
	56, 58, 59, // AlterPartition, Envelope, FetchSnapshot
	62, 63, 67, 70, 73, // BrokerRegistration, BrokerHeartbeat, AllocateProducerIds, ControllerRegistration, AssignReplicasToDirs
	82,                 // UpdateRaftVoter
	83, 84, 85, 86, 87, // the share coordinator's own state
}

// table is indexed by API key; keys beyond it have no kmsg type.
type table [kmsg.MaxKey + 1]route

func kmsgMax(key int16) int16 { return kmsg.RequestForKey(key).MaxVersion() }

func newTable(apis []serve.API) *table {
	t := new(table)
	for key := range t {
		t[key] = route{kind: relayed, max: -1}
		if kmsg.RequestForKey(int16(key)) == nil {
			t[key] = route{kind: unknown, max: -1}
		}
	}
	for _, key := range brokerKeys {
		t[key] = route{kind: refused}
	}
	for i := range apis {
		a := &apis[i]
		t[a.Key] = route{kind: served, min: a.Min, max: min(a.Max, kmsgMax(a.Key)), api: a}
		if a.Relayed { // which range holds depends on upstream (divide)
			t[a.Key].min, t[a.Key].max = 0, kmsgMax(a.Key)
		}
		if a.Head != nil {
			t[a.Key].flexible = firstFlexible(a.Key)
		}
	}
	for key, r := range ownRoutes {
		t[key] = r
	}
	for key, rewrite := range configRewrites {
		t[key].rewrite, t[key].concerns, t[key].max = rewrite, namesBroker, kmsgMax(key)
	}
	return t
}

// rewriteOf is what the answer to a request needs, nil for nothing.
func (r *route) rewriteOf(req kmsg.Request) rewriter {
	if r.rewrite == nil || req.GetVersion() < r.from || r.concerns != nil && !r.concerns(req) {
		return nil
	}
	return r.rewrite
}

func (t *table) of(key int16) route {
	if key < 0 || int(key) >= len(t) {
		return route{kind: unknown, max: -1}
	}
	return t[key]
}
