package proxy

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestProduceAndConsumeThroughProxyEqualsDirect(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	seen := &tap{}
	through := newClient(t, []string{f.Addr().String()}, kgo.Dialer(seen.dialer), kgo.DefaultProduceTopic("orders"),
		kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("through"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer through.Close()
	direct := newClient(t, up.ListenAddrs(), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer direct.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	const n = 300
	var records []*kgo.Record
	for i := range n {
		// From tiny to far over the copy buffer.
		value := bytes.Repeat([]byte{byte(i)}, 1+i*i)
		if i == n-1 {
			value = make([]byte, 900_000)
		}
		records = append(records, &kgo.Record{Key: fmt.Appendf(nil, "k%03d", i), Value: value})
	}
	if err := through.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	got, want := drainRecords(ctx, t, through, n), drainRecords(ctx, t, direct, n)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("through the proxy (-direct +through):\n%s", diff)
	}
	if err := through.CommitUncommittedOffsets(ctx); err != nil {
		t.Error(err)
	}
	mustNotLeak(t, "all bytes of a producer and group consumer", seen.b.Bytes())
}

func drainRecords(ctx context.Context, t *testing.T, cl *kgo.Client, n int) []string {
	t.Helper()
	var got []string
	for len(got) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			got = append(got, fmt.Sprintf("%s/%d/%d %s %d", r.Topic, r.Partition, r.Offset, r.Key, len(r.Value)))
		})
	}
	sort.Strings(got)
	return got
}

func TestAdminThroughProxyEqualsDirect(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	seen := &tap{}
	throughClient := newClient(t, []string{f.Addr().String()}, kgo.Dialer(seen.dialer))
	defer throughClient.Close()
	directClient := newClient(t, up.ListenAddrs())
	defer directClient.Close()
	through, direct := kadm.NewClient(throughClient), kadm.NewClient(directClient)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	if _, err := through.CreateTopics(ctx, 4, 2, nil, "made"); err != nil {
		t.Fatal(err)
	}
	gotMeta, err := through.Metadata(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantMeta, err := direct.Metadata(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range gotMeta.Brokers {
		b := &gotMeta.Brokers[i]
		if b.Host != proxyHost || b.Port != f.cfg.NodePorts+b.NodeID {
			t.Errorf("node %d is told at %s:%d", b.NodeID, b.Host, b.Port)
		}
		b.Host, b.Port = wantMeta.Brokers[i].Host, wantMeta.Brokers[i].Port
	}
	if diff := cmp.Diff(wantMeta, gotMeta, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("metadata (-direct +through):\n%s", diff)
	}
	for _, ask := range []func(*kadm.Client) (any, error){
		func(a *kadm.Client) (any, error) { return a.ListEndOffsets(ctx, "made") },
		func(a *kadm.Client) (any, error) { return configValues(ctx, a, "made") },
		func(a *kadm.Client) (any, error) { return a.ListGroups(ctx) },
	} {
		got, err := ask(through)
		if err != nil {
			t.Fatal(err)
		}
		want, err := ask(direct)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("through %v\ndirect %v", got, want)
		}
	}
	req := kmsg.NewPtrDescribeClusterRequest()
	resp, err := req.RequestWith(ctx, throughClient)
	if err != nil || len(resp.Brokers) != 3 {
		t.Fatalf("DescribeCluster: %v, %d brokers", err, len(resp.Brokers))
	}
	mustNotLeak(t, "all bytes of an admin client", seen.b.Bytes())
}

func configValues(ctx context.Context, a *kadm.Client, topic string) (map[string]string, error) {
	values := map[string]string{}
	resources, err := a.DescribeTopicConfigs(ctx, topic)
	for _, r := range resources {
		for _, c := range r.Configs {
			values[c.Key] = c.MaybeValue()
		}
	}
	return values, err
}

func TestFramesSplitAnywhereAreRelayed(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	w := f.dial()
	var stream []byte
	const n = 40
	reqs := make([]kmsg.Request, n)
	for i := range n {
		switch i % 3 {
		case 0:
			reqs[i] = &kmsg.ListGroupsRequest{Version: 4}
		case 1:
			reqs[i] = &kmsg.MetadataRequest{Version: int16(i % 13), Topics: []kmsg.MetadataRequestTopic{}}
		default:
			reqs[i] = &kmsg.FindCoordinatorRequest{Version: 3, CoordinatorKey: fmt.Sprint("group", i)}
		}
		stream = append(stream, frameOf(int32(i), reqs[i])...)
	}
	go func() {
		for len(stream) > 0 {
			k := 1 + rand.IntN(min(7, len(stream)))
			if _, err := w.conn.Write(stream[:k]); err != nil {
				return
			}
			stream = stream[k:]
		}
	}()
	for i := range n {
		w.expect(int32(i), reqs[i])
	}
}

func TestProduceWithoutAcksTakesNoPlaceInTheOrderOfAnswers(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	leader := up.LeaderFor("orders", 0)
	w := dialWire(t, f.nodeAddr(leader))
	for i, version := range []int16{3, 8, 9, 12} {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = version, 0, 1000
		req.Topics = []kmsg.ProduceRequestTopic{{Topic: "orders", Partitions: []kmsg.ProduceRequestTopicPartition{{Records: []byte{}}}}}
		w.send(frameOf(int32(100+i), req))
		w.ask(int32(200+i), &kmsg.ListGroupsRequest{Version: 4})
	}
}
