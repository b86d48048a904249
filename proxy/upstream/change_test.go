package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestNewNodeIsFoundAndRead(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
	topic := f.topic("t", 1)
	var mu sync.Mutex
	var told [][]Node
	f.c.OnNodes(func(n []Node) { mu.Lock(); defer mu.Unlock(); told = append(told, n) })
	if len(told) != 1 || len(told[0]) != 1 {
		t.Fatalf("OnNodes must tell what is known: %v", told)
	}
	node, port, err := f.cluster.AddNode(-1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.c.RefreshNodes(f.ctx); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	last := told[len(told)-1]
	mu.Unlock()
	if len(last) != 2 || last[1].ID != node || last[1].Port != int32(port) || len(f.c.Nodes()) != 2 {
		t.Fatalf("nodes after AddNode(%d, %d): %v", node, port, last)
	}
	if err := f.cluster.MoveTopicPartition("t", 0, node); err != nil {
		t.Fatal(err)
	}
	f.produce("t", 0, 1, 1, 10)
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	if v := f.read(tail, 0, 1); v.Err != nil || len(v.Batches) != 1 {
		t.Fatalf("on the new node: %+v", v)
	}
}

func TestDeletedTopicIsSaidAndRecreatedOneIsAnother(t *testing.T) {
	everywhere(t, func(f *fixture) {
		old := f.topic("t", 1)
		f.produce("t", 0, 3, 1, 10)
		tail := f.open(TP{old.ID, 0}, ReadUncommitted)
		w := tail.Watch()
		f.next(tail, w, 0)
		f.tailing(tail, 3)
		f.deleteTopic("t")
		if v := f.next(tail, w, 3); !errors.Is(v.Err, ErrUnknownTopicOrPartition) {
			f.Fatalf("at the end of a deleted topic: %+v", v)
		}
		if v, ok := tail.Peek(0, 1); !ok || !errors.Is(v.Err, ErrUnknownTopicOrPartition) || len(v.Batches) > 0 {
			f.Fatalf("in a deleted topic: %+v %v", v, ok)
		}
		fresh := f.topic("t", 2)
		if fresh.ID == old.ID {
			f.Fatal("the id did not change")
		}
		if _, ok, err := f.c.TopicByID(f.ctx, old.ID); ok || err != nil {
			f.Fatalf("old id: %v %v", ok, err)
		}
		if got, ok, err := f.c.TopicByID(f.ctx, fresh.ID); !ok || err != nil || got.Name != fresh.Name || got.Partitions != 2 {
			f.Fatalf("new id: %+v %v %v", got, ok, err)
		}
		f.produce("t", 0, 1, 5, 10)
		other := f.open(TP{fresh.ID, 0}, ReadUncommitted)
		if v := f.read(other, 0, 1); v.HighWatermark != 5 {
			f.Fatalf("the new topic: %+v", v)
		}
		if v := f.read(tail, 0, 1); !errors.Is(v.Err, ErrUnknownTopicOrPartition) {
			f.Fatalf("the old topic by its id, with the new one there: %+v", v)
		}
	})
}

// Deleted and made again between two looks at the metadata: the old id must not read the new topic's records.
func TestRecreationThatNobodySawIsNoticed(t *testing.T) {
	everywhere(t, func(f *fixture) {
		old := f.topic("t", 1)
		f.produce("t", 0, 3, 1, 10)
		tail := f.open(TP{old.ID, 0}, ReadUncommitted)
		w := tail.Watch()
		f.tailing(tail, 3)
		f.deleteTopic("t")
		f.topic("t", 1)
		f.produce("t", 0, 7, 1, 10)
		if v := f.next(tail, w, 3); !errors.Is(v.Err, ErrUnknownTopicOrPartition) {
			f.Fatalf("the old topic gave %+v", v)
		}
	}, kfake.NumBrokers(1))
}

func TestUnknownPartitionIsSaid(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		for _, tp := range []TP{{topic.ID, 7}, {topic.ID, -1}, {[16]byte{9}, 0}} {
			if v := f.read(f.open(tp, ReadUncommitted), 0, 1); !errors.Is(v.Err, ErrUnknownTopicOrPartition) {
				f.Fatalf("%v: %+v", tp, v)
			}
			if _, _, err := f.c.ListOffset(f.ctx, tp, AtEnd); !errors.Is(err, ErrUnknownTopicOrPartition) {
				f.Fatalf("%v: %v", tp, err)
			}
		}
	})
}

func TestNewPartitionsAreSeen(t *testing.T) {
	everywhere(t, func(f *fixture) {
		f.topic("t", 1)
		req := kmsg.NewPtrCreatePartitionsRequest()
		part := kmsg.NewCreatePartitionsRequestTopic()
		part.Topic, part.Count = f.prefix+"t", 4
		req.Topics = append(req.Topics, part)
		if resp, err := req.RequestWith(f.ctx, f.admin); err != nil || resp.Topics[0].ErrorCode != 0 {
			f.Fatalf("create partitions: %v %+v", err, resp)
		}
		eventually(f, "four partitions without asking afresh", func() bool {
			topics, err := f.c.TopicsByName(f.ctx, []string{f.prefix + "t"}, false)
			return err == nil && topics[f.prefix+"t"].Partitions == 4
		})
	})
}

func TestFreshLookupSeesWhatWasMadeJustBefore(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) { c.MetadataMaxAge = time.Hour })
	if topics, err := f.c.TopicsByName(f.ctx, []string{"t"}, false); err != nil || len(topics) != 0 {
		t.Fatalf("before: %v %v", topics, err)
	}
	f.topic("t", 3) // looks afresh itself
	f.deleteTopic("t")
	if topics, err := f.c.TopicsByName(f.ctx, []string{"t"}, false); err != nil || len(topics) != 1 {
		t.Fatalf("not fresh, and the metadata is young: %v %v", topics, err)
	}
	if topics, err := f.c.TopicsByName(f.ctx, []string{"t", "u"}, true); err != nil || len(topics) != 0 {
		t.Fatalf("fresh: %v %v", topics, err)
	}
}

func TestUnknownIDsAreNotAskedForOverAndOver(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) { c.MetadataMaxAge = time.Hour })
	asked := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, TopLevel: true, Observe: true, Count: -1})
	seen := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Observe: true, Count: -1})
	defer asked.Remove()
	defer seen.Remove()
	for range 100 {
		if _, ok, err := f.c.TopicByID(f.ctx, [16]byte{1, 2}); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if n := asked.Hits() + seen.Hits(); n > 6 {
		t.Fatalf("100 lookups of an unknown id cost %d metadata requests", n)
	}
}

func (f *fixture) deleteRecords(topic string, partition int32, below int64) {
	f.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	dt := kmsg.NewDeleteRecordsRequestTopic()
	dt.Topic = f.prefix + topic
	dp := kmsg.NewDeleteRecordsRequestTopicPartition()
	dp.Partition, dp.Offset = partition, below
	dt.Partitions = append(dt.Partitions, dp)
	req.Topics = append(req.Topics, dt)
	resp, err := req.RequestWith(f.ctx, f.admin)
	if err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		f.Fatalf("delete records: %v %+v", err, resp)
	}
}

func TestLogStartMoveIsReported(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		f.produce("t", 0, 10, 1, 10)
		tail, cold := f.open(TP{topic.ID, 0}, ReadUncommitted), f.open(TP{topic.ID, 0}, ReadCommitted)
		w := tail.Watch()
		f.tailing(tail, 10)
		f.read(tail, 0, 1<<20) // cached
		f.deleteRecords("t", 0, 6)
		eventually(f, "log start reported", func() bool {
			select {
			case <-w.C:
			case <-time.After(10 * time.Millisecond):
			}
			v, _ := tail.Peek(2, 1)
			return v.LogStart == 6
		})
		if v, ok := tail.Peek(2, 1); !ok || !errors.Is(v.Err, ErrOffsetOutOfRange) || len(v.Batches) > 0 {
			f.Fatalf("below the log start, cached before: %+v %v", v, ok)
		}
		if v := f.read(tail, 6, 1); v.Err != nil || v.Batches[0].Base != 6 {
			f.Fatalf("at the log start: %+v", v)
		}
		if v := f.read(cold, 0, 1); !errors.Is(v.Err, ErrOffsetOutOfRange) || v.LogStart != 6 || v.HighWatermark != 10 {
			f.Fatalf("below the log start, nothing known: %+v", v)
		}
	})
}

func TestPositionBehindTheEndIsOutOfRangeAndRecovers(t *testing.T) {
	everywhere(t, func(f *fixture) {
		f.patient(patience{time.Second, time.Second, time.Second, 200 * time.Millisecond})
		topic := f.topic("t", 1)
		f.produce("t", 0, 3, 1, 10)
		tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
		w := tail.Watch()
		if v := f.read(tail, 5, 1); !errors.Is(v.Err, ErrOffsetOutOfRange) || v.HighWatermark != 3 || v.LogStart != 0 {
			f.Fatalf("behind the end: %+v", v)
		}
		before := f.c.Stats().CatchUps
		eventually(f, "asked again", func() bool { return f.c.Stats().CatchUps > before })
		if n := f.c.Stats().CatchUps - before; n > 2 {
			f.Fatalf("%d fetches at once", n)
		}
		f.produce("t", 0, 5, 1, 10)
		eventually(f, "the log has grown to the position", func() bool {
			select {
			case <-w.C:
			case <-time.After(10 * time.Millisecond):
			}
			v, ok := tail.Peek(5, 1)
			return ok && len(v.Batches) == 1 && v.Batches[0].Base == 5
		})
	})
}

func TestListOffset(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		tp := TP{topic.ID, 0}
		stamp := time.Now().Add(-time.Hour).Truncate(time.Second)
		for i := range 4 {
			rec := &kgo.Record{Topic: topic.Name, Timestamp: stamp.Add(time.Duration(i) * time.Minute), Value: []byte("v")}
			var failed kgo.FirstErrPromise
			f.admin.Produce(f.ctx, rec, failed.Promise())
			if err := errors.Join(f.admin.Flush(f.ctx), failed.Err()); err != nil {
				f.Fatal(err)
			}
		}
		f.deleteRecords("t", 0, 1)
		for _, c := range []struct{ at, want int64 }{
			{AtEnd, 4}, {AtLogStart, 1}, {stamp.Add(time.Minute).UnixMilli(), 1}, {stamp.Add(90 * time.Second).UnixMilli(), 2}, {time.Now().UnixMilli(), -1},
		} {
			offset, _, err := f.c.ListOffset(f.ctx, tp, c.at)
			if err != nil || offset != c.want {
				f.Fatalf("at %d: %d %v, want %d", c.at, offset, err, c.want)
			}
		}
	})
}

func TestListOffsetWaitsOutShortTrouble(t *testing.T) {
	f := newFixture(t, newCluster(t))
	topic := f.topic("t", 1)
	tp := TP{topic.ID, 0}
	f.produce("t", 0, 4, 1, 10)
	for _, fault := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.UnknownTopicOrPartition, kerr.OffsetNotAvailable} {
		f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: fault, Count: 2})
		if offset, _, err := f.c.ListOffset(f.ctx, tp, AtEnd); err != nil || offset != 4 {
			t.Fatalf("after two %v: %d %v", fault, offset, err)
		}
	}
	f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.TopicAuthorizationFailed})
	if _, _, err := f.c.ListOffset(f.ctx, tp, AtEnd); !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), "READ on the topic") {
		t.Fatalf("not allowed: %v", err)
	}
}

// freePort finds a port below the ephemeral range.
func freePort(t *testing.T) int {
	for port := 21000; port < 32000; port++ {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

type lockedBuilder struct {
	mu sync.Mutex
	strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.Write(p)
}

func (b *lockedBuilder) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

func (b *lockedBuilder) lines() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.String(), "\n")
}

func TestUpstreamMayComeLateAndGoAndComeBack(t *testing.T) {
	port, dir := freePort(t), t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	var log lockedBuilder
	c, err := New(Config{Seeds: []string{fmt.Sprintf("127.0.0.1:%d", port)}, MetadataMaxAge: 200 * time.Millisecond}, zerolog.New(&log).Level(zerolog.InfoLevel))
	if err != nil {
		t.Fatal(err)
	}
	runCtx, stop := context.WithCancel(ctx)
	ran := make(chan struct{})
	go func() { defer close(ran); _ = c.Run(runCtx) }()
	defer func() { stop(); <-ran }()

	short, cancelShort := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer cancelShort()
	if err := c.WaitReady(short); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
		t.Fatalf("ready without upstream: %v", err)
	}
	if n := log.lines(); n < 1 || n > 3 {
		t.Fatalf("%d log lines in 1.5 s", n)
	}
	if _, _, ok := c.Leader(TP{}); ok || c.ClusterID() != "" || len(c.Nodes()) != 0 {
		t.Fatal("something is known of an upstream that never answered")
	}

	start := func() *kfake.Cluster {
		cluster, err := kfake.NewCluster(kfake.Ports(port), kfake.ClusterID("late"), kfake.DataDir(dir), kfake.SyncWrites(), kfake.SeedTopics(1, "t"))
		if err != nil {
			t.Fatal(err)
		}
		return cluster
	}
	cluster := start()
	if err := c.WaitReady(ctx); err != nil || c.ClusterID() != "late" || c.Healthy() != nil {
		t.Fatalf("ready: %v, cluster %q", err, c.ClusterID())
	}
	admin, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DisableClientMetrics(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	produceTo(t, ctx, admin, "t", 0, 2, 1, 10)
	topics, err := c.TopicsByName(ctx, []string{"t"}, true)
	if err != nil {
		t.Fatal(err)
	}
	tail := c.Open(TP{topics["t"].ID, 0}, ReadUncommitted)
	defer tail.Close()
	w := tail.Watch()
	f := &fixture{T: t, ctx: ctx, c: c}
	f.tailing(tail, 2)

	cluster.Close()
	eventually(t, "trouble is shown", func() bool {
		v, ok := tail.Peek(2, 1)
		return ok && errors.Is(v.Err, ErrUnavailable) && c.Healthy() != nil
	})
	if topics, err := c.TopicsByName(ctx, []string{"t"}, false); err != nil || len(topics) != 1 {
		t.Fatalf("cached metadata while upstream is away: %v %v", topics, err)
	}
	if _, err := c.TopicsByName(ctx, []string{"t"}, true); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("fresh metadata while upstream is away: %v", err)
	}

	cluster = start()
	defer cluster.Close()
	produceTo(t, ctx, admin, "t", 0, 1, 1, 10)
	for got := false; !got; {
		select {
		case <-w.C:
		case <-ctx.Done():
			t.Fatal("records written after the outage never came")
		}
		v, ok := tail.Peek(2, 1)
		got = ok && v.Err == nil && len(v.Batches) == 1
	}
	eventually(t, "healthy again", func() bool { return c.Healthy() == nil })
}

func TestAnotherClusterBehindTheSeedsIsRefused(t *testing.T) {
	n := newNodes(testLog())
	answer := func(id string) *kmsg.MetadataResponse {
		resp := kmsg.NewPtrMetadataResponse()
		resp.ClusterID = &id
		resp.Brokers = append(resp.Brokers, kmsg.NewMetadataResponseBroker())
		return resp
	}
	if err := n.update(answer("a")); err != nil {
		t.Fatal(err)
	}
	if err := n.update(answer("b")); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), `"b"`) {
		t.Fatalf("another cluster: %v", err)
	}
	if err := n.update(kmsg.NewPtrMetadataResponse()); err == nil {
		t.Fatal("an empty answer was taken")
	}
}
