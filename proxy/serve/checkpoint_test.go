package serve

import (
	"bytes"
	"context"
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
