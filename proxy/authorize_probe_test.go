package proxy

import (
	"context"
	"math"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

// asking is what the authorizer of a connection to up says.
func asking[T any](t *testing.T, addrs []string, question func(ctx context.Context, a serve.Authorizer) (T, error)) (answer T, err error) {
	t.Helper()
	f := startProxy(t, setup{addrs: addrs, apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		answer, err = question(ctx, r.Conn.Auth)
		return nil
	})}})
	f.dial().ask(1, heartbeat("m"))
	return answer, err
}

// A broker tells what a principal may do with the cluster to those only that may DESCRIBE it.
func TestClusterProbeWithoutDescribe(t *testing.T) {
	for _, tt := range []struct {
		op             int8
		probe          int16
		granted, fails bool
	}{
		{opDescribe, 0, false, false},
		{opDescribeConfigs, 0, true, false}, {opDescribeConfigs, 31, false, false}, {opDescribeConfigs, 41, false, true},
		{opAlterConfigs, 0, true, false}, {opAlterConfigs, 31, false, false}, {opAlterConfigs, 41, false, true},
		{opClusterAction, 3, true, false}, {opClusterAction, 29, false, false}, {opClusterAction, 6, false, true},
		{opDelete, 0, false, true},
	} {
		up := startUpstream(t)
		up.ControlKey(3, func(r kmsg.Request) (kmsg.Response, error, bool) {
			up.KeepControl()
			if !r.(*kmsg.MetadataRequest).IncludeClusterAuthorizedOperations {
				return nil, nil, false
			}
			resp := r.(*kmsg.MetadataRequest).ResponseKind().(*kmsg.MetadataResponse)
			resp.AuthorizedOperations = 0
			return resp, nil, true
		})
		up.ControlKey(32, func(r kmsg.Request) (kmsg.Response, error, bool) {
			req := r.(*kmsg.DescribeConfigsRequest)
			if res := req.Resources[0]; res.ResourceType != brokerResource || res.ConfigNames == nil || len(res.ConfigNames) > 0 {
				t.Errorf("probed by %+v", res)
			}
			resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
			resp.Resources = []kmsg.DescribeConfigsResponseResource{{ErrorCode: tt.probe}}
			return resp, nil, true
		})
		up.ControlKey(44, func(r kmsg.Request) (kmsg.Response, error, bool) {
			req := r.(*kmsg.IncrementalAlterConfigsRequest)
			if res := req.Resources[0]; !req.ValidateOnly || res.ResourceType != brokerResource || len(res.Configs) > 0 {
				t.Errorf("probed by %+v", res)
			}
			resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
			resp.Resources = []kmsg.IncrementalAlterConfigsResponseResource{{ErrorCode: tt.probe}}
			return resp, nil, true
		})
		up.ControlKey(1, func(r kmsg.Request) (kmsg.Response, error, bool) {
			req := r.(*kmsg.FetchRequest)
			if req.ReplicaID != math.MaxInt32 {
				t.Errorf("probed as replica %d", req.ReplicaID)
			}
			return fetchAnswer(req, map[string]int16{req.Topics[0].Topic: tt.probe}), nil, true
		})
		granted, err := asking(t, up.ListenAddrs(), func(ctx context.Context, a serve.Authorizer) (bool, error) { return a.Cluster(ctx, tt.op) })
		if granted != tt.granted || (err != nil) != tt.fails {
			t.Errorf("%+v: granted %v, error %v", tt, granted, err)
		}
	}
}

func fetchAnswer(req *kmsg.FetchRequest, codes map[string]int16) *kmsg.FetchResponse {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range req.Topics {
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.ErrorCode = t.Partitions[0].Partition, codes[t.Topic]
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.Partitions = t.Topic, append(rt.Partitions, p)
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// READ may be granted on a topic where DESCRIBE is denied, which hides the topic from Metadata.
func TestTopicProbeWithoutDescribe(t *testing.T) {
	for _, tt := range []struct {
		op       int8
		readable int16 // what the probe says of one of the topics
		granted  bool
		fails    bool
		probes   int
	}{
		{opRead, 3, true, false, 1}, {opRead, 29, false, false, 1}, {opRead, 56, false, true, 1}, {opDescribe, 3, false, false, 0},
	} {
		up := startUpstream(t)
		up.ControlKey(3, func(r kmsg.Request) (kmsg.Response, error, bool) {
			up.KeepControl()
			req := r.(*kmsg.MetadataRequest)
			if !req.IncludeTopicAuthorizedOperations {
				return nil, nil, false
			}
			resp := req.ResponseKind().(*kmsg.MetadataResponse)
			for _, rt := range req.Topics {
				mt := kmsg.NewMetadataResponseTopic()
				mt.Topic, mt.ErrorCode = rt.Topic, 29
				resp.Topics = append(resp.Topics, mt)
			}
			return resp, nil, true
		})
		probes := 0
		up.ControlKey(1, func(r kmsg.Request) (kmsg.Response, error, bool) {
			up.KeepControl()
			probes++
			req := r.(*kmsg.FetchRequest)
			for _, rt := range req.Topics {
				if p := rt.Partitions[0]; p.Partition != math.MaxInt32 || req.ReplicaID != -1 {
					t.Errorf("probed by %+v, which may bring records", req)
				}
			}
			return fetchAnswer(req, map[string]int16{"hidden": tt.readable, "secret": 29}), nil, true
		})
		answer, err := asking(t, up.ListenAddrs(), func(ctx context.Context, a serve.Authorizer) (map[string]bool, error) {
			if answer, err := a.Topics(ctx, tt.op, []string{"hidden", "secret"}); err != nil {
				return answer, err
			}
			return a.Topics(ctx, tt.op, []string{"secret", "hidden"}) // known by now
		})
		if answer["hidden"] != tt.granted || answer["secret"] || (err != nil) != tt.fails || probes != tt.probes {
			t.Errorf("%+v: %v, error %v, %d probes", tt, answer, err, probes)
		}
	}
}

// An upstream that does not know configs of groups logs an error at each question for them.
func TestGroupConfigsAreProbedOnceWhereThereAreNone(t *testing.T) {
	up := startUpstream(t)
	probes := 0
	up.ControlKey(32, func(r kmsg.Request) (kmsg.Response, error, bool) {
		up.KeepControl()
		probes++
		resp := r.(*kmsg.DescribeConfigsRequest).ResponseKind().(*kmsg.DescribeConfigsResponse)
		resp.Resources = []kmsg.DescribeConfigsResponseResource{{ErrorCode: 42}}
		return resp, nil, true
	})
	granted, err := asking(t, up.ListenAddrs(), func(ctx context.Context, a serve.Authorizer) (granted bool, err error) {
		for _, group := range []string{"g", "h", "i"} {
			if granted, err = a.(*authorizer).probed(ctx, group); err != nil || !granted {
				return granted, err
			}
		}
		return granted, err
	})
	if err != nil || !granted || probes != 1 {
		t.Errorf("granted %v, error %v, %d probes", granted, err, probes)
	}
}

func (a *authorizer) probed(ctx context.Context, group string) (bool, error) {
	granted, err := a.probeGroup(ctx, opDescribeConfigs, group, false)
	return granted == bit(opDescribeConfigs), err
}
