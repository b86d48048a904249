package proxy

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// BenchmarkFetch reads one 1 MiB fetch response after another, direct and
// through the proxy: what relaying costs in throughput.
func BenchmarkFetch(b *testing.B) {
	up := startUpstream(b)
	f := startProxy(b, setup{addrs: up.ListenAddrs()})
	cl := newClient(b, up.ListenAddrs(), kgo.DefaultProduceTopic("orders"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer cl.Close()
	value := make([]byte, 100_000)
	for range 40 {
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: value}).FirstErr(); err != nil {
			b.Fatal(err)
		}
	}
	leader := up.LeaderFor("orders", 0)
	var direct string
	for _, n := range f.cluster.Nodes() {
		if n.ID == leader {
			direct = f.nodes.addrs[n.ID]
		}
	}
	for name, addr := range map[string]string{"direct": direct, "proxy": f.nodeAddr(leader)} {
		b.Run(name, func(b *testing.B) {
			w := dialWire(b, addr)
			_ = w.conn.SetDeadline(time.Time{})
			req := kmsg.NewPtrFetchRequest()
			req.Version, req.MaxBytes, req.MaxWaitMillis = 11, 1<<20, 100
			req.Topics = []kmsg.FetchRequestTopic{{Topic: "orders", Partitions: []kmsg.FetchRequestTopicPartition{{CurrentLeaderEpoch: -1, PartitionMaxBytes: 1 << 20}}}}
			frame := frameOf(1, req)
			for b.Loop() {
				w.send(frame)
				resp, err := w.receive()
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(resp)))
			}
		})
	}
}

// BenchmarkRoundTrip is a small request, direct and through the proxy.
func BenchmarkRoundTrip(b *testing.B) {
	up := startUpstream(b)
	f := startProxy(b, setup{addrs: up.ListenAddrs()})
	for name, addr := range map[string]string{"direct": up.ListenAddrs()[0], "proxy": f.Addr().String()} {
		b.Run(name, func(b *testing.B) {
			w := dialWire(b, addr)
			_ = w.conn.SetDeadline(time.Time{})
			frame := frameOf(1, &kmsg.ListGroupsRequest{Version: 2})
			b.ReportAllocs()
			for b.Loop() {
				w.send(frame)
				if _, err := w.receive(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
