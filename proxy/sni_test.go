package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/certs"
	"kshare/proxy/certs/certstest"
	"kshare/proxy/upstream"
)

func TestNamesStandForNodes(t *testing.T) {
	l := ListenTLS{SNISuffix: "Kafka.Example.org."}.withDefaults(DefaultListen)
	const nobody = -2
	for name, want := range map[string]int32{
		"broker-0.kafka.example.org":                    0,
		"broker-7.kafka.example.org":                    7,
		"broker-7.kafka.example.org.":                   7,
		"BROKER-7.KAFKA.example.ORG":                    7,
		"broker-2147483647.kafka.example.org":           2147483647,
		"broker-2147483648.kafka.example.org":           nobody,
		"broker-99999999999999999999.kafka.example.org": nobody,
		"broker-07.kafka.example.org":                   nobody,
		"":                                              bootstrapNode,
		".":                                             bootstrapNode,
		"kafka.example.org":                             bootstrapNode,
		".kafka.example.org":                            bootstrapNode,
		"bootstrap.kafka.example.org":                   bootstrapNode,
		"broker-.kafka.example.org":                     bootstrapNode,
		"broker--1.kafka.example.org":                   bootstrapNode,
		"broker-+1.kafka.example.org":                   bootstrapNode,
		"broker-1a.kafka.example.org":                   bootstrapNode,
		"broker-1.x.kafka.example.org":                  bootstrapNode,
		"x.broker-1.kafka.example.org":                  bootstrapNode,
		"xbroker-1.kafka.example.org":                   bootstrapNode,
		"broker-1.example.org":                          bootstrapNode,
		"broker-1kafka.example.org":                     bootstrapNode,
		"broker-1.kafka.example.org.evil.test":          bootstrapNode,
	} {
		node, ok := l.nodeOf(name)
		if !ok {
			node = nobody
		}
		if node != want {
			t.Errorf("%q stands for %d, want %d", name, node, want)
		}
	}
	for _, node := range []int32{0, 1, 1001, highestNode} {
		if back, ok := l.nodeOf(l.nodeName(node)); !ok || back != node {
			t.Errorf("%s stands for %d", l.nodeName(node), back)
		}
	}
	if node, ok := (ListenTLS{}).nodeOf("broker-1."); node != bootstrapNode || !ok {
		t.Errorf("without a suffix a name stands for %d", node)
	}
}

func TestEndpointsAreNamesOnOnePort(t *testing.T) {
	for _, tt := range []struct {
		tls  ListenTLS
		node int32
		want string
	}{
		{ListenTLS{SNISuffix: "kafka.example.org"}, 3, "broker-3.kafka.example.org:19092 true"},
		{ListenTLS{SNISuffix: "Kafka.example.org.", SNIPort: 443}, 60000, "broker-60000.kafka.example.org:443 true"},
		{ListenTLS{SNISuffix: "kafka.example.org"}, highestNode, "broker-2147483647.kafka.example.org:19092 true"},
		{ListenTLS{SNISuffix: "kafka.example.org"}, -1, "broker--1.kafka.example.org:19092 false"},
		{ListenTLS{}, 3, "127.0.0.1:19103 true"},
	} {
		host, port, ok := Config{TLS: tt.tls}.Endpoint(tt.node)
		if got := fmt.Sprintf("%s:%d %v", host, port, ok); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.tls, got, tt.want)
		}
	}
}

// TestClientsReachEveryNodeByItsName is a producer and consumer for whom all
// names lead to the one port.
func TestClientsReachEveryNodeByItsName(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withSNI(t, tlsFiles(a, t.TempDir()))})
	if n := len(f.nodes.listeners); n != 1 {
		t.Errorf("%d listeners", n)
	}
	_, port, _ := net.SplitHostPort(f.Addr().String())
	var mu sync.Mutex
	named := map[string]bool{}
	seen := func(host string) { mu.Lock(); defer mu.Unlock(); named[host] = true }
	cl := newClient(t, []string{"bootstrap." + testSuffix + ":" + port}, kgo.Dialer(tlsDialer(trusting(a), seen)), kgo.DefaultProduceTopic("orders"),
		kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("by-name"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i := range 20 {
		if err := cl.ProduceSync(ctx, &kgo.Record{Key: fmt.Append(nil, i), Value: make([]byte, 1+i*10_000)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(drainRecords(ctx, t, cl, 20)); n != 20 {
		t.Errorf("%d records", n)
	}
	for node := range int32(3) {
		if _, err := cl.Broker(int(node)).RetriableRequest(ctx, kmsg.NewPtrMetadataRequest()); err != nil {
			t.Error(err)
		}
		if name := f.cfg.TLS.nodeName(node); !named[name] {
			t.Errorf("%s was not connected to: %v", name, named)
		}
	}
}

func TestServerNameLeadsToItsNode(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withSNI(t, tlsFiles(a, t.TempDir()))})
	any := trusting(a)
	any.InsecureSkipVerify = true // for names that the certificate is not good for
	isNode := func(name string, node int32) bool {
		req := apiVersionsRequest(5) // by which upstream says whether it is this node (KIP-1242)
		req.ClusterID, req.NodeID = &f.cluster.id, node
		w := dialTLS(t, f.Addr().String(), named(any, name))
		defer w.conn.Close()
		return w.ask(1, req).(*kmsg.ApiVersionsResponse).ErrorCode == 0
	}
	for node := range int32(3) {
		for _, name := range []string{f.cfg.TLS.nodeName(node), strings.ToUpper(f.cfg.TLS.nodeName(node))} {
			if !isNode(name, node) || isNode(name, (node+1)%3) {
				t.Errorf("%s leads elsewhere than to node %d", name, node)
			}
		}
		// Twice, for a resumed session names its node too.
		config := named(any, f.cfg.TLS.nodeName(node))
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		eventually(t, "a session is resumed", func() bool {
			w := dialTLS(t, f.Addr().String(), config)
			defer w.conn.Close()
			req := apiVersionsRequest(5)
			req.ClusterID, req.NodeID = &f.cluster.id, node
			if resp := w.ask(1, req).(*kmsg.ApiVersionsResponse); resp.ErrorCode != 0 {
				t.Fatalf("leads elsewhere than to node %d", node)
			}
			return w.conn.(*tls.Conn).ConnectionState().DidResume
		})
	}
	for _, name := range []string{proxyHost, testSuffix, "bootstrap." + testSuffix, "elsewhere.test"} { // the first is not sent
		reached := map[int32]bool{}
		for range 3 {
			for node := range int32(3) {
				reached[node] = reached[node] || isNode(name, node)
			}
		}
		if len(reached) != 3 || !reached[0] || !reached[1] || !reached[2] {
			t.Errorf("%s is no bootstrap server, it leads to %v", name, reached)
		}
	}
}

func TestNameOfNoNodeEndsTheConnection(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withSNI(t, tlsFiles(a, t.TempDir()))})
	for i, name := range []string{"broker-99." + testSuffix, "Broker-4294967296." + testSuffix} {
		w := dialTLS(t, f.Addr().String(), named(trusting(a), name)) // the handshake is as with others
		w.expectClosed()
		if line := f.expectEnd(CloseUnknownNode, i+1); !strings.Contains(line, name) {
			t.Error(line)
		}
	}
	// Once upstream has the node, its name is good.
	f.cluster.set(append(f.cluster.Nodes(), upstream.Node{ID: 99, Host: f.cluster.Nodes()[0].Host, Port: f.cluster.Nodes()[0].Port}))
	metadataOver(dialTLS(t, f.Addr().String(), named(trusting(a), "broker-99."+testSuffix)), 1)
}

// TestServerNameWithATrailingDotIsRefused: RFC 6066 has none, and neither
// crypto/tls nor Java's client can be made to send one; it does not get as far
// as being compared.
func TestServerNameWithATrailingDotIsRefused(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: withSNI(t, tlsFiles(a, t.TempDir()))})
	f.dial().send(bytes.Replace(hello(t), []byte("broker-1."+testSuffix), []byte("broker-1."+testSuffix[:len(testSuffix)-1]+"."), 1))
	f.expectEnd(CloseHandshake, 1)
}

// namedNodes are knownNodes that are told apart by name.
func namedNodes() *nodes {
	cfg := Config{Upstream: []string{"127.0.0.1:1"}, Listen: "127.0.0.41:19092", TLS: ListenTLS{Files: certs.Files{Cert: "c", Key: "k"}, SNISuffix: testSuffix, SNIPort: 443}}
	n := newNodes(cfg.WithDefaults(), zerolog.Nop(), newMetrics(prometheus.NewRegistry()), nil)
	for id := int32(1); id <= 3; id++ {
		_ = n.learn(id, upstreamHost, 9092+id)
	}
	return n
}

func TestEveryResponseGivesNames(t *testing.T) {
	const one, three = "broker-1." + testSuffix, "broker-3." + testSuffix
	brokers := kmsg.NewPtrMetadataResponse()
	brokers.Version = 12
	brokers.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 3, Host: upstreamHost, Port: 9095}}
	cluster := kmsg.NewPtrDescribeClusterResponse()
	cluster.Version, cluster.EndpointType = 1, brokerEndpoints
	cluster.Brokers = []kmsg.DescribeClusterResponseBroker{{NodeID: 3, Host: upstreamHost, Port: 9095}}
	produce := kmsg.NewPtrProduceResponse()
	produce.Version = 10
	produce.Brokers = []kmsg.ProduceResponseBroker{{NodeID: 3, Host: upstreamHost, Port: 9095}}
	quorum := kmsg.NewPtrDescribeQuorumResponse()
	quorum.Version = 2
	quorum.Nodes = []kmsg.DescribeQuorumResponseNode{{NodeID: 3, Listeners: []kmsg.DescribeQuorumResponseNodeListener{{Name: "A", Host: upstreamHost, Port: 9095}}},
		{NodeID: 3000, Listeners: []kmsg.DescribeQuorumResponseNodeListener{{Name: "CONTROLLER", Host: "controller", Port: 9095}}}}
	for _, tt := range []struct {
		resp    kmsg.Response
		rewrite rewriter
		want    []string
	}{
		{brokers, rewriteMetadata, []string{three}},
		{cluster, rewriteDescribeCluster, []string{three}},
		{produce, rewriteProduce, []string{three}},
		{quorum, rewriteDescribeQuorum, []string{three, proxyHost}},
	} {
		out, err := tt.rewrite(namedNodes(), tt.resp.GetVersion(), encoded(tt.resp))
		if err != nil {
			t.Fatal(err)
		}
		name := apiName(tt.resp.Key())
		mustNotLeak(t, name, out)
		for _, want := range tt.want {
			if !bytes.Contains(out, []byte(want)) {
				t.Errorf("%s does not name %s: %q", name, want, out)
			}
		}
		decoded, err := decodeResponse(tt.resp.Key(), tt.resp.GetVersion(), out)
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range portsOf(decoded) {
			if port != 443 {
				t.Errorf("%s gives port %d", name, port)
			}
		}
	}
	for name, value := range map[string][2]string{
		"listeners": {"PLAINTEXT://127.0.0.1:9093", "PLAINTEXT://" + one + ":443"}, "host.name": {"a", one}, "port": {"9093", "443"},
		"controller.quorum.voters": {"1@127.0.0.1:9193,3000@controller:9195", "1@" + one + ":443,3000@" + proxyHost + ":443"},
	} {
		if got := namedNodes().rewriteConfig(1, name, &value[0]); got == nil || *got != value[1] {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func portsOf(resp kmsg.Response) (ports []int32) {
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		for _, b := range r.Brokers {
			ports = append(ports, b.Port)
		}
	case *kmsg.DescribeClusterResponse:
		for _, b := range r.Brokers {
			ports = append(ports, b.Port)
		}
	case *kmsg.ProduceResponse:
		for _, b := range r.Brokers {
			ports = append(ports, b.Port)
		}
	case *kmsg.DescribeQuorumResponse:
		for _, n := range r.Nodes {
			for _, l := range n.Listeners {
				ports = append(ports, int32(l.Port))
			}
		}
	}
	return ports
}

// TestCoordinatorsAreGivenByName: those are answered on the wire.
func TestCoordinatorsAreGivenByName(t *testing.T) {
	up, a := startUpstream(t), certstest.New(t, "ours")
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) {
		withSNI(t, tlsFiles(a, t.TempDir()))(c)
		c.TLS.SNIPort = 443
	}})
	w := dialTLS(t, f.Addr().String(), trusting(a))
	group, share := kmsg.NewPtrFindCoordinatorRequest(), kmsg.NewPtrFindCoordinatorRequest()
	group.Version, group.CoordinatorKeys = 4, []string{"g"}
	share.Version, share.CoordinatorType, share.CoordinatorKeys = 6, shareKeyType, []string{"g:AAAAAAAAAAAAAAAAAAAAAQ:0"}
	for corr, req := range []*kmsg.FindCoordinatorRequest{group, share} {
		k := w.ask(int32(corr), req).(*kmsg.FindCoordinatorResponse).Coordinators[0]
		if k.ErrorCode != 0 || k.Port != 443 || k.Host != f.cfg.TLS.nodeName(k.NodeID) {
			t.Errorf("coordinator %+v", k)
		}
	}
}
