package upstream

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a fake cluster, a Client on it that runs, and a plain client to write with.
type fixture struct {
	*testing.T
	ctx     context.Context
	cluster *kfake.Cluster // nil on a real broker
	seeds   []string
	prefix  string // of topic and group names
	c       *Client
	admin   *kgo.Client
}

// everywhere runs a story on the fake, on the fake as an old broker, and on the real ones that TEST_KAFKA names
// (host:port, several separated by spaces). What differs between them is a finding.
func everywhere(t *testing.T, story func(*fixture), opts ...kfake.Opt) {
	onFakes(t, story, opts...)
	for _, seed := range strings.Fields(os.Getenv("TEST_KAFKA")) {
		t.Run("kafka@"+seed, func(t *testing.T) {
			prefix := fmt.Sprintf("%s-%d-", strings.Map(letters, t.Name()), time.Now().UnixNano())
			story(start(&fixture{T: t, seeds: []string{seed}, prefix: prefix}))
		})
	}
}

// onFakes is everywhere for stories that do to the cluster what only a fake can be told to.
func onFakes(t *testing.T, story func(*fixture), opts ...kfake.Opt) {
	t.Run("fake", func(t *testing.T) { story(newFixture(t, newCluster(t, opts...))) })
	t.Run("fake2.8", func(t *testing.T) {
		story(newFixture(t, newCluster(t, append(opts, kfake.MaxVersions(oldVersions()))...)))
	})
}

func letters(r rune) rune {
	if r < 'A' || r > 'z' {
		return '.'
	}
	return r
}

func newCluster(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3), kfake.ClusterID("fake")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

func testLog() zerolog.Logger {
	if os.Getenv("TEST_LOG") == "" {
		return zerolog.Nop()
	}
	return zerolog.New(zerolog.NewConsoleWriter()).With().Timestamp().Logger()
}

func startClient(t testing.TB, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg, testLog())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Error("Run did not end with its context")
		}
	})
	return c
}

func newFixture(t *testing.T, cluster *kfake.Cluster, adjust ...func(*Config)) *fixture {
	t.Helper()
	return start(&fixture{T: t, cluster: cluster, seeds: cluster.ListenAddrs()}, adjust...)
}

func start(f *fixture, adjust ...func(*Config)) *fixture {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	f.Cleanup(cancel)
	f.ctx = ctx
	cfg := Config{Seeds: f.seeds, MetadataMaxAge: 300 * time.Millisecond}
	for _, set := range adjust {
		set(&cfg)
	}
	f.c = startClient(f, cfg)
	if err := f.c.WaitReady(ctx); err != nil {
		f.Fatal(err)
	}
	f.connect()
	return f
}

// connect makes the plain client anew: it does not get over the recreation of a topic.
func (f *fixture) connect() {
	f.Helper()
	admin, err := kgo.NewClient(kgo.SeedBrokers(f.seeds...), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ManualFlushing(), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MaxProduceRequestsInflightPerBroker(1), kgo.MetadataMinAge(20*time.Millisecond))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(admin.Close)
	f.admin = admin
}

// topic makes a topic and returns its id.
func (f *fixture) topic(name string, partitions int32) Topic {
	f.Helper()
	name = f.prefix + name
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(f.ctx, f.admin)
	if err != nil || resp.Topics[0].ErrorCode != 0 {
		f.Fatalf("create topic %s: %v %+v", name, err, resp)
	}
	topics, err := f.c.TopicsByName(f.ctx, []string{name}, true)
	if err != nil || topics[name].Partitions != partitions {
		f.Fatalf("topic %s after creation: %v %v", name, topics, err)
	}
	return topics[name]
}

func (f *fixture) deleteTopic(name string) {
	f.Helper()
	name = f.prefix + name
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{name}
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(f.ctx, f.admin)
	if err != nil || resp.Topics[0].ErrorCode != 0 {
		f.Fatalf("delete topic %s: %v %+v", name, err, resp)
	}
	f.connect()
}

// produce writes batches of n records of that many bytes each.
func (f *fixture) produce(topic string, partition int32, batches, n, size int) {
	f.Helper()
	produceTo(f, f.ctx, f.admin, f.prefix+topic, partition, batches, n, size)
}

func produceTo(t testing.TB, ctx context.Context, client *kgo.Client, topic string, partition int32, batches, n, size int) {
	t.Helper()
	for b := range batches {
		records := make([]*kgo.Record, n)
		for i := range records {
			value := make([]byte, size)
			copy(value, fmt.Sprintf("%d/%d", b, i))
			records[i] = &kgo.Record{Topic: topic, Partition: partition, Value: value}
		}
		var failed kgo.FirstErrPromise
		for _, r := range records {
			client.Produce(ctx, r, failed.Promise())
		}
		if err := client.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if err := failed.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fixture) open(tp TP, iso Isolation) *Tail {
	t := f.c.Open(tp, iso)
	f.Cleanup(t.Close)
	return t
}

func (f *fixture) read(t *Tail, from int64, maxBytes int) View {
	f.Helper()
	v, err := t.Read(f.ctx, from, maxBytes)
	if err != nil {
		f.Fatalf("read at %d: %v", from, err)
	}
	return v
}

// eventually polls a condition; it fails the test when the condition does not come true in time.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// next waits until something can be read at from.
func (f *fixture) next(t *Tail, w *Watch, from int64) View {
	f.Helper()
	t.Want(from)
	for {
		if v, ok := t.Peek(from, 1<<20); ok && (v.Err != nil || len(v.Batches) > 0) {
			return v
		}
		select {
		case <-w.C:
		case <-f.ctx.Done():
			f.Fatalf("nothing came at %d: %v", from, f.ctx.Err())
		}
	}
}

// tailing waits until the partition is in its node's poll, at that offset.
func (f *fixture) tailing(t *Tail, at int64) {
	f.Helper()
	t.Want(at)
	eventually(f, fmt.Sprintf("in the poll at %d", at), func() bool {
		t.r.mu.Lock()
		defer t.r.mu.Unlock()
		return t.line.poll != nil && t.line.joined && t.line.pos == at
	})
}

func checkContiguous(t testing.TB, batches []Batch, from int64) int64 {
	t.Helper()
	for i, b := range batches {
		if i > 0 && b.Base != from || i == 0 && (b.Base > from || b.Last < from) {
			t.Fatalf("batch %d holds %d-%d, wanted %d", i, b.Base, b.Last, from)
		}
		from = b.Last + 1
	}
	return from
}

func contextWithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func oldVersions() *kversion.Versions { return kversion.FromString("2.8") }

// quiet says whether no catch-up fetch is queued or under way, though there have been some.
func (f *fixture) quiet() bool {
	r := f.c.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats.CatchUps > 0 && r.inFlight+len(r.urgent)+len(r.ahead) == 0
}

func (f *fixture) patient(p patience) {
	f.c.reader.mu.Lock()
	defer f.c.reader.mu.Unlock()
	f.c.reader.patient = p
}
