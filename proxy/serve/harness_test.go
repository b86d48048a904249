package serve

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/goleak"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate/statelog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an upstream, a Redis whose clock the test moves, and replicas of kshare on both.
type world struct {
	testing.TB
	ctx   context.Context
	kafka *kfake.Cluster
	admin *kgo.Client
	redis *miniredis.Miniredis
	skew  atomic.Int64 // ns that Redis' clock is ahead
	reps  []*rep
	// front is where replicas that are started from now on reach Redis; empty = directly.
	front string
	// options of every replica's store.
	options statelog.Options
	conns   atomic.Uint64
	// interval is that of checkpoints, 100 ms if not set.
	interval time.Duration
	// broker settings of every replica, and what changes how it writes dead letters.
	broker  []string
	letters func(*DeadLetters)
}

// rep is one replica.
type rep struct {
	w      *world
	store  *statelog.Store
	groups *coordinator.Service
	up     *upstream.Client
	srv    *Server
	cps    *Checkpoints
	dead   *DeadLetters
	apis   map[int16]API
	kill   func() // ends the replica without any farewell
	cut    func() // takes Redis away from it for good
}

// newWorld starts a fake cluster without share groups of its own, with n replicas.
func newWorld(t testing.TB, n int, opts ...kfake.Opt) *world {
	t.Helper()
	return newWorldOn(t, n, statelog.Options{}, opts...)
}

// newWorldOn is newWorld with other store options.
func newWorldOn(t testing.TB, n int, store statelog.Options, opts ...kfake.Opt) *world {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	w := &world{TB: t, ctx: ctx, options: store}
	w.startKafka(opts)
	w.startRedis()
	for range n {
		w.reps = append(w.reps, w.startReplica())
	}
	return w
}

func (w *world) startKafka(opts []kfake.Opt) {
	versions := kversion.Stable()
	for _, key := range []int16{76, 77, 78, 79, 90, 91, 92} {
		versions.SetMaxKeyVersion(key, -1)
	}
	opts = append([]kfake.Opt{kfake.NumBrokers(1), kfake.ClusterID("fake"), kfake.MaxVersions(versions)}, opts...)
	cluster, err := kfake.NewCluster(opts...)
	w.must(err)
	w.Cleanup(cluster.Close)
	w.kafka = cluster
	w.admin, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ManualFlushing(), kgo.MaxProduceRequestsInflightPerBroker(1))
	w.must(err)
	w.Cleanup(w.admin.Close)
}

// startRedis starts the fake Redis; a goroutine keeps its clock running.
func (w *world) startRedis() {
	w.redis = miniredis.NewMiniRedis()
	w.must(w.redis.StartAddr(freeAddr(w)))
	quit, done := make(chan struct{}), make(chan struct{})
	last := time.Now()
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				w.redis.FastForward(now.Sub(last))
				last = now
				w.redis.SetTime(now.Add(time.Duration(w.skew.Load())))
			}
		}
	}()
	w.Cleanup(func() { close(quit); <-done; w.redis.Close() })
}

// advance moves Redis' clock forward; keys that expire do not notice.
func (w *world) advance(d time.Duration) {
	w.skew.Add(int64(d))
	w.redis.SetTime(time.Now().Add(time.Duration(w.skew.Load())))
}

func testLog() zerolog.Logger {
	if os.Getenv("TEST_LOG") == "" {
		return zerolog.Nop()
	}
	return zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: "05.000"}).With().Timestamp().Logger()
}

// startReplica starts a replica; its life ends with the test or by kill.
func (w *world) startReplica() *rep {
	w.Helper()
	addr := w.redis.Addr()
	if w.front != "" {
		addr = w.front
	}
	client, err := statelog.Connect("redis://" + addr + "/0")
	w.must(err)
	r := &rep{w: w}
	r.up, err = upstream.New(upstream.Config{Seeds: w.kafka.ListenAddrs(), MetadataMaxAge: 300 * time.Millisecond}, testLog())
	w.must(err)
	options := w.options
	options.ClusterID, options.Lease, options.Log = "fake", time.Second, testLog()
	r.store = statelog.NewStore(client, options)
	broker := coordinator.DefaultBrokerConfig()
	for i := 0; i < len(w.broker); i += 2 {
		w.must(broker.Set(w.broker[i], w.broker[i+1]))
	}
	r.dead = NewDeadLetters(r.up, testLog(), nil)
	if r.up.WriteBackoff(time.Millisecond); w.letters != nil {
		w.letters(r.dead)
	}
	r.cps = NewCheckpoints(r.up, "kshare", testLog(), nil)
	r.cps.interval, r.cps.coalesce = cmp.Or(w.interval, 100*time.Millisecond), 10*time.Millisecond
	r.groups = coordinator.New(coordinator.Options{Store: r.store, Topics: UpstreamTopics{r.up}, Use: UpstreamGroups{r.up}, Checkpoints: r.cps, Broker: broker, Log: testLog()})
	r.srv = New(Options{Store: r.store, Groups: r.groups, Upstream: r.up, Checkpoints: r.cps, DeadLetters: r.dead, Broker: broker, Log: testLog(),
		Endpoint: func(node int32) (string, int32, bool) { return "kshare.test", 19100 + node, true }})
	r.store.OnReplicaDead(r.srv.ReplicaDead)
	r.apis = map[int16]API{}
	for _, a := range r.srv.APIs() {
		r.apis[a.Key] = a
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.up.Run(ctx) })
	running.Go(func() { _ = r.store.Run(ctx) })
	running.Go(func() { _ = r.groups.Run(ctx) })
	running.Go(func() { _ = r.cps.Run(ctx) })
	running.Go(func() { _ = r.dead.Run(ctx) })
	w.must(r.up.WaitReady(w.ctx))
	var once sync.Once
	end := func(farewell bool) {
		once.Do(func() {
			r.srv.Drain()
			bye, done := context.WithTimeout(context.Background(), time.Second)
			defer done()
			if farewell {
				r.dead.Close(bye)
				r.cps.Close(bye)
			}
			cancel()
			running.Wait()
			if farewell {
				r.store.Close(bye)
			}
			_ = client.Close()
			r.store.Close(bye) // Redis hears nothing of it any more, but what may still probe for it ends
		})
	}
	r.kill = func() { end(false) }
	r.cut = func() { _ = client.Close() }
	w.Cleanup(func() { end(true) })
	return r
}

var nextPort atomic.Int32

// freeAddr gives an address below the ephemeral ports, so that Redis can come back on it, and outside the ranges that the
// tests of other packages, which run at the same time, take theirs from.
func freeAddr(t testing.TB) string {
	for range 1000 {
		addr := fmt.Sprintf("127.0.0.1:%d", 14000+(os.Getpid()*41+int(nextPort.Add(1))*17)%4000)
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// eventually polls until cond holds.
func (w *world) eventually(what string, cond func() bool) {
	w.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			w.Fatalf("waited too long for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// topic makes a topic.
func (w *world) topic(name string, partitions int32, configs ...string) upstream.Topic {
	w.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
	for i := 0; i < len(configs); i += 2 {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = configs[i], &configs[i+1]
		topic.Configs = append(topic.Configs, config)
	}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(w.ctx, w.admin)
	w.must(err)
	if resp.Topics[0].ErrorCode != 0 {
		w.Fatalf("create topic: %+v", resp.Topics[0])
	}
	found, err := w.reps[0].up.TopicsByName(w.ctx, []string{name}, true)
	w.must(err)
	return found[name]
}

// produce writes record batches of exactly n records each to the partition. (kgo may cut a batch in two while it gets
// to know the topic.)
func (w *world) produce(topic string, partition int32, batches, n int) {
	w.Helper()
	found, err := w.reps[0].up.TopicsByName(w.ctx, []string{topic}, true)
	w.must(err)
	for range batches {
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = -1, 10_000
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = partition, recordBatch(n)
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic, rt.TopicID, rt.Partitions = topic, found[topic].ID, append(rt.Partitions, p)
		req.Topics = append(req.Topics, rt)
		resp, err := req.RequestWith(w.ctx, w.admin.Broker(int(w.kafka.LeaderFor(topic, partition))))
		w.must(err)
		if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
			w.Fatalf("produce to %s: code %d", topic, code)
		}
	}
}

// recordBatch makes a batch of n small records.
func recordBatch(n int) []byte {
	now := time.Now().UnixMilli()
	b := kmsg.RecordBatch{PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(n - 1), FirstTimestamp: now,
		MaxTimestamp: now, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(n)}
	for i := range n {
		r := kmsg.Record{OffsetDelta: int32(i), Value: fmt.Appendf(nil, "value %d", i)}
		r.Length = int32(len(r.AppendTo(nil)) - 1) // the length of 0 takes one byte
		b.Records = r.AppendTo(b.Records)
	}
	const lengthEnd, crcEnd = 12, 21 // offsets in the encoded batch
	b.Length = int32(len(b.AppendTo(nil)) - lengthEnd)
	b.CRC = int32(crc32.Checksum(b.AppendTo(nil)[crcEnd:], crc32.MakeTable(crc32.Castagnoli)))
	return b.AppendTo(nil)
}

// write produces the records in one batch; the client must flush manually.
func (w *world) write(c *kgo.Client, records ...*kgo.Record) {
	w.Helper()
	for _, r := range records {
		c.Produce(w.ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				w.Error(err)
			}
		})
	}
	w.must(c.Flush(w.ctx))
}

// conn makes a client connection to a node's port of the replica; -1 is the bootstrap port.
func (r *rep) conn(node int32) *Conn {
	return &Conn{Nonce: r.w.conns.Add(1), Node: node, RemoteIP: "127.0.0.1"}
}

// ask serves one request on the replica.
func (r *rep) ask(ctx context.Context, c *Conn, body kmsg.Request) kmsg.Response {
	r.w.Helper()
	api, ok := r.apis[body.Key()]
	if !ok {
		r.w.Fatalf("key %d is not served", body.Key())
	}
	resp, err := api.Serve(ctx, &Request{Body: body, ClientID: "test", Conn: c})
	r.w.must(err)
	return resp
}

// alter sets configs of a group, on every replica's view.
func (w *world) alter(group string, pairs ...string) {
	w.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	for i := 0; i < len(pairs); i += 2 {
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = pairs[i], &pairs[i+1]
		res.Configs = append(res.Configs, c)
	}
	req.Resources = append(req.Resources, res)
	r := w.reps[0]
	resp := r.ask(w.ctx, r.conn(-1), req).(*kmsg.IncrementalAlterConfigsResponse)
	if code := resp.Resources[0].ErrorCode; code != 0 {
		w.Fatalf("alter %v: code %d %v", pairs, code, resp.Resources[0].ErrorMessage)
	}
	want, err := w.reps[0].groups.Config(w.ctx, group)
	w.must(err)
	for _, r := range w.reps {
		w.eventually("the config change on all replicas", func() bool {
			got, err := r.groups.Config(w.ctx, group)
			return err == nil && got == want
		})
	}
}
