package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kshare/coordinator"
	"kshare/proxy/serve"
	"kshare/proxy/upstream"
	"kshare/sharestate/statelog"
)

// realServe is package serve itself, on an embedded Redis.
func realServe(t testing.TB, addrs []string) *serve.Server {
	t.Helper()
	redis := miniredis.NewMiniRedis()
	if err := redis.Start(); err != nil {
		t.Fatal(err)
	}
	client, err := statelog.Connect("redis://" + redis.Addr() + "/0")
	if err != nil {
		t.Fatal(err)
	}
	reader, err := upstream.New(upstream.Config{Seeds: addrs}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	store := statelog.NewStore(client, statelog.Options{ClusterID: "fake", Log: zerolog.Nop()})
	broker := coordinator.DefaultBrokerConfig()
	groups := coordinator.New(coordinator.Options{Store: store, Topics: serve.UpstreamTopics{Client: reader}, Use: serve.UpstreamGroups{Client: reader}, Broker: broker, Log: zerolog.Nop()})
	s := serve.New(serve.Options{Store: store, Groups: groups, Upstream: reader, Broker: broker, Log: zerolog.Nop()})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = reader.Run(ctx) })
	running.Go(func() { _ = store.Run(ctx) })
	running.Go(func() { _ = groups.Run(ctx) })
	t.Cleanup(func() {
		s.Drain()
		stop()
		running.Wait()
		bye, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		store.Close(bye)
		_ = client.Close()
		redis.Close()
	})
	return s
}

// joinShareGroup makes "shared" a share group, through the proxy.
func (f *fixture) joinShareGroup() {
	f.t.Helper()
	join := kmsg.NewPtrShareGroupHeartbeatRequest()
	join.Version, join.GroupID, join.MemberID, join.SubscribedTopicNames = 1, "shared", "m", []string{"orders"}
	w := f.dial()
	eventually(f.t, "the share group", func() bool { return w.ask(1, join).(*kmsg.ShareGroupHeartbeatResponse).ErrorCode == 0 })
}

func TestConsumersOfAnotherTypeAreRefusedAShareGroupsID(t *testing.T) {
	up := startUpstream(t)
	s := realServe(t, up.ListenAddrs())
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: s.APIs(), split: s})
	f.joinShareGroup()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	consume := func(group string, opts ...kgo.Opt) (*kgo.Client, error) {
		cl := newClient(t, []string{f.Addr().String()}, append(opts, kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders"),
			kgo.DefaultProduceTopic("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		t.Cleanup(cl.Close)
		if err := cl.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
			t.Fatal(err)
		}
		fetches := cl.PollFetches(ctx)
		return cl, fetches.Err()
	}
	if _, err := consume("shared"); !errors.Is(err, kerr.InconsistentGroupProtocol) {
		t.Errorf("a classic consumer got %v", err)
	}
	//lint:ignore SA1029 kgo's own switch for KIP-848
	next := context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	if _, err := consume("shared", kgo.WithContext(next)); !errors.Is(err, kerr.GroupIDNotFound) {
		t.Errorf("a KIP-848 consumer got %v", err)
	}
	if _, err := consume("ordinary"); err != nil {
		t.Errorf("a consumer of another group got %v", err)
	}

	admin := kadm.NewClient(newClient(t, []string{f.Addr().String()}))
	defer admin.Close()
	offsets := kadm.Offsets{}
	offsets.AddOffset("orders", 0, 5, -1)
	committed, err := admin.CommitOffsets(ctx, "shared", offsets)
	if err == nil {
		err = committed.Error()
	}
	if !errors.Is(err, kerr.GroupIDNotFound) {
		t.Errorf("committing: %v", err)
	}
	fetched, err := admin.FetchOffsetsForTopics(ctx, "shared", "orders")
	if at, _ := fetched.Lookup("orders", 0); err != nil || at.Err != nil || at.At != -1 {
		t.Errorf("fetching: %v, %+v", err, at)
	}
	// One broker is asked for both, or each its own.
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Version, fetch.Groups = 8, []kmsg.OffsetFetchRequestGroup{{Group: "ordinary"}, {Group: "shared"}}
	w := dialWire(t, f.nodeAddr(up.CoordinatorFor("ordinary")))
	if both := w.ask(1, fetch).(*kmsg.OffsetFetchResponse).Groups; len(both) != 2 || both[0].ErrorCode != 0 || both[1].ErrorCode != 0 {
		t.Errorf("both groups' offsets: %+v", both)
	}
}

// wrongTypeKeys are the APIs that plainly go upstream but for share groups.
var wrongTypeKeys = []int16{8, 9, 11, 12, 13, 14, 15, 28, 47, 68, 69, 88, 89}

func TestAPIsForOtherGroupTypesAreAdvertisedAsUpstreamHasThem(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{"2.8": kversion.FromString("2.8"), "3.9": kversion.FromString("3.9"), "stable": withoutShareGroups()} {
		up := startUpstream(t, kfake.MaxVersions(versions))
		s := realServe(t, up.ListenAddrs())
		f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: s.APIs(), split: s})
		ours := rangesOf(f.dial().ask(1, apiVersionsRequest(3)))
		theirs := rangesOf(dialWire(t, up.ListenAddrs()[0]).ask(1, apiVersionsRequest(3)))
		for _, key := range wrongTypeKeys {
			want, has := theirs[key]
			want.max = min(want.max, kmsgMax(key))
			if got, told := ours[key]; told != has || got != want {
				t.Errorf("%s: key %d is %v (%v), upstream has %v (%v)", name, key, got, told, want, has)
			}
		}
	}
}

// setGroup names one group in a request of wrongTypeKeys.
func setGroup(req kmsg.Request, group string) {
	switch req := req.(type) {
	case *kmsg.OffsetFetchRequest:
		req.Group, req.Groups = group, []kmsg.OffsetFetchRequestGroup{{Group: group}}
	case *kmsg.DescribeGroupsRequest:
		req.Groups = []string{group}
	case *kmsg.ConsumerGroupDescribeRequest:
		req.Groups = []string{group}
	case *kmsg.StreamsGroupDescribeRequest:
		req.Groups = []string{group}
	default:
		reflect.ValueOf(req).Elem().FieldByName("Group").SetString(group)
	}
	if txn, ok := req.(*kmsg.TxnOffsetCommitRequest); ok {
		txn.TransactionalID = "shared" // which is no group id
	}
}

// withUnknownTags puts a tagged field that nobody knows into the header and the body of a flexible request.
func withUnknownTags(frame []byte) []byte {
	header := sizeLen + headerLen + 2 + len(testClientID)
	tag := []byte{1, 99, 2, 'h', 'i'}
	b := append(bytes.Clone(frame[:header]), tag...)
	b = append(append(b, frame[header+1:len(frame)-1]...), tag...)
	return putSize(b, 0)
}

func TestRequestsOfOtherGroupsAreRelayedByteByByte(t *testing.T) {
	var mu sync.Mutex
	var got []byte
	addr := scripted(t, func(_ int, frame []byte) []byte {
		corr := frame[4:8:8]
		if binary.BigEndian.Uint16(frame) == uint16(apiVersionsKey) {
			resp := kmsg.NewPtrApiVersionsResponse()
			for _, key := range wrongTypeKeys {
				resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: kmsgMax(key)})
			}
			return resp.AppendTo(corr)
		}
		if binary.BigEndian.Uint16(frame) == uint16(metadataKey) { // kshare's question before it reads a large one
			resp := kmsg.NewPtrMetadataResponse()
			resp.Version, resp.Brokers = metadataVersion, []kmsg.MetadataResponseBroker{{Host: upstreamHost, Port: 1}}
			return resp.AppendTo(append(corr, 0))
		}
		mu.Lock()
		defer mu.Unlock()
		got = append([]byte(nil), frame...)
		return append(corr, "upstream's answer"...)
	})
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	s := realServe(t, startUpstream(t).ListenAddrs())
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster, apis: s.APIs(), split: s})
	w := f.dial()
	for _, group := range []string{"other", strings.Repeat("g", 30_000)} { // the long one does not fit the reader's buffer
		for _, key := range wrongTypeKeys {
			for version := int16(0); version <= kmsgMax(key); version++ {
				req := kmsg.RequestForKey(key)
				req.SetVersion(version)
				setGroup(req, group)
				frame := frameOf(7, req)
				if req.IsFlexible() {
					frame = withUnknownTags(frame)
				}
				w.send(frame)
				answer, err := w.receive()
				if err != nil {
					t.Fatalf("%T v%d: %v", req, version, err)
				}
				mu.Lock()
				if !bytes.Equal(got, frame[sizeLen:]) || string(answer[4:]) != "upstream's answer" {
					t.Errorf("%T v%d:\nsent %x\ngot  %x\nanswer %q", req, version, frame[sizeLen:], got, answer[4:])
				}
				mu.Unlock()
			}
		}
	}
}

func TestLargeRequestsOfOtherGroupsAreRelayed(t *testing.T) {
	up := startUpstream(t)
	s := realServe(t, up.ListenAddrs())
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: s.APIs(), split: s})
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID = "large", "leader"
	sync.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: "leader", MemberAssignment: make([]byte, 2*maxDecoded)}}
	f.dial().ask(1, sync)
}

func TestHeadTellsTheGroup(t *testing.T) {
	table := newTable(headAPIs(t))
	heads := 0
	for key := range table {
		r := table[key]
		if r.api == nil || r.api.Head == nil {
			continue
		}
		heads++
		for version := int16(0); version <= kmsgMax(int16(key)); version++ {
			for _, id := range []*string{nil, kmsg.StringPtr(""), &testClientID} {
				req := kmsg.RequestForKey(int16(key))
				req.SetVersion(version)
				setGroup(req, "the group")
				frame := appendRequest(nil, 1, id, req)
				in := bufio.NewReaderSize(bytes.NewReader(frame), readerSize)
				h, err := readHeader(in, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				if group, err := groupInHead(in.Peek, h, r); err != nil || group != "the group" || in.Buffered() != len(frame) {
					t.Errorf("%T v%d: %q %v", req, version, group, err)
				}
			}
		}
	}
	if heads != 9 {
		t.Errorf("%d APIs have a head", heads)
	}
}

// headAPIs are the served APIs, not to be called.
func headAPIs(t testing.TB) []serve.API {
	return realServe(t, startUpstream(t).ListenAddrs()).APIs()
}

func TestBrokenHeadsEndTheConnection(t *testing.T) {
	up := startUpstream(t)
	s := realServe(t, up.ListenAddrs())
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: s.APIs(), split: s})
	for _, tt := range []struct {
		name, bytes string
		reason      CloseReason
		end         bool
	}{
		{"group beyond the frame", "\x00\x00\x00\x0f\x00\x0c\x00\x00\x00\x00\x00\x01\x00\x01a\x00\x09gr", CloseMalformed, false},
		{"no group", "\x00\x00\x00\x0b\x00\x0c\x00\x00\x00\x00\x00\x01\x00\x01a", CloseMalformed, false},
		{"endless varint", "\x00\x00\x00\x11\x00\x0c\x00\x04\x00\x00\x00\x01\x00\x00\xff\xff\xff\xff\xff\xff\xff", CloseMalformed, false},
		{"truncated", "\x00\x00\x10\x00\x00\x0c\x00\x00\x00\x00\x00\x01\x00\x01a\x00\x09gr", CloseTruncated, true},
	} {
		before := f.closedWith(tt.reason)
		w := f.dial()
		w.send([]byte(tt.bytes))
		if tt.end {
			_ = w.conn.(*net.TCPConn).CloseWrite()
		}
		w.expectClosed()
		eventually(t, tt.name, func() bool { return f.closedWith(tt.reason) == before+1 })
	}
}

func FuzzGroupInHead(f *testing.F) {
	table := newTable(headAPIs(f))
	for _, key := range wrongTypeKeys {
		req := kmsg.RequestForKey(key)
		setGroup(req, "group")
		for _, version := range []int16{0, kmsgMax(key)} {
			req.SetVersion(version)
			f.Add(frameOf(1, req))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bufio.NewReaderSize(bytes.NewReader(b), readerSize)
		h, err := readHeader(in, 1<<20)
		r := table.of(h.key)
		if err != nil || r.api == nil || r.api.Head == nil || h.version < 0 || h.version > r.max || int(h.size) != len(b)-sizeLen {
			return
		}
		group, err := groupInHead(in.Peek, h, r)
		whole, parseErr := parseRequest(h, b[sizeLen:], h.version >= r.flexible)
		if err != nil || parseErr != nil {
			return
		}
		body, err := whole.decode()
		if err != nil {
			return
		}
		if want := reflect.ValueOf(body).Elem().FieldByName("Group").String(); group != want {
			t.Fatalf("%T v%d: %q, want %q", body, h.version, group, want)
		}
	})
}

// BenchmarkGroupInHead is what the heartbeats and commits of ordinary groups pay.
func BenchmarkGroupInHead(b *testing.B) {
	table := newTable(headAPIs(b))
	for _, topics := range []int{0, 100} {
		b.Run(fmt.Sprintf("%d topics", topics), func(b *testing.B) {
			req := kmsg.NewPtrOffsetCommitRequest()
			req.Version, req.Group = 9, "payments"
			for range topics {
				req.Topics = append(req.Topics, kmsg.OffsetCommitRequestTopic{Topic: "orders", Partitions: make([]kmsg.OffsetCommitRequestTopicPartition, 10)})
			}
			frame := frameOf(1, req)
			in := bufio.NewReaderSize(bytes.NewReader(frame), readerSize)
			h, err := readHeader(in, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if group, err := groupInHead(in.Peek, h, table.of(h.key)); err != nil || group == "" {
					b.Fatal(err)
				}
			}
		})
	}
}
