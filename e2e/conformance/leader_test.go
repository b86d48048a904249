//go:build e2e

package conformance

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestThreeBrokers is all that needs more brokers than one. The parts share a cluster, and the last two kill its brokers.
func TestThreeBrokers(t *testing.T) {
	tg := startCluster(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *target)
	}{
		{"OtherNodesTellTheLeader", otherNodesTellTheLeader},
		{"LeaderMoves", leaderMoves},
		{"LeaderIsLost", leaderIsLost},
		{"LogIsCut", logIsCut},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, tg) })
	}
}

func otherNodesTellTheLeader(t *testing.T, tg *target) {
	w := inCluster(t, tg, nil, []int32{1, 2, 3}, []int32{2, 3, 1}, []int32{3, 1, 2}, []int32{2, 1, 3})
	parts := []tp{w.p(0), w.p(1), w.p(2), w.p(3)}
	var leads []lead
	for _, p := range parts {
		leads = append(leads, w.leadOf(p))
	}
	for node := int32(1); node <= 3; node++ {
		others := map[int32]string{}
		for _, l := range leads {
			if l.node != node {
				others[l.node] = l.address
			}
		}
		for _, m := range w.membersOn(node) {
			m.fetch(parts...)
			// Errors are told in each response, the empty partitions of the leader only once.
			var f fetched
			for i, p := range parts {
				if leads[i].node != node {
					f = m.becomes(p, leads[i].told())
				}
			}
			for i, p := range parts {
				want := leads[i].told()
				if leads[i].node == node {
					want = ""
				}
				w.is(fmt.Sprintf("partition %d on node %d", i, node), f.state(p), want)
			}
			if got := f.endpoints(); !maps.Equal(got, others) {
				t.Fatalf("NodeEndpoints on node %d: %v, want %v", node, got, others)
			}
		}
	}
	// The leader delivers, beside the errors of the others' partitions.
	for _, p := range parts {
		w.produce(p, 2)
	}
	for node := int32(1); node <= 3; node++ {
		f := w.memberOn(node).fetch(parts...)
		for i, p := range parts {
			if leads[i].node == node {
				w.is("delivered", f.state(p)+" "+f.acquired(p), "0 0/0 0-1x1")
			} else {
				w.is("beside records", f.state(p), leads[i].told())
			}
		}
	}
	// With nothing but errors there is no waiting.
	m := w.memberOn(1)
	req := m.fetching(w.p(1), w.p(2))
	req.MaxWaitMillis = 20_000
	f := m.do(req)
	w.is("alone", f.state(w.p(1))+", "+f.state(w.p(2)), leads[1].told()+", "+leads[2].told())
	if f.took.Seconds() > 10 {
		t.Fatalf("answered after %v", f.took)
	}
}

// plainly acknowledges and expects an outcome that has no leader to tell.
func (m *member) plainly(want *kerr.Error, p tp, acks ...ack) {
	m.w.Helper()
	req := m.acknowledging()
	carry(req, p, acks...)
	a := m.doAck(req)
	m.w.code(fmt.Sprintf("acknowledge %v", acks), a.result(p), want)
	if l := a.Topics[0].Partitions[0].CurrentLeader; l.LeaderID != 0 || l.LeaderEpoch != 0 || len(a.NodeEndpoints) > 0 {
		m.w.Fatalf("acknowledge %v: %+v, %v", acks, l, a.NodeEndpoints)
	}
}

// All brokers are up, and another one is made the leader.
func leaderMoves(t *testing.T, tg *target) {
	w := inCluster(t, tg, nil, []int32{1, 2, 3})
	p := w.p(0)
	before := w.leadOf(p)
	w.produce(p, 5)
	holder := w.memberOn(1)
	holder.takes("0-4x1", p)
	elsewhere := holder.on(2)
	elsewhere.fetch(p)
	elsewhere.becomes(p, before.told())
	var failure *kerr.Error
	if allowed().statesAtLeader {
		failure = kerr.UnknownTopicOrPartition
	}
	elsewhere.plainly(failure, p, accept(0, 1))
	req := elsewhere.fetching()
	carry(req, p, accept(2, 2))
	f := elsewhere.do(req)
	w.code("acknowledge by a fetch", f.ackFailure(p), failure)
	w.is("beside the acknowledgement", f.state(p), before.told())

	old, next := w.membersOn(1), w.membersOn(2)
	for i := range old {
		old[i].getsNone(p)
		next[i].fetch(p)
	}
	after := w.moveLeader(p, 2, 3, 1)
	if after.epoch <= before.epoch {
		t.Fatalf("moved from %v to %v", before, after)
	}
	for _, m := range append(old, holder) {
		m.becomes(p, after.told())
	}
	holder.plainly(failure, p, accept(3, 3))
	w.produce(p, 1)
	if allowed().statesAtLeader {
		next[0].gathers("0-5x1", p)
		return
	}
	next[1].gathers("5-5x1", p)
	next[0].becomes(p, "", "0 0/0")
	next[0].getsNone()
	elsewhere.becomes(p, "", "0 0/0")
	elsewhere.plainly(nil, p, accept(4, 4))
	w.lagBecomes(p, 1)
}

// The leader dies. One of its partitions has no other replica; of the other a follower becomes the leader.
func leaderIsLost(t *testing.T, tg *target) {
	w := inCluster(t, tg, nil, []int32{3})
	lone := w.p(0)
	safe := w.createPlacedTopic(w.main.name+"-safe", nil, []int32{3, 1, 2}).at(0)
	w.join(w.group, w.main, safe.topic)
	w.admin = w.dial(w.addressOf(1))
	w.produceEach(lone, 6, 1)
	w.produce(safe, 3)
	var holders []*member // on connections without a node's port; behind each is another broker
	if tg.replicas != nil {
		for i := range int64(3) {
			m := &member{w: w, group: w.group, id: w.unique(), c: w.dial(tg.at(0, tg.bootstrap))}
			w.is("acquired", m.takeBy(maxRecords(2), lone), fmt.Sprintf("%d-%dx1", 2*i, 2*i+1))
			holders = append(holders, m)
		}
	}
	others := w.membersOn(2)
	for _, m := range others {
		m.fetch(lone, safe)
		m.becomes(lone, w.leadOf(lone).told())
		m.becomes(safe, w.leadOf(safe).told())
	}

	tg.kafka.Nodes[2].Kill()
	promoted, lost := w.ledBy(safe, 1), w.ledBy(lone, -1)
	nobody := fmt.Sprintf("%d -1/-1", kerr.NotLeaderForPartition.Code)
	if allowed().lostLeaderEpoch {
		nobody = lost.told()
	}
	for _, m := range others {
		m.becomes(lone, nobody)
		f := m.becomes(safe, promoted.told())
		w.is("the lost one", f.state(lone), nobody)
		if got := slices.Collect(maps.Keys(f.endpoints())); !slices.Equal(got, []int32{1}) {
			t.Fatalf("NodeEndpoints of %v", got)
		}
	}
	heirs := w.membersOn(1)
	for i := range heirs {
		heirs[i].fetch(lone)
		heirs[i].becomes(lone, nobody)
		if i == 0 {
			heirs[i].gathersOver("0-2x1", safe, whileElecting...)
		}
		heirs[i].becomes(safe, "", "0 0/0")
	}

	// What is held can be acknowledged meanwhile, unless the state is gone with the leader.
	var dead []string
	var alive []*member
	for i, m := range holders {
		first := 2 * int64(i)
		req := m.acknowledging()
		carry(req, lone, accept(first, first+1))
		resp, err := m.c.do(req)
		if err != nil { // its connection went by way of the broker that died
			dead = append(dead, fmt.Sprintf("%d-%dx2", first, first+1))
			continue
		}
		w.code("acknowledge", resp.(*kmsg.ShareAcknowledgeResponse).Topics[0].Partitions[0].ErrorCode, nil)
		m.advance(req.ShareSessionEpoch)
		m.becomes(lone, nobody)
		alive = append(alive, m)
	}
	if holders != nil && (len(alive) != 2 || len(dead) != 1) {
		t.Fatalf("%d of three connections have survived", len(alive))
	}
	if allowed().statesAtLeader {
		others[0].plainly(kerr.UnknownTopicOrPartition, lone, accept(0, 0))
	}

	if err := tg.kafka.StartNode(2); err != nil {
		t.Fatal(err)
	}
	if alive != nil { // first, for before the leader is known again all nodes' ports serve
		alive[0].gathersOver(dead[0], lone, whileElecting...) // in the session that it has had all the time
	}
	back := w.ledBy(lone, 3)
	for _, m := range append(others, heirs...) {
		m.becomes(lone, back.told())
	}
	if allowed().statesAtLeader {
		w.memberOn(3).gathersOver("0-5x1", lone, whileElecting...)
	}
	if err := tg.kafka.WaitInSync(); err != nil {
		t.Fatal(err)
	}
}
