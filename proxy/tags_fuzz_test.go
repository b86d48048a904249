package proxy

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

// maker fills messages with what a fuzzer's bytes say: sizes of arrays, numbers, and tagged fields that nobody knows at every
// level.
type maker struct {
	src []byte
}

func (m *maker) next() byte {
	if len(m.src) == 0 {
		return 0
	}
	b := m.src[0]
	m.src = m.src[1:]
	return b
}

func (m *maker) word() string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	b := make([]byte, m.next()%5)
	for i := range b {
		b[i] = letters[m.next()%26]
	}
	return string(b)
}

var tagsType = reflect.TypeFor[kmsg.Tags]()

func (m *maker) fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == tagsType {
			tags := v.Addr().Interface().(*kmsg.Tags)
			for range m.next() % 4 {
				tags.Set(100+uint32(m.next())<<(m.next()%3*7), bytes.Repeat([]byte{m.next()}, int(m.next()%4)))
			}
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Name != "Version" {
				m.fill(v.Field(i))
			}
		}
	case reflect.Slice:
		n := int(m.next() % 4)
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(bytes.Repeat([]byte{m.next()}, n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			m.fill(v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			m.fill(v.Index(i))
		}
	case reflect.Pointer:
		if m.next()%3 > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			m.fill(v.Elem())
		}
	case reflect.String:
		v.SetString(m.word())
	case reflect.Bool:
		v.SetBool(m.next()%2 == 1)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(m.next()))
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(uint64(m.next()))
	}
}

// bodyRewrites are the responses of which kshare changes something on their way, by key.
var bodyRewrites = map[int16]rewriter{
	produceKey:                 rewriteProduce,
	metadataKey:                rewriteMetadata,
	describeQuorumKey:          rewriteDescribeQuorum,
	describeClusterKey:         rewriteDescribeCluster,
	describeConfigsKey:         rewriteDescribeConfigs,
	alterConfigsKey:            rewriteAlterConfigs,
	incrementalAlterConfigsKey: rewriteIncrementalAlterConfigs,
	findCoordinatorKey: func(n *nodes, version int16, b []byte) ([]byte, error) {
		resp, err := decodeResponse(findCoordinatorKey, version, b)
		if err != nil {
			return nil, err
		}
		rewriteCoordinators(n, resp.(*kmsg.FindCoordinatorResponse))
		return appendRewritten(b, resp), nil
	},
}

// addressed gives every node in a response the address that clients are given for it: then there is nothing to change.
func addressed(n *nodes, resp kmsg.Response) {
	set := func(node int32, host *string, port *int32) { *host, *port, _ = n.cfg.Endpoint(node) }
	switch r := resp.(type) {
	case *kmsg.ProduceResponse:
		for i := range r.Brokers {
			set(r.Brokers[i].NodeID, &r.Brokers[i].Host, &r.Brokers[i].Port)
		}
	case *kmsg.MetadataResponse:
		for i := range r.Brokers {
			set(r.Brokers[i].NodeID, &r.Brokers[i].Host, &r.Brokers[i].Port)
		}
	case *kmsg.DescribeClusterResponse:
		if r.EndpointType != brokerEndpoints && r.Version > 0 {
			r.Brokers = nil
		}
		for i := range r.Brokers {
			set(r.Brokers[i].NodeID, &r.Brokers[i].Host, &r.Brokers[i].Port)
		}
	case *kmsg.FindCoordinatorResponse:
		set(r.NodeID, &r.Host, &r.Port)
		for i := range r.Coordinators {
			set(r.Coordinators[i].NodeID, &r.Coordinators[i].Host, &r.Coordinators[i].Port)
		}
	case *kmsg.DescribeQuorumResponse:
		for i := range r.Nodes {
			for j := range r.Nodes[i].Listeners {
				host, port := n.reachable(r.Nodes[i].NodeID)
				r.Nodes[i].Listeners[j].Host, r.Nodes[i].Listeners[j].Port = host, uint16(port)
			}
		}
	}
}

// FuzzRewrittenTags: where all addresses are kshare's already, a response goes on as it came, byte for byte, with all
// tagged fields that nobody knows, at every level and in its header.
func FuzzRewrittenTags(f *testing.F) {
	for key := range bodyRewrites {
		for version := range kmsgMax(key) + 1 {
			f.Add(key, version, bytes.Repeat([]byte{7, 1, 2, 3, 5, 250}, 200))
		}
	}
	n := unboundNodes()
	f.Fuzz(func(t *testing.T, key, version int16, src []byte) {
		rewrite := bodyRewrites[key]
		if rewrite == nil || version < 0 || version > kmsgMax(key) || key == produceKey && version < 10 {
			return
		}
		resp := kmsg.ResponseForKey(key)
		(&maker{src: src}).fill(reflect.ValueOf(resp).Elem())
		resp.SetVersion(version)
		addressed(n, resp)
		in := encoded(resp)
		out, err := rewrite(n, version, bytes.Clone(in))
		if err != nil {
			t.Fatalf("%s v%d: %v", apiName(key), version, err)
		}
		if !bytes.Equal(in, out) {
			t.Fatalf("%s v%d\ncame %x\nwent %x", apiName(key), version, in, out)
		}
	})
}

// FuzzReencodedTags: what kshare decodes and encodes again is the same again. Requests that it asks upstream in the
// client's name and responses that it joins with its own go that way.
func FuzzReencodedTags(f *testing.F) {
	server := realServe(f, startUpstream(f).ListenAddrs())
	t := newTable(server.APIs())
	keys := decodedKeys(t)
	for i := range keys {
		for version := range kmsgMax(keys[i]) + 1 {
			f.Add(uint8(i), version, bytes.Repeat([]byte{7, 1, 2, 3, 5, 250}, 200))
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, version int16, src []byte) {
		key := keys[int(i)%len(keys)]
		if version < 0 || version > kmsgMax(key) {
			return
		}
		req, resp := kmsg.RequestForKey(key), kmsg.ResponseForKey(key)
		m := &maker{src: src}
		m.fill(reflect.ValueOf(req).Elem())
		m.fill(reflect.ValueOf(resp).Elem())
		req.SetVersion(version)
		resp.SetVersion(version)
		frame := appendRequest(nil, 1, &testClientID, req)
		parsed, err := parseRequest(header{size: int32(len(frame) - sizeLen), key: key, version: version}, frame[sizeLen:], req.IsFlexible())
		if err != nil {
			t.Fatal(err)
		}
		body, err := parsed.decode()
		if err != nil {
			t.Fatalf("%s v%d: %v", apiName(key), version, err)
		}
		if again := appendRequest(nil, 1, parsed.clientID, body); !bytes.Equal(again, frame) {
			t.Fatalf("%s v%d request\ncame %x\nwent %x", apiName(key), version, frame, again)
		}
		answer := appendResponse(nil, 1, resp)
		decoded, err := decodeResponse(key, version, answer[sizeLen+4:])
		if err != nil {
			t.Fatalf("%s v%d: %v", apiName(key), version, err)
		}
		if again := appendResponse(nil, 1, decoded); !bytes.Equal(again, answer) {
			t.Fatalf("%s v%d response\ncame %x\nwent %x", apiName(key), version, answer, again)
		}
	})
}

// withTagsEverywhere is a message with one element and an unknown tagged field in everything.
func withTagsEverywhere(msg any) { tagged(reflect.ValueOf(msg).Elem()) }

func tagged(v reflect.Value) {
	fill(v)
	var each func(v reflect.Value)
	each = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			if v.Type() == tagsType {
				withTags(v.Addr().Interface().(*kmsg.Tags).Set)
				return
			}
			for i := range v.NumField() {
				each(v.Field(i))
			}
		case reflect.Slice:
			for i := range v.Len() {
				each(v.Index(i))
			}
		}
	}
	each(v)
}

// TestSplitAndMergeKeepUnknownTags: of a request that is all upstream's nothing is lost, nor of an answer to which kshare
// has nothing to add.
func TestSplitAndMergeKeepUnknownTags(t *testing.T) {
	server := realServe(t, startUpstream(t).ListenAddrs())
	for _, api := range server.APIs() {
		if api.Split == nil {
			continue
		}
		for version := range kmsgMax(api.Key) + 1 {
			name := fmt.Sprintf("%s v%d", apiName(api.Key), version)
			req := kmsg.RequestForKey(api.Key)
			withTagsEverywhere(req)
			req.SetVersion(version)
			before := req.AppendTo(nil)
			own, theirs := api.Split(server, req)
			if own == nil {
				theirs = req
			}
			if theirs == nil {
				t.Errorf("%s: nothing is upstream's", name)
				continue
			}
			if after := theirs.AppendTo(nil); !bytes.Equal(before, after) {
				t.Errorf("%s request\ncame %x\nwent %x", name, before, after)
			}
			mergeKeepsTags(t, name, api, version)
		}
	}
}

func mergeKeepsTags(t *testing.T, name string, api serve.API, version int16) {
	t.Helper()
	if api.Merge == nil || api.Key == 9 && version < 8 { // one group only, so there is nothing to join
		return
	}
	theirs, own := kmsg.ResponseForKey(api.Key), kmsg.ResponseForKey(api.Key)
	withTagsEverywhere(theirs)
	theirs.SetVersion(version)
	before := theirs.AppendTo(nil)
	switch api.Key {
	case 16, 21, 74: // which know more of the question than stands in their answer, or make theirs their own
		req := kmsg.RequestForKey(api.Key)
		req.SetVersion(version)
		var err error
		if own, err = api.Serve(context.Background(), &serve.Request{Body: req, Conn: &serve.Conn{Node: -1}, Theirs: theirs}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	own.SetVersion(version)
	merged := api.Merge(own, theirs)
	merged.SetVersion(version)
	if after := merged.AppendTo(nil); !bytes.Equal(before, after) {
		t.Errorf("%s response\ncame %x\nwent %x", name, before, after)
	}
}
