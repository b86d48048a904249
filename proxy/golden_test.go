package proxy

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Golden responses were recorded from real brokers, every version of every API
// that is rewritten. To record more:
//
//	go test ./proxy -run TestRecordGolden -record 127.0.0.1:9092 -as kafka-4.4.0
//
// from a cluster of one node, broker and controller at once, whose id is goldenNode.
var (
	recordFrom = flag.String("record", "", "broker to record golden responses from")
	recordAs   = flag.String("as", "", "name of the file to record to, without .txt")
	recordKeys = flag.String("keys", "", "API keys to record, all if empty")
)

const goldenNode int32 = 1

func TestRecordGolden(t *testing.T) {
	if *recordFrom == "" {
		t.Skip("no -record address")
	}
	var out bytes.Buffer
	fmt.Fprintln(&out, "# key version response-without-correlation-id")
	w := dialWire(t, *recordFrom)
	ranges := rangesOf(w.ask(0, apiVersionsRequest(0)))
	requests := map[int16]func(version int16) kmsg.Request{
		metadataKey: func(int16) kmsg.Request { return &kmsg.MetadataRequest{} },
		findCoordinatorKey: func(version int16) kmsg.Request {
			return &kmsg.FindCoordinatorRequest{CoordinatorKey: "group", CoordinatorKeys: []string{"group", "other"}}
		},
		apiVersionsKey:     func(version int16) kmsg.Request { return apiVersionsRequest(version) },
		describeClusterKey: func(int16) kmsg.Request { return &kmsg.DescribeClusterRequest{EndpointType: 1} },
		describeConfigsKey: func(int16) kmsg.Request {
			return &kmsg.DescribeConfigsRequest{IncludeSynonyms: true, IncludeDocumentation: true, Resources: []kmsg.DescribeConfigsRequestResource{{
				ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: fmt.Sprint(goldenNode),
				ConfigNames: []string{"listeners", "advertised.listeners", "controller.quorum.voters", "controller.quorum.bootstrap.servers",
					"zookeeper.connect", "listener.security.protocol.map", "ssl.key.password", "num.io.threads"},
			}}}
		},
		incrementalAlterConfigsKey: func(int16) kmsg.Request {
			return &kmsg.IncrementalAlterConfigsRequest{ValidateOnly: true, Resources: []kmsg.IncrementalAlterConfigsRequestResource{{
				ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: fmt.Sprint(goldenNode),
				Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "listener.security.protocol.map", Value: kmsg.StringPtr("OTHER:PLAINTEXT")}},
			}}}
		},
		describeQuorumKey: func(int16) kmsg.Request {
			return &kmsg.DescribeQuorumRequest{Topics: []kmsg.DescribeQuorumRequestTopic{{Topic: "__cluster_metadata", Partitions: []kmsg.DescribeQuorumRequestTopicPartition{{}}}}}
		},
	}
	keys := slices.Sorted(maps.Keys(requests))
	if *recordKeys != "" {
		keys = nil
		for text := range strings.SplitSeq(*recordKeys, ",") {
			var key int16
			if _, err := fmt.Sscan(text, &key); err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		for version := ranges[key].min; version <= min(ranges[key].max, kmsgMax(key)); version++ {
			req := requests[key](version)
			req.SetVersion(version)
			w.send(frameOf(1, req))
			b, err := w.receive()
			if err != nil {
				t.Fatalf("key %d v%d: %v", key, version, err)
			}
			fmt.Fprintf(&out, "%d %d %s\n", key, version, hex.EncodeToString(b[4:]))
		}
	}
	if err := os.WriteFile(filepath.Join("testdata", *recordAs+".txt"), out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRewritesOfRealBrokersResponsesChangeAddressesOnly(t *testing.T) {
	files, _ := filepath.Glob("testdata/kafka-*.txt")
	if len(files) == 0 {
		t.Fatal("no golden files")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			lines := bufio.NewScanner(f)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				var key, version int16
				var text string
				if n, _ := fmt.Sscan(lines.Text(), &key, &version, &text); n != 3 {
					continue
				}
				b, err := hex.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				checkGolden(t, key, version, b)
			}
		})
	}
}

func checkGolden(t *testing.T, key, version int16, b []byte) {
	t.Helper()
	before, err := decodeResponse(key, version, b)
	if err != nil {
		t.Fatal(err)
	}
	n := unboundNodes()
	_ = n.learn(goldenNode, upstreamHost, 9092)
	var got []byte
	switch key {
	case describeConfigsKey, incrementalAlterConfigsKey, describeQuorumKey:
		rewrite := newTable(shareAPIs()).of(key).rewrite
		got, err = rewrite(n, version, b)
	case metadataKey:
		got, err = rewriteMetadata(n, version, b)
	case describeClusterKey:
		got, err = rewriteDescribeCluster(n, version, b)
	case findCoordinatorKey:
		again, _ := decodeResponse(key, version, b)
		rewriteCoordinators(n, again.(*kmsg.FindCoordinatorResponse))
		got = bodyOf(again)
	case apiVersionsKey:
		checkGoldenAPIVersions(t, version, b)
		return
	}
	if err != nil {
		t.Fatalf("key %d v%d: %v", key, version, err)
	}
	hosts := hostsOf(before)
	// FindCoordinator may have come before there was a coordinator; DescribeQuorum
	// has listeners from v2 on.
	if len(hosts) == 0 && key != findCoordinatorKey && !(key == describeQuorumKey && version < 2) {
		t.Errorf("key %d v%d: no address in the recording", key, version)
	}
	for _, host := range hosts {
		if bytes.Contains(got, []byte(host)) {
			t.Errorf("key %d v%d: %s got through", key, version, host)
		}
	}
	after, err := decodeResponse(key, version, got)
	if err != nil {
		t.Fatalf("key %d v%d: %v", key, version, err)
	}
	readdress(before)
	if want := bodyOf(before); !bytes.Equal(bodyOf(after), want) || !bytes.Equal(got, want) {
		t.Errorf("key %d v%d\ngot  %x\nwant %x", key, version, got, want)
	}
}

// bodyOf encodes a response as it stands behind the correlation id.
func bodyOf(resp kmsg.Response) []byte { return appendResponse(nil, 0, resp)[8:] }

// readdress does what the rewrites should, in the plainest way.
func readdress(resp kmsg.Response) {
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		for i := range r.Brokers {
			r.Brokers[i].Host, r.Brokers[i].Port = proxyHost, DefaultNodePorts+r.Brokers[i].NodeID
		}
	case *kmsg.DescribeClusterResponse:
		for i := range r.Brokers {
			r.Brokers[i].Host, r.Brokers[i].Port = proxyHost, DefaultNodePorts+r.Brokers[i].NodeID
		}
	case *kmsg.DescribeConfigsResponse:
		for _, res := range r.Resources {
			for _, c := range res.Configs {
				readdressText(c.Value)
				for _, s := range c.ConfigSynonyms {
					readdressText(s.Value)
				}
			}
		}
	case *kmsg.IncrementalAlterConfigsResponse:
		readdressText(r.Resources[0].ErrorMessage)
	case *kmsg.DescribeQuorumResponse:
		for _, node := range r.Nodes {
			node.Listeners[0].Host, node.Listeners[0].Port = proxyHost, uint16(DefaultNodePorts+goldenNode)
		}
	case *kmsg.FindCoordinatorResponse:
		if r.Host != "" {
			r.Host, r.Port = proxyHost, DefaultNodePorts+r.NodeID
		}
		for i := range r.Coordinators {
			if k := &r.Coordinators[i]; k.Host != "" {
				k.Host, k.Port = proxyHost, DefaultNodePorts+k.NodeID
			}
		}
	}
}

// hostInText finds what hosts of recordings look like.
var hostInText = regexp.MustCompile(`127\.0\.\d+\.\d+`)

var goldenAddress = regexp.MustCompile(`127\.0\.\d+\.\d+:\d+|//:9092`)

// readdressText has the one broker's address in place of any.
func readdressText(text *string) {
	if text == nil {
		return
	}
	*text = goldenAddress.ReplaceAllStringFunc(*text, func(addr string) string {
		slashes := strings.Repeat("/", strings.Count(addr, "/"))
		return fmt.Sprintf("%s%s:%d", slashes, proxyHost, DefaultNodePorts+goldenNode)
	})
}

// checkGoldenAPIVersions: what kshare advertises is what upstream does, but
// for the keys and limits that it has a reason for.
func checkGoldenAPIVersions(t *testing.T, version int16, b []byte) {
	t.Helper()
	decode := func() *kmsg.ApiVersionsResponse {
		resp, err := decodeResponse(apiVersionsKey, version, b)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.ApiVersionsResponse)
	}
	theirs, ours := decode(), decode()
	if !bytes.Equal(bodyOf(theirs), b) {
		t.Errorf("v%d: decoding and encoding changes a real response", version)
	}
	table := newTable(shareAPIs())
	table.advertise(ours)
	want := rangesOf(theirs)
	for _, key := range brokerKeys {
		delete(want, key)
	}
	for _, a := range shareAPIs() {
		want[a.Key] = versionRange{a.Min, a.Max}
	}
	limit := func(key, highest int16) {
		if r, ok := want[key]; ok {
			want[key] = versionRange{r.min, min(r.max, highest)}
		}
	}
	limit(fetchKey, 15)
	want[apiVersionsKey] = versionRange{0, 5}
	want[findCoordinatorKey] = versionRange{want[findCoordinatorKey].min, 6}
	got := rangesOf(ours)
	if len(got) != len(want) {
		t.Errorf("v%d: %d keys, want %d", version, len(got), len(want))
	}
	for key, r := range want {
		if got[key] != r {
			t.Errorf("v%d: key %d is %v, want %v", version, key, got[key], r)
		}
	}
}
