package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func FuzzReadFrame(f *testing.F) {
	f.Add(frameOf(1, &kmsg.MetadataRequest{Version: 9}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0x16, 3, 1, 0, 0})
	f.Add(append([]byte{0, 1, 0x86, 0xa0}, make([]byte, 100_000)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 20
		read := func(r io.Reader) (header, []byte, error) {
			in := bufio.NewReaderSize(r, readerSize)
			h, err := readHeader(in, limit)
			if err != nil {
				return h, nil, err
			}
			frame, err := readFrame(in, h.size)
			return h, frame, err
		}
		h, frame, err := read(bytes.NewReader(b))
		// However the bytes come in, the outcome is the same.
		h2, frame2, err2 := read(iotest.OneByteReader(bytes.NewReader(b)))
		if h != h2 || !bytes.Equal(frame, frame2) || (err == nil) != (err2 == nil) {
			t.Fatalf("whole: %+v %v, byte by byte: %+v %v", h, err, h2, err2)
		}
		if err != nil {
			return
		}
		if int(h.size) != len(frame) || h.size > limit || !bytes.Equal(frame, b[4:4+len(frame)]) {
			t.Fatalf("frame of %d bytes, header %+v", len(frame), h)
		}
	})
}

func FuzzRequestHeader(f *testing.F) {
	f.Add(frameOf(1, heartbeat("m")), true)
	f.Add(frameOf(1, &kmsg.ListGroupsRequest{}), false)
	f.Fuzz(func(t *testing.T, b []byte, flexible bool) {
		if len(b) < sizeLen+headerLen {
			return
		}
		h := header{size: int32(len(b) - 4), key: int16(b[4])<<8 | int16(b[5]), version: int16(b[6])<<8 | int16(b[7])}
		r, err := parseRequest(h, b[4:], flexible)
		if err != nil {
			var c *closeError
			if !errors.As(err, &c) {
				t.Fatalf("no reason: %v", err)
			}
			return
		}
		if !bytes.HasSuffix(b, r.body) {
			t.Fatal("the body is not the frame's end")
		}
		if h.key >= 0 && h.key <= kmsg.MaxKey && h.version >= 0 {
			_, _ = r.decode()
		}
	})
}

func FuzzProduceAcks(f *testing.F) {
	for _, version := range []int16{0, 3, 9, 12} {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TransactionID = version, -1, kmsg.StringPtr("txn")
		f.Add(frameOf(1, req))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHeader(bufio.NewReader(bytes.NewReader(b)), 1<<20)
		if err != nil || h.version < 0 || h.version > 13 {
			return
		}
		silent, err := producesSilently(bufio.NewReaderSize(bytes.NewReader(b), readerSize), h)
		if err != nil || int(h.size) != len(b)-4 {
			return
		}
		r, err := parseRequest(h, b[4:], h.version >= 9)
		if err != nil {
			return
		}
		req := kmsg.NewPtrProduceRequest()
		req.Version = h.version
		if err := req.ReadFrom(r.body); err == nil && silent != (req.Acks == 0) {
			t.Fatalf("silent %v with acks %d", silent, req.Acks)
		}
	})
}

// fuzzRewrite checks that a rewrite of anything never panics nor lets an
// address through, and that what it made decodes and rewrites to itself.
func fuzzRewrite(f *testing.F, key int16, rewrite func(*nodes, int16, []byte) ([]byte, error)) {
	n := unboundNodes()
	f.Fuzz(func(t *testing.T, version int16, b []byte) {
		if version < 0 || version > kmsgMax(key) {
			return
		}
		in := bytes.Clone(b)
		out, err := rewrite(n, version, b)
		if !bytes.Equal(in, b) {
			t.Fatal("the input was written to")
		}
		before, decodeErr := decodeResponse(key, version, b)
		if err != nil || decodeErr != nil {
			return
		}
		after, err := decodeResponse(key, version, out)
		if err != nil {
			t.Fatalf("does not decode any more: %v", err)
		}
		for _, host := range hostsOf(after) {
			if host != proxyHost {
				t.Fatalf("host %q got through", host)
			}
		}
		if hostsOf(before) == nil && !bytes.Equal(before.AppendTo(nil), after.AppendTo(nil)) {
			t.Fatal("changed without an address in it")
		}
		again, err := rewrite(n, version, out)
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("rewriting twice changes again: %v", err)
		}
	})
}

func hostsOf(resp kmsg.Response) (hosts []string) {
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		for _, b := range r.Brokers {
			hosts = append(hosts, b.Host)
		}
	case *kmsg.DescribeClusterResponse:
		for _, b := range r.Brokers {
			hosts = append(hosts, b.Host)
		}
	case *kmsg.ProduceResponse:
		for _, b := range r.Brokers {
			hosts = append(hosts, b.Host)
		}
	case *kmsg.DescribeQuorumResponse:
		for _, node := range r.Nodes {
			for _, l := range node.Listeners {
				hosts = append(hosts, l.Host)
			}
		}
	case *kmsg.DescribeConfigsResponse:
		for _, res := range r.Resources {
			for _, c := range res.Configs {
				if c.Value != nil {
					hosts = append(hosts, hostInText.FindAllString(*c.Value, -1)...)
				}
			}
		}
	case *kmsg.IncrementalAlterConfigsResponse:
		for _, res := range r.Resources {
			if res.ErrorMessage != nil {
				hosts = append(hosts, hostInText.FindAllString(*res.ErrorMessage, -1)...)
			}
		}
	case *kmsg.FindCoordinatorResponse:
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
		for _, k := range r.Coordinators {
			if k.Host != "" {
				hosts = append(hosts, k.Host)
			}
		}
	}
	return hosts
}

func FuzzMetadata(f *testing.F) {
	for version := int16(0); version <= 13; version++ {
		f.Add(version, encoded(metadataResponse(version)))
	}
	fuzzRewrite(f, metadataKey, rewriteMetadata)
}

func FuzzDescribeCluster(f *testing.F) {
	resp := kmsg.NewPtrDescribeClusterResponse()
	resp.Brokers = []kmsg.DescribeClusterResponseBroker{{NodeID: 1, Host: "h", Port: 1}}
	for version := range int16(3) {
		resp.Version = version
		f.Add(version, encoded(resp))
	}
	fuzzRewrite(f, describeClusterKey, rewriteDescribeCluster)
}

func FuzzProduceResponse(f *testing.F) {
	resp := kmsg.NewPtrProduceResponse()
	resp.Brokers = []kmsg.ProduceResponseBroker{{NodeID: 1, Host: "h", Port: 1}}
	for version := int16(9); version <= 13; version++ {
		resp.Version = version
		f.Add(version, encoded(resp))
	}
	fuzzRewrite(f, produceKey, func(n *nodes, version int16, b []byte) ([]byte, error) {
		if version < 10 {
			return nil, errors.New("not rewritten")
		}
		return rewriteProduce(n, version, b)
	})
}

func FuzzFindCoordinator(f *testing.F) {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	resp.NodeID, resp.Host, resp.Port = 1, "h", 1
	resp.Coordinators = []kmsg.FindCoordinatorResponseCoordinator{{Key: "g", NodeID: 1, Host: "h", Port: 1}}
	for version := range int16(7) {
		resp.Version = version
		f.Add(version, encoded(resp))
	}
	fuzzRewrite(f, findCoordinatorKey, func(n *nodes, version int16, b []byte) ([]byte, error) {
		resp, err := decodeResponse(findCoordinatorKey, version, b)
		if err != nil {
			return nil, err
		}
		rewriteCoordinators(n, resp.(*kmsg.FindCoordinatorResponse))
		return encoded(resp), nil
	})
}

// FuzzBrokerConfigs checks that whatever stands in a config with addresses, all
// that looks like one in what clients are told is kshare's.
func FuzzBrokerConfigs(f *testing.F) {
	for _, value := range []string{"PLAINTEXT://127.0.0.1:9093,CONTROLLER://:9193", "1@127.0.0.1:9193,3000@[::1]:9195", "zk:2181,[::1]:2181/kafka", "9092"} {
		for name := range addressConfigs {
			f.Add(name, value)
		}
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		n := knownNodes()
		rewrite := addressConfigs[name]
		if rewrite == nil || value == "" {
			return
		}
		got, ok := rewrite(n, 1, value)
		if !ok {
			return
		}
		for _, m := range addressPattern.FindAllStringSubmatch(got, -1) {
			if m[2] != proxyHost {
				t.Fatalf("%s=%q became %q", name, value, got)
			}
		}
		if again, ok := rewrite(n, 1, got); !ok || strings.Count(again, ",") != strings.Count(got, ",") {
			t.Fatalf("%q cannot be read any more: %q", got, again)
		}
		_, _ = n.hideAll(1, value), n.hideKnown(value)
	})
}

func FuzzAPIVersions(f *testing.F) {
	table := newTable(shareAPIs())
	f.Add(int16(4), apiVersionsUnsupported(5).AppendTo(nil))
	f.Fuzz(func(t *testing.T, version int16, b []byte) {
		if version < 0 || version > 5 {
			return
		}
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.Version = version
		if resp.ReadFrom(b) != nil {
			return
		}
		table.advertise(resp)
		ranges := rangesOf(resp)
		if len(ranges) != len(resp.ApiKeys) {
			t.Fatal("a key is listed twice")
		}
		for _, a := range shareAPIs() {
			if ranges[a.Key] != (versionRange{a.Min, a.Max}) {
				t.Fatalf("key %d: %v", a.Key, ranges[a.Key])
			}
		}
		for _, key := range brokerKeys {
			if _, ok := ranges[key]; ok {
				t.Fatalf("broker key %d", key)
			}
		}
		once := resp.AppendTo(nil)
		table.advertise(resp)
		if !bytes.Equal(once, resp.AppendTo(nil)) {
			t.Fatal("advertising twice changes again")
		}
	})
}
