//go:build e2e

package conformance

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

// world is what one test works with: a topic and a share group of its own on the target that all tests share.
type world struct {
	*testing.T
	tg    *target
	admin *conn  // for all but the share RPCs
	node  string // address of the broker
	main  topic
	group string
}

type topic struct {
	name string
	id   [16]byte
}

// tp is one partition.
type tp struct {
	topic
	p int32
}

func (t topic) at(p int32) tp { return tp{t, p} }

// p is a partition of the test's topic.
func (w *world) p(p int32) tp { return w.main.at(p) }

// setup says how a world differs from one partition that the group reads from the earliest record on.
type setup struct {
	partitions int
	reset      string            // share.auto.offset.reset
	configs    map[string]string // of the group
	topic      map[string]string // configs of the topic
	alone      bool              // not beside other tests: it fills or kills what they share
	guarded    bool              // access can be denied
	secured    bool              // everybody logs in, and may do nothing without a grant
	foreign    bool              // the group is not made
}

// start makes the world of a check.
func start(t *testing.T, s setup) *world {
	t.Helper()
	states.record(t)
	return enter(t, s)
}

// enter makes a world for a test that is not of one check.
func enter(t *testing.T, s setup) *world {
	t.Helper()
	if !s.alone {
		t.Parallel()
	}
	tg, err := startTarget(s)
	if err != nil {
		t.Fatal(err)
	}
	suite.Explain(t, "")
	w := &world{T: t, tg: tg}
	w.admin = w.dial(tg.bootstrap)
	w.node = w.leader()
	name := regexp.MustCompile(`^Test(Check\d+|[A-Za-z]+).*`).ReplaceAllString(t.Name(), "$1") + "-" + w.unique()
	w.group = name + "-group"
	w.main = w.createTopic(name, max(s.partitions, 1), s.topic)
	w.set(w.group, "share.auto.offset.reset", cmp.Or(s.reset, "earliest"))
	for key, value := range s.configs {
		w.set(w.group, key, value)
	}
	if !s.foreign {
		w.join(w.group, w.main)
	}
	return w
}

// within makes a part of a test a sub-test with the same world.
func (w *world) within(name string, f func(w *world)) {
	w.Run(name, func(t *testing.T) {
		sub := *w
		sub.T = t
		f(&sub)
	})
}

func (w *world) unique() string { return strings.ToLower(rand.Text()[:8]) }

// dial connects, where there are logins as the one who may do everything.
func (w *world) dial(address string) *conn {
	w.Helper()
	c, err := dial(address)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	if w.tg.secured {
		w.login(c, superUser)
	}
	return c
}

// until polls.
func (w *world) until(what string, timeout time.Duration, cond func() error) {
	w.Helper()
	if err := harness.Until(what, timeout, cond); err != nil {
		w.Fatal(err)
	}
}

// code fails the test unless a response has the wanted error, nil for none.
func (w *world) code(where string, got int16, want *kerr.Error) {
	w.Helper()
	var wanted int16
	if want != nil {
		wanted = want.Code
	}
	if got != wanted {
		w.Fatalf("%s: error %d (%v), want %d (%v)", where, got, kerr.TypedErrorForCode(got), wanted, want)
	}
}

// is fails the test unless got is what is wanted.
func (w *world) is(what, got, want string) {
	w.Helper()
	if got != want {
		w.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// ask sends a request and fails the test if no response comes.
func ask[R kmsg.Response](w *world, c *conn, req kmsg.Request) R {
	w.Helper()
	resp, err := c.do(req)
	if err != nil {
		w.Fatalf("%s: %v", kmsg.NameForKey(req.Key()), err)
	}
	return resp.(R)
}

// leader is the address of the only broker, as clients are told it.
func (w *world) leader() string {
	w.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 12, []kmsg.MetadataRequestTopic{}
	b := ask[*kmsg.MetadataResponse](w, w.admin, req).Brokers
	if len(b) != 1 {
		w.Fatalf("%d brokers", len(b))
	}
	return net.JoinHostPort(b[0].Host, strconv.Itoa(int(b[0].Port)))
}

const groupResource = kmsg.ConfigResourceType(32)

// set sets a config of a group and waits until it is to be seen.
func (w *world) set(group, key, value string) {
	w.Helper()
	w.until("set "+key, 60*time.Second, func() error {
		err := kerr.ErrorForCode(w.trySet(group, key, value))
		if err != nil && !kerr.IsRetriable(err) {
			w.Fatalf("set %s: %v", key, err)
		}
		return err
	})
	w.shows(group, key, value)
}

// shows waits until a config of a group is described with a value.
func (w *world) shows(group, key, value string) {
	w.Helper()
	w.until(key+" = "+value, 20*time.Second, func() error {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.Version = 4
		res := kmsg.NewDescribeConfigsRequestResource()
		res.ResourceType, res.ResourceName, res.ConfigNames = groupResource, group, []string{key}
		req.Resources = append(req.Resources, res)
		got := ask[*kmsg.DescribeConfigsResponse](w, w.admin, req).Resources[0]
		if got.ErrorCode != 0 || len(got.Configs) != 1 || got.Configs[0].Value == nil || *got.Configs[0].Value != value {
			return fmt.Errorf("%w %+v", kerr.ErrorForCode(got.ErrorCode), got.Configs)
		}
		return nil
	})
}

// trySet is one IncrementalAlterConfigs for a group; it gives the error code.
func (w *world) trySet(group, key, value string) int16 {
	w.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = groupResource, group
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = key, &value
	res.Configs = append(res.Configs, c)
	req.Resources = append(req.Resources, res)
	return ask[*kmsg.IncrementalAlterConfigsResponse](w, w.admin, req).Resources[0].ErrorCode
}

// join makes the group by a member that subscribes to the topics, and returns when all their partitions are assigned,
// for a broker only then has share state for them. Fetching needs no membership, so the member is not heard of again.
func (w *world) join(group string, topics ...topic) *beater {
	w.Helper()
	b := w.beater(group)
	b.subscribes(topics...)
	settle("assignment of "+group, func() error {
		for _, t := range topics {
			if b.has(t) == "" {
				return fmt.Errorf("%s (%x) is not assigned; assigned: %x", t.name, t.id, b.assigned)
			}
		}
		return nil
	}, b)
	return b
}

// described is what DescribeShareGroupOffsets tells of a partition.
func (w *world) described(p tp) (startOffset, lag int64) {
	w.Helper()
	t := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
	t.Topic, t.Partitions = p.name, []int32{p.p}
	part := w.describeOffsets(1, w.group, t).Topics[0].Partitions[0]
	w.code("DescribeShareGroupOffsets", part.ErrorCode, nil)
	return part.StartOffset, part.Lag
}

// describeOffsets asks for topics of a group, or all if none is named.
func (w *world) describeOffsets(version int16, group string, topics ...kmsg.DescribeShareGroupOffsetsRequestGroupTopic) kmsg.DescribeShareGroupOffsetsResponseGroup {
	w.Helper()
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	req.Version = version
	g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	g.GroupID, g.Topics = group, topics
	req.Groups = append(req.Groups, g)
	got := ask[*kmsg.DescribeShareGroupOffsetsResponse](w, w.admin, req).Groups[0]
	w.code("DescribeShareGroupOffsets", got.ErrorCode, nil)
	return got
}

// lagBecomes waits until so many offsets are not finished; what finishes one without an acknowledgement may take a
// moment.
func (w *world) lagBecomes(p tp, want int64) {
	w.Helper()
	w.until("lag", 20*time.Second, func() error {
		if start, lag := w.described(p); lag != want {
			return fmt.Errorf("%d, want %d; start offset %d", lag, want, start)
		}
		return nil
	})
}

// deny takes operations, READ if none is named, on a topic or a group from everybody.
func (w *world) deny(resource kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) {
	w.Helper()
	if len(ops) == 0 {
		ops = []kmsg.ACLOperation{kmsg.ACLOperationRead}
	}
	type rule struct {
		op         kmsg.ACLOperation
		permission kmsg.ACLPermissionType
	}
	rules := []rule{{kmsg.ACLOperationAll, kmsg.ACLPermissionTypeAllow}}
	for _, op := range ops {
		rules = append(rules, rule{op, kmsg.ACLPermissionTypeDeny})
	}
	req := kmsg.NewPtrCreateACLsRequest()
	req.Version = 3
	for _, c := range rules {
		a := kmsg.NewCreateACLsRequestCreation()
		a.ResourceType, a.ResourceName, a.ResourcePatternType = resource, name, kmsg.ACLResourcePatternTypeLiteral
		a.Principal, a.Host, a.Operation, a.PermissionType = "User:ANONYMOUS", "*", c.op, c.permission
		req.Creations = append(req.Creations, a)
	}
	for _, r := range ask[*kmsg.CreateACLsResponse](w, w.admin, req).Results {
		w.code("CreateACLs", r.ErrorCode, nil)
	}
	w.until("ACLs of "+name, 20*time.Second, func() error { // the answer comes from the controller
		req := kmsg.NewPtrDescribeACLsRequest()
		req.Version = 3
		req.ResourceType, req.ResourceName, req.ResourcePatternType = resource, &name, kmsg.ACLResourcePatternTypeLiteral
		req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
		resp := ask[*kmsg.DescribeACLsResponse](w, w.admin, req)
		for _, c := range rules {
			if len(resp.Resources) != 1 || !slices.ContainsFunc(resp.Resources[0].ACLs, func(a kmsg.DescribeACLsResponseResourceACL) bool {
				return a.Operation == c.op && a.PermissionType == c.permission
			}) {
				return fmt.Errorf("%+v", resp)
			}
		}
		return nil
	})
}

// anotherGroup is the same world for another group, which reads the topic by another reset policy perhaps.
func (w *world) anotherGroup(suffix, reset string) *world {
	w.Helper()
	other := *w
	other.group += suffix
	other.set(other.group, "share.auto.offset.reset", reset)
	other.join(other.group, other.main)
	return &other
}

// allow takes denials back.
func (w *world) allow(resource kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) {
	w.Helper()
	req := kmsg.NewPtrDeleteACLsRequest()
	req.Version = 3
	for _, op := range ops {
		f := kmsg.NewDeleteACLsRequestFilter()
		f.ResourceType, f.ResourceName, f.ResourcePatternType = resource, &name, kmsg.ACLResourcePatternTypeLiteral
		f.Operation, f.PermissionType = op, kmsg.ACLPermissionTypeDeny
		req.Filters = append(req.Filters, f)
	}
	for _, r := range ask[*kmsg.DeleteACLsResponse](w, w.admin, req).Results {
		w.code("DeleteACLs", r.ErrorCode, nil)
		if len(r.MatchingACLs) != 1 {
			w.Fatalf("DeleteACLs: %d deleted", len(r.MatchingACLs))
		}
	}
}
