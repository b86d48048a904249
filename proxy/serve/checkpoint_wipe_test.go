package serve

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/proxy/upstream"
)

func TestAfterAWipeOnlyWhatWasNotCheckpointedComesAgain(t *testing.T) {
	w := newWorld(t, 2)
	topic, a := latest(t, w)
	w.produce("t", 0, 10, 1)
	a.takes(topic, 0, 9)
	w.gets(a.fetch(with(topic, 0, accept(0, 4), release(6, 6)), maxRecords(1)), topic, entry{6, 6, 2})
	w.checkpointed(5)
	w.produce("t", 0, 5, 1)
	w.wipe()

	b := w.reps[1].member("g", "a")
	if code := b.beat(3); code != kerr.UnknownMemberID.Code {
		t.Fatalf("heartbeat of a member that nobody knows any more: code %d, want what makes it join again", code)
	}
	b.join("t")
	if p := w.reps[0].offsets("g", 1).Topics[0].Partitions[0]; p.StartOffset != 5 {
		t.Errorf("described as starting at %d before anything is fetched", p.StartOffset)
	}
	w.gets(b.open(topic), topic, entry{5, 14, 1})
	if code := b.ackCode(topic, 0, accept(5, 14)); code != 0 {
		t.Fatalf("acknowledgement: code %d", code)
	}
	w.checkpointed(15)
}

func TestFirstJoinAfterAWipeFindsConfigsInForce(t *testing.T) {
	w := newWorld(t, 2)
	latest(t, w)
	w.checkpointed(0)
	w.settled()
	w.alter("g", "share.heartbeat.interval.ms", "7000", "share.auto.offset.reset", "earliest")
	w.eventually("the configs in the checkpoint", func() bool {
		c, ok := w.checkpoint("t", 0)
		return ok && slices.Contains(c.Configs, coordinator.Setting{Key: "share.heartbeat.interval.ms", Value: "7000"})
	})
	w.wipe()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.SubscribedTopicNames = 1, "g", "new", []string{"t"}
	r := w.reps[1]
	if resp := r.ask(w.ctx, r.conn(-1), req).(*kmsg.ShareGroupHeartbeatResponse); resp.ErrorCode != 0 || resp.HeartbeatIntervalMillis != 7000 {
		t.Errorf("first join: %+v", resp)
	}
	cfg, err := w.reps[0].groups.Config(w.ctx, "g")
	w.must(err)
	if cfg.AutoOffsetReset.Kind != coordinator.ResetEarliest {
		t.Errorf("configs on the other replica: %+v", cfg)
	}
	if !slices.Contains(w.reps[0].groups.ConfiguredGroups(), "g") {
		w.eventually("the configs in the index", func() bool { return slices.Contains(w.reps[0].groups.ConfiguredGroups(), "g") })
	}
}

func TestGroupWithoutMembersIsBackInTheListAfterAWipe(t *testing.T) {
	w := newWorld(t, 2)
	latest(t, w)
	w.checkpointed(0)
	w.wipe()
	for _, r := range w.reps {
		w.eventually("the group in the list", func() bool {
			l := r.groups.List(w.ctx)
			return len(l) == 1 && l[0].Group == "g" && l[0].State == coordinator.StateEmpty
		})
	}
}

func TestDeletedGroupStaysDeletedAfterAWipe(t *testing.T) {
	for name, broken := range map[string]*kerr.Error{
		"its checkpoint is deleted":                        nil,
		"its checkpoint may not be deleted and gets marks": kerr.GroupAuthorizationFailed,
		"its checkpoint is deleted later":                  kerr.UnknownServerError,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			topic, a := latest(t, w)
			w.produce("t", 0, 3, 1)
			a.takes(topic, 0, 2)
			a.ackCode(topic, 0, accept(0, 0))
			w.checkpointed(1)
			w.settled()
			if broken != nil {
				count := -1
				if broken == kerr.UnknownServerError {
					count = 2
				}
				w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteGroups}, Err: broken, Count: count})
			}
			w.deleteGroup(a)
			w.eventually("the checkpoint to be void", func() bool {
				c, ok := w.checkpoint("t", 0)
				return !ok || c.Deleted
			})
			w.settled()
			w.wipe()
			b := w.reps[1].member("g", "b")
			if code := b.beat(3); code != kerr.GroupIDNotFound.Code {
				t.Errorf("heartbeat in a deleted group: code %d", code)
			}
			w.gets(b.join("t").open(topic), topic) // by the policy: latest
			w.checkpointed(3)
		})
	}
}

func TestSharePartitionThatRedisLostAloneStartsAtItsCheckpoint(t *testing.T) {
	w := newWorld(t, 2)
	topic, a := latest(t, w)
	w.produce("t", 0, 5, 1)
	a.takes(topic, 0, 4)
	a.ackCode(topic, 0, accept(0, 2))
	w.checkpointed(3)
	for _, r := range w.reps {
		r.kill()
	}
	lost := 0
	for _, key := range w.redis.Keys() {
		if strings.Contains(key, "{"+logName("g", tpOf(topic.ID, 0))+"}") {
			w.redis.Del(key)
			lost++
		}
	}
	if lost != 1 {
		t.Fatalf("%d keys of the share-partition among %v", lost, w.redis.Keys())
	}
	w.reps = []*rep{w.startReplica()}
	b := w.reps[0].member("g", "b").join("t")
	w.gets(b.open(topic), topic, entry{3, 4, 1})
}

func TestCheckpointOfAnotherLifeDoesNotCount(t *testing.T) {
	w := newWorld(t, 1)
	topic, a := latest(t, w)
	w.produce("t", 0, 5, 1)
	a.takes(topic, 0, 4)
	w.checkpointed(0)
	w.settled()
	c, _ := w.checkpoint("t", 0)
	r := w.reps[0]
	for _, wrong := range []struct {
		what   string
		change func(*coordinator.Checkpoint)
	}{
		{"an older incarnation", func(c *coordinator.Checkpoint) { c.Incarnation--; c.Offset = 2 }},
		{"a newer incarnation", func(c *coordinator.Checkpoint) { c.Incarnation++; c.Offset = 2 }},
		{"another topic id", func(c *coordinator.Checkpoint) { c.ID[0]++; c.Offset = 2 }},
		{"a delete mark", func(c *coordinator.Checkpoint) { c.Deleted = true; c.Offset = 2 }},
	} {
		changed := c
		wrong.change(&changed)
		// The topic id in the request must be the real one.
		offsets := []upstream.GroupOffset{{Topic: topic, Offset: changed.Offset, LeaderEpoch: -1, Metadata: changed.Encode()}}
		w.must(r.up.CommitGroupOffsets(w.ctx, "kshare.g", offsets))
		w.must(offsets[0].Err)
		fresh := NewCheckpoints(r.up, "kshare", testLog(), nil)
		init := coordinator.Initialized{Incarnation: c.Incarnation, StartOffset: -1}
		if offset, _, err := fresh.startFrom(w.ctx, "g", tpOf(topic.ID, 0), init); err != nil || offset != -1 {
			t.Errorf("%s counts: %d %v", wrong.what, offset, err)
		}
	}
	w.must(w.recommit(r, topic, c, 3))
	fresh := NewCheckpoints(r.up, "kshare", testLog(), nil)
	init := coordinator.Initialized{Incarnation: c.Incarnation, StartOffset: -1}
	if offset, _, err := fresh.startFrom(w.ctx, "g", tpOf(topic.ID, 0), init); err != nil || offset != 3 {
		t.Errorf("the right one does not count: %d %v", offset, err)
	}
}

func TestGroupAnewUnderTheNameWithAnotherTopicIDIgnoresOldCheckpoints(t *testing.T) {
	w := newWorld(t, 1)
	topic, a := latest(t, w)
	w.produce("t", 0, 5, 1)
	a.takes(topic, 0, 4)
	a.ackCode(topic, 0, accept(0, 3))
	w.checkpointed(4)
	w.settled()
	c, _ := w.checkpoint("t", 0)
	w.reps[0].kill()
	w.redis.FlushAll()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{"t"}
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.Topic = kmsg.StringPtr("t")
	req.Topics = append(req.Topics, rt)
	_, err := req.RequestWith(w.ctx, w.admin)
	w.must(err)
	w.reps = []*rep{w.startReplica()}
	r := w.reps[0]
	var anew upstream.Topic
	w.eventually("the topic anew", func() bool {
		create := kmsg.NewPtrCreateTopicsRequest()
		ct := kmsg.NewCreateTopicsRequestTopic()
		ct.Topic, ct.NumPartitions, ct.ReplicationFactor = "t", 1, 1
		create.Topics = append(create.Topics, ct)
		_, err := create.RequestWith(w.ctx, w.admin)
		w.must(err)
		found, err := r.up.TopicsByName(w.ctx, []string{"t"}, true)
		w.must(err)
		anew = found["t"]
		return anew.ID != topic.ID && anew.ID != [16]byte{}
	})
	w.must(w.recommit(r, anew, c, 4)) // as Kafka may keep it, by name
	b := r.member("g", "b").join("t")
	w.gets(b.open(anew), anew) // starts at the end of the new topic, which is 0, not at 4
	w.checkpointed(0)
	if have, _ := w.checkpoint("t", 0); have.ID != anew.ID || have.Incarnation == c.Incarnation {
		t.Errorf("checkpoint %+v after %+v", have, c)
	}
}

// Again and again all is lost, at any moment; with latest whatever is not where a checkpoint says would be skipped.
func TestWipesUnderLoadLoseNothing(t *testing.T) {
	w := newWorld(t, 2)
	topic := w.topic("t", 2)
	m := w.reps[0].member("g", "m").join("t")
	m.open(topic)
	w.eventually("both starts in the checkpoint", func() bool {
		_, zero := w.checkpoint("t", 0)
		_, one := w.checkpoint("t", 1)
		return zero && one
	})
	const rounds, each = 4, 60
	accepted := [2]map[int64]bool{{}, {}}
	var floor [2]int64
	total := 0
	step := func(all bool) bool {
		mods := []mod{recordLimit(7), maxWait(500 * time.Millisecond)}
		resp := m.fetch(mods...)
		some := false
		for p := range int32(2) {
			for _, e := range got(resp, topic, p) {
				some = true
				if e.first < floor[p] {
					t.Fatalf("offset %d comes again, the checkpoint was at %d", e.first, floor[p])
				}
				last := e.last
				if !all && e.last > e.first {
					last-- // this one stays in hand, and comes again after the wipe or its release
					m.ackCode(topic, p, release(e.last, e.last))
				}
				if code := m.ackCode(topic, p, accept(e.first, last)); code != 0 {
					t.Fatalf("acknowledgement: code %d", code)
				}
				for o := e.first; o <= last; o++ {
					accepted[p][o] = true
				}
			}
		}
		return some
	}
	for round := range rounds {
		w.produce("t", 0, each, 1)
		w.produce("t", 1, each/6, 6)
		total += each
		for i := range 4 + 2*round {
			if i%2 == 0 {
				m.fetch(maxRecords(0)) // the next one begins with the other partition
			}
			step(false)
		}
		if round == rounds-1 { // the earlier wipes come when they come; this one finds checkpoints that have moved
			w.eventually("both checkpoints to move", func() bool {
				step(false)
				zero, _ := w.checkpoint("t", 0)
				one, _ := w.checkpoint("t", 1)
				return zero.Offset > 0 && one.Offset > 0
			})
		}
		for p := range floor {
			c, _ := w.checkpoint("t", int32(p))
			if c.Offset < floor[p] {
				t.Errorf("checkpoint of partition %d fell from %d to %d", p, floor[p], c.Offset)
			}
			floor[p] = c.Offset
		}
		w.wipe()
		m = w.reps[round%2].member("g", fmt.Sprint("m", round)).join("t")
		m.open(topic, maxRecords(0))
	}
	for step(true) {
	}
	for p := range accepted {
		if len(accepted[p]) != total {
			t.Errorf("partition %d: %d of %d records accepted", p, len(accepted[p]), total)
		}
	}
}

func TestCheckpointGoesBackWithALogThatAnUncleanElectionCut(t *testing.T) {
	w, topic, a, _ := groupOn(t, newWorld(t, 1, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	if code := a.ackCode(topic, 0, accept(0, 9)); code != 0 {
		t.Fatalf("code %d", code)
	}
	w.checkpointed(10)
	w.cutLog(5)
	w.moveLeader(topic)
	w.gets(a.fetch(maxWait(5*time.Second)), topic, entry{5, 9, 1})
	w.checkpointed(5)
	w.wipe()
	w.gets(w.reps[0].member("g", "a").join("t").open(topic, maxWait(5*time.Second)), topic, entry{5, 9, 1})
}

func TestUncleanElectionWhileRedisLosesAllCostsNoRecord(t *testing.T) {
	w, topic, a, _ := groupOn(t, newWorld(t, 1, kfake.NumBrokers(3)), 10)
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	if code := a.ackCode(topic, 0, accept(0, 9)); code != 0 {
		t.Fatalf("code %d", code)
	}
	w.checkpointed(10)
	w.wipe()
	w.cutLog(5)
	_ = w.mustTopic("t")
	w.moveLeader(topic)
	w.gets(w.reps[0].member("g", "a").join("t").open(topic, maxWait(5*time.Second)), topic, entry{5, 9, 1})
}
