//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// BenchmarkDrain drains 1 KB records from four partitions with three share consumers,
// through kshare over KAFKA_OLD and straight from native share groups, and prints the
// rates and the peak resident memory side by side. E2E_BENCH_RECORDS (default one
// million) sizes it.
func BenchmarkDrain(b *testing.B) {
	records := 1_000_000
	if n, err := strconv.Atoi(os.Getenv("E2E_BENCH_RECORDS")); err == nil {
		records = n
	}
	b.Run("kshare", func(b *testing.B) {
		tg, err := startKshare()
		if err != nil {
			b.Fatal(err)
		}
		defer tg.close()
		drain(b, tg, records)
		limit := float64(benchCacheMB + 150)
		for i := range tg.replicas.Count() {
			rss, err := tg.replicas.Process(i).PeakRSS()
			if err != nil {
				b.Fatal(err)
			}
			mb := float64(rss) / (1 << 20)
			b.ReportMetric(mb, fmt.Sprintf("replica%d-peak-MB", i))
			fmt.Printf("replica %d: peak RSS %.0f MB, limit %.0f MB (cache %d MB + 150 MB)\n", i, mb, limit, benchCacheMB)
			if mb > limit {
				b.Errorf("replica %d: peak RSS %.0f MB is over the limit of %.0f MB", i, mb, limit)
			}
		}
	})
	b.Run("native", func(b *testing.B) {
		tg, err := startNative()
		if err != nil {
			b.Fatal(err)
		}
		defer tg.close()
		drain(b, tg, records)
		if rss, err := tg.kafka.Nodes[0].PeakRSS(); err == nil {
			b.ReportMetric(float64(rss)/(1<<20), "broker-peak-MB")
		}
	})
}

// benchCacheMB is the batch cache that the replicas run with.
const benchCacheMB = 256

func (tg *target) close() {
	tg.client.Close()
	if tg.replicas != nil {
		tg.replicas.Close()
		tg.redis.Close()
	}
	tg.kafka.Close()
}

func drain(b *testing.B, tg *target, records int) {
	const partitions, consumers = 4, 3
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	topic := fmt.Sprintf("drain-%d", time.Now().UnixNano())
	if _, err := tg.admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		b.Fatal(err)
	}
	perPartition := records / partitions
	if err := tg.setGroupConfig(ctx, topic+"-g", "share.auto.offset.reset", "earliest"); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		audit := client.NewAudit(partitions, perPartition)
		var all []client.ShareClient
		for i := range consumers {
			c, err := client.Franz{Suite: suite}.Start(client.Config{
				Name: fmt.Sprintf("%s-%d", topic, i), Bootstrap: tg.bootstrap, Group: topic + "-g", Topic: topic})
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, c)
		}
		// All have joined before the first polls, or the first one would do all the work.
		if err := tg.assigned(topic+"-g", consumers); err != nil {
			b.Fatal(err)
		}
		if err := fill(ctx, tg.kafka.Bootstrap, topic, partitions, perPartition); err != nil {
			b.Fatal(err)
		}
		for i, c := range all {
			if err := c.StartAudit(client.AuditRules{}, audit.Sink(fmt.Sprint(i))); err != nil {
				b.Fatal(err)
			}
		}
		err := harness.Until("drained", 15*time.Minute, func() error { return audit.Settled(time.Hour) })
		for _, c := range all {
			c.StopAudit()
			c.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
		v := audit.Verdict()
		for _, problem := range v.Problems {
			b.Error(problem)
		}
		fmt.Printf("drained in %v: %v\n", audit.Span().Round(time.Millisecond), v)
		b.ReportMetric(float64(records)/audit.Span().Seconds(), "records/s")
	}
}

// fill writes 1 KB records straight to upstream.
func fill(ctx context.Context, bootstrap, topic string, partitions, perPartition int) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.DisableClientMetrics())
	if err != nil {
		return err
	}
	defer cl.Close()
	value := make([]byte, 1024)
	failed := make(chan error, 1)
	for range perPartition {
		for p := range partitions {
			cl.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(p), Value: value}, func(_ *kgo.Record, err error) {
				if err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
