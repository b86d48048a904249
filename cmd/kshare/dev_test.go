package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestDemoShowsTheMainJobAndAddsUp runs what the README tells a newcomer to run.
func TestDemoShowsTheMainJobAndAddsUp(t *testing.T) {
	p := startProcess(t, nil, append([]string{"dev", "--demo"}, on("127.0.72.1")...)...)
	if code := p.exit(60 * time.Second); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	text := p.stdout.String()
	for _, want := range []string{
		"kshare ready bootstrap=127.0.72.1:19092 upstream=kshare-dev nodes=3", "kshare ready bootstrap=127.0.72.1:20092 upstream=kshare-dev nodes=3",
		"releases record", "with delivery count 2", "rejects record", "dies", "late accepts refused", "produced 800 = accepted", "it adds up",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the demo does not show %q", want)
		}
	}
	if p.stderr.String() != "" {
		t.Errorf("warnings during the demo: %s", p.stderr.String())
	}
}

// TestDevServesAShareConsumerUntilItIsStopped uses kshare dev as somebody who tries his own program would.
func TestDevServesAShareConsumerUntilItIsStopped(t *testing.T) {
	p := startProcess(t, nil, append([]string{"dev"}, on("127.0.72.2")...)...)
	eventually(t, 20*time.Second, func() string {
		if !p.running() {
			t.Fatal("kshare ended")
		}
		if !strings.Contains(p.stdout.String(), "bootstrap.servers=127.0.72.2:19092,127.0.72.2:20092") {
			return "no welcome"
		}
		return ""
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	consumer, err := kgo.NewClient(kgo.SeedBrokers("127.0.72.2:20092"), kgo.ConsumeTopics("mine"), kgo.ShareGroup("me"), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	producer, err := kgo.NewClient(kgo.SeedBrokers("127.0.72.2:19092"), kgo.DefaultProduceTopic("mine"), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	got := make(chan string, 1)
	go func() { // the group starts at the end of the topic, so records must keep coming until it has joined
		for ctx.Err() == nil {
			for _, r := range consumer.PollFetches(ctx).Records() {
				got <- string(r.Value)
				return
			}
		}
	}()
	for received := false; !received; {
		if err := producer.ProduceSync(ctx, kgo.StringRecord("hello")).FirstErr(); err != nil {
			t.Fatal(err)
		}
		select {
		case text := <-got:
			if text != "hello" {
				t.Errorf("received %q", text)
			}
			received = true
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("nothing received")
		}
	}
	if !p.running() {
		t.Fatal("kshare dev ended by itself")
	}
	p.terminate()
	if code := p.exit(15 * time.Second); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// Kafka's tools cannot read what the embedded cluster answers to DescribeTopicPartitions.
func TestEmbeddedClusterHasNoDescribeTopicPartitions(t *testing.T) {
	cluster, err := startCluster()
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(t.Context(), client)
	if err != nil || len(resp.ApiKeys) == 0 {
		t.Fatalf("%v: %+v", err, resp)
	}
	for _, key := range resp.ApiKeys {
		if key.ApiKey == int16(kmsg.DescribeTopicPartitions) {
			t.Errorf("versions %d-%d", key.MinVersion, key.MaxVersion)
		}
	}
}
