package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestStoppedReplicaLeavesItsCheckpoint stops a replica right after an acknowledgement: what was accepted is in the
// checkpoint although its time had not come.
func TestStoppedReplicaLeavesItsCheckpoint(t *testing.T) {
	const host = "127.0.71.9"
	redis, brokers := servers(t)
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	direct, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	admin := kadm.NewClient(direct)
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, nil, serveArgs(host, strings.Join(brokers, ","), redis, "--drain=100ms", "--redis-prefix=mine")...)
	eventually(t, 20*time.Second, answers("http://"+host+":19080/readyz", 200, "ready"))
	consumer, err := kgo.NewClient(kgo.SeedBrokers(host+":19092"), kgo.ConsumeTopics("t"), kgo.ShareGroup("g"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	next := int64(0)
	for next < 20 { // the last one follows others by less than the usual delay
		if err := direct.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
			t.Fatal(err)
		}
		accept(ctx, consumer, &next)
	}
	if err := consumer.FlushAcks(ctx); err != nil {
		t.Fatal(err)
	}
	p.terminate()
	if code := p.exit(15 * time.Second); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	offsets, err := admin.FetchOffsets(ctx, "mine.g")
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := offsets.Lookup("t", 0); !ok || o.At != next {
		t.Errorf("checkpoint %v %v, want it at %d: %s", o.At, ok, next, o.Metadata)
	}
}

// accept accepts what comes within a moment, and moves next behind it.
func accept(ctx context.Context, consumer *kgo.Client, next *int64) {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	for _, r := range consumer.PollRecords(ctx, 100).Records() {
		r.Ack(kgo.AckAccept)
		*next = r.Offset + 1
	}
}
