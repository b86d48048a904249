package upstream

import (
	"bytes"
	"context"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// benchTopic fills a topic with batches of 16 KB.
func benchTopic(b *testing.B, partitions int32, batches int, opts ...kgo.Opt) (*Client, Topic, *kgo.Client) {
	b.Helper()
	ctx := context.Background()
	cluster := newCluster(b, kfake.SeedTopics(partitions, "t"))
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	var wg sync.WaitGroup
	for p := range partitions {
		wg.Go(func() { produceTo(b, ctx, client, "t", p, batches, 16, 1000) })
	}
	wg.Wait()
	c := startClient(b, Config{Seeds: cluster.ListenAddrs(), Opts: opts})
	if err := c.WaitReady(ctx); err != nil {
		b.Fatal(err)
	}
	topics, err := c.TopicsByName(ctx, []string{"t"}, true)
	if err != nil {
		b.Fatal(err)
	}
	return c, topics["t"], client
}

func drain(b *testing.B, c *Client, tp TP, end int64) (bytes int64) {
	tail := c.Open(tp, ReadUncommitted)
	defer tail.Close()
	for from := int64(0); from < end; {
		v, err := tail.Read(context.Background(), from, 1<<20)
		if err != nil || v.Err != nil || len(v.Batches) == 0 {
			b.Errorf("at %d: %v %v", from, err, v.Err)
			return bytes
		}
		bytes += batchBytes(v.Batches)
		from = v.Batches[len(v.Batches)-1].Last + 1
	}
	return bytes
}

func (c *Client) forgetAll() {
	c.reader.mu.Lock()
	defer c.reader.mu.Unlock()
	for _, l := range c.reader.lines {
		l.dropBelow(c.reader.cache, math.MaxInt64)
		c.reader.drop(l)
	}
}

// BenchmarkDrain reads a backlog that is not cached: 8 partitions of 16 MB.
func BenchmarkDrain(b *testing.B) {
	const partitions, batches = 8, 1000
	c, topic, _ := benchTopic(b, partitions, batches)
	b.ReportAllocs()
	var total atomic.Int64
	for b.Loop() {
		c.forgetAll()
		var wg sync.WaitGroup
		for p := range int32(partitions) {
			wg.Go(func() { total.Add(drain(b, c, TP{topic.ID, p}, batches*16)) })
		}
		wg.Wait()
	}
	b.SetBytes(total.Load() / int64(b.N))
	b.Logf("%+v", c.Stats())
}

// BenchmarkDrainOne reads a backlog of one partition.
func BenchmarkDrainOne(b *testing.B) {
	const batches = 4000
	c, topic, _ := benchTopic(b, 1, batches)
	b.ReportAllocs()
	var total int64
	for b.Loop() {
		c.forgetAll()
		total += drain(b, c, TP{topic.ID, 0}, batches*16)
	}
	b.SetBytes(total / int64(b.N))
}

// BenchmarkDrainFar reads a backlog of one partition whose leader is 5 ms away, at 1 ms per MiB.
func BenchmarkDrainFar(b *testing.B) {
	const batches = 4000
	c, topic, _ := benchTopic(b, 1, batches, kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, host)
		return &farConn{Conn: conn}, err
	}))
	b.ReportAllocs()
	var total int64
	for b.Loop() {
		c.forgetAll()
		tail := c.Open(TP{topic.ID, 0}, ReadUncommitted)
		for from := int64(0); from < batches*16; {
			v, err := tail.Read(context.Background(), from, 1<<20)
			if err != nil || len(v.Batches) == 0 {
				b.Fatal(err, v.Err)
			}
			n := batchBytes(v.Batches)
			total += n
			from = v.Batches[len(v.Batches)-1].Last + 1
			time.Sleep(time.Duration(n) * time.Millisecond >> 20)
		}
		tail.Close()
	}
	b.SetBytes(total / int64(b.N))
	b.Logf("%+v", c.Stats())
}

// farConn sends requests 5 ms late.
type farConn struct {
	net.Conn
}

func (c *farConn) Write(p []byte) (int, error) {
	p = bytes.Clone(p)
	time.AfterFunc(5*time.Millisecond, func() { _, _ = c.Conn.Write(p) })
	return len(p), nil
}

// BenchmarkRawDrainOne is the yardstick: fetches of the same backlog by hand, one after the other.
func BenchmarkRawDrainOne(b *testing.B) {
	const batches = 4000
	_, topic, client := benchTopic(b, 1, batches)
	meta := kmsg.NewPtrMetadataRequest()
	resp, err := meta.RequestWith(context.Background(), client)
	if err != nil {
		b.Fatal(err)
	}
	leader := client.Broker(int(resp.Topics[0].Partitions[0].Leader))
	b.ReportAllocs()
	var total int64
	for b.Loop() {
		for from := int64(0); from < batches*16; {
			req := kmsg.NewPtrFetchRequest()
			req.MinBytes = 1
			askFor(req, map[TP]asked{{topic.ID, 0}: {topic: "t", from: from, epoch: -1, maxBytes: 4 << 20}})
			resp, err := leader.Request(context.Background(), req)
			if err != nil {
				b.Fatal(err)
			}
			got, err := cut(resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches)
			if err != nil || len(got) == 0 {
				b.Fatal(err)
			}
			total += batchBytes(got)
			from = got[len(got)-1].Last + 1
		}
	}
	b.SetBytes(total / int64(b.N))
}

// BenchmarkPeek looks at 1 MiB that is cached.
func BenchmarkPeek(b *testing.B) {
	c, topic, _ := benchTopic(b, 1, 200)
	drain(b, c, TP{topic.ID, 0}, 200*16)
	tail := c.Open(TP{topic.ID, 0}, ReadUncommitted)
	defer tail.Close()
	b.ReportAllocs()
	for b.Loop() {
		if v, ok := tail.Peek(0, 1<<20); !ok || len(v.Batches) < 2 {
			b.Fatal("not cached")
		}
	}
}

// BenchmarkTailLatency is the time from before a produce to its record's arrival at a waiting reader.
func BenchmarkTailLatency(b *testing.B) {
	c, topic, client := benchTopic(b, 1, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tail := c.Open(TP{topic.ID, 0}, ReadUncommitted)
	defer tail.Close()
	w := tail.Watch()
	offset := int64(16)
	tail.Want(offset)
	for b.Loop() {
		client.Produce(ctx, &kgo.Record{Topic: "t", Value: []byte("v")}, nil)
		for {
			if v, ok := tail.Peek(offset, 1<<20); ok && len(v.Batches) > 0 {
				break
			}
			select {
			case <-w.C:
			case <-ctx.Done():
				b.Fatal("lost")
			}
		}
		offset++
	}
}
