//go:build e2e

package conformance

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
)

func (w *world) apiVersions(c *conn, version int16) *kmsg.ApiVersionsResponse {
	w.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = version, "conformance", "1.0"
	return ask[*kmsg.ApiVersionsResponse](w, c, req)
}

// newest is the newest advertised version of a key.
func (w *world) newest(key int16) int16 {
	w.Helper()
	for _, k := range w.apiVersions(w.admin, 3).ApiKeys {
		if k.ApiKey == key {
			return k.MaxVersion
		}
	}
	w.Fatalf("key %d is not advertised", key)
	return -1
}

func TestCheck001_ShareAPIsAreAdvertisedInExactRanges(t *testing.T) {
	w := start(t, setup{foreign: true})
	want := map[int16]string{76: "1-1", 77: "1-1", 78: "1-2", 79: "1-2", 90: "0-1", 91: "0-0", 92: "0-0"}
	for version := int16(0); version <= 4; version++ {
		got := map[int16]string{}
		for _, k := range w.apiVersions(w.admin, version).ApiKeys {
			if _, ok := want[k.ApiKey]; ok {
				got[k.ApiKey] = fmt.Sprintf("%d-%d", k.MinVersion, k.MaxVersion)
			}
		}
		w.is(fmt.Sprint("v", version), fmt.Sprint(got), fmt.Sprint(want))
	}
}

func TestCheck002_FeatureShareVersion(t *testing.T) {
	w := start(t, setup{foreign: true})
	for version := int16(3); version <= 4; version++ {
		resp := w.apiVersions(w.admin, version)
		supported, finalized := "", ""
		for _, f := range resp.SupportedFeatures {
			if f.Name == "share.version" {
				supported = fmt.Sprintf("%d-%d", f.MinVersion, f.MaxVersion)
			}
		}
		for _, f := range resp.FinalizedFeatures {
			if f.Name == "share.version" {
				finalized = fmt.Sprintf("%d-%d", f.MinVersionLevel, f.MaxVersionLevel)
			}
		}
		want := map[int16]string{3: "", 4: "0-2"}[version]
		w.is(fmt.Sprintf("v%d: supported", version), supported, want)
		w.is(fmt.Sprintf("v%d: finalized", version), finalized, "2-2")
		if resp.FinalizedFeaturesEpoch < 0 {
			t.Errorf("v%d: finalized features epoch %d", version, resp.FinalizedFeaturesEpoch)
		}
	}
}

func TestCheck003_OtherVersionsOfShareFetchEndTheConnection(t *testing.T) {
	w := start(t, setup{})
	for _, version := range []int16{0, 3} {
		m := w.member()
		req := m.fetching(w.p(0))
		req.Version = version
		if resp, err := m.c.do(req); err == nil {
			t.Errorf("v%d: %+v", version, resp)
		}
		w.member().fetch(w.p(0))
	}
}

func TestCheck004_JavaShareConsumersOfAllReleases(t *testing.T) {
	w := start(t, setup{foreign: true, alone: true}) // four Java machines at a time are enough
	versions := append(strings.Fields(suite.Version("JAVA_CLIENTS")), suite.Version("KAFKA_NEW"))
	for _, version := range versions {
		w.within(version, func(w *world) {
			w.Parallel()
			w.admin = w.dial(w.tg.bootstrap)
			group := w.group + "-" + version
			w.set(group, "share.auto.offset.reset", "earliest")
			w.produce(w.p(0), 3)
			consumer, err := client.Java{Suite: suite, Version: version}.Start(client.Config{Bootstrap: w.tg.bootstrap, Group: group, Topic: w.main.name, Name: group})
			if err != nil {
				w.Fatal(err)
			}
			defer consumer.Close()
			got := 0
			w.until("records", 60*time.Second, func() error {
				records, err := consumer.Poll(5 * time.Second)
				if err != nil {
					w.Fatal(err)
				}
				if got += len(records); got < 3 {
					return fmt.Errorf("%d records", got)
				}
				return nil
			})
		})
	}
}

func TestCheck005_CoordinatorIsReachable(t *testing.T) {
	w := start(t, setup{})
	for version := int16(4); version <= 6; version++ {
		k := w.findCoordinatorAt(version, 0, w.group)[0]
		w.code("FindCoordinator", k.ErrorCode, nil)
		w.is("key", k.Key, w.group)
		b := w.beater(w.group)
		b.c = w.dial(net.JoinHostPort(k.Host, strconv.Itoa(int(k.Port))))
		b.subscribes(w.main)
	}
}

func TestCheck006_CoordinatorOfAGroupThatMayNotBeDescribed(t *testing.T) {
	w := start(t, setup{guarded: true, foreign: true})
	denied := w.group + "-denied"
	w.findCoordinator(0, denied)
	w.deny(kmsg.ACLResourceTypeGroup, denied, kmsg.ACLOperationDescribe)
	w.until("denial", 60*time.Second, func() error {
		got := w.findCoordinator(0, denied, w.group)
		slices.SortFunc(got, func(a, b kmsg.FindCoordinatorResponseCoordinator) int { return strings.Compare(b.Key, a.Key) })
		if got[0].ErrorCode != kerr.GroupAuthorizationFailed.Code || got[0].Key != denied || got[1].ErrorCode != 0 || got[1].Host == "" {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

func TestCheck007_ShareCoordinatorKeys(t *testing.T) {
	w := start(t, setup{foreign: true})
	for version := int16(4); version <= 6; version++ {
		k := w.findCoordinatorAt(version, 2, w.group)[0]
		w.code(fmt.Sprint("a bare group id, v", version), k.ErrorCode, kerr.InvalidRequest)
		if k.ErrorMessage == nil || *k.ErrorMessage != "" {
			t.Errorf("v%d: message %v, want an empty one", version, k.ErrorMessage)
		}
	}
}

// NodeEndpoints come with the error that a broker is not the leader, for which it takes two: package proxy tests them.
func TestCheck008_EveryAddressLeadsToTheTarget(t *testing.T) {
	w := start(t, setup{})
	addresses := map[string]string{}
	add := func(what, host string, port int32) {
		addresses[what] = net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	for version := int16(0); version <= w.newest(3); version++ {
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.Topics = version, []kmsg.MetadataRequestTopic{}
		for _, b := range ask[*kmsg.MetadataResponse](w, w.admin, req).Brokers {
			add(fmt.Sprint("Metadata v", version), b.Host, b.Port)
		}
	}
	for version := int16(4); version <= 6; version++ {
		for i, key := range w.findCoordinatorAt(version, 0, w.group, "classic-"+w.group) {
			add(fmt.Sprintf("FindCoordinator v%d key %d", version, i), key.Host, key.Port)
		}
	}
	cluster := kmsg.NewPtrDescribeClusterRequest()
	for _, b := range ask[*kmsg.DescribeClusterResponse](w, w.admin, cluster).Brokers {
		add("DescribeCluster", b.Host, b.Port)
	}
	for what, address := range addresses {
		if w.tg.replicas != nil && (strings.HasPrefix(address, w.upstreamHost()) || !strings.HasPrefix(address, "127.0.0.1:")) {
			t.Errorf("%s tells %s", what, address)
		}
		c, err := dial(address)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if !slices.ContainsFunc(w.apiVersions(c, 3).ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == 78 }) {
			t.Errorf("%s: %s has no share groups", what, address)
		}
		c.Close()
	}
	if w.tg.replicas != nil {
		if leaks, _ := w.tg.replicas.Balancer.Leaks(); len(leaks) > 0 {
			t.Errorf("clients were told an upstream address: %s", leaks)
		}
	}
}

func (w *world) upstreamHost() string {
	host, _, _ := net.SplitHostPort(w.tg.kafka.Bootstrap)
	return host
}

// What ordinary clients ask gets one answer from Kafka and from the target, but for addresses. Java and others do the same
// with whole clients in package e2e.
func TestCheck009_OrdinaryRequestsAreAnsweredAsByKafka(t *testing.T) {
	w := start(t, setup{foreign: true, partitions: 2})
	direct := w.dial(w.tg.kafka.Bootstrap)
	w.produceEach(w.p(0), 4, 5)
	x := w.transaction()
	x.produce(w.p(1), 3)
	x.end(w.p(1), true)
	classic, consumer := w.classicGroup(), w.consumerGroup()
	requests := []kmsg.Request{offsetCommit(classic, w.p(1))}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version, fetch.ReplicaID, fetch.MaxWaitMillis, fetch.MinBytes, fetch.MaxBytes = 12, -1, 500, 1, 1<<20
	ft := kmsg.NewFetchRequestTopic()
	ft.Topic = w.main.name
	for p := range int32(2) {
		part := kmsg.NewFetchRequestTopicPartition()
		part.Partition, part.CurrentLeaderEpoch, part.PartitionMaxBytes = p, -1, 1<<20
		ft.Partitions = append(ft.Partitions, part)
	}
	fetch.Topics = append(fetch.Topics, ft)
	requests = append(requests, fetch)
	offsets := kmsg.NewPtrOffsetFetchRequest()
	offsets.Version = 8
	og := kmsg.NewOffsetFetchRequestGroup()
	og.Group = classic
	offsets.Groups = append(offsets.Groups, og)
	requests = append(requests, offsets)
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Version, describe.Groups, describe.IncludeAuthorizedOperations = 5, []string{classic, "no-" + classic}, true
	requests = append(requests, describe)
	consumers := kmsg.NewPtrConsumerGroupDescribeRequest()
	consumers.Groups = []string{consumer, classic}
	requests = append(requests, consumers)
	configs := kmsg.NewPtrDescribeConfigsRequest()
	configs.Version = 4
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, w.main.name
	configs.Resources = append(configs.Resources, res)
	requests = append(requests, configs)
	ids := kmsg.NewPtrDescribeProducersRequest()
	pt := kmsg.NewDescribeProducersRequestTopic()
	pt.Topic, pt.Partitions = w.main.name, []int32{0, 1}
	ids.Topics = append(ids.Topics, pt)
	requests = append(requests, ids)
	none := kmsg.NewPtrDeleteGroupsRequest()
	none.Version, none.Groups = 2, []string{"no-" + classic}
	requests = append(requests, none)
	bad := kmsg.NewPtrCreateTopicsRequest()
	bad.Version, bad.TimeoutMillis = 7, 10_000
	bt := kmsg.NewCreateTopicsRequestTopic()
	bt.Topic, bt.NumPartitions, bt.ReplicationFactor = w.main.name, 1, 1
	bad.Topics = append(bad.Topics, bt)
	requests = append(requests, bad)
	for _, req := range requests {
		via, err := w.admin.do(req)
		if err != nil {
			t.Fatal(err)
		}
		from, err := direct.do(req)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(via.AppendTo(nil), from.AppendTo(nil)) {
			t.Errorf("%s:\n%+v\nby Kafka:\n%+v", kmsg.NameForKey(req.Key()), via, from)
		}
	}
}
