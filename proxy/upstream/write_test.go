package upstream

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// written reads n records of the topic.
func (f *fixture) written(topic string, n int) []*kgo.Record {
	f.Helper()
	reader, err := kgo.NewClient(kgo.SeedBrokers(f.seeds...), kgo.DisableClientMetrics(), kgo.ConsumeTopics(f.prefix+topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		f.Fatal(err)
	}
	defer reader.Close()
	var all []*kgo.Record
	for len(all) < n {
		got := reader.PollFetches(f.ctx)
		if f.ctx.Err() != nil {
			f.Fatalf("%d of %d records came: %v", len(all), n, got.Err0())
		}
		all = append(all, got.Records()...)
	}
	return all
}

func TestWriteSpreadsAndKeepsNullsAndHeaders(t *testing.T) {
	everywhere(t, func(f *fixture) {
		f.Helper()
		f.topic("dlq", 3)
		start := time.Now().Add(-time.Second)
		for spread := range int32(5) {
			err := f.c.Write(f.ctx, OutBatch{Topic: f.prefix + "dlq", Spread: spread, Records: []Out{
				{Headers: []kmsg.Header{{Key: "a", Value: []byte{byte(spread)}}, {Key: "b", Value: []byte("x")}}},
				{Key: []byte{}, Value: []byte("v")},
			}})
			if err != nil {
				f.Fatal(err)
			}
		}
		for _, r := range f.written("dlq", 10) {
			if len(r.Headers) == 0 {
				if r.Key == nil || len(r.Key) != 0 || string(r.Value) != "v" {
					f.Errorf("copied record %q %q", r.Key, r.Value)
				}
				continue
			}
			if r.Key != nil || r.Value != nil || len(r.Headers) != 2 || int32(r.Headers[0].Value[0])%3 != r.Partition || r.Timestamp.Before(start) {
				f.Errorf("record %+v", r)
			}
		}
	})
}

func TestWriteTriesAgainWhatMayPass(t *testing.T) {
	f := newFixture(t, newCluster(t))
	f.c.WriteBackoff(time.Millisecond)
	f.topic("dlq", 1)
	for _, c := range []struct {
		err   *kerr.Error
		count int
		tries int
		ok    bool
		is    error
	}{
		{kerr.NotEnoughReplicas, 4, 5, true, nil},
		{kerr.NotEnoughReplicas, 5, 5, false, kerr.NotEnoughReplicas},
		{kerr.NotLeaderForPartition, 1, 2, true, nil},
		{kerr.TopicAuthorizationFailed, 1, 1, false, ErrUnauthorized},
		{kerr.MessageTooLarge, 1, 1, false, ErrTooLarge},
		{kerr.InvalidRecord, 1, 1, false, kerr.InvalidRecord},
	} {
		fault := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: c.err, Count: c.count})
		tries := 0
		err := f.c.Write(f.ctx, OutBatch{Topic: "dlq", Records: []Out{{}}, Tried: func(error) { tries++ }})
		if (err == nil) != c.ok || tries != c.tries || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%d times %v: %v after %d tries", c.count, c.err, err, tries)
		}
		fault.Remove()
	}
}

func TestWriteMakesAMissingTopicOnlyIfTold(t *testing.T) {
	everywhere(t, func(f *fixture) {
		f.Helper()
		b := OutBatch{Topic: f.prefix + "dlq.new", Spread: 7, Records: []Out{{}}}
		if err := f.c.Write(f.ctx, b); !errors.Is(err, ErrUnknownTopicOrPartition) {
			f.Fatalf("missing topic: %v", err)
		}
		b.Create = true
		if err := f.c.Write(f.ctx, b); err != nil {
			f.Fatal(err)
		}
		if n := len(f.written("dlq.new", 1)); n != 1 {
			f.Errorf("%d records", n)
		}
	})
}

func TestWriteGoesToATopicThatWasMadeAnew(t *testing.T) {
	f := newFixture(t, newCluster(t))
	f.c.WriteBackoff(time.Millisecond)
	b := OutBatch{Topic: "dlq", Records: []Out{{}}}
	for range 2 {
		f.topic("dlq", 1)
		if err := f.c.Write(f.ctx, b); err != nil {
			t.Fatal(err)
		}
		f.deleteTopic("dlq")
	}
}

func TestWriteEndsWithItsContextAndWithTheClient(t *testing.T) {
	f := newFixture(t, newCluster(t))
	f.topic("dlq", 1)
	fault := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	defer fault.Remove()
	ctx, cancel := context.WithCancel(f.ctx)
	err := f.c.Write(ctx, OutBatch{Topic: "dlq", Records: []Out{{}}, Tried: func(error) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	f.c.writer.close()
	if err := f.c.Write(f.ctx, OutBatch{Topic: "dlq", Records: []Out{{}}}); !errors.Is(err, ErrClosed) {
		t.Errorf("after the client's end: %v", err)
	}
}
