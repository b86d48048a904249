package serve

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// wipe loses all of Redis while no replica is alive that could put anything back, and starts as many anew.
func (w *world) wipe() {
	w.Helper()
	n := len(w.reps)
	for _, r := range w.reps {
		r.kill()
	}
	w.redis.FlushAll()
	w.reps = nil
	for range n {
		w.reps = append(w.reps, w.startReplica())
	}
}

// checkpoint is what is committed for a share-partition of group g; false if nothing is.
func (w *world) checkpoint(topic string, partition int32) (coordinator.Checkpoint, bool) {
	w.Helper()
	all, err := w.reps[0].cps.fetch(w.ctx, "g", nil)
	w.must(err)
	for _, c := range all {
		if c.Topic == topic && c.Partition == partition {
			return c, true
		}
	}
	return coordinator.Checkpoint{}, false
}

func (w *world) checkpointed(offset int64) {
	w.Helper()
	w.eventually(fmt.Sprintf("the checkpoint at %d", offset), func() bool {
		c, ok := w.checkpoint("t", 0)
		return ok && c.Offset == offset && !c.Deleted
	})
}

// settled waits until no replica has anything to do for its checkpoints.
func (w *world) settled() {
	w.Helper()
	w.eventually("the checkpoints to be at rest", func() bool {
		for _, r := range w.reps {
			r.cps.mu.Lock()
			n := len(r.cps.todo)
			r.cps.mu.Unlock()
			if n > 0 {
				return false
			}
		}
		return true
	})
}

// beat sends a heartbeat and gives its code.
func (m *member) beat(epoch int32) int16 {
	m.w.Helper()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.MemberEpoch = 1, m.group, m.id, epoch
	return m.r.ask(m.w.ctx, m.c, req).(*kmsg.ShareGroupHeartbeatResponse).ErrorCode
}

// takes fetches until the member holds the offsets from first to last, delivered for the first time.
func (m *member) takes(t upstream.Topic, first, last int64) {
	m.w.Helper()
	for next := first; next <= last; {
		have := got(m.fetch(maxWait(5*time.Second)), t, 0)
		if len(have) == 0 || have[0].first != next || have[0].count != 1 {
			m.w.Fatalf("acquired %v, want what begins at %d", have, next)
		}
		next = have[len(have)-1].last + 1
	}
}

// latest is a group on topic t that goes by the reset policy latest, whose member a has the share-partition started.
func latest(t *testing.T, w *world) (upstream.Topic, *member) {
	t.Helper()
	topic := w.topic("t", 1)
	a := w.reps[0].member("g", "a").join("t")
	w.gets(a.open(topic), topic)
	return topic, a
}

func TestStartIsCheckpointedAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	w.interval = time.Hour
	w.reps = append([]*rep{w.startReplica()}, w.reps...)
	topic := w.topic("t", 1)
	w.produce("t", 0, 7, 1)
	a := w.reps[0].member("g", "a").join("t")
	w.gets(a.open(topic), topic)
	w.checkpointed(7)
	w.eventually("the replica to remember that it has to see its commit", func() bool {
		w.reps[0].cps.mu.Lock()
		defer w.reps[0].cps.mu.Unlock()
		todo := w.reps[0].cps.todo["g"]
		return todo != nil && todo.committed && len(todo.parts) == 1
	})
	w.produce("t", 0, 2, 1)
	w.wipe() // before anything is accepted, and with latest
	a = w.reps[1].member("g", "a").join("t")
	w.gets(a.open(topic), topic, entry{7, 8, 1})
}

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
			l := r.groups.List()
			return len(l) == 1 && l[0].Group == "g" && l[0].State == coordinator.StateEmpty
		})
	}
}

// leave makes the group empty and deletes it.
func (w *world) deleteGroup(a *member) {
	w.Helper()
	if code := a.beat(-1); code != 0 {
		w.Fatalf("leave: code %d", code)
	}
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Groups = []string{"g"}
	if code := a.r.ask(w.ctx, a.c, req).(*kmsg.DeleteGroupsResponse).Groups[0].ErrorCode; code != 0 {
		w.Fatalf("delete: code %d", code)
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

func TestLateCommitForADeletedGroupIsClearedAway(t *testing.T) {
	w := newWorld(t, 2)
	topic, a := latest(t, w)
	w.checkpointed(0)
	w.settled()
	c, _ := w.checkpoint("t", 0)
	// What the other replica committed a moment before it heard of the deletion arrives after it.
	late := w.reps[1].cps
	late.change("g", time.Hour, func(todo *todo) { todo.committed, todo.parts[tpOf(topic.ID, 0)] = true, struct{}{} })
	w.deleteGroup(a)
	_, err := late.commit(w.ctx, "g", []coordinator.Checkpoint{c})
	w.must(err)
	if _, ok := w.checkpoint("t", 0); !ok {
		t.Fatal("the late commit is not there")
	}
	late.later("g", tpOf(topic.ID, 0))
	w.eventually("the checkpoint to go", func() bool { _, ok := w.checkpoint("t", 0); return !ok })
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
		if offset, err := fresh.startFrom(w.ctx, "g", tpOf(topic.ID, 0), init); err != nil || offset != -1 {
			t.Errorf("%s counts: %d %v", wrong.what, offset, err)
		}
	}
	w.must(w.recommit(r, topic, c, 3))
	fresh := NewCheckpoints(r.up, "kshare", testLog(), nil)
	init := coordinator.Initialized{Incarnation: c.Incarnation, StartOffset: -1}
	if offset, err := fresh.startFrom(w.ctx, "g", tpOf(topic.ID, 0), init); err != nil || offset != 3 {
		t.Errorf("the right one does not count: %d %v", offset, err)
	}
}

func (w *world) recommit(r *rep, topic upstream.Topic, c coordinator.Checkpoint, offset int64) error {
	offsets := []upstream.GroupOffset{{Topic: topic, Partition: c.Partition, Offset: offset, LeaderEpoch: -1, Metadata: c.Encode()}}
	if err := r.up.CommitGroupOffsets(w.ctx, "kshare.g", offsets); err != nil {
		return err
	}
	return offsets[0].Err
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

func TestCheckpointsOfOneLifeNeverFall(t *testing.T) {
	w := newWorld(t, 2)
	topic, a := latest(t, w)
	b := w.reps[1].member("g", "b").join("t")
	w.gets(b.open(topic), topic)
	const n = 200
	w.produce("t", 0, n, 1)
	var mu sync.Mutex
	last, falls := map[int64]int64{}, 0
	w.kafka.ControlKey(int16(kmsg.OffsetCommit), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		for _, t := range kreq.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range t.Partitions {
				note, err := coordinator.DecodeNote(*p.Metadata)
				if err == nil && p.Offset < last[note.Incarnation] {
					falls++
				}
				last[note.Incarnation] = p.Offset
			}
		}
		return nil, nil, false
	})
	var members sync.WaitGroup
	var accepted [2]int
	for i, m := range []*member{a, b} {
		members.Go(func() {
			var acks []ack
			for w.ctx.Err() == nil {
				resp := m.fetch(with(topic, 0, acks...), recordLimit(3), maxWait(300*time.Millisecond))
				have := got(resp, topic, 0)
				acks = acks[:0]
				for _, e := range have {
					acks = append(acks, accept(e.first, e.last))
					accepted[i] += int(e.last - e.first + 1)
				}
				if len(have) == 0 {
					return
				}
			}
		})
	}
	members.Wait()
	if accepted[0]+accepted[1] < n {
		t.Fatalf("accepted %v of %d", accepted, n)
	}
	w.checkpointed(n)
	w.settled()
	mu.Lock()
	defer mu.Unlock()
	if falls > 0 {
		t.Errorf("%d commits fell behind the one before", falls)
	}
	c, _ := w.checkpoint("t", 0)
	if last[c.Incarnation] != n {
		t.Errorf("last commit at %d", last[c.Incarnation])
	}
}

func TestCommitThatFailsDisturbsNobodyAndIsMadeUpFor(t *testing.T) {
	for _, broken := range []*kerr.Error{kerr.GroupAuthorizationFailed, kerr.CoordinatorNotAvailable, kerr.UnknownServerError, kerr.OffsetMetadataTooLarge} {
		t.Run(broken.Message, func(t *testing.T) {
			w := newWorld(t, 1)
			reg := prometheus.NewRegistry()
			reg.MustRegister(w.reps[0].cps.failures)
			topic := w.topic("t", 1)
			fault := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: broken, Count: -1})
			a := w.reps[0].member("g", "a").join("t")
			w.gets(a.open(topic), topic)
			w.produce("t", 0, 4, 1)
			a.takes(topic, 0, 3)
			began := time.Now()
			if code := a.ackCode(topic, 0, accept(0, 3)); code != 0 {
				t.Errorf("code %d", code)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("an acknowledgement took %v", took)
			}
			w.eventually("the failure in the metric", func() bool {
				f, err := reg.Gather()
				w.must(err)
				return f[0].Metric[0].GetCounter().GetValue() > 0
			})
			fault.Remove()
			w.checkpointed(4)
		})
	}
}

func TestTroubleIsLoggedOnceAMinute(t *testing.T) {
	var log bytes.Buffer
	c := NewCheckpoints(nil, "kshare", zerolog.New(&log), nil)
	for range 100 {
		c.trouble("g", upstream.ErrUnavailable)
		c.trouble("h", upstream.ErrUnauthorized)
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n != 2 {
		t.Errorf("%d lines for two kinds of trouble", n)
	}
	for kind := range c.warned {
		c.warned[kind] = time.Now().Add(-warnEvery)
	}
	c.trouble("g", upstream.ErrUnavailable)
	if n := bytes.Count(log.Bytes(), []byte("\n")); n != 3 {
		t.Errorf("%d lines after a minute", n)
	}
}

func TestIdleSharePartitionCommitsNothing(t *testing.T) {
	w := newWorld(t, 2)
	topic, a := latest(t, w)
	w.produce("t", 0, 1, 1)
	a.takes(topic, 0, 0)
	a.ackCode(topic, 0, accept(0, 0))
	w.checkpointed(1)
	w.settled()
	var mu sync.Mutex
	asked := 0
	for _, key := range []kmsg.Key{kmsg.OffsetCommit, kmsg.OffsetFetch} {
		w.kafka.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			w.kafka.KeepControl()
			mu.Lock()
			defer mu.Unlock()
			asked++
			return nil, nil, false
		})
	}
	w.gets(a.fetch(maxWait(time.Second)), topic) // ten intervals of nothing
	mu.Lock()
	defer mu.Unlock()
	if asked > 0 {
		t.Errorf("%d requests about a share-partition that stands still", asked)
	}
}

func TestOldCheckpointIsWrittenAgain(t *testing.T) {
	w := newWorld(t, 1)
	_, a := latest(t, w)
	w.checkpointed(0)
	w.settled()
	before, _ := w.checkpoint("t", 0)
	w.reps[0].cps.Touch("g")
	w.settled()
	if same, _ := w.checkpoint("t", 0); same.At != before.At {
		t.Error("a young checkpoint was written again")
	}
	w.advance(9 * time.Hour)
	w.eventually("the checkpoint anew", func() bool {
		a.join("t") // Redis' clock is learnt from replies
		w.reps[0].cps.Touch("g")
		c, _ := w.checkpoint("t", 0)
		return c.At > before.At && c.Offset == before.Offset
	})
}

func TestConfigsThatFindNoRoomAreLeftOut(t *testing.T) {
	w := newWorld(t, 1)
	topic, a := latest(t, w)
	w.settled()
	w.kafka.ControlKey(int16(kmsg.OffsetCommit), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		req := kreq.(*kmsg.OffsetCommitRequest)
		p := req.Topics[0].Partitions[0]
		if len(*p.Metadata) <= 150 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		resp.Topics = []kmsg.OffsetCommitResponseTopic{{Topic: req.Topics[0].Topic, TopicID: req.Topics[0].TopicID,
			Partitions: []kmsg.OffsetCommitResponseTopicPartition{{Partition: p.Partition, ErrorCode: kerr.OffsetMetadataTooLarge.Code}}}}
		return resp, nil, true
	})
	w.alter("g", "share.auto.offset.reset", "earliest", "share.isolation.level", "read_committed")
	w.eventually("the checkpoint to say so", func() bool {
		c, _ := w.checkpoint("t", 0)
		return c.Bare && len(c.Configs) == 0
	})
	w.produce("t", 0, 2, 1)
	a.takes(topic, 0, 1)
	a.ackCode(topic, 0, accept(0, 0))
	w.checkpointed(1)
	w.settled()
}

func TestCleanEndWritesTheCheckpoint(t *testing.T) {
	w := newWorld(t, 1)
	w.interval = time.Hour
	w.reps[0] = w.startReplica()
	topic, a := latest(t, w)
	w.checkpointed(0)
	r := w.reps[0]
	w.produce("t", 0, 3, 1)
	a.takes(topic, 0, 2)
	a.ackCode(topic, 0, accept(0, 1))
	bye, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	r.cps.Close(bye)
	if c, _ := w.checkpoint("t", 0); c.Offset != 2 {
		t.Errorf("checkpoint at %d", c.Offset)
	}
}

func TestResetIsCheckpointedBeforeAnythingIsFetched(t *testing.T) {
	w := newWorld(t, 1)
	latest(t, w)
	w.checkpointed(0)
	w.settled()
	c, _ := w.checkpoint("t", 0)
	f := &flush{c: w.reps[0].cps, group: "g", now: c.At + 1, t: &todo{all: true}, have: map[place]coordinator.Checkpoint{{"t", 0}: c},
		st: &coordinator.Standing{Known: true, Exists: true, Partitions: []coordinator.PartitionStanding{
			{ID: c.ID, Topic: "t", Known: 1, Initialized: coordinator.Initialized{Incarnation: c.Incarnation + 5, StartOffset: 42}}}}}
	f.wanted = f.st.Partitions
	f.plan(w.ctx)
	f.clear()
	if len(f.out) != 1 || f.out[0].Offset != 42 || f.out[0].Incarnation != c.Incarnation+5 || f.out[0].Deleted {
		t.Errorf("after a reset to 42: %+v", f.out)
	}
	f.out, f.st.Partitions[0].StartOffset = nil, -1
	f.plan(w.ctx)
	f.clear()
	if len(f.out) != 1 || !f.out[0].Deleted {
		t.Errorf("after a reset to the policy: %+v", f.out)
	}
}

func TestWhatIsCommittedDecidesWhatToCommit(t *testing.T) {
	w := newWorld(t, 1)
	topic, a := latest(t, w)
	w.produce("t", 0, 5, 1)
	a.takes(topic, 0, 4)
	a.ackCode(topic, 0, accept(0, 4))
	w.checkpointed(5)
	w.settled()
	at5, _ := w.checkpoint("t", 0)
	st, err := w.reps[0].groups.Standing(w.ctx, "g")
	w.must(err)
	const second = int64(time.Second / time.Microsecond)
	cps := NewCheckpoints(w.reps[0].up, "kshare", testLog(), nil)
	cps.s = w.reps[0].srv
	for _, c := range []struct {
		what          string
		change        func(have *coordinator.Checkpoint, f *flush)
		commit, again bool
		offset        int64
	}{
		{"all of it", func(*coordinator.Checkpoint, *flush) {}, false, false, 0},
		{"less, just now", func(have *coordinator.Checkpoint, f *flush) { have.Offset = 4; f.now = have.At + second }, false, true, 0},
		{"less, just now, at the end of the replica", func(have *coordinator.Checkpoint, f *flush) { have.Offset, f.final = 4, true }, true, false, 5},
		{"less, some time ago", func(have *coordinator.Checkpoint, f *flush) { have.Offset = 4; f.now = have.At + 4*second }, true, false, 5},
		{"less, in the future of a clock that was set back", func(have *coordinator.Checkpoint, f *flush) { have.Offset = 4; f.now = have.At - second }, true, false, 5},
		{"more, with other configs", func(have *coordinator.Checkpoint, f *flush) {
			have.Offset, have.Configs = 9, []coordinator.Setting{{Key: "k", Value: "v"}}
		}, true, false, 9},
		{"more, of an older life", func(have *coordinator.Checkpoint, f *flush) { have.Offset = 9; have.Incarnation-- }, true, false, 5},
		{"more, of a newer life", func(have *coordinator.Checkpoint, f *flush) { have.Offset = 9; have.Incarnation++ }, true, false, 5},
		{"more, of another topic", func(have *coordinator.Checkpoint, f *flush) { have.Offset = 9; have.ID[0]++ }, true, false, 5},
		{"a delete mark", func(have *coordinator.Checkpoint, f *flush) { have.Deleted = true }, true, false, 5},
		{"all of it, for very long", func(have *coordinator.Checkpoint, f *flush) { f.now = have.At + 9*3600*second }, true, false, 5},
	} {
		have := at5
		f := &flush{c: cps, group: "g", st: &st, now: have.At, t: &todo{parts: map[upstream.TP]struct{}{tpOf(topic.ID, 0): {}}}}
		c.change(&have, f)
		f.have = map[place]coordinator.Checkpoint{{"t", 0}: have}
		v := f.judge(w.ctx, st.Partitions[0])
		if v.commit != c.commit || v.again != c.again || v.Offset != c.offset || v.commit && (v.Incarnation != at5.Incarnation || v.ID != topic.ID) {
			t.Errorf("committed is %s: %+v", c.what, v)
		}
	}
}

func TestRollbackOfRedisDoesNotTakeTheCheckpointBack(t *testing.T) {
	w := newWorld(t, 1)
	topic, a := latest(t, w)
	w.checkpointed(0)
	w.settled()
	c, _ := w.checkpoint("t", 0)
	w.must(w.recommit(w.reps[0], topic, c, 9)) // ahead of Redis, which has forgotten its last second
	w.produce("t", 0, 3, 1)
	a.takes(topic, 0, 2)
	a.ackCode(topic, 0, accept(0, 2))
	w.eventually("the note of the move", func() bool {
		spso := int64(0)
		w.reps[0].srv.logs.Get(logName("g", tpOf(topic.ID, 0))).Cached(func(p *sharestate.Partition) { spso = p.SPSO() })
		return spso == 3
	})
	w.settled()
	w.checkpointed(9)
}

func TestListHidesCheckpointsUnlessAskedFor(t *testing.T) {
	w := newWorld(t, 1)
	latest(t, w)
	w.checkpointed(0)
	r := w.reps[0]
	list := func(types ...string) (names []string) {
		req := kmsg.NewPtrListGroupsRequest()
		req.Version, req.TypesFilter = 5, types
		own, theirs := r.apis[16].Split(r.srv, req)
		up, err := theirs.(*kmsg.ListGroupsRequest).RequestWith(w.ctx, w.admin)
		w.must(err)
		up.Groups = append(up.Groups, kmsg.ListGroupsResponseGroup{Group: "kshare.app", ProtocolType: "consumer", GroupState: "Stable", GroupType: "classic"})
		resp := r.apis[16].Merge(r.ask(w.ctx, r.conn(-1), own), up).(*kmsg.ListGroupsResponse)
		for _, g := range resp.Groups {
			names = append(names, g.Group)
		}
		slices.Sort(names)
		return names
	}
	for _, c := range []struct{ types, want []string }{
		{nil, []string{"g", "kshare.app"}},
		{[]string{"classic", "consumer"}, []string{"kshare.app"}}, // as the tools ask without being told
		{[]string{"classic"}, []string{"kshare.app", "kshare.g"}},
	} {
		if have := list(c.types...); !slices.Equal(have, c.want) {
			t.Errorf("types %v: %v, want %v", c.types, have, c.want)
		}
	}
}

func TestCheckpointsOfFormerLivesGetDeleteMarks(t *testing.T) {
	w := newWorld(t, 1)
	latest(t, w)
	other := w.topic("u", 1)
	w.checkpointed(0)
	w.settled()
	c, _ := w.checkpoint("t", 0)
	c.ID, c.Incarnation = other.ID, c.Incarnation-1
	w.must(w.recommit(w.reps[0], other, c, 5)) // the group has nothing to do with u any more
	w.reps[0].cps.Touch("g")
	w.eventually("the mark", func() bool { c, ok := w.checkpoint("u", 0); return ok && c.Deleted })
	w.settled()
	w.checkpointed(0)
	w.wipe()
	w.reps[0].member("g", "a").join("t", "u")
	if p, ok, err := w.reps[0].groups.Initialized(w.ctx, "g", other.ID, 0); err != nil || !ok || p.StartOffset != -1 {
		t.Errorf("%+v %v %v", p, ok, err)
	}
	if p, ok, err := w.reps[0].groups.Initialized(w.ctx, "g", w.mustTopic("t").ID, 0); err != nil || !ok || p.StartOffset != 0 {
		t.Errorf("the mark voids others: %+v %v %v", p, ok, err)
	}
}

func (w *world) mustTopic(name string) upstream.Topic {
	w.Helper()
	found, err := w.reps[0].up.TopicsByName(w.ctx, []string{name}, true)
	w.must(err)
	return found[name]
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
