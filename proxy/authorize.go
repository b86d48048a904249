package proxy

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ACL operation codes, Kafka's.
const (
	opRead            int8 = 3
	opDelete          int8 = 6
	opDescribe        int8 = 8
	opClusterAction   int8 = 9
	opDescribeConfigs int8 = 10
	opAlterConfigs    int8 = 11
)

const (
	// Versions of the questions. All are served by Kafka 2.8 to 4.x; Metadata
	// v8-10 is the one that tells cluster operations too, DescribeGroups above
	// v5 does not answer for groups that do not exist.
	metadataVersion       = 9
	describeGroupsVersion = 5

	authTTL     = 5 * time.Second
	authEntries = 1024
	everyOp     = ^uint32(0)
	configOps   = 1<<opDescribeConfigs | 1<<opAlterConfigs
)

// authorizer asks upstream, on the client's own upstream connection, what the
// client's principal may do (serve.Authorizer). Answers are kept per
// connection for authTTL; failures to ask are not kept.
type authorizer struct {
	c  *conn
	mu sync.Mutex
	// answers is an LRU: a client that names ever new groups or topics only
	// costs itself.
	answers *simplelru.LRU[resource, permissions]
	now     func() time.Time
	// groupConfigs: upstream may have configs of groups, and ACLs for them.
	groupConfigs bool
}

type resource struct {
	kind byte // g(roup), t(opic), c(luster)
	name string
}

// permissions are bit sets over operation codes: which are known, and which of
// those are granted.
type permissions struct {
	known, granted uint32
	until          time.Time
}

func newAuthorizer(c *conn) *authorizer {
	lru, _ := simplelru.NewLRU[resource, permissions](authEntries, nil) // fails on a size of 0 only
	return &authorizer{c: c, answers: lru, now: time.Now, groupConfigs: true}
}

// forget drops all answers; the client authenticates (again).
func (a *authorizer) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers.Purge()
}

func (a *authorizer) lookup(r resource, op int8) (granted, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.answers.Get(r)
	if !ok || p.known&bit(op) == 0 || a.now().After(p.until) {
		return false, false
	}
	return p.granted&bit(op) != 0, true
}

func (a *authorizer) keep(r resource, known, granted uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.answers.Get(r)
	if !ok || a.now().After(p.until) {
		p = permissions{until: a.now().Add(authTTL)}
	}
	p.known |= known
	p.granted = p.granted&^known | granted&known
	a.answers.Add(r, p)
}

func bit(op int8) uint32 { return 1 << (uint(op) & 31) }

// Cluster implements serve.Authorizer. A broker tells all that a principal may
// do only if DESCRIBE is among it; else each operation has a probe.
func (a *authorizer) Cluster(ctx context.Context, op int8) (bool, error) {
	r := resource{kind: 'c'}
	if granted, known := a.lookup(r, op); known {
		return granted, nil
	}
	resp, err := a.metadata(ctx, nil)
	if err != nil {
		return false, err
	}
	if resp.AuthorizedOperations == math.MinInt32 {
		return false, fmt.Errorf("upstream tells no cluster operations")
	}
	known, granted := everyOp, uint32(resp.AuthorizedOperations)
	if granted&bit(opDescribe) == 0 {
		known = bit(opDescribe)
	}
	a.keep(r, known, granted)
	if known&bit(op) == 0 {
		if granted, err = a.probeCluster(ctx, op); err != nil {
			return false, err
		}
		a.keep(r, bit(op), granted)
	}
	return granted&bit(op) != 0, nil
}

// Topics implements serve.Authorizer.
func (a *authorizer) Topics(ctx context.Context, op int8, names []string) (map[string]bool, error) {
	answer := make(map[string]bool, len(names))
	var missing []string
	for _, name := range names {
		if _, twice := answer[name]; twice {
			continue
		}
		granted, known := a.lookup(resource{'t', name}, op)
		answer[name] = granted
		if !known {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return answer, nil
	}
	resp, err := a.metadata(ctx, missing)
	if err != nil {
		return nil, err
	}
	var hidden []string
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		known, bits := everyOp, uint32(t.AuthorizedOperations)
		switch {
		case t.ErrorCode == kerr.TopicAuthorizationFailed.Code:
			// What implies DESCRIBE may be granted yet, if DESCRIBE itself
			// is denied.
			known, bits = bit(opDescribe), 0
			hidden = append(hidden, *t.Topic)
		case t.AuthorizedOperations == math.MinInt32:
			return nil, fmt.Errorf("topic %q: upstream tells no operations: %w", *t.Topic, kerr.ErrorForCode(t.ErrorCode))
		}
		a.keep(resource{'t', *t.Topic}, known, bits)
		answer[*t.Topic] = bits&bit(op) != 0
	}
	if op != opRead || len(hidden) == 0 {
		return answer, nil
	}
	readable, err := a.probeTopics(ctx, hidden)
	if err != nil {
		return nil, err
	}
	for _, name := range hidden {
		granted := uint32(0)
		if readable[name] {
			granted = bit(opRead)
		}
		a.keep(resource{'t', name}, bit(opRead), granted)
		answer[name] = readable[name]
	}
	return answer, nil
}

func (a *authorizer) metadata(ctx context.Context, topics []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewMetadataRequest()
	req.Version = metadataVersion
	req.Topics = []kmsg.MetadataRequestTopic{} // empty is none, nil would be all
	for _, name := range topics {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(name)})
	}
	req.IncludeTopicAuthorizedOperations = len(topics) > 0
	req.IncludeClusterAuthorizedOperations = len(topics) == 0
	resp, err := a.c.ask(ctx, &req)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.MetadataResponse), nil
}

// Group implements serve.Authorizer. Only a group's coordinator tells all that
// a principal may do with it, and only if DESCRIBE is among it; else each
// operation has a probe.
func (a *authorizer) Group(ctx context.Context, op int8, group string) (bool, error) {
	r := resource{'g', group}
	if granted, known := a.lookup(r, op); known {
		return granted, nil
	}
	known, granted, err := a.describeGroup(ctx, group)
	if err != nil {
		return false, err
	}
	a.keep(r, known, granted)
	if known&bit(op) == 0 {
		hidden := granted&bit(opDescribe) == 0
		if granted, err = a.probeGroup(ctx, op, group, hidden); err != nil {
			return false, err
		}
		a.keep(r, bit(op), granted)
	}
	return granted&bit(op) != 0, nil
}

// describeGroup asks for the group's authorized operations.
func (a *authorizer) describeGroup(ctx context.Context, group string) (known, granted uint32, err error) {
	req := kmsg.NewDescribeGroupsRequest()
	req.Version = describeGroupsVersion
	req.Groups = []string{group}
	req.IncludeAuthorizedOperations = true
	resp, err := a.c.ask(ctx, &req)
	if err != nil {
		return 0, 0, err
	}
	groups := resp.(*kmsg.DescribeGroupsResponse).Groups
	if len(groups) != 1 {
		return 0, 0, fmt.Errorf("group %q: upstream described %d groups", group, len(groups))
	}
	g := groups[0]
	switch g.ErrorCode {
	case 0:
		if g.AuthorizedOperations == math.MinInt32 {
			return 0, 0, fmt.Errorf("group %q: upstream tells no operations", group)
		}
		granted = uint32(g.AuthorizedOperations)
		// Kafka before 4.0 knows no config operations on groups, so that
		// they are missing for everybody: not granted is not yet denied.
		return everyOp &^ (configOps &^ granted), granted, nil
	case kerr.GroupAuthorizationFailed.Code:
		// READ and DELETE imply DESCRIBE, but may be granted where it is
		// denied. The config operations do not imply it.
		return bit(opDescribe), 0, nil
	case kerr.NotCoordinator.Code, kerr.CoordinatorNotAvailable.Code, kerr.CoordinatorLoadInProgress.Code, kerr.InvalidGroupID.Code:
		// Brokers authorize first, so DESCRIBE is granted.
		return bit(opDescribe), bit(opDescribe), nil
	}
	return 0, 0, fmt.Errorf("group %q: authorized operations: %w", group, kerr.ErrorForCode(g.ErrorCode))
}
