package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

// knownNodes are unboundNodes that know nodes 1 to 3, on ports 9093 to 9095,
// and have the bootstrap port 19092.
func knownNodes() *nodes {
	n := unboundNodes()
	for id := int32(1); id <= 3; id++ {
		_ = n.learn(id, upstreamHost, 9092+id)
	}
	return n
}

func TestBrokerConfigsNameAddressesOfKshare(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"listeners", "PLAINTEXT://127.0.0.1:9093", "PLAINTEXT://127.0.0.41:19101"},
		{"listeners", "PLAINTEXT://127.0.0.1:9093,CONTROLLER://127.0.0.1:9193", "PLAINTEXT://127.0.0.41:19101,CONTROLLER://127.0.0.41:19101"},
		{"listeners", "PLAINTEXT://:9093", "PLAINTEXT://127.0.0.41:19101"},
		{"listeners", "PLAINTEXT://0.0.0.0:9093, SASL_SSL://[::]:9094", "PLAINTEXT://127.0.0.41:19101,SASL_SSL://127.0.0.41:19101"},
		{"listeners", "", ""},
		{"listeners", "127.0.0.1:9093", "<null>"},
		{"listeners", "PLAINTEXT://127.0.0.1:9093,", "<null>"},
		{"listeners", "127.0.0.1:9093 PLAINTEXT://:1", "<null>"},
		{"advertised.listeners", "EXTERNAL-1://broker1.example.org:9093", "EXTERNAL-1://127.0.0.41:19101"},
		{"controller.quorum.voters", "1@127.0.0.1:9193,2@127.0.0.1:9194,3000@controller:9195", "1@127.0.0.41:19101,2@127.0.0.41:19102,3000@127.0.0.41:19092"},
		{"controller.quorum.voters", "", ""},
		{"controller.quorum.voters", "127.0.0.1:9193", "<null>"},
		{"controller.quorum.voters", "a@127.0.0.1:9193", "<null>"},
		{"controller.quorum.bootstrap.servers", "127.0.0.1:9094,controller:9195", "127.0.0.41:19102,127.0.0.41:19092"},
		{"zookeeper.connect", "127.0.0.1:2181,zk2,[::1]:2181/kafka/a", "127.0.0.41:19092,127.0.0.41:19092,127.0.0.41:19092/kafka/a"},
		{"host.name", "127.0.0.1", "127.0.0.41"},
		{"host.name", "", ""},
		{"advertised.host.name", "broker1", "127.0.0.41"},
		{"port", "9093", "19101"},
		{"advertised.port", "9093", "19101"},
		// Others: only what upstream is known by.
		{"confluent.metadata.bootstrap.servers", "SASL://127.0.0.1:9093,127.0.0.1:9094,127.0.0.1:90", "SASL://127.0.0.41:19101,127.0.0.41:19102,127.0.0.1:90"},
		{"some.seed", "127.0.0.1:1", "127.0.0.41:19092"},
		{"listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL", "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL"},
		{"sasl.oauthbearer.jwks.endpoint.url", "https://127.0.0.1:8443/keys", "https://127.0.0.1:8443/keys"},
		{"log.retention.ms", "9093", "9093"},
	} {
		got := knownNodes().rewriteConfig(1, tt.name, &tt.value)
		if got == nil {
			got = kmsg.StringPtr("<null>")
		}
		if *got != tt.want {
			t.Errorf("%s=%s\ngot  %s\nwant %s", tt.name, tt.value, *got, tt.want)
		}
	}
	if got := knownNodes().rewriteConfig(1, "listeners", nil); got != nil {
		t.Errorf("null became %q", *got)
	}
	// A broker that kshare has no port for.
	for name, want := range map[string]string{"listeners": "PLAINTEXT://127.0.0.41:19092", "port": "19092"} {
		value := map[string]string{"listeners": "PLAINTEXT://127.0.0.1:9100", "port": "9100"}[name]
		if got := knownNodes().rewriteConfig(8, name, &value); *got != want {
			t.Errorf("%s of an unknown broker: %s", name, *got)
		}
	}
}

func TestBrokerConfigThatCannotBeReadIsLogged(t *testing.T) {
	var log bytes.Buffer
	n := knownNodes()
	n.log = zerolog.New(&log)
	value := "what://is/this"
	n.rewriteConfig(2, "controller.quorum.voters", &value)
	for _, part := range []string{`"level":"warn"`, `"node":2`, "controller.quorum.voters", value} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("%q is missing: %s", part, log.String())
		}
	}
}

func TestAddressesOfAnIPv6HostKeepTheirBrackets(t *testing.T) {
	cfg := Config{Upstream: []string{"[::1]:1"}, Listen: "[::]:19092", Advertise: "2001:db8::1"}.WithDefaults()
	n := newNodes(cfg, zerolog.Nop(), newMetrics(prometheus.NewRegistry()), nil)
	n.closed = true
	_ = n.learn(1, "::1", 9093)
	for _, tt := range []struct{ name, value, want string }{
		{"listeners", "PLAINTEXT://[::1]:9093", "PLAINTEXT://[2001:db8::1]:19101"},
		{"controller.quorum.voters", "9@[::1]:9193", "9@[2001:db8::1]:19092"},
		{"host.name", "::1", "2001:db8::1"},
		{"x", "a [::1]:9093 [::1]:1 b", "a [2001:db8::1]:19101 [2001:db8::1]:19092 b"},
	} {
		if got := n.rewriteConfig(1, tt.name, &tt.value); *got != tt.want {
			t.Errorf("%s=%s: %s", tt.name, tt.value, *got)
		}
	}
}

func TestMessagesAboutABrokerNameAddressesOfKshare(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		// As Kafka 3.9.2 and 4.4.0 refuse a listener.security.protocol.map.
		{"Error creating broker listeners from 'PLAINTEXT://127.0.0.1:9094,CONTROLLER://127.0.0.1:9193': No security protocol defined for listener PLAINTEXT",
			"Error creating broker listeners from 'PLAINTEXT://127.0.0.41:19102,CONTROLLER://127.0.0.41:19102': No security protocol defined for listener PLAINTEXT"},
		{"from '[PLAINTEXT://:9094, CONTROLLER://[::1]:9193]': no", "from '[PLAINTEXT://127.0.0.41:19102, CONTROLLER://127.0.0.41:19102]': no"},
		{"voters 1@127.0.0.1:9193,3000@controller:9195", "voters 1@127.0.0.41:19101,3000@127.0.0.41:19092"},
		{"broker 127.0.0.1:9095 is away", "broker 127.0.0.41:19103 is away"},
		{"Invalid value -7 for configuration max.connections: Value must be at least 0", "Invalid value -7 for configuration max.connections: Value must be at least 0"},
		{"at 12:30, port: 1234, x:0", "at 12:30, port: 1234, x:0"},
	} {
		if got := knownNodes().hideAll(2, tt.text); got != tt.want {
			t.Errorf("%s\ngot  %s\nwant %s", tt.text, got, tt.want)
		}
	}
}

// describeConfigsResponse has a broker and a topic with the same configs.
func describeConfigsResponse(version int16, listeners, message *string) *kmsg.DescribeConfigsResponse {
	resp := kmsg.NewPtrDescribeConfigsResponse()
	resp.Version, resp.ThrottleMillis = version, 7
	for _, kind := range []kmsg.ConfigResourceType{kmsg.ConfigResourceTypeBroker, kmsg.ConfigResourceTypeTopic} {
		res := kmsg.NewDescribeConfigsResponseResource()
		res.ResourceType, res.ResourceName, res.ErrorMessage = kind, "2", message
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.Value, c.Source, c.ConfigType, c.Documentation = "listeners", listeners, 4, 7, kmsg.StringPtr("text")
		s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
		s.Name, s.Value, s.Source = "listeners", listeners, 4
		withTags(s.UnknownTags.Set)
		c.ConfigSynonyms = append(c.ConfigSynonyms, s)
		withTags(c.UnknownTags.Set)
		secret := kmsg.NewDescribeConfigsResponseResourceConfig()
		secret.Name, secret.IsSensitive = "ssl.key.password", true
		res.Configs = append(res.Configs, c, secret)
		withTags(res.UnknownTags.Set)
		resp.Resources = append(resp.Resources, res)
	}
	withTags(resp.UnknownTags.Set)
	return resp
}

func TestDescribeConfigsRewriteChangesBrokersAddressesOnly(t *testing.T) {
	for version := int16(0); version <= 4; version++ {
		before := describeConfigsResponse(version, kmsg.StringPtr("A://h:1"), kmsg.StringPtr("at A://h:1"))
		want := describeConfigsResponse(version, kmsg.StringPtr("A://127.0.0.41:19102"), kmsg.StringPtr("at A://127.0.0.41:19102"))
		want.Resources[1] = before.Resources[1] // the topic
		got, err := rewriteDescribeConfigs(knownNodes(), version, encoded(before))
		if err != nil || !bytes.Equal(got, encoded(want)) {
			t.Errorf("v%d: %v\ngot  %x\nwant %x", version, err, got, encoded(want))
		}
	}
}

func TestAlterConfigsRewriteChangesBrokersMessagesOnly(t *testing.T) {
	message, rewritten := "from 'A://h:1'", "from 'A://127.0.0.41:19103'"
	for version := int16(0); version <= 2; version++ {
		build := func(broker string) []byte {
			resp := kmsg.NewPtrAlterConfigsResponse()
			resp.Version = version
			for _, text := range []*string{&broker, nil} {
				resp.Resources = append(resp.Resources, kmsg.AlterConfigsResponseResource{ResourceType: 4, ResourceName: "3", ErrorMessage: text})
			}
			resp.Resources = append(resp.Resources, kmsg.AlterConfigsResponseResource{ResourceType: 2, ResourceName: "3", ErrorMessage: &message})
			withTags(resp.UnknownTags.Set)
			return encoded(resp)
		}
		if got, err := rewriteAlterConfigs(knownNodes(), version, build(message)); err != nil || !bytes.Equal(got, build(rewritten)) {
			t.Errorf("v%d: %v %q", version, err, got)
		}
	}
	for version := int16(0); version <= 1; version++ {
		build := func(broker string) []byte {
			resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
			resp.Version = version
			for _, text := range []*string{&broker, nil} {
				resp.Resources = append(resp.Resources, kmsg.IncrementalAlterConfigsResponseResource{ResourceType: 4, ResourceName: "3", ErrorMessage: text})
			}
			resp.Resources = append(resp.Resources, kmsg.IncrementalAlterConfigsResponseResource{ResourceType: 2, ResourceName: "3", ErrorMessage: &message})
			withTags(resp.UnknownTags.Set)
			return encoded(resp)
		}
		if got, err := rewriteIncrementalAlterConfigs(knownNodes(), version, build(message)); err != nil || !bytes.Equal(got, build(rewritten)) {
			t.Errorf("v%d: %v %q", version, err, got)
		}
	}
}

func TestDescribeQuorumRewriteChangesListenersOnly(t *testing.T) {
	build := func(at func(node int32) (string, uint16)) []byte {
		resp := kmsg.NewPtrDescribeQuorumResponse()
		resp.Version = 2
		for _, id := range []int32{1, 3000} {
			l := kmsg.NewDescribeQuorumResponseNodeListener()
			l.Name = "CONTROLLER"
			l.Host, l.Port = at(id)
			withTags(l.UnknownTags.Set)
			node := kmsg.NewDescribeQuorumResponseNode()
			node.NodeID, node.Listeners = id, append(node.Listeners, l)
			withTags(node.UnknownTags.Set)
			resp.Nodes = append(resp.Nodes, node)
		}
		withTags(resp.UnknownTags.Set)
		return encoded(resp)
	}
	before := build(func(int32) (string, uint16) { return upstreamHost, 9193 })
	want := build(func(node int32) (string, uint16) {
		return proxyHost, map[int32]uint16{1: DefaultNodePorts + 1, 3000: 19092}[node]
	})
	got, err := rewriteDescribeQuorum(knownNodes(), 2, before)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\ngot  %x\nwant %x", err, got, want)
	}
}

// DescribeConfigs goes three ways: streamed, relayed and rewritten, and merged
// with what kshare answers.
func TestBrokerConfigsThroughTheProxyNameNoUpstreamAddress(t *testing.T) {
	up := startUpstream(t)
	_, port, _ := net.SplitHostPort(up.ListenAddrs()[1])
	up.ControlKey(describeConfigsKey, func(req kmsg.Request) (kmsg.Response, error, bool) {
		up.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, r := range req.(*kmsg.DescribeConfigsRequest).Resources {
			res := kmsg.NewDescribeConfigsResponseResource()
			res.ResourceType, res.ResourceName = r.ResourceType, r.ResourceName
			c := kmsg.NewDescribeConfigsResponseResourceConfig()
			c.Name, c.Value = "advertised.listeners", kmsg.StringPtr("PLAINTEXT://"+upstreamHost+":"+port)
			res.Configs = append(res.Configs, c)
			resp.Resources = append(resp.Resources, res)
		}
		return resp, nil, true
	})
	api := serve.API{Key: describeConfigsKey, Min: 1, Max: 4, Relayed: true,
		Split: func(_ *serve.Server, body kmsg.Request) (own, theirs kmsg.Request) {
			req := body.(*kmsg.DescribeConfigsRequest)
			if req.Resources[0].ResourceType != kmsg.ConfigResourceTypeGroupConfig {
				return nil, nil
			}
			mine, rest := *req, *req
			mine.Resources, rest.Resources = req.Resources[:1], req.Resources[1:]
			return &mine, &rest
		},
		Serve: func(_ context.Context, r *serve.Request) (kmsg.Response, error) {
			resp := r.Body.(*kmsg.DescribeConfigsRequest).ResponseKind().(*kmsg.DescribeConfigsResponse)
			resp.Resources = append(resp.Resources, kmsg.DescribeConfigsResponseResource{ResourceType: 32, ResourceName: "g"})
			return resp, nil
		},
		Merge: func(own, theirs kmsg.Response) kmsg.Response {
			merged := own.(*kmsg.DescribeConfigsResponse)
			merged.Resources = append(merged.Resources, theirs.(*kmsg.DescribeConfigsResponse).Resources...)
			return merged
		},
	}
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}})
	w := dialWire(t, f.nodeAddr(1))
	want := "PLAINTEXT://" + f.nodeAddr(1)
	for i, tt := range []struct {
		kinds  []kmsg.ConfigResourceType
		hidden bool
	}{
		{[]kmsg.ConfigResourceType{kmsg.ConfigResourceTypeBroker}, true},
		{[]kmsg.ConfigResourceType{kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker}, true},
		{[]kmsg.ConfigResourceType{kmsg.ConfigResourceTypeGroupConfig, kmsg.ConfigResourceTypeBroker}, true},
		{[]kmsg.ConfigResourceType{kmsg.ConfigResourceTypeTopic}, false}, // what a topic's configs hold is the client's
	} {
		for version := int16(1); version <= 4; version++ {
			req := &kmsg.DescribeConfigsRequest{Version: version}
			for _, kind := range tt.kinds {
				req.Resources = append(req.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kind, ResourceName: "1"})
			}
			got := w.ask(int32(i), req).(*kmsg.DescribeConfigsResponse)
			if len(got.Resources) != len(tt.kinds) {
				t.Fatalf("%v v%d: %d resources", tt.kinds, version, len(got.Resources))
			}
			last := got.Resources[len(got.Resources)-1]
			if value := *last.Configs[0].Value; (value == want) != tt.hidden {
				t.Errorf("%v v%d: %s, want %s", tt.kinds, version, value, want)
			}
		}
	}
}

// Everything in a response that kmsg calls a host is filled with upstream's, and
// what a client may be told of it must not show it.
func TestNoResponseTellsUpstreamsAddress(t *testing.T) {
	table, n := newTable(shareAPIs()), knownNodes()
	others := map[int16]string{
		29: "hosts of ACLs", 31: "hosts of ACLs",
		88: "addresses of clients' applications", 89: "addresses of clients' applications",
	}
	// kmsg writes NodeEndpoints into every version that has tags, a broker into these and later ones.
	first := map[int16]int16{produceKey: 10, fetchKey: 16}
	for key := int16(0); key <= kmsg.MaxKey; key++ {
		resp := kmsg.ResponseForKey(key)
		r := table.of(key)
		if resp == nil || others[key] != "" || r.kind == refused || r.kind == served && !r.api.Relayed {
			continue
		}
		fillHosts(reflect.ValueOf(resp).Elem())
		for version := first[key]; version <= resp.MaxVersion() && (r.max < 0 || version <= r.max); version++ {
			resp.SetVersion(version)
			b := encoded(resp)
			if !bytes.Contains(b, []byte(upstreamHost)) {
				continue
			}
			if key == findCoordinatorKey {
				again, _ := decodeResponse(key, version, b)
				rewriteCoordinators(n, again.(*kmsg.FindCoordinatorResponse))
				mustNotLeak(t, fmt.Sprintf("key %d v%d", key, version), encoded(again))
				continue
			}
			if r.rewrite == nil || version < r.from {
				t.Errorf("key %d v%d is relayed as it is", key, version)
				continue
			}
			out, err := r.rewrite(n, version, b)
			if err != nil {
				t.Errorf("key %d v%d: %v", key, version, err)
			}
			mustNotLeak(t, fmt.Sprintf("key %d v%d", key, version), out)
		}
	}
	// Addresses in fields of other names were looked for by hand in this kmsg.
	if kmsg.MaxKey != 94 {
		t.Errorf("kmsg knows keys up to %d: check the new ones for addresses", kmsg.MaxKey)
	}
}

// fillHosts gives every array one element, every host upstream's.
func fillHosts(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			switch f := v.Field(i); {
			case !f.CanSet():
			case v.Type().Field(i).Name == "Host":
				f.SetString(upstreamHost)
			case v.Type().Field(i).Name == "EndpointType":
				f.SetInt(brokerEndpoints)
			default:
				fillHosts(f)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillHosts(v.Index(0))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillHosts(v.Elem())
	}
}
