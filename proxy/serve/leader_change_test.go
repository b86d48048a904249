package serve

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// moveLeader makes another node lead partition 0, under the next leader epoch, and returns when all replicas know.
func (w *world) moveLeader(topic upstream.Topic) {
	w.Helper()
	node, epoch, _ := w.reps[0].up.Leader(tpOf(topic.ID, 0))
	w.must(w.kafka.MoveTopicPartition(topic.Name, 0, (node+1)%3))
	for _, r := range w.reps {
		w.eventually("the new leader to be known", func() bool {
			_, now, ok := r.up.Leader(tpOf(topic.ID, 0))
			return ok && now > epoch
		})
	}
}

// cutLog has upstream say from now on that the log of an earlier leader epoch ends at end, and counts how often.
func (w *world) cutLog(end int64) *atomic.Int32 {
	asked := new(atomic.Int32)
	w.kafka.ControlKey(23, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		asked.Add(1)
		req := kreq.(*kmsg.OffsetForLeaderEpochRequest)
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, p.LeaderEpoch, end
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	return asked
}

// logEpoch is the leader epoch that the share-partition is read under.
func (r *rep) logEpoch(topic upstream.Topic) (epoch int32) {
	r.w.Helper()
	log := r.srv.logs.Get(logName("g", tpOf(topic.ID, 0)))
	r.w.must(log.View(r.w.ctx, 0, func(p *sharestate.Partition) { epoch = p.LogEpoch() }))
	return epoch
}

// The fake cannot cut a log; what stands there from offset 5 on is taken for new records.
func TestWhatStandsWhereAnUncleanElectionCutTheLogIsDelivered(t *testing.T) {
	w, topic, a, b := groupOn(t, newWorld(t, 2, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic, maxRecords(8)), topic, entry{0, 7, 1})
	b.open(topic, maxRecords(0))
	if code := a.ackCode(topic, 0, accept(0, 6)); code != 0 {
		t.Fatalf("code %d", code)
	}
	asked := w.cutLog(5)
	w.moveLeader(topic)
	w.gets(b.fetch(maxWait(5*time.Second)), topic, entry{5, 9, 1})
	if n := asked.Load(); n == 0 || n > 2 {
		t.Errorf("upstream was asked %d times", n)
	}
	if code := a.ackCode(topic, 0, accept(7, 7)); code != codeInvalidState {
		t.Errorf("acknowledgement of a record that is gone: code %d", code)
	}
	w.gets(a.fetch(maxWait(200*time.Millisecond)), topic)
	if code := b.ackCode(topic, 0, accept(5, 9)); code != 0 {
		t.Errorf("code %d", code)
	}
	w.produce("t", 0, 1, 2)
	w.gets(a.fetch(maxWait(5*time.Second)), topic, entry{10, 11, 1})
}

func TestWaitingFetchHearsOfAnUncleanElection(t *testing.T) {
	w, topic, a, _ := groupOn(t, newWorld(t, 1, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	if code := a.ackCode(topic, 0, accept(0, 9)); code != 0 {
		t.Fatalf("code %d", code)
	}
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- a.fetch(maxWait(20 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[0].waiting)
	w.cutLog(5)
	w.moveLeader(topic)
	w.gets(<-done, topic, entry{5, 9, 1})
}

func TestGroupThatSleptThroughAnUncleanElectionLosesNothing(t *testing.T) {
	w, topic, a, _ := groupOn(t, newWorld(t, 1, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	if code := a.ackCode(topic, 0, accept(0, 9)); code != 0 {
		t.Fatalf("code %d", code)
	}
	a.acknowledge(-1, topic, 0)
	w.reps[0].kill()
	w.reps[0] = w.startReplica()
	w.cutLog(6)
	_, err := w.reps[0].up.TopicsByName(w.ctx, []string{"t"}, true)
	w.must(err)
	w.moveLeader(topic)
	w.produce("t", 0, 1, 5)
	w.gets(a.on(w.reps[0]).open(topic, maxWait(5*time.Second)), topic, entry{6, 14, 1})
}

func TestCleanLeaderChangeRedeliversNothing(t *testing.T) {
	w, topic, a, b := groupOn(t, newWorld(t, 2, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic, maxRecords(4)), topic, entry{0, 3, 1})
	b.open(topic, maxRecords(0))
	w.gets(a.fetch(with(topic, 0, accept(0, 1)), maxRecords(6)), topic, entry{4, 9, 1})
	w.gets(b.fetch(maxWait(100*time.Millisecond)), topic) // b's replica hears that nothing is left
	before := w.reps[0].logEpoch(topic)
	if before < 0 {
		t.Fatal("no epoch is known")
	}
	for i := range int64(3) {
		w.moveLeader(topic)
		idle := w.reps[0].store.Stats().Appends + w.reps[1].store.Stats().Appends
		w.gets(b.fetch(maxWait(300*time.Millisecond)), topic)
		if n := w.reps[0].store.Stats().Appends + w.reps[1].store.Stats().Appends - idle; n > 0 {
			t.Errorf("%d appends for a change at which there was nothing to be fetched", n)
		}
		w.produce("t", 0, 1, 1)
		w.gets(b.fetch(maxWait(5*time.Second)), topic, entry{10 + i, 10 + i, 1})
	}
	if now := w.reps[0].logEpoch(topic); now != before+3 {
		t.Errorf("epoch %d after three changes, before %d", now, before)
	}
	if code := a.ackCode(topic, 0, accept(2, 9)); code != 0 {
		t.Errorf("held through the changes: code %d", code)
	}
}

func TestOldLeadersRecordsAreNotDeliveredOnceTheChangeIsKnown(t *testing.T) {
	w, topic, a, b := groupOn(t, newWorld(t, 2, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic, maxRecords(4)), topic, entry{0, 3, 1})
	w.gets(b.open(topic, maxRecords(2)), topic, entry{4, 5, 1}) // the rest is cached there, under the old leader
	epoch := w.reps[0].logEpoch(topic)
	other := w.reps[0].srv.use("g", tpOf(topic.ID, 0))
	defer other.done()
	w.must(other.submit(w.ctx, sharestate.LeaderChange{From: epoch, Epoch: epoch + 1, End: 6}))
	resp := b.fetch(maxWait(300 * time.Millisecond))
	w.gets(resp, topic)
	if p, _ := part(resp, topic.ID, 0); p.ErrorCode != codeNotLeader || p.CurrentLeader.LeaderID != -1 || len(resp.NodeEndpoints) != 0 {
		t.Errorf("%+v %v", p, resp.NodeEndpoints)
	}
	w.moveLeader(topic)
	w.gets(b.fetch(maxWait(5*time.Second)), topic, entry{6, 9, 1})
}

func TestUpstreamWithLowerLeaderEpochsIsBelievedAfterAWhile(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 3)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	epoch := w.reps[0].logEpoch(topic)
	sh := w.reps[0].srv.use("g", tpOf(topic.ID, 0))
	defer sh.done()
	w.must(sh.submit(w.ctx, sharestate.LeaderChange{From: epoch, Epoch: epoch + 7, End: -1}))
	w.gets(a.fetch(maxWait(100*time.Millisecond)), topic)
	noted := sh.epochs.behind
	if noted.since.IsZero() {
		t.Fatal("nothing is noted")
	}
	// Of another change, which ended unseen, it says nothing.
	sh.epochs.behind = behind{noted.read - 1, noted.present - 1, noted.since.Add(-2 * behindWait)}
	w.gets(a.fetch(maxWait(100*time.Millisecond)), topic)
	sh.epochs.behind = behind{noted.read, noted.present, noted.since.Add(-behindWait)}
	w.gets(a.fetch(maxWait(5*time.Second)), topic, entry{1, 2, 1})
}

func TestOldLeadersLogStartCountsNoMoreOnceTheChangeIsKnown(t *testing.T) {
	w, topic, a, b := groupOn(t, newWorld(t, 2, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic, maxRecords(4)), topic, entry{0, 3, 1})
	w.gets(b.open(topic, maxRecords(2)), topic, entry{4, 5, 1})
	w.deleteRecords("t", 0, 8)
	sh := w.reps[1].srv.use("g", tpOf(topic.ID, 0))
	defer sh.done()
	w.eventually("that replica to hear of it", func() bool {
		v, _ := sh.tail(upstream.ReadUncommitted).Peek(9, 1)
		return v.LogStart == 8
	})
	epoch := w.reps[0].logEpoch(topic)
	other := w.reps[0].srv.use("g", tpOf(topic.ID, 0))
	defer other.done()
	w.must(other.submit(w.ctx, sharestate.LeaderChange{From: epoch, Epoch: epoch + 1, End: 5}))
	w.gets(b.fetch(maxWait(300*time.Millisecond)), topic)
	var spso int64
	w.must(other.log.View(w.ctx, 0, func(p *sharestate.Partition) { spso = p.SPSO() }))
	if spso != 0 {
		t.Errorf("SPSO %d, though the later leader may well have what both hold", spso)
	}
}

func TestManyWaitingFetchesAskOnceWhereAnEpochEnds(t *testing.T) {
	w, topic, a, _ := groupOn(t, newWorld(t, 1, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	const many = 12
	took := make(chan int64, many)
	for i := range many {
		m := w.reps[0].member("g", fmt.Sprint("m", i)).join("t")
		m.open(topic, maxRecords(0))
		go func() {
			n := int64(0)
			for _, e := range got(m.fetch(maxWait(2*time.Second), maxRecords(1)), topic, 0) {
				n += e.last - e.first + 1
			}
			took <- n
		}()
	}
	w.eventually("all to wait", func() bool { return w.reps[0].waiters() == many })
	asked := w.cutLog(10)
	w.moveLeader(topic)
	w.produce("t", 0, many, 1)
	sum := int64(0)
	for range many {
		sum += <-took
	}
	if n := asked.Load(); n != 1 || sum != many {
		t.Errorf("upstream was asked %d times, and %d of %d records were taken", n, sum, many)
	}
}
