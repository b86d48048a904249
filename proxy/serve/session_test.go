package serve

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
	"kshare/sharestate/statelog"
)

// groupFromStart makes a topic of one partition with n single-record batches and a group that starts at the log start,
// with one member per replica.
func groupFromStart(t *testing.T, replicas, n int) (w *world, topic upstream.Topic, a, b *member) {
	t.Helper()
	return groupOn(t, newWorld(t, replicas), n)
}

func groupOn(t *testing.T, w *world, n int) (_ *world, topic upstream.Topic, a, b *member) {
	t.Helper()
	topic = w.topic("t", 1)
	w.produce("t", 0, n, 1)
	w.alter("g", "share.auto.offset.reset", "earliest")
	a = w.reps[0].member("g", "a").join("t")
	b = w.reps[len(w.reps)-1].member("g", "b").join("t")
	return w, topic, a, b
}

func TestCheck045_EpochsFollowEachOther(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	m := w.reps[0].member("g", "m").join("t")
	m.open(topic)
	for range 3 {
		if resp := m.fetch(); resp.AcquisitionLockTimeoutMillis != 30000 { // check 69
			t.Errorf("lock timeout %d", resp.AcquisitionLockTimeoutMillis)
		}
	}
}

func TestCheck046_OpeningWithAcksIsInvalid(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	if resp := a.send(w.ctx, 0, with(topic, 0, accept(0, 0))); resp.ErrorCode != codeInvalidRequest || len(resp.Topics) != 0 {
		t.Errorf("code %d, topics %v", resp.ErrorCode, resp.Topics)
	}
	if resp := a.send(w.ctx, 1); resp.ErrorCode != codeSessionNotFound {
		t.Errorf("a session was made: code %d", resp.ErrorCode)
	}
}

func TestCheck047_OtherEpochsNeedASession(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	for _, epoch := range []int32{1, 7, -1} {
		if resp := a.send(w.ctx, epoch); resp.ErrorCode != codeSessionNotFound {
			t.Errorf("fetch at %d: code %d", epoch, resp.ErrorCode)
		}
		if resp := a.acknowledge(epoch, topic, 0); resp.ErrorCode != codeSessionNotFound {
			t.Errorf("acknowledge at %d: code %d", epoch, resp.ErrorCode)
		}
	}
}

func TestCheck048_WrongEpochLeavesTheSession(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	for _, epoch := range []int32{2, 5} {
		if resp := a.send(w.ctx, epoch); resp.ErrorCode != codeSessionEpoch || resp.AcquisitionLockTimeoutMillis != 0 {
			t.Errorf("fetch at %d: code %d", epoch, resp.ErrorCode)
		}
	}
	if resp := a.acknowledge(0, topic, 0); resp.ErrorCode != codeSessionEpoch { // check 50
		t.Errorf("acknowledge at 0: code %d", resp.ErrorCode)
	}
	a.fetch()
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 { // one counter for both
		t.Errorf("ack code %d", code)
	}
	a.fetch()
}

func TestCheck049_ReplacedSessionsRecordsStayLocked(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	w.gets(a.open(topic), topic)
	w.gets(b.open(topic), topic)
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Errorf("the member holds it still, under whatever session: code %d", code)
	}
}

func TestCheck051_ClosingFetchAppliesAcksAndReleases(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 4)
	w.gets(a.open(topic), topic, entry{0, 3, 1})
	resp := a.send(w.ctx, -1, with(topic, 0, accept(1, 1)))
	if p, ok := part(resp, topic.ID, 0); resp.ErrorCode != 0 || !ok || p.AcknowledgeErrorCode != 0 || len(p.AcquiredRecords) != 0 {
		t.Fatalf("close: %+v", resp)
	}
	if resp := a.send(w.ctx, a.epoch); resp.ErrorCode != codeSessionNotFound {
		t.Errorf("after the close: code %d", resp.ErrorCode)
	}
	w.gets(b.open(topic), topic, entry{0, 0, 2}, entry{2, 3, 2})
}

func TestCheck052_ClosingAcknowledgeReleases(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 2)
	w.gets(a.open(topic), topic, entry{0, 1, 1})
	if resp := a.acknowledge(-1, topic, 0, accept(0, 0)); resp.ErrorCode != 0 || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatalf("close: %+v", resp)
	}
	if resp := a.acknowledge(1, topic, 0); resp.ErrorCode != codeSessionNotFound {
		t.Errorf("after the close: code %d", resp.ErrorCode)
	}
	w.gets(b.open(topic), topic, entry{1, 1, 2})
}

func TestCheck054_ForgottenPartitionDeliversNoMoreButTakesAcks(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 2)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	w.gets(a.fetch(forget(topic, 0)), topic)
	w.gets(a.fetch(), topic)
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Errorf("ack code %d", code)
	}
}

func TestCheck055_AckedAndForgottenPartitionIsOutOfTheSession(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 3)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	a.fetch(forget(topic, 0))
	resp := a.fetch(with(topic, 0, accept(0, 0)), forget(topic, 0))
	if p, ok := part(resp, topic.ID, 0); !ok || p.AcknowledgeErrorCode != 0 || len(p.AcquiredRecords) != 0 {
		t.Errorf("entry %v %+v", ok, p)
	}
	w.gets(a.fetch(), topic)
	// Named for acks alone it joins the session.
	w.gets(a.fetch(with(topic, 0, accept(0, 0)), maxRecords(1)), topic, entry{1, 1, 1})
	w.gets(a.fetch(maxRecords(1)), topic, entry{2, 2, 1})
}

func TestCheck056_RepeatedTopicsAndPartitionsAreMerged(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 3)
	resp := a.fetch(with(topic, 0), with(topic, 0), maxRecords(1))
	w.gets(resp, topic, entry{0, 0, 1})
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		t.Errorf("topics %+v", resp.Topics)
	}
	resp = a.fetch(with(topic, 0, accept(0, 0)), with(topic, 0), maxRecords(1))
	w.gets(resp, topic, entry{1, 1, 1})
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Errorf("offset 0 should have been accepted and passed: code %d", code)
	}
}

func TestCheck057_EpochWraps(t *testing.T) {
	if got := nextEpoch(math.MaxInt32); got != 1 {
		t.Errorf("epoch after the highest is %d", got)
	}
	if got := nextEpoch(41); got != 42 {
		t.Errorf("epoch after 41 is %d", got)
	}
}

func TestCheck058_DisconnectFreesRecordsAtOnce(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 2)
	w.gets(a.open(topic), topic, entry{0, 1, 1})
	w.gets(b.open(topic), topic)
	a.r.srv.ConnClosed(a.c)
	w.gets(b.fetch(maxWait(10*time.Second)), topic, entry{0, 1, 2})
	if resp := a.send(w.ctx, a.epoch); resp.ErrorCode != codeSessionNotFound {
		t.Errorf("session after the disconnect: code %d", resp.ErrorCode)
	}
}

func TestCheck059_ClosingAnotherConnectionFreesNothing(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	other := a.on(a.r)
	other.fetch()
	a.epoch = other.epoch
	a.r.srv.ConnClosed(other.c)
	w.gets(b.open(topic), topic)
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Errorf("ack code %d", code)
	}
}

func TestCheck060_IdleSessionStaysValid(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	a.open(topic)
	w.advance(5 * time.Minute)
	a.fetch()
}

func TestCheck061_SessionIsServedOverTwoConnections(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 3)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	other := a.on(a.r)
	w.gets(other.fetch(maxRecords(1)), topic, entry{1, 1, 1})
	a.epoch = other.epoch
	w.gets(a.fetch(maxRecords(1)), topic, entry{2, 2, 1})
}

func TestCheck062_SessionLimitIsToldAfterMaxWait(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 1)
	w.reps[0].srv.o.Broker.MaxShareSessions = 1
	a.open(topic)
	began := time.Now()
	resp := b.send(w.ctx, 0, with(topic, 0), maxWait(100*time.Millisecond))
	if resp.ErrorCode != codeSessionLimit || time.Since(began) < 100*time.Millisecond {
		t.Errorf("code %d after %v", resp.ErrorCode, time.Since(began))
	}
	a.fetch()
	a.open(topic) // in its own place it may
	a.r.srv.ConnClosed(a.c)
	b.open(topic)
}

func TestSessionLimitIsOfEachReplica(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 1)
	for i, m := range []*member{a, b} {
		w.reps[i].srv.o.Broker.MaxShareSessions = 1
		m.open(topic)
		if resp := w.reps[i].member("g", "c").send(w.ctx, 0, with(topic, 0)); resp.ErrorCode != codeSessionLimit {
			t.Errorf("replica %d: code %d", i, resp.ErrorCode)
		}
	}
}

func TestCheck063_GroupAndMemberAreChecked(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	empty, long, most := "", "0123456789012345678901234567890123456", "012345678901234567890123456789012345"
	for name, change := range map[string]mod{
		"group null":   func(r *kmsg.ShareFetchRequest) { r.GroupID = nil },
		"member null":  func(r *kmsg.ShareFetchRequest) { r.MemberID = nil },
		"member empty": func(r *kmsg.ShareFetchRequest) { r.MemberID = &empty },
		"member long":  func(r *kmsg.ShareFetchRequest) { r.MemberID = &long },
	} {
		if resp := a.send(w.ctx, 0, with(topic, 0), change); resp.ErrorCode != codeInvalidRequest {
			t.Errorf("%s: code %d", name, resp.ErrorCode)
		}
	}
	if resp := a.send(w.ctx, 0, with(topic, 0), func(r *kmsg.ShareFetchRequest) { r.MemberID = &most }); resp.ErrorCode != 0 {
		t.Errorf("36 characters: code %d", resp.ErrorCode)
	}
}

// denies is an Authorizer that denies one group and one topic.
type denies struct{ group, topic string }

func (d denies) Group(_ context.Context, _ int8, group string) (bool, error) {
	return group != d.group, nil
}
func (d denies) Cluster(context.Context, int8) (bool, error) { return true, nil }
func (d denies) Topics(_ context.Context, _ int8, names []string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = n != d.topic
	}
	return out, nil
}

func TestCheck064_GroupWithoutReadIsRefused(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	a.c.Auth = denies{group: "g"}
	resp := a.send(w.ctx, 0, with(topic, 0))
	if resp.ErrorCode != codeGroupDenied || len(resp.Topics) != 0 || resp.AcquisitionLockTimeoutMillis != 0 {
		t.Errorf("%+v", resp)
	}
}

func TestCheck065_TopicWithoutReadIsRefusedAlone(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	secret := w.topic("secret", 1)
	a.join("t", "secret")
	a.c.Auth = denies{topic: "secret"}
	resp := a.fetch(with(topic, 0), with(secret, 0))
	w.gets(resp, topic, entry{0, 0, 1})
	if p, _ := part(resp, secret.ID, 0); p.ErrorCode != codeTopicDenied || p.CurrentLeader.LeaderID != -1 {
		t.Errorf("%+v", p)
	}
	if code := a.ackCode(secret, 0, accept(0, 0)); code != codeTopicDenied { // check 110
		t.Errorf("ack code %d", code)
	}
}

func TestCheck066_UnknownTopicsAndPartitions(t *testing.T) {
	_, topic, a, _ := groupFromStart(t, 1, 1)
	unknown := upstream.Topic{ID: [16]byte{9}}
	resp := a.fetch(with(topic, 99), with(unknown, 0))
	if p, _ := part(resp, topic.ID, 99); p.ErrorCode != codeUnknownTopic {
		t.Errorf("partition 99: %+v", p)
	}
	if p, _ := part(resp, unknown.ID, 0); p.ErrorCode != codeUnknownTopicID {
		t.Errorf("unknown id: %+v", p)
	}
	if code := a.ackCode(unknown, 0, accept(0, 0)); code != codeUnknownTopicID {
		t.Errorf("ack of an unknown id: %d", code)
	}
}

func TestCheck068_EmptyPartitionIsListedOnce(t *testing.T) {
	w := newWorld(t, 1)
	one, two := w.topic("one", 1), w.topic("two", 1)
	m := w.reps[0].member("g", "m").join("one", "two")
	p, ok := part(m.open(one), one.ID, 0)
	if !ok || p.CurrentLeader.LeaderID != 0 || p.CurrentLeader.LeaderEpoch != 0 { // check 67
		t.Errorf("opening response: %v %+v", ok, p)
	}
	if resp := m.fetch(); len(resp.Topics) != 0 {
		t.Errorf("unchanged partition is listed: %+v", resp.Topics)
	}
	if _, ok := part(m.fetch(with(two, 0)), two.ID, 0); !ok {
		t.Error("added partition is not listed")
	}
	if resp := m.fetch(); len(resp.Topics) != 0 {
		t.Errorf("unchanged partitions are listed: %+v", resp.Topics)
	}
}

func TestCheck070_ReplicasServeOneSessionInTurn(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 2, 6)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	for i := int64(1); i < 6; i++ {
		next := a.on(w.reps[i%2])
		have := got(next.fetch(maxRecords(1)), topic, 0)
		// What a refused request took on the way was given back, with its delivery counted.
		if len(have) != 1 || have[0].first != i || have[0].last != i || have[0].count > 2 {
			t.Fatalf("acquired %v, want offset %d", have, i)
		}
		if resp := a.on(w.reps[(i+1)%2]).send(w.ctx, next.epoch-1, maxRecords(1)); resp.ErrorCode != codeSessionEpoch {
			t.Fatalf("epoch %d a second time, on the other replica: code %d", next.epoch-1, resp.ErrorCode)
		}
		a.epoch = next.epoch
	}
}

func TestReopenedElsewhereKeepsItsRecordsWhenTheOldConnectionCloses(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 2)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	again := a.on(w.reps[1])
	w.gets(again.open(topic, maxRecords(1)), topic, entry{1, 1, 1})
	a.r.srv.ConnClosed(a.c)
	w.gets(b.open(topic), topic)
	if code := again.ackCode(topic, 0, accept(0, 1)); code != 0 {
		t.Errorf("ack code %d", code)
	}
}

// The end of a session is two steps, and between them the member may have opened the next one.
func TestReleaseAfterTheCloseLeavesWhatTheNextSessionTook(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 2)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	key := statelog.SessionKey{Group: a.group, Member: a.id, Node: a.c.Node}
	old := a.r.srv.sessions.get(key)
	nonce, parts := old.nonce(), old.list()
	again := a.on(w.reps[1])
	w.gets(again.open(topic, maxRecords(1)), topic, entry{1, 1, 1})
	w.must(a.r.srv.releaseParts(w.ctx, a.group, a.id, nonce, parts))
	w.gets(b.open(topic, maxWait(5*time.Second)), topic, entry{0, 0, 2})
	if code := again.ackCode(topic, 0, accept(1, 1)); code != 0 {
		t.Errorf("ack code %d", code)
	}
}

func TestCloseByAReplicaWithAnOldViewOfTheSessionReleasesAllOfIt(t *testing.T) {
	w := newWorld(t, 2)
	topic := w.topic("t", 2)
	w.produce("t", 0, 1, 1)
	w.produce("t", 1, 1, 1)
	w.alter("g", "share.auto.offset.reset", "earliest")
	a, b := w.reps[0].member("g", "a").join("t"), w.reps[1].member("g", "b").join("t")
	w.gets(a.fetch(with(topic, 0)), topic, entry{0, 0, 1})
	other := a.on(w.reps[1])
	if have := got(other.fetch(with(topic, 1)), topic, 1); len(have) != 1 {
		t.Fatalf("partition 1: %v", have)
	}
	if resp := a.send(w.ctx, -1); resp.ErrorCode != 0 {
		t.Fatalf("close: code %d", resp.ErrorCode)
	}
	took := map[int32]bool{}
	for resp := b.open(topic, maxWait(5*time.Second)); len(took) < 2; resp = b.fetch(maxWait(5 * time.Second)) {
		before := len(took)
		for p := range int32(2) {
			if len(got(resp, topic, p)) > 0 {
				took[p] = true
			}
		}
		if len(took) == before {
			t.Fatalf("free after the close: %v", took)
		}
	}
}

func TestCloseByAReplicaThatKnowsTheSessionBeforeClosesTheOneThatIsThere(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 2)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	again := a.on(w.reps[1])
	w.gets(again.open(topic, maxRecords(1)), topic, entry{1, 1, 1})
	if resp := a.acknowledge(-1, topic, 0); resp.ErrorCode != 0 {
		t.Fatalf("close: code %d", resp.ErrorCode)
	}
	w.gets(b.open(topic, maxWait(5*time.Second)), topic, entry{0, 0, 2}, entry{1, 1, 2})
	if resp := again.send(w.ctx, 1); resp.ErrorCode != codeSessionNotFound {
		t.Errorf("after the close: code %d", resp.ErrorCode)
	}
}

func TestSessionThatRedisLostFreesItsRecordsWhenTheConnectionCloses(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 2)
	w.gets(a.open(topic), topic, entry{0, 1, 1})
	for _, key := range w.redis.Keys() {
		if strings.Contains(key, ":s:{g/a/") {
			w.redis.Del(key)
		}
	}
	a.r.srv.ConnClosed(a.c)
	w.gets(b.open(topic), topic, entry{0, 1, 2})
}

func TestSessionReplacedElsewhereAtTheSameEpochIsServed(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 2, 3)
	two := w.topic("two", 1)
	w.produce("two", 0, 1, 1)
	a.join("t", "two")
	a.open(two, maxRecords(0))
	other := a.on(w.reps[1])
	if resp := other.send(w.ctx, 9); resp.ErrorCode != codeSessionEpoch { // now known there
		t.Fatalf("code %d", resp.ErrorCode)
	}
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	other.epoch = a.epoch
	resp := other.fetch(with(topic, 0, accept(0, 0)))
	if p, ok := part(resp, topic.ID, 0); !ok || p.AcknowledgeErrorCode != 0 {
		t.Errorf("ack: %v %+v", ok, p)
	}
	if p, ok := part(resp, two.ID, 0); ok {
		t.Errorf("a partition of the replaced session is answered: %+v", p)
	}
	w.gets(resp, topic, entry{1, 2, 1})
	b := w.reps[0].member("g", "b")
	if have := got(b.open(two), two, 0); len(have) != 1 {
		t.Errorf("what was taken for the replaced session is not free: %v", have)
	}
}

func TestAcknowledgeAtTheEpochOfASessionReplacedElsewhereIsServed(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 2, 3)
	a.open(topic, maxRecords(0))
	other := a.on(w.reps[1])
	if resp := other.send(w.ctx, 9); resp.ErrorCode != codeSessionEpoch { // now known there
		t.Fatalf("code %d", resp.ErrorCode)
	}
	w.gets(a.open(topic), topic, entry{0, 2, 1})
	other.epoch = a.epoch
	if code := other.ackCode(topic, 0, accept(0, 2)); code != 0 {
		t.Errorf("code %d", code)
	}
}

func TestFetchThatOutlivesItsSessionElsewhereKeepsNothing(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	other := a.on(w.reps[1])
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- other.send(w.ctx, 1, with(topic, 0, accept(0, 0)), maxWait(20*time.Second)) }()
	w.eventually("the fetch to wait", w.reps[1].waiting)
	w.eventually("its step of the session", func() bool {
		x, _, err := w.reps[0].store.LoadSession(w.ctx, statelog.SessionKey{Group: "g", Member: "a", Node: -1})
		w.must(err)
		return x.Epoch == 2
	})
	a.r.srv.ConnClosed(a.c)
	w.produce("t", 0, 1, 1)
	if resp := <-done; resp.ErrorCode != codeSessionNotFound {
		t.Errorf("code %d, acquired %v", resp.ErrorCode, got(resp, topic, 0))
	}
	w.gets(b.open(topic, maxWait(5*time.Second)), topic, entry{1, 1, 2})
}
