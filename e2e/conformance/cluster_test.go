//go:build e2e

package conformance

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// clusterSettings have brokers that are gone noticed soon.
var clusterSettings = map[string]string{
	"broker.session.timeout.ms":    "3000",
	"broker.heartbeat.interval.ms": "500",
}

// startCluster starts a target of three brokers, which ends with the test.
func startCluster(t *testing.T) *target {
	t.Helper()
	config := maps.Clone(openSettings)
	maps.Copy(config, clusterSettings)
	start := startKshare
	if native() {
		start = startNative
	}
	tg, err := start(3, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeCluster(t, tg) })
	return tg
}

func closeCluster(t *testing.T, tg *target) {
	t.Helper()
	if tg.replicas != nil {
		if err := tg.replicas.Err(); err != nil {
			t.Errorf("a replica ended by itself: %v", err)
		}
		if leaks, _ := tg.replicas.Balancer.Leaks(); len(leaks) > 0 {
			t.Errorf("a client was told an upstream address: %s", leaks)
		}
		tg.replicas.Close()
	}
	tg.kafka.Close()
}

// inCluster makes a world on three brokers for a part of a test: a topic whose partitions have the given replicas, the
// first of which leads, and a group that reads it.
func inCluster(t *testing.T, tg *target, configs map[string]string, replicas ...[]int32) *world {
	t.Helper()
	suite.Explain(t, "")
	w := &world{T: t, tg: tg}
	first, _, _ := strings.Cut(tg.bootstrap, ",")
	w.admin = w.dial(first)
	name := t.Name()[strings.LastIndex(t.Name(), "/")+1:] + "-" + w.unique()
	w.group = name + "-group"
	w.main = w.createPlacedTopic(name, configs, replicas...)
	w.set(w.group, "share.auto.offset.reset", "earliest")
	w.join(w.group, w.main)
	return w
}

// lead is who leads a partition, as Metadata tells it.
type lead struct {
	node, epoch int32
	address     string // of the node, as clients are told it; empty if the node is not among the brokers
}

func (l lead) String() string {
	return fmt.Sprintf("node %d (%s) epoch %d", l.node, l.address, l.epoch)
}

// leadOf asks for the leader of a partition; node -1 is none.
func (w *world) leadOf(p tp) lead {
	w.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = &p.name
	req.Topics = append(req.Topics, rt)
	resp := ask[*kmsg.MetadataResponse](w, w.admin, req)
	l := lead{-1, -1, ""}
	for _, part := range resp.Topics[0].Partitions {
		if part.Partition == p.p {
			l.node, l.epoch = part.Leader, part.LeaderEpoch
		}
	}
	for _, b := range resp.Brokers {
		if b.NodeID == l.node {
			l.address = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		}
	}
	return l
}

// leaderOf is a connection to the leader of a partition, for what only the leader takes.
func (w *world) leaderOf(p tp) *conn {
	w.Helper()
	if len(w.tg.kafka.NodeIDs) == 1 {
		return w.admin
	}
	var l lead
	w.until(fmt.Sprintf("leader of partition %d", p.p), 20*time.Second, func() error {
		if l = w.leadOf(p); l.address == "" { // brokers hear of each other's return at different times
			return fmt.Errorf("%v", l)
		}
		return nil
	})
	return w.dial(l.address)
}

// ledBy waits until a node leads a partition; -1 is that nobody does.
func (w *world) ledBy(p tp, node int32) (l lead) {
	w.Helper()
	w.until(fmt.Sprintf("node %d to lead partition %d", node, p.p), 60*time.Second, func() error {
		if l = w.leadOf(p); l.node != node {
			return fmt.Errorf("%v", l)
		}
		return nil
	})
	return l
}

// addressOf is where clients find a node that is up.
func (w *world) addressOf(node int32) string {
	w.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 12, []kmsg.MetadataRequestTopic{}
	for _, b := range ask[*kmsg.MetadataResponse](w, w.admin, req).Brokers {
		if b.NodeID == node {
			return net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		}
	}
	w.Fatalf("node %d is not among the brokers", node)
	return ""
}

// whileElecting are the errors that a fetch may meet until a new leader is known everywhere. Clients take them quietly.
var whileElecting = []*kerr.Error{kerr.NotLeaderForPartition, kerr.KafkaStorageError}

// memberOn is served by a node.
func (w *world) memberOn(node int32) *member {
	w.Helper()
	return &member{w: w, group: w.group, id: w.unique(), c: w.dial(w.addressOf(node))}
}

// membersOn are served by a node, one by way of each replica.
func (w *world) membersOn(node int32) (all []*member) {
	w.Helper()
	for i := range w.tg.count() {
		all = append(all, &member{w: w, group: w.group, id: w.unique(), c: w.dial(w.tg.at(i, w.addressOf(node)))})
	}
	return all
}

// on is the same member towards another node, where it has no session yet.
func (m *member) on(node int32) *member {
	m.w.Helper()
	return &member{w: m.w, group: m.group, id: m.id, c: m.w.dial(m.w.addressOf(node))}
}

// moveLeader makes a node, which must be in sync, lead a partition.
func (w *world) moveLeader(p tp, replicas ...int32) lead {
	w.Helper()
	move := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	move.TimeoutMillis = 20_000
	part := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	part.Partition, part.Replicas = p.p, replicas
	mt := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	mt.Topic, mt.Partitions = p.name, append(mt.Partitions, part)
	move.Topics = append(move.Topics, mt)
	resp := ask[*kmsg.AlterPartitionAssignmentsResponse](w, w.admin, move)
	w.code("AlterPartitionReassignments", resp.ErrorCode, nil)
	w.code("AlterPartitionReassignments", resp.Topics[0].Partitions[0].ErrorCode, nil)
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.Version, elect.TimeoutMillis = 2, 20_000
	et := kmsg.NewElectLeadersRequestTopic()
	et.Topic, et.Partitions = p.name, []int32{p.p}
	elect.Topics = append(elect.Topics, et)
	w.until("election", 20*time.Second, func() error {
		for _, t := range ask[*kmsg.ElectLeadersResponse](w, w.admin, elect).Topics {
			for _, part := range t.Partitions {
				if err := kerr.ErrorForCode(part.ErrorCode); err != nil && err != kerr.ElectionNotNeeded {
					return err
				}
			}
		}
		return nil
	})
	return w.ledBy(p, replicas[0])
}

// hint is what is said of a partition's leader: "2/5 at 127.0.0.1:20001", or "-1/-1".
func hint(leader, epoch int32, address string) string {
	s := fmt.Sprintf("%d/%d", leader, epoch)
	if address != "" {
		s += " at " + address
	}
	return s
}

// told is the state of a partition that is asked for at another node than its leader.
func (l lead) told() string {
	return fmt.Sprintf("%d %s", kerr.NotLeaderForPartition.Code, hint(l.node, l.epoch, l.address))
}

// endpoints are NodeEndpoints by node. A node that is listed twice fails the test.
func (f fetched) endpoints() map[int32]string {
	f.w.Helper()
	out := map[int32]string{}
	for _, e := range f.NodeEndpoints {
		if _, twice := out[e.NodeID]; twice {
			f.w.Fatalf("node %d is twice in NodeEndpoints", e.NodeID)
		}
		out[e.NodeID] = net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
	}
	return out
}

// state is what a fetch says of a partition besides records: "0 0/0", or "6 2/5 at 127.0.0.1:20001"; "" without an entry.
func (f fetched) state(p tp) string {
	f.w.Helper()
	part := f.part(p)
	if part == nil {
		return ""
	}
	if part.ErrorCode != 0 && (part.Records == nil || len(part.Records) > 0 || len(part.AcquiredRecords) > 0) {
		f.w.Fatalf("records beside error %d: %v (null: %v), %v", part.ErrorCode, part.Records, part.Records == nil, part.AcquiredRecords)
	}
	l := part.CurrentLeader
	return fmt.Sprintf("%d %s", part.ErrorCode, hint(l.LeaderID, l.LeaderEpoch, f.endpoints()[l.LeaderID]))
}

// becomes fetches until a partition is in one of the states. Before that it may have its former leader, or none.
func (m *member) becomes(p tp, want ...string) fetched {
	m.w.Helper()
	var f fetched
	m.w.until(fmt.Sprintf("partition %d: %q", p.p, want), 5*time.Second, func() error {
		req := m.fetching()
		req.MaxWaitMillis = 100
		f = m.do(req)
		if got := f.state(p); !slices.Contains(want, got) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	return f
}
