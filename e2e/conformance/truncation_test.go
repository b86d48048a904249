//go:build e2e

package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// inSync waits until so many replicas of a partition are in sync.
func (w *world) inSync(p tp, n int) {
	w.Helper()
	w.until(fmt.Sprintf("%d replicas in sync", n), 60*time.Second, func() error {
		req := kmsg.NewPtrMetadataRequest()
		req.Version = 12
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = &p.name
		req.Topics = append(req.Topics, rt)
		for _, part := range ask[*kmsg.MetadataResponse](w, w.admin, req).Topics[0].Partitions {
			if part.Partition == p.p && len(part.ISR) == n {
				return nil
			}
		}
		return fmt.Errorf("not yet")
	})
}

// A follower that is behind becomes the leader (unclean.leader.election.enable), so that records which were delivered and
// acknowledged are gone, and others stand at their offsets before anybody has looked. One group has members all the time,
// the other one sleeps.
func logIsCut(t *testing.T, tg *target) {
	w := inCluster(t, tg, map[string]string{"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}, []int32{1, 2})
	p := w.p(0)
	sleeper := w.anotherGroup("-asleep", "earliest")
	w.admin = w.dial(w.addressOf(3))
	sleeper.admin = w.admin
	w.produce(p, 5)
	if err := tg.kafka.StopNode(1); err != nil {
		t.Fatal(err)
	}
	w.inSync(p, 1)
	w.produce(p, 10) // node 2 does not have these
	m, other := w.memberOn(1), sleeper.memberOn(1)
	m.takes("0-14x1", p)
	m.ack(nil, p, accept(0, 9))
	other.takes("0-14x1", p)
	other.ack(nil, p, accept(0, 14))
	other.close()
	waiting := w.memberOn(3)
	waiting.fetch(p)

	tg.kafka.Nodes[0].Kill()
	if err := tg.kafka.StartNode(1); err != nil {
		t.Fatal(err)
	}
	cut := w.ledBy(p, 2)
	if end := w.endOffset(p); end != 5 {
		t.Fatalf("the log ends at %d, want 5", end)
	}
	w.produceEach(p, 4, 5) // 5-24
	waiting.becomes(p, cut.told())
	awake, asleep := "5-24x1", "5-24x1"
	if allowed().cutIsLost {
		awake, asleep = "10-24x1", "15-24x1"
	}
	m, other = w.memberOn(2), sleeper.memberOn(2)
	m.gathersOver(awake, p, whileElecting...)
	m.ack(nil, p, accept(10, 24))
	other.gathersOver(asleep, p, whileElecting...)
	other.ack(nil, p, accept(15, 24))

	// The old leader comes back, cuts its log too, and leads again: that costs nothing more.
	if err := tg.kafka.StartNode(0); err != nil {
		t.Fatal(err)
	}
	w.inSync(p, 2)
	w.moveLeader(p, 1, 2)
	w.produce(p, 3)
	back, again := w.memberOn(1), sleeper.memberOn(1)
	back.gathersOver("25-27x1", p, whileElecting...)
	again.gathersOver("25-27x1", p, whileElecting...)
	if allowed().cutIsLost {
		return
	}
	m.ack(nil, p, accept(5, 9))
	other.ack(nil, p, accept(5, 14))
	back.ack(nil, p, accept(25, 27))
	again.ack(nil, p, accept(25, 27))
	w.lagBecomes(p, 0)
	sleeper.lagBecomes(p, 0)
}
