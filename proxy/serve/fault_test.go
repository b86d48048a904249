package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/sharestate"
)

func TestIdleWaitingFetchWritesNothing(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- a.fetch(maxWait(3 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[0].waiting)
	before := w.reps[0].store.Stats()
	w.gets(<-done, topic)
	after := w.reps[0].store.Stats()
	if n := after.Appends - before.Appends; n > 0 {
		t.Errorf("%d appends while the fetch waited", n)
	}
	// The group's log is followed too, at the same pace.
	if n := after.Reads - before.Reads; n > 8 {
		t.Errorf("%d reads in 3 s", n)
	}
}

func TestOneRoundTripPerFetch(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 100)
	a.open(topic, maxRecords(1))
	for i := range int64(5) {
		before := w.reps[0].store.Stats()
		w.gets(a.fetch(with(topic, 0, accept(i, i)), maxRecords(1)), topic, entry{i + 1, i + 1, 1})
		after := w.reps[0].store.Stats()
		if n := after.Appends - before.Appends; n != 1 {
			t.Errorf("%d appends for acknowledgement and acquisition of one partition", n)
		}
	}
}

func TestDeadReplicasRecordsComeBack(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 3)
	w.gets(a.open(topic), topic, entry{0, 2, 1})
	b.open(topic)
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- b.fetch(maxWait(25 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[1].waiting)
	began := time.Now()
	w.reps[0].kill()
	w.gets(<-done, topic, entry{0, 2, 2})
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("records came back after %v", took)
	}
	w.eventually("the dead replica's session to go", func() bool {
		return a.on(w.reps[1]).send(w.ctx, a.epoch).ErrorCode == codeSessionNotFound
	})
}

func TestSessionGoesOnAfterRedisWasAway(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 3)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	w.redis.Close()
	for range 2 {
		began := time.Now()
		resp := a.fetch(with(topic, 0, accept(0, 0)), maxWait(200*time.Millisecond))
		if took := time.Since(began); took > 5200*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		p, ok := part(resp, topic.ID, 0)
		if !ok || p.ErrorCode != codeStorage || p.AcknowledgeErrorCode != codeStorage || p.CurrentLeader.LeaderID != -1 {
			t.Errorf("while Redis is away: %v %+v", ok, p)
		}
	}
	if resp := b.send(w.ctx, 0, with(topic, 0)); resp.ErrorCode != codeStorage {
		t.Errorf("opening while Redis is away: code %d", resp.ErrorCode)
	}
	w.must(w.redis.Restart())
	w.eventually("delivery after the restart", func() bool {
		have := got(a.fetch(maxRecords(1), maxWait(200*time.Millisecond)), topic, 0)
		return len(have) == 1 && have[0].first >= 1
	})
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Errorf("the acquisition survived, so does its ack: code %d", code)
	}
}

func TestHeartbeatWithoutRedisIsCoordinatorNotAvailable(t *testing.T) {
	w, _, a, _ := groupFromStart(t, 1, 1)
	w.redis.Close()
	defer func() { w.must(w.redis.Restart()) }()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.SubscribedTopicNames = 1, "g", "new", []string{"t"}
	if resp := a.r.ask(w.ctx, a.c, req).(*kmsg.ShareGroupHeartbeatResponse); resp.ErrorCode != codeCoordUnavailable {
		t.Errorf("code %d", resp.ErrorCode)
	}
}

func TestDrainAnswersWaitingFetches(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- a.fetch(maxWait(30 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[0].waiting)
	w.reps[0].srv.Drain()
	select {
	case resp := <-done:
		w.gets(resp, topic)
	case <-time.After(5 * time.Second):
		t.Fatal("the fetch goes on waiting")
	}
}

func TestClientThatLeavesEndsItsFetch(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	ctx, leave := context.WithCancel(w.ctx)
	done := make(chan struct{})
	go func() { defer close(done); a.send(ctx, a.epoch, maxWait(30*time.Second)) }()
	w.eventually("the fetch to wait", w.reps[0].waiting)
	leave()
	<-done
	a.r.srv.ConnClosed(a.c)
	w.gets(b.open(topic), topic, entry{0, 0, 2})
}

func TestWhatAClientGoneOnAnotherConnectionTookIsGivenBack(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 2)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	other := a.on(a.r)
	ctx, leave := context.WithCancel(w.ctx)
	leave()
	other.send(ctx, a.epoch, maxRecords(1))
	a.epoch++
	w.gets(b.open(topic, maxWait(5*time.Second)), topic, entry{1, 1, 2}) // it was taken once before
	if code := a.ackCode(topic, 0, accept(0, 0)); code != 0 {
		t.Errorf("what the session held before is held still: code %d", code)
	}
}

func TestOtherNodesPortTellsTheLeader(t *testing.T) {
	w := newWorld(t, 1, kfake.NumBrokers(3))
	topic := w.topic("t", 1)
	r := w.reps[0]
	r.member("g", "m").join("t")
	leader, _, ok := r.up.Leader(tpOf(topic.ID, 0))
	if !ok {
		t.Fatal("no leader known")
	}
	for node := range int32(3) {
		m := &member{w: w, r: r, c: r.conn(node), group: "g", id: "m"}
		resp := m.open(topic)
		p, _ := part(resp, topic.ID, 0)
		switch {
		case node == leader && (p.ErrorCode != 0 || p.CurrentLeader.LeaderID != 0 || len(resp.NodeEndpoints) != 0):
			t.Errorf("on the leader: %+v %v", p, resp.NodeEndpoints)
		case node != leader && (p.ErrorCode != codeNotLeader || p.CurrentLeader.LeaderID != leader ||
			len(resp.NodeEndpoints) != 1 || resp.NodeEndpoints[0].Port != 19100+leader):
			t.Errorf("on node %d: %+v %v", node, p, resp.NodeEndpoints)
		}
	}
}

func TestLocksThatNobodyWaitsForAreEnded(t *testing.T) {
	w := newWorld(t, 1)
	srv := w.reps[0].srv
	srv.linger, srv.sweepAfter = 20*time.Millisecond, 20*time.Millisecond
	_, topic, a, _ := groupOn(t, w, 2)
	w.gets(a.open(topic), topic, entry{0, 1, 1})
	w.advance(31 * time.Second)
	log := srv.logs.Get(logName("g", tpOf(topic.ID, 0)))
	w.eventually("the records to be Available", func() bool {
		free := false
		w.must(log.View(w.ctx, 0, func(p *sharestate.Partition) {
			r := p.Ranges()
			free = len(r) == 1 && r[0].State == sharestate.StateAvailable
		}))
		return free
	})
	w.eventually("the share to be gone", func() bool {
		srv.shareMu.Lock()
		defer srv.shareMu.Unlock()
		return len(srv.shares) == 0
	})
}

func TestMetricsCount(t *testing.T) {
	w := newWorld(t, 1)
	reg := prometheus.NewRegistry()
	w.reps[0].srv.m = newMetrics(reg)
	_, topic, a, _ := groupOn(t, w, 4)
	w.gets(a.open(topic), topic, entry{0, 3, 1})
	w.gets(a.fetch(with(topic, 0, accept(0, 1), release(2, 2), reject(3, 3))), topic, entry{2, 2, 2})
	have := map[string]float64{}
	families, err := reg.Gather()
	w.must(err)
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			have[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"kshare_record_acknowledgements_total accept":  2,
		"kshare_record_acknowledgements_total release": 1,
		"kshare_record_acknowledgements_total reject":  1,
		"kshare_records_acquired_total":                5,
		"kshare_records_redelivered_total":             1,
		"kshare_share_sessions":                        1,
		"kshare_share_fetches_waiting":                 0,
	} {
		if have[name] != want {
			t.Errorf("%s is %v, want %v", name, have[name], want)
		}
	}
}

func TestUpstreamThatCannotBeReadIsARetriablePartitionError(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 3)
	var down atomic.Bool
	down.Store(true)
	w.kafka.ControlKey(1, func(kmsg.Request) (kmsg.Response, error, bool) {
		if !down.Load() {
			return nil, nil, false
		}
		w.kafka.KeepControl()
		return nil, errors.New("the broker hangs up"), true
	})
	began := time.Now()
	resp := a.open(topic, maxWait(3*time.Second))
	if took := time.Since(began); took < 3*time.Second || took > 8*time.Second {
		t.Errorf("answered after %v", took)
	}
	if p, _ := part(resp, topic.ID, 0); p.ErrorCode != codeStorage && p.ErrorCode != codeNotLeader {
		t.Errorf("%+v", p)
	}
	down.Store(false)
	w.gets(a.fetch(maxWait(10*time.Second)), topic, entry{0, 2, 1})
	if p, ok := part(a.fetch(), topic.ID, 0); ok { // spec 3.4 d is done with
		t.Errorf("listed again: %+v", p)
	}
}

func TestCheck107_ConfirmedAckSurvivesTheReplica(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 3)
	w.gets(a.open(topic), topic, entry{0, 2, 1})
	if code := a.ackCode(topic, 0, accept(0, 1)); code != 0 {
		t.Fatalf("code %d", code)
	}
	w.reps[0].kill()
	w.gets(b.open(topic, maxWait(25*time.Second)), topic, entry{2, 2, 2})
}

func TestOneEpochIsServedOnceByTwoReplicas(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 2, 40)
	a.open(topic, maxRecords(0))
	total := 0
	for range 20 {
		rivals := []*member{a.on(w.reps[0]), a.on(w.reps[1])}
		answers := make([]*kmsg.ShareFetchResponse, 2)
		var both sync.WaitGroup
		for i, m := range rivals {
			both.Go(func() { answers[i] = m.send(w.ctx, a.epoch, maxRecords(1)) })
		}
		both.Wait()
		served := 0
		for _, resp := range answers {
			if resp.ErrorCode == 0 {
				served++
				total += len(got(resp, topic, 0))
			} else if resp.ErrorCode != codeSessionEpoch {
				t.Fatalf("code %d", resp.ErrorCode)
			}
		}
		if served != 1 {
			t.Fatalf("epoch %d was served %d times", a.epoch, served)
		}
		a.epoch++
	}
	if total == 0 {
		t.Error("nothing was delivered")
	}
}

func TestWithoutRedisFirstTouchIsAnsweredInTime(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 2, 1)
	a.open(topic)
	w.redis.Close()
	defer func() { w.must(w.redis.Restart()) }()
	other := a.on(w.reps[1]) // where the session is not known
	began := time.Now()
	if resp := other.send(w.ctx, 1, maxWait(300*time.Millisecond)); resp.ErrorCode != codeStorage {
		t.Errorf("code %d", resp.ErrorCode)
	}
	if took := time.Since(began); took > 5300*time.Millisecond {
		t.Errorf("answered after %v", took)
	}
}

func TestRolledBackLogSkipsNothing(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 10)
	b.open(topic, maxRecords(0))
	w.gets(a.open(topic, maxRecords(2)), topic, entry{0, 1, 1})
	key := ""
	for _, k := range w.redis.Keys() {
		if strings.Contains(k, "{g/") && strings.HasSuffix(k, "/0}") {
			key = k
		}
	}
	before, err := w.redis.Get(key)
	w.must(err)
	w.gets(a.fetch(with(topic, 0, accept(0, 1)), maxRecords(4)), topic, entry{2, 5, 1})
	if code := a.ackCode(topic, 0, accept(2, 5)); code != 0 {
		t.Fatalf("code %d", code)
	}
	w.must(w.redis.Set(key, before)) // as after a failover that lost the last writes
	w.gets(b.fetch(maxWait(5*time.Second)), topic, entry{2, 9, 1})
	if code := a.ackCode(topic, 0, accept(0, 1)); code != 0 {
		t.Errorf("held again after the rollback: code %d", code)
	}
}

func TestTroubleAtTheFirstLookIsTriedAgainWhileTheFetchWaits(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	down := time.Now().Add(6 * time.Second)
	w.kafka.ControlKey(2, func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		if time.Now().After(down) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, topic := range req.(*kmsg.ListOffsetsRequest).Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = topic.Topic
			for _, p := range topic.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.NotLeaderForPartition.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	a.open(topic)
	w.gets(a.fetch(maxWait(20*time.Second)), topic, entry{0, 0, 1})
	if late := time.Since(down); late > 5*time.Second {
		t.Errorf("delivered %v after upstream was well again", late)
	}
}

func TestDeadReplicaIsNotBuriedBeforeTheGroupsAreKnown(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	r := w.reps[0]
	groups := coordinator.New(coordinator.Options{Store: r.store, Topics: UpstreamTopics{r.up}, Use: UpstreamGroups{r.up},
		Broker: coordinator.DefaultBrokerConfig(), Log: testLog()})
	young := New(Options{Store: r.store, Groups: groups, Upstream: r.up, Log: testLog()})
	if err := young.ReplicaDead(w.ctx, r.store.Nonce()); err == nil {
		t.Error("a replica that does not know the groups yet says that all is released")
	}
}

// gate is a way to Redis whose answers can be held back, and all its messages be lost.
type gate struct {
	sync.RWMutex
	deaf atomic.Bool
}

// newGate opens a gate to Redis for the replicas that are started next.
func (w *world) newGate() *gate {
	w.Helper()
	l, err := net.Listen("tcp", freeAddr(w))
	w.must(err)
	g := &gate{}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			redis, err := net.Dial("tcp", w.redis.Addr())
			if err != nil {
				_ = client.Close()
				continue
			}
			all.Go(func() {
				_, _ = io.Copy(redis, client)
				_ = redis.Close()
			})
			all.Go(func() {
				g.pass(client, redis)
				_ = client.Close()
			})
		}
	})
	w.Cleanup(func() { _ = l.Close(); all.Wait() })
	w.front = l.Addr().String()
	return g
}

func (g *gate) pass(client, redis net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := redis.Read(buf)
		if err != nil {
			return
		}
		if g.deaf.Load() && bytes.Contains(buf[:n], []byte("\r\nmessage\r\n")) {
			continue
		}
		g.RLock()
		_, err = client.Write(buf[:n])
		g.RUnlock()
		if err != nil {
			return
		}
	}
}

func TestWhatWasAcquiredWhileRedisHungIsGivenBack(t *testing.T) {
	w := newWorld(t, 0)
	g := w.newGate()
	w.reps = append(w.reps, w.startReplica())
	_, topic, a, b := groupOn(t, w, 3)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	b.open(topic, maxRecords(0))
	g.Lock()
	resp := a.fetch(with(topic, 0, accept(0, 0)), maxWait(100*time.Millisecond))
	g.Unlock()
	if have := got(resp, topic, 0); len(have) > 0 {
		t.Fatalf("acquired %v without Redis' word", have)
	}
	began := time.Now()
	for next := int64(1); next < 3; {
		have := got(b.fetch(maxWait(5*time.Second)), topic, 0)
		if time.Since(began) > 15*time.Second {
			t.Fatalf("offset %d is still held", next)
		}
		for _, e := range have {
			next = max(next, e.last+1)
		}
	}
}
