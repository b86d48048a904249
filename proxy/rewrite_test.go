package proxy

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// unboundNodes rewrites without opening ports.
func unboundNodes() *nodes {
	cfg := Config{Upstream: []string{"127.0.0.1:1"}, Listen: proxyHost + ":19092"}.WithDefaults()
	n := newNodes(cfg, zerolog.Nop(), newMetrics(prometheus.NewRegistry()), nil)
	n.closed = true
	return n
}

// withTags gives a struct unknown tagged fields.
func withTags(set func(key uint32, val []byte)) {
	set(77, []byte("kept"))
	set(1000, nil)
}

func metadataResponse(version int16) *kmsg.MetadataResponse {
	resp := kmsg.NewPtrMetadataResponse()
	resp.Version, resp.ThrottleMillis, resp.ControllerID, resp.ClusterID = version, 7, 2, kmsg.StringPtr("cluster")
	for id := range int32(3) {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack = id, upstreamHost, 9092+id, kmsg.StringPtr("rack")
		if id == 1 {
			b.Rack = nil
		}
		withTags(b.UnknownTags.Set)
		resp.Brokers = append(resp.Brokers, b)
	}
	topic := kmsg.NewMetadataResponseTopic()
	topic.Topic, topic.TopicID = kmsg.StringPtr("orders"), [16]byte{1}
	p := kmsg.NewMetadataResponseTopicPartition()
	p.Leader, p.Replicas, p.ISR = 1, []int32{0, 1}, []int32{1}
	topic.Partitions = append(topic.Partitions, p)
	withTags(topic.UnknownTags.Set)
	resp.Topics = append(resp.Topics, topic)
	withTags(resp.UnknownTags.Set)
	return resp
}

// encoded is a response as rewrite functions get it: header tags, with an
// unknown one, and body.
func encoded(resp kmsg.Response) []byte {
	var b []byte
	if resp.IsFlexible() {
		b = append(b, 1, 9, 2, 'h', 'i')
	}
	return resp.AppendTo(b)
}

func TestMetadataRewriteChangesAddressesOnly(t *testing.T) {
	for version := int16(0); version <= 13; version++ {
		resp := metadataResponse(version)
		got, err := rewriteMetadata(unboundNodes(), version, encoded(resp))
		if err != nil {
			t.Fatal(err)
		}
		for i := range resp.Brokers {
			b := &resp.Brokers[i]
			b.Host, b.Port = proxyHost, DefaultNodePorts+b.NodeID
		}
		if want := encoded(resp); !bytes.Equal(got, want) {
			t.Errorf("v%d\ngot  %x\nwant %x", version, got, want)
		}
	}
}

func TestDescribeClusterRewriteChangesAddressesOnly(t *testing.T) {
	for version := int16(0); version <= 2; version++ {
		resp := kmsg.NewPtrDescribeClusterResponse()
		resp.Version, resp.ClusterID, resp.ControllerID, resp.ClusterAuthorizedOperations = version, "cluster", 1, 0x0ff8
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack, b.IsFenced = 4, upstreamHost, 9092, kmsg.StringPtr("r"), true
		withTags(b.UnknownTags.Set)
		resp.Brokers = append(resp.Brokers, b)
		withTags(resp.UnknownTags.Set)
		got, err := rewriteDescribeCluster(unboundNodes(), version, encoded(resp))
		if err != nil {
			t.Fatal(err)
		}
		resp.Brokers[0].Host, resp.Brokers[0].Port = proxyHost, DefaultNodePorts+4
		if want := encoded(resp); !bytes.Equal(got, want) {
			t.Errorf("v%d\ngot  %x\nwant %x", version, got, want)
		}
		if version == 0 {
			continue
		}
		resp.EndpointType, resp.Brokers[0].Host = 2, upstreamHost
		got, err = rewriteDescribeCluster(unboundNodes(), version, encoded(resp))
		if err != nil {
			t.Fatal(err)
		}
		mustNotLeak(t, "controllers", got)
	}
}

func TestProduceRewriteChangesNodeEndpointsOnly(t *testing.T) {
	for version := int16(9); version <= 13; version++ {
		resp := kmsg.NewPtrProduceResponse()
		resp.Version = version
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic, topic.TopicID = "orders", [16]byte{3}
		p := kmsg.NewProduceResponseTopicPartition()
		p.ErrorCode, p.ErrorMessage = 6, kmsg.StringPtr("moved")
		p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 2, 9
		withTags(p.UnknownTags.Set)
		topic.Partitions = append(topic.Partitions, p)
		resp.Topics = append(resp.Topics, topic)
		withTags(resp.UnknownTags.Set)
		plain := encoded(resp)
		got, err := rewriteProduce(unboundNodes(), version, plain)
		if err != nil || &got[0] != &plain[0] {
			t.Errorf("v%d without endpoints: %v, copied %v", version, err, &got[0] != &plain[0])
		}
		b := kmsg.NewProduceResponseBroker()
		b.NodeID, b.Host, b.Port = 2, upstreamHost, 9094
		withTags(b.UnknownTags.Set)
		resp.Brokers = append(resp.Brokers, b)
		got, err = rewriteProduce(unboundNodes(), version, encoded(resp))
		if err != nil {
			t.Fatal(err)
		}
		resp.Brokers[0].Host, resp.Brokers[0].Port = proxyHost, DefaultNodePorts+2
		if want := encoded(resp); !bytes.Equal(got, want) {
			t.Errorf("v%d\ngot  %x\nwant %x", version, got, want)
		}
	}
}

func TestFindCoordinatorRewriteChangesAddressesOnly(t *testing.T) {
	for version := int16(0); version <= 6; version++ {
		resp := kmsg.NewPtrFindCoordinatorResponse()
		resp.Version = version
		resp.NodeID, resp.Host, resp.Port = 1, upstreamHost, 9093
		for id := range int32(2) {
			k := kmsg.NewFindCoordinatorResponseCoordinator()
			k.Key, k.NodeID, k.Host, k.Port = fmt.Sprint("g", id), id, upstreamHost, 9092+id
			withTags(k.UnknownTags.Set)
			resp.Coordinators = append(resp.Coordinators, k)
		}
		denied := kmsg.NewFindCoordinatorResponseCoordinator()
		denied.Key, denied.NodeID, denied.Port, denied.ErrorCode = "denied", -1, -1, 30
		resp.Coordinators = append(resp.Coordinators, denied)
		withTags(resp.UnknownTags.Set)

		want := *resp
		want.Host, want.Port = proxyHost, DefaultNodePorts+1
		want.Coordinators = append([]kmsg.FindCoordinatorResponseCoordinator(nil), resp.Coordinators...)
		for i := range 2 {
			want.Coordinators[i].Host, want.Coordinators[i].Port = proxyHost, DefaultNodePorts+int32(i)
		}
		rewriteCoordinators(unboundNodes(), resp)
		if got, want := resp.AppendTo(nil), want.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("v%d\ngot  %x\nwant %x", version, got, want)
		}
	}
}

func TestAPIVersionsKeepsUnknownTagsAndForeignFeatures(t *testing.T) {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version, resp.FinalizedFeaturesEpoch, resp.ZkMigrationReady = 4, 42, true
	key := kmsg.NewApiVersionsResponseApiKey()
	key.ApiKey, key.MaxVersion = 500, 3
	withTags(key.UnknownTags.Set)
	resp.ApiKeys = append(resp.ApiKeys, key)
	resp.SupportedFeatures = []kmsg.ApiVersionsResponseSupportedFeature{{Name: "metadata.version", MinVersion: 1, MaxVersion: 25}, {Name: shareVersion, MaxVersion: 1}}
	resp.FinalizedFeatures = []kmsg.ApiVersionsResponseFinalizedFeature{{Name: shareVersion, MaxVersionLevel: 1, MinVersionLevel: 1}}
	withTags(resp.UnknownTags.Set)
	newTable(nil).advertise(resp)
	var back kmsg.ApiVersionsResponse
	back.Version = 4
	if err := back.ReadFrom(resp.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	if tagOf(&back.UnknownTags, 77) != "kept" || back.FinalizedFeaturesEpoch != 42 || !back.ZkMigrationReady {
		t.Errorf("top level lost something: %+v", back)
	}
	if len(back.ApiKeys) != 1 || tagOf(&back.ApiKeys[0].UnknownTags, 77) != "kept" || back.ApiKeys[0].MaxVersion != 3 {
		t.Errorf("a key that only upstream knows changed: %+v", back.ApiKeys)
	}
	if len(back.SupportedFeatures) != 2 || len(back.FinalizedFeatures) != 1 {
		t.Errorf("features: %+v %+v", back.SupportedFeatures, back.FinalizedFeatures)
	}
}

// The frames below were put together by hand from Kafka's schemas, as a check
// that does not go through kmsg.
func TestMetadataRewriteOnFramesByHand(t *testing.T) {
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		version   int16
		got, want string
	}{
		{0, "00000001 00000001 0001 61 00002384 00000000",
			"00000001 00000001 000a 3132372e302e302e3431 00004a9d 00000000"},
		{9, "00 00000000 02 00000001 02 61 00002384 00 01 05 02 7879 00 ffffffff 01 80000000 00",
			"00 00000000 02 00000001 0b 3132372e302e302e3431 00004a9d 00 01 05 02 7879 00 ffffffff 01 80000000 00"},
	} {
		got, err := rewriteMetadata(unboundNodes(), tt.version, unhex(tt.got))
		if err != nil || !bytes.Equal(got, unhex(tt.want)) {
			t.Errorf("v%d: %v\ngot  %x\nwant %x", tt.version, err, got, unhex(tt.want))
		}
	}
}

func tagOf(tags *kmsg.Tags, key uint32) (value string) {
	tags.Each(func(k uint32, v []byte) {
		if k == key {
			value = string(v)
		}
	})
	return value
}
