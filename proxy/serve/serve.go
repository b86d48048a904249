package serve

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// Authorizer tells what the principal of one client connection may do, as upstream sees it. Operations are Kafka's ACL
// operation codes (READ 3, WRITE 4, ... ALTER_CONFIGS 11). An error means that upstream could not be asked; it is
// answered with a retriable code, never as a denial.
type Authorizer interface {
	// Group tells whether op is allowed on the group.
	Group(ctx context.Context, op int8, group string) (bool, error)
	// Topics tells for each name whether op is allowed on it; a missing name counts as denied.
	Topics(ctx context.Context, op int8, names []string) (map[string]bool, error)
	// Cluster tells whether op is allowed on the cluster.
	Cluster(ctx context.Context, op int8) (bool, error)
}

// Conn is the client connection that a request came on.
type Conn struct {
	// Nonce is unique per connection within this replica's life.
	Nonce uint64
	// Node is the broker id that the connection's port stands for, -1 for the bootstrap port.
	Node int32
	// RemoteIP is the client's address without its port.
	RemoteIP string
	// Auth is nil where everything is allowed.
	Auth Authorizer
}

// Request is one decoded request; Body has its version set.
type Request struct {
	Body     kmsg.Request
	ClientID string
	Conn     *Conn
	// Theirs is what upstream has answered to the part that Split gave it, nil where there is none.
	Theirs kmsg.Response
}

// API is one API key that kshare serves, wholly or in part.
type API struct {
	// Key, Min and Max are advertised exactly so, unless Relayed.
	Key, Min, Max int16
	// Serve answers. ctx ends when the client goes away or at the drain deadline. An error means a bug or an
	// unsupported request: the connection is closed with a reason.
	Serve func(ctx context.Context, r *Request) (kmsg.Response, error)
	// Split says, for an API that upstream has too, what kshare answers and what upstream answers. own nil = all of it is
	// upstream's; theirs nil = served whole.
	Split func(s *Server, body kmsg.Request) (own, theirs kmsg.Request)
	// Merge joins the answers to the two parts that Split made.
	Merge func(own, theirs kmsg.Response) kmsg.Response
	// Relayed: the key exists upstream, so advertise upstream's range clamped to what kmsg knows, but at least to Max:
	// what kshare answers goes by the client's version, and upstream is asked in its own newest. Min-Max is what kshare
	// can answer when upstream lacks the key; Max -1 = nothing.
	Relayed bool
	// Head is set where the first strings of a request's body already tell that all of it is upstream's.
	Head *Head
	// Older is set where upstreams of an earlier release can be asked for less than Split gives them.
	Older *Older
}

// Older is the Split for an upstream that does not have Key at Version.
type Older struct {
	Key, Version int16
	Split        func(s *Server, body kmsg.Request) (own, theirs kmsg.Request)
}

// Head finds the one group id that a request names. The proxy reads no further than that to see that a request is
// upstream's, and then streams it there undecoded: commits and heartbeats of ordinary groups come often.
type Head struct {
	// Skip is how many strings of the body stand before the group id.
	Skip int
	// Own tells whether kshare has a part in what concerns this group.
	Own func(group string) bool
}

// Options are what a Server is built on.
type Options struct {
	Store    *statelog.Store
	Groups   *coordinator.Service
	Upstream *upstream.Client
	Broker   coordinator.BrokerConfig
	// Checkpoints is the same that Groups has; nil = none are made. New takes it over.
	Checkpoints *Checkpoints
	// DeadLetters writes them; nil = none are written. New takes it over.
	DeadLetters *DeadLetters
	// Endpoint gives the address at which clients reach a node through kshare.
	Endpoint func(node int32) (host string, port int32, ok bool)
	// MaxWaitingFetches is how many ShareFetches may wait for records at a time (default 10,000).
	MaxWaitingFetches int
	Log               zerolog.Logger
	Registry          prometheus.Registerer
}

// Server answers the served APIs of one replica.
type Server struct {
	o        Options
	logs     *statelog.Logs[*sharestate.Partition]
	m        *metrics
	places   waitingPlaces
	sessions *sessionCache
	configs  *configCache

	connMu       sync.Mutex
	conns        map[uint64]*connState
	claims       map[statelog.SessionKey]*connState // who opened the session
	openSessions map[int32]int                      // claims by node

	shareMu            sync.Mutex
	shares             map[shareKey]*share
	linger, sweepAfter time.Duration // shareLinger and sweepDelay, but for tests

	drainOnce sync.Once
	drain     chan struct{}
}

// New makes a Server. It owns the share-partition logs of the store.
func New(o Options) *Server {
	s := &Server{
		o:            o,
		logs:         newLogs(o.Store),
		m:            newMetrics(o.Registry),
		places:       newWaitingPlaces(o.MaxWaitingFetches),
		sessions:     newSessionCache(),
		configs:      newConfigCache(),
		conns:        map[uint64]*connState{},
		claims:       map[statelog.SessionKey]*connState{},
		openSessions: map[int32]int{},
		shares:       map[shareKey]*share{},
		linger:       shareLinger,
		sweepAfter:   sweepDelay,
		drain:        make(chan struct{}),
	}
	if o.Checkpoints != nil {
		o.Checkpoints.s = s
	}
	if o.DeadLetters != nil {
		o.DeadLetters.s = s
	}
	return s
}

// semantics is the version of the rules of share-partitions: 2 knows leader epochs.
const semantics = 2

// newLogs opens the share-partition logs. One that Redis has lost is put back from a replica's copy: what was settled
// since may be delivered again, but nothing is skipped. A copy of an earlier life does no harm, because the next fetch
// resets it to the incarnation that the group says.
func newLogs(store *statelog.Store) *statelog.Logs[*sharestate.Partition] {
	fresh := func() *sharestate.Partition { return sharestate.NewPartition(0, -1) }
	return statelog.NewLogs(store, "share-partition", fresh, statelog.Reseed((*sharestate.Partition).Started), statelog.Semantics[*sharestate.Partition](semantics))
}

// APIs are the keys that kshare serves.
func (s *Server) APIs() []API {
	return append(s.wrongTypeAPIs(), []API{
		{Key: 9, Max: -1, Serve: s.offsetFetch, Split: splitOffsetFetch, Merge: mergeOffsetFetch, Relayed: true},
		{Key: 15, Max: -1, Serve: s.describeGroups, Split: splitDescribeGroups, Merge: mergeDescribeGroups, Relayed: true},
		{Key: 16, Min: 0, Max: 5, Serve: s.listGroups, Split: splitList, Merge: s.mergeList, Relayed: true},
		{Key: 21, Max: -1, Serve: s.deleteRecords, Split: splitDeleteRecords, Merge: mergeDeleteRecords, Relayed: true},
		{Key: 32, Min: 1, Max: 4, Serve: s.describeConfigs, Split: splitDescribe, Merge: mergeDescribe, Relayed: true, Older: beforeGroupConfigs(splitDescribeBefore)},
		{Key: 33, Min: 0, Max: 2, Serve: s.alterConfigs, Split: splitAlter, Merge: mergeAlter, Relayed: true},
		{Key: 42, Min: 0, Max: 3, Serve: s.deleteGroups, Split: splitDelete, Merge: mergeDelete, Relayed: true},
		{Key: 44, Min: 0, Max: 1, Serve: s.incrementalAlterConfigs, Split: splitIncrementalAlter, Merge: mergeIncrementalAlter, Relayed: true, Older: beforeGroupConfigs(splitIncrementalAlterBefore)},
		{Key: 69, Max: -1, Serve: s.consumerGroupDescribe, Split: splitConsumerDescribe, Merge: mergeConsumerDescribe, Relayed: true},
		{Key: 74, Min: 1, Max: 1, Serve: s.listConfigResources, Split: splitConfigList, Merge: mergeConfigList, Relayed: true},
		{Key: 76, Min: 1, Max: 1, Serve: s.shareGroupHeartbeat},
		{Key: 77, Min: 1, Max: 1, Serve: s.shareGroupDescribe},
		{Key: 78, Min: 1, Max: 2, Serve: s.shareFetch},
		{Key: 79, Min: 1, Max: 2, Serve: s.shareAcknowledge},
		{Key: 89, Max: -1, Serve: s.streamsGroupDescribe, Split: splitStreamsDescribe, Merge: mergeStreamsDescribe, Relayed: true},
		{Key: 90, Min: 0, Max: 1, Serve: s.describeShareGroupOffsets},
		{Key: 91, Min: 0, Max: 0, Serve: s.alterShareGroupOffsets},
		{Key: 92, Min: 0, Max: 0, Serve: s.deleteShareGroupOffsets},
	}...)
}

// Drain makes waiting fetches answer now, and ends the server's background work. Requests are still served after it,
// without waiting; there is no way back.
func (s *Server) Drain() {
	s.drainOnce.Do(func() { close(s.drain) })
}
