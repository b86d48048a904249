package upstream

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What a partition's error code means for who waits at the log end and for who reads the backlog: short trouble is never
// seen, lasting trouble is, and it ends by itself.
func TestFetchErrors(t *testing.T) {
	for _, c := range []struct {
		err    *kerr.Error
		atOnce bool // shown the first time
		want   error
	}{
		{kerr.NotLeaderForPartition, false, ErrNotLeader},
		{kerr.FencedLeaderEpoch, false, ErrNotLeader},
		{kerr.UnknownLeaderEpoch, false, ErrNotLeader},
		{kerr.LeaderNotAvailable, false, ErrNotLeader},
		{kerr.KafkaStorageError, false, ErrNotLeader},
		{kerr.UnknownTopicOrPartition, false, ErrUnknownTopicOrPartition},
		{kerr.UnknownTopicID, false, ErrUnknownTopicOrPartition},
		{kerr.InconsistentTopicID, false, ErrUnknownTopicOrPartition},
		{kerr.UnknownServerError, false, ErrUnavailable},
		{kerr.TopicAuthorizationFailed, true, ErrUnauthorized},
		{kerr.CorruptMessage, true, ErrCorrupt},
	} {
		t.Run(c.err.Message, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
			const show = 1200 * time.Millisecond
			f.patient(patience{show, time.Second, 30 * time.Second, time.Second})
			topic := f.topic("t", 1)
			f.produce("t", 0, 3, 1, 10)
			fault := func(n int) *kfake.FaultHandle {
				return f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: c.err, Count: n})
			}
			backlog := f.open(TP{topic.ID, 0}, ReadUncommitted)
			if !c.atOnce {
				fault(3)
				if v := f.read(backlog, 0, 1); v.Err != nil || len(v.Batches) != 1 {
					t.Fatalf("three errors in a row were not waited out: %+v", v)
				}
			}
			tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
			w := tail.Watch()
			f.tailing(tail, 3)
			start := time.Now()
			lasting := fault(-1)
			v := f.next(tail, w, 3)
			if !errors.Is(v.Err, c.want) {
				t.Fatalf("lasting error is shown as %v", v.Err)
			}
			if took := time.Since(start); !c.atOnce && took < show {
				t.Fatalf("shown after %v, before it has lasted", took)
			}
			if n := lasting.Hits(); n > 30 {
				t.Fatalf("%d requests in %v: the error spins", n, time.Since(start))
			}
			if v, ok := tail.Peek(0, 1); c.want != ErrUnauthorized && c.want != ErrUnknownTopicOrPartition && (!ok || v.Err != nil) && !c.atOnce {
				t.Fatalf("cached records are hidden by the error: %+v %v", v, ok)
			}
			lasting.Remove()
			f.produce("t", 0, 1, 1, 10)
			eventually(t, "it goes on", func() bool {
				v, ok := tail.Peek(3, 1)
				return ok && v.Err == nil && len(v.Batches) == 1
			})
		})
	}
}

func TestOnePartitionsErrorDoesNotHoldUpItsNeighbours(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
	topic := f.topic("t", 2)
	bad, good := f.open(TP{topic.ID, 0}, ReadUncommitted), f.open(TP{topic.ID, 1}, ReadUncommitted)
	w := good.Watch()
	bad.Want(0)
	f.tailing(good, 0)
	fault := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Partitions: []int32{0}, Err: kerr.NotLeaderForPartition, Count: -1})
	defer fault.Remove()
	if err := fault.Wait(f.ctx, 3); err != nil {
		t.Fatal(err)
	}
	polls := f.c.Stats().Polls
	start := time.Now()
	for offset := range int64(5) {
		f.produce("t", 1, 1, 1, 10)
		f.next(good, w, offset)
	}
	if took := time.Since(start); took > time.Second {
		t.Fatalf("five records of the neighbour took %v", took)
	}
	eventually(t, "the neighbour is followed on", func() bool { return f.c.Stats().Polls > polls })
	if n := fault.Hits(); n > 60 {
		t.Fatalf("%d requests with the error", n)
	}
}

// Session errors, also many in a row and a node that keeps no sessions at all, cost nothing but a full request.
func TestFetchSessionErrorsBeginANewSession(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.FetchSessionIDNotFound, kerr.InvalidFetchSessionEpoch} {
		t.Run(e.Message, func(t *testing.T) {
			f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
			topic := f.topic("t", 2)
			tail := f.open(TP{topic.ID, 1}, ReadUncommitted)
			w := tail.Watch()
			f.tailing(tail, 0)
			full := fetchCounter(f.cluster, func(r *kmsg.FetchRequest) bool { return r.SessionEpoch == 0 })
			for offset := range int64(4) {
				fault := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, TopLevel: true, Err: e, Count: 2,
					When: func(r kmsg.Request) bool { return r.(*kmsg.FetchRequest).SessionEpoch >= 0 }})
				if err := fault.Wait(f.ctx, 2); err != nil {
					t.Fatal(err)
				}
				f.produce("t", 1, 1, 1, 10)
				if v := f.next(tail, w, offset); v.Err != nil {
					t.Fatalf("a session error was shown: %v", v.Err)
				}
			}
			if full.Hits() == 0 {
				t.Fatal("no session was begun anew")
			}
		})
	}
}

func TestFetchSessionsKeepRequestsSmall(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
	topic := f.topic("t", 30)
	tails := make([]*Tail, 30)
	for p := range tails {
		tails[p] = f.open(TP{topic.ID, int32(p)}, ReadUncommitted)
		tails[p].Want(0)
	}
	for _, tail := range tails {
		f.tailing(tail, 0)
	}
	w := tails[7].Watch()
	var polls, listed, forgotten atomic.Int64
	f.cluster.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		f.cluster.KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		if req.SessionEpoch > 0 {
			polls.Add(1)
		}
		for _, topic := range req.Topics {
			listed.Add(int64(len(topic.Partitions)))
		}
		for _, topic := range req.ForgottenTopics {
			forgotten.Add(int64(len(topic.Partitions)))
		}
		return nil, nil, false
	})
	eventually(t, "a poll that began after all had joined", func() bool { return polls.Load() > 1 })
	listed.Store(0)
	for offset := range int64(3) {
		f.produce("t", 7, 1, 1, 10)
		f.next(tails[7], w, offset)
	}
	seen := polls.Load()
	eventually(t, "another poll", func() bool { return polls.Load() > seen })
	if n := listed.Load(); n < 3 || n > 4 {
		t.Fatalf("%d partitions listed for three moves of one", n)
	}
	tails[9].Want(-1)
	tails[10].Close()
	eventually(t, "two are forgotten", func() bool { return forgotten.Load() == 2 })
}

// A broker whose session cache is full answers without a session.
func TestSessionThatIsNotGrantedStaysFull(t *testing.T) {
	var s session
	want := map[TP]asked{{Partition: 1}: {from: 5}}
	for range 3 {
		req := kmsg.NewPtrFetchRequest()
		s.fill(req, want)
		if req.SessionEpoch != 0 || req.SessionID != 0 || len(req.Topics) != 1 {
			t.Fatalf("request %+v", req)
		}
		if err := s.answered(kmsg.NewPtrFetchResponse()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSessionEpochWrapsToOne(t *testing.T) {
	s := session{id: 3, epoch: 1<<31 - 1, parts: map[TP]asked{}}
	resp := kmsg.NewPtrFetchResponse()
	resp.SessionID = 3
	if err := s.answered(resp); err != nil || s.epoch != 1 {
		t.Fatalf("epoch %d, %v", s.epoch, err)
	}
}

// What stands before a malformed batch is served, the malformed position says so, and what stands behind it can be read.
func TestCorruptBatchBlocksOnlyItsPosition(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
	topic := f.topic("t", 1)
	f.produce("t", 0, 6, 1, 10)
	f.cluster.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		f.cluster.KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		if req.SessionEpoch >= 0 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		rt := kmsg.NewFetchResponseTopic()
		rt.TopicID = topic.ID
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = 6, 6, 0
		for offset := req.Topics[0].Partitions[0].FetchOffset; offset < 6; offset++ {
			b := testBatch(offset, 1, 0, -1).Bytes
			if offset == 3 {
				b = with(b, atMagic, 1)
			}
			rp.RecordBatches = append(rp.RecordBatches, b...)
		}
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	if v := f.read(tail, 0, 1<<20); v.Err != nil || checkContiguous(t, v.Batches, 0) != 3 {
		t.Fatalf("before the malformed batch: %+v", v)
	}
	if v := f.read(tail, 3, 1<<20); !errors.Is(v.Err, ErrCorrupt) || len(v.Batches) > 0 {
		t.Fatalf("at the malformed batch: %+v", v)
	}
	if v := f.read(tail, 4, 1<<20); v.Err != nil || checkContiguous(t, v.Batches, 4) != 6 {
		t.Fatalf("behind the malformed batch: %+v", v)
	}
}

// A node that answers empty though there are records (quotas) must not be asked in a tight loop.
func TestEmptyAnswersDoNotSpin(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
	topic := f.topic("t", 1)
	f.produce("t", 0, 3, 1, 10)
	var asked atomic.Int64
	var generous atomic.Bool
	f.cluster.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		f.cluster.KeepControl()
		asked.Add(1)
		if generous.Load() {
			return nil, nil, false
		}
		req := kreq.(*kmsg.FetchRequest)
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		rt := kmsg.NewFetchResponseTopic()
		rt.TopicID = topic.ID
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset, rp.RecordBatches = 3, 3, 0, []byte{}
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	ctx, cancel := contextWithTimeout(f.ctx, 400*time.Millisecond)
	defer cancel()
	if _, err := tail.Read(ctx, 0, 1); err == nil {
		t.Fatal("an empty answer below the high watermark was taken for the log end")
	}
	if n := asked.Load(); n > 15 {
		t.Fatalf("%d fetches in 400 ms", n)
	}
	generous.Store(true)
	if v := f.read(tail, 0, 1<<20); len(v.Batches) != 3 {
		t.Fatalf("when the node gives again: %+v", v)
	}
}

// The connection is cut in the middle of long polls and reads: nobody notices.
func TestCutConnectionsAreMadeAgain(t *testing.T) {
	f := newFixture(t, newCluster(t))
	topic := f.topic("t", 1)
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	w := tail.Watch()
	f.tailing(tail, 0)
	for offset := range int64(6) {
		hit := make(chan struct{})
		var once atomic.Bool
		f.cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
			if !once.Swap(true) {
				close(hit)
			}
			return nil, errors.New("cut"), true
		})
		<-hit
		f.produce("t", 0, 1, 1, 10)
		if v := f.next(tail, w, offset); v.Err != nil {
			t.Fatalf("a cut connection was shown: %v", v.Err)
		}
		cold := f.c.Open(TP{topic.ID, 0}, ReadCommitted)
		if v := f.read(cold, offset, 1); v.Err != nil || len(v.Batches) != 1 {
			t.Fatalf("another read: %+v", v)
		}
		cold.Close()
	}
}

func TestGroupInUseFindsEveryTypeOfGroup(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		f.produce("t", 0, 1, 1, 10)
		used := func(group string) bool {
			f.Helper()
			used, err := f.c.GroupInUse(f.ctx, f.prefix+group)
			if err != nil {
				f.Fatal(err)
			}
			return used
		}
		join := func(group string, opts ...kgo.Opt) *kgo.Client {
			client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(f.seeds...), kgo.DisableClientMetrics(),
				kgo.ConsumerGroup(f.prefix + group), kgo.ConsumeTopics(topic.Name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}, opts...)...)
			if err != nil {
				f.Fatal(err)
			}
			if fetches := client.PollFetches(f.ctx); fetches.Err() != nil {
				f.Fatal(fetches.Err())
			}
			return client
		}
		if used("nobody") {
			f.Fatal("a group that does not exist is in use")
		}
		classic := join("classic")
		if !used("classic") {
			f.Fatal("a classic group with members is not found")
		}
		if err := classic.CommitUncommittedOffsets(f.ctx); err != nil {
			f.Fatal(err)
		}
		classic.CloseAllowingRebalance()
		if !used("classic") {
			f.Fatal("a classic group that is empty, with committed offsets, is not found")
		}
		versions, err := f.c.APIVersions(f.ctx)
		if err != nil {
			f.Fatal(err)
		}
		if _, ok := versions[int16(kmsg.ConsumerGroupDescribe)]; ok {
			modern := join("modern", kgo.ServerSideBalancer())
			defer modern.CloseAllowingRebalance()
			if !used("modern") {
				f.Fatal("a consumer group of the new protocol is not found")
			}
		}
		if f.cluster == nil {
			return
		}
		for _, key := range []kmsg.Key{kmsg.DescribeGroups, kmsg.FindCoordinator} {
			f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: kerr.GroupAuthorizationFailed})
			if _, err := f.c.GroupInUse(f.ctx, "denied by "+key.Name()); !errors.Is(err, ErrUnauthorized) {
				f.Fatalf("not allowed to describe: %v", err)
			}
		}
	})
}

func TestAPIVersionsAreWhatAllNodesSupport(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.MaxVersions(oldVersions())))
	versions, err := f.c.APIVersions(f.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r := versions[int16(kmsg.Fetch)]; r != [2]int16{4, 12} {
		t.Fatalf("Fetch %v", r)
	}
	if _, ok := versions[int16(kmsg.ShareFetch)]; ok {
		t.Fatal("ShareFetch on Kafka 2.8")
	}
	both := intersect(map[int16][2]int16{1: {0, 5}, 2: {0, 3}, 3: {0, 9}}, map[int16][2]int16{1: {2, 9}, 2: {4, 5}})
	if len(both) != 1 || both[1] != [2]int16{2, 5} {
		t.Fatalf("both support %v", both)
	}
}
