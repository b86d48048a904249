//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kshare/e2e/client"
)

// BenchmarkFirstRecord prints how long a consumer of a group that did not exist before waits, from
// subscribing, for its first record: through kshare over KAFKA_OLD and from native share groups, side
// by side. A broker hands out the assignment with the heartbeat after the one that joins, five seconds
// later; kshare gives it in the answer to the first, so it must take a fifth of native's time at most.
func BenchmarkFirstRecord(b *testing.B) {
	ours, err := startKshare()
	if err != nil {
		b.Fatal(err)
	}
	defer ours.close()
	theirs, err := startNative()
	if err != nil {
		b.Fatal(err)
	}
	defer theirs.close()
	for _, kind := range []client.Kind{client.Java{Suite: suite, Version: suite.Version("KAFKA_NEW")}, client.Franz{Suite: suite}, client.Python{Suite: suite}} {
		b.Run(kind.Name(), func(b *testing.B) {
			for b.Loop() {
				kshare, native := firstRecord(b, ours, kind), firstRecord(b, theirs, kind)
				ratio := native.Seconds() / kshare.Seconds()
				fmt.Printf("%s, first record of a new group, median of %d: kshare %v, native %v, %.1f times as fast\n",
					kind.Name(), firstRecords, kshare.Round(time.Millisecond), native.Round(time.Millisecond), ratio)
				b.ReportMetric(kshare.Seconds(), "kshare-s")
				b.ReportMetric(native.Seconds(), "native-s")
				if ratio < 5 {
					b.Errorf("kshare takes more than a fifth of native's time: %v of %v", kshare, native)
				}
			}
		})
	}
}

const firstRecords = 5

// firstRecord is the median of some tries, each with a topic and a group of its own.
func firstRecord(b *testing.B, tg *target, kind client.Kind) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var took []time.Duration
	for range firstRecords {
		topic := fmt.Sprintf("first-%d", time.Now().UnixNano())
		if _, err := tg.admin.CreateTopic(ctx, 4, 1, nil, topic); err != nil {
			b.Fatal(err)
		}
		if err := tg.setGroupConfig(ctx, topic+"-g", "share.auto.offset.reset", "earliest"); err != nil {
			b.Fatal(err)
		}
		if err := tg.client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("first")}).FirstErr(); err != nil {
			b.Fatal(err)
		}
		c, err := kind.Start(client.Config{Name: topic, Bootstrap: tg.bootstrap, Group: topic + "-g", Topic: topic})
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now() // it has just subscribed
		for {
			records, err := c.Poll(time.Second)
			if err != nil || time.Since(began) > time.Minute {
				c.Kill()
				b.Fatalf("no record: %v", err)
			}
			if len(records) > 0 {
				break
			}
		}
		took = append(took, time.Since(began))
		c.Kill()
	}
	slices.Sort(took)
	return took[len(took)/2]
}
