package proxy

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"kshare/proxy/serve"
)

// login authenticates a wire client as user (password = user).
func (w *wire) login(user string) {
	w.t.Helper()
	w.ask(1, &kmsg.SASLHandshakeRequest{Version: 1, Mechanism: "PLAIN"})
	resp := w.ask(2, &kmsg.SASLAuthenticateRequest{Version: 1, SASLAuthBytes: []byte("\x00" + user + "\x00" + user)})
	if e := resp.(*kmsg.SASLAuthenticateResponse).ErrorCode; e != 0 {
		w.t.Fatalf("login as %s: error %d", user, e)
	}
}

func allow(kind kmsg.ACLResourceType, name string, op kmsg.ACLOperation) kfake.ACL {
	return kfake.ACL{Resource: kind, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
}

// secured is an upstream with SASL and ACLs, and a proxy that serves share
// heartbeats by asking the question in the member id.
func secured(t *testing.T, question func(ctx context.Context, a serve.Authorizer, member string) (bool, error)) (*kfake.Cluster, *fixture) {
	t.Helper()
	up := startUpstream(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "alice", "alice",
			allow(kmsg.ACLResourceTypeTopic, "orders", kmsg.ACLOperationRead),
			allow(kmsg.ACLResourceTypeGroup, "readable", kmsg.ACLOperationRead),
			allow(kmsg.ACLResourceTypeGroup, "visible", kmsg.ACLOperationDescribe),
			allow(kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationDescribe)))
	api := echoHeartbeat(nil)
	api.Serve = func(ctx context.Context, r *serve.Request) (kmsg.Response, error) {
		req := r.Body.(*kmsg.ShareGroupHeartbeatRequest)
		resp := req.ResponseKind().(*kmsg.ShareGroupHeartbeatResponse)
		granted, err := question(ctx, r.Conn.Auth, req.MemberID)
		if err != nil {
			resp.ErrorMessage = kmsg.StringPtr(err.Error())
		}
		if granted {
			resp.MemberEpoch = 1
		}
		return resp, nil
	}
	admin := kgo.SASL(plain.Auth{User: "admin", Pass: "admin"}.AsMechanism())
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cluster: lookAt(t, up.ListenAddrs(), admin), apis: []serve.API{api}})
	return up, f
}

func TestGroupPermissionsAreUpstreams(t *testing.T) {
	ops := map[string]int8{"read": opRead, "describe": opDescribe, "delete": opDelete}
	up, f := secured(t, func(ctx context.Context, a serve.Authorizer, member string) (bool, error) {
		var op, group string
		_, _ = fmt.Sscan(member, &op, &group)
		return a.Group(ctx, ops[op], group)
	})
	for _, tt := range []struct {
		op, group string
		want      bool
	}{
		{"read", "readable", true}, {"describe", "readable", true}, {"delete", "readable", false},
		{"read", "visible", false}, {"describe", "visible", true}, {"read", "hidden", false}, {"describe", "hidden", false},
	} {
		w := dialWire(t, f.nodeAddr(up.CoordinatorFor(tt.group)))
		w.login("alice")
		resp := w.ask(3, heartbeat(tt.op+" "+tt.group)).(*kmsg.ShareGroupHeartbeatResponse)
		if resp.ErrorMessage != nil || (resp.MemberEpoch == 1) != tt.want {
			t.Errorf("%s %s: granted %v, error %v", tt.op, tt.group, resp.MemberEpoch == 1, resp.ErrorMessage)
		}
	}
}

func TestWithoutAuthorizerEverythingIsGrantedOnEveryNode(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		group := r.Body.(*kmsg.ShareGroupHeartbeatRequest).MemberID
		ops := []int8{opRead, opDescribe, opDescribeConfigs, opAlterConfigs}
		if r.Conn.Node == up.CoordinatorFor(group) {
			ops = append(ops, opDelete)
		}
		for _, op := range ops {
			if granted, err := r.Conn.Auth.Group(ctx, op, group); err != nil || !granted {
				return fmt.Errorf("group operation %d on node %d: %v, %w", op, r.Conn.Node, granted, err)
			}
		}
		for _, op := range []int8{opDescribe, opDescribeConfigs, opAlterConfigs, opClusterAction} {
			if granted, err := r.Conn.Auth.Cluster(ctx, op); err != nil || !granted {
				return fmt.Errorf("cluster operation %d: %v, %w", op, granted, err)
			}
		}
		return nil
	})}})
	for node := range int32(3) {
		dialWire(t, f.nodeAddr(node)).ask(1, heartbeat("g"))
	}
}

// After SaslHandshake a broker does answer what comes instead of a token, in the form of the request and without content,
// before it ends the connection.
func TestAnswerWithoutContentIsNoAcceptance(t *testing.T) {
	for what, request := range map[string]kmsg.Request{
		"served":                 heartbeat("m"),
		"served after a look":    heartbeat("m"),
		"share coordinator":      &kmsg.FindCoordinatorRequest{Version: 6, CoordinatorType: 2, CoordinatorKeys: []string{"x"}},
		"share coordinator, old": &kmsg.FindCoordinatorRequest{Version: 5, CoordinatorType: 2, CoordinatorKeys: []string{"x"}},
	} {
		addr := scripted(t, func(n int, frame []byte) []byte {
			if n == 0 {
				return (&kmsg.SASLHandshakeResponse{Version: 1}).AppendTo(frame[4:8:8])
			}
			return (&kmsg.MetadataResponse{Version: metadataVersion, AuthorizedOperations: -1 << 31}).AppendTo(append(frame[4:8:8], 0))
		})
		cluster := &fakeCluster{ready: make(chan struct{})}
		close(cluster.ready)
		served := false
		f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster, apis: []serve.API{echoHeartbeat(func(context.Context, *serve.Request) error {
			served = true
			return nil
		})}})
		w := f.dial()
		w.ask(1, &kmsg.SASLHandshakeRequest{Version: 1, Mechanism: "PLAIN"})
		if what == "served after a look" { // upstream answers this too
			w.ask(2, &kmsg.MetadataRequest{Version: metadataVersion, Topics: []kmsg.MetadataRequestTopic{}})
		}
		w.send(frameOf(3, request))
		w.expectClosed()
		if served {
			t.Errorf("%s: a stranger is served", what)
		}
	}
}

func TestTopicAndClusterPermissionsAreUpstreams(t *testing.T) {
	_, f := secured(t, func(ctx context.Context, a serve.Authorizer, member string) (bool, error) {
		if member == "cluster" {
			describe, err := a.Cluster(ctx, opDescribe)
			if err != nil || !describe {
				return false, fmt.Errorf("describe: %v %w", describe, err)
			}
			return a.Cluster(ctx, opClusterAction)
		}
		answer, err := a.Topics(ctx, opRead, []string{"orders", "secret", "orders"})
		if answer["secret"] {
			return false, fmt.Errorf("READ on secret granted")
		}
		return answer["orders"], err
	})
	w := f.dial()
	w.login("alice")
	for member, want := range map[string]int32{"cluster": 0, "topics": 1} {
		resp := w.ask(3, heartbeat(member)).(*kmsg.ShareGroupHeartbeatResponse)
		if resp.ErrorMessage != nil || resp.MemberEpoch != want {
			t.Errorf("%s: %v", member, resp)
		}
	}
}

func TestNothingIsServedBeforeUpstreamAcceptedTheClient(t *testing.T) {
	served := 0
	_, f := secured(t, func(context.Context, serve.Authorizer, string) (bool, error) {
		served++
		return true, nil
	})
	w := f.dial()
	w.ask(1, apiVersionsRequest(3)) // allowed to everybody
	w.send(frameOf(2, heartbeat("m")))
	w.expectClosed()

	half := f.dial()
	half.ask(1, &kmsg.SASLHandshakeRequest{Version: 1, Mechanism: "PLAIN"})
	half.send(frameOf(2, heartbeat("m")))
	half.expectClosed()

	find := f.dial()
	find.send(frameOf(1, &kmsg.FindCoordinatorRequest{Version: 5, CoordinatorType: 2, CoordinatorKeys: []string{"x"}}))
	find.expectClosed()
	if served != 0 {
		t.Errorf("served %d requests of strangers", served)
	}
	w = f.dial()
	w.login("alice")
	w.ask(3, heartbeat("m"))
	if served != 1 {
		t.Error("not served after login")
	}
}

func TestAnswersAreKeptForSecondsAndFailuresAreNot(t *testing.T) {
	up := startUpstream(t)
	asked := 0
	up.ControlKey(3, func(kmsg.Request) (kmsg.Response, error, bool) {
		asked++
		up.KeepControl()
		return nil, nil, false
	})
	var auth *authorizer
	now := time.Unix(1000, 0)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		auth = r.Conn.Auth.(*authorizer)
		auth.now = func() time.Time { return now }
		_, err := auth.Topics(ctx, opRead, []string{"orders", "others"})
		return err
	})}})
	w := f.dial()
	w.ask(1, heartbeat("m"))
	after := asked
	w.ask(2, heartbeat("m"))
	if asked != after {
		t.Error("asked again within the time an answer is kept")
	}
	now = now.Add(authTTL + 1)
	w.ask(3, heartbeat("m"))
	if asked != after+1 {
		t.Errorf("asked %d times after the answer got old, want 1", asked-after)
	}
	auth.forget()
	w.ask(4, heartbeat("m"))
	if asked != after+2 {
		t.Error("an answer outlived a new login")
	}
}

func TestGroupProbeOffTheCoordinator(t *testing.T) {
	for _, tt := range []struct {
		describe, probe int16
		op              int8
		granted, fails  bool
	}{
		{16, 25, opRead, true, false}, {16, 16, opRead, true, false}, {16, 14, opRead, true, false}, {14, 16, opRead, true, false},
		{16, 30, opRead, false, false}, {16, -1, opRead, false, true}, {16, 15, opRead, false, true},
		{16, 0, opDescribe, true, false}, {30, 0, opDescribe, false, false}, {16, 0, opDelete, true, false}, {16, 30, opDelete, false, false},
		{16, 15, opDelete, false, true},
		// Where DESCRIBE is denied, what implies it may be granted.
		{30, 30, opRead, false, false}, {30, 25, opRead, true, false}, {30, 16, opRead, true, false}, {30, 69, opRead, false, false},
		{30, 30, opDelete, false, false}, {30, 0, opDelete, true, false}, {30, 69, opDelete, true, false},
		{16, 0, opAlterConfigs, true, false}, {30, 30, opAlterConfigs, false, false}, {16, 41, opDescribeConfigs, false, true}, {16, 30, opDescribeConfigs, false, false},
		// Kafka 3.9 tells nobody of config operations, and knows no group configs; the cluster's then decide.
		{0, 42, opAlterConfigs, true, false}, {0, 42, opDescribeConfigs, true, false}, {16, 42, opDescribeConfigs, true, false}, {0, 30, opAlterConfigs, false, false},
		{-1, 0, opRead, false, true},
	} {
		up := startUpstream(t)
		up.ControlKey(15, func(r kmsg.Request) (kmsg.Response, error, bool) {
			resp := r.(*kmsg.DescribeGroupsRequest).ResponseKind().(*kmsg.DescribeGroupsResponse)
			resp.Groups = []kmsg.DescribeGroupsResponseGroup{{Group: "g", ErrorCode: tt.describe, AuthorizedOperations: -1 << 31}}
			if tt.describe == 0 {
				resp.Groups[0].AuthorizedOperations = 1<<opRead | 1<<opDescribe | 1<<opDelete
			}
			return resp, nil, true
		})
		up.ControlKey(12, func(r kmsg.Request) (kmsg.Response, error, bool) {
			resp := r.(*kmsg.HeartbeatRequest).ResponseKind().(*kmsg.HeartbeatResponse)
			resp.ErrorCode = tt.probe
			return resp, nil, true
		})
		up.ControlKey(47, func(r kmsg.Request) (kmsg.Response, error, bool) {
			if len(r.(*kmsg.OffsetDeleteRequest).Topics) > 0 {
				t.Error("a probe that deletes")
			}
			resp := r.(*kmsg.OffsetDeleteRequest).ResponseKind().(*kmsg.OffsetDeleteResponse)
			resp.ErrorCode = tt.probe
			return resp, nil, true
		})
		up.ControlKey(32, func(r kmsg.Request) (kmsg.Response, error, bool) {
			resp := r.(*kmsg.DescribeConfigsRequest).ResponseKind().(*kmsg.DescribeConfigsResponse)
			resp.Resources = []kmsg.DescribeConfigsResponseResource{{ErrorCode: tt.probe}}
			return resp, nil, true
		})
		up.ControlKey(44, func(r kmsg.Request) (kmsg.Response, error, bool) {
			if !r.(*kmsg.IncrementalAlterConfigsRequest).ValidateOnly {
				t.Error("a probe that alters")
			}
			resp := r.(*kmsg.IncrementalAlterConfigsRequest).ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
			resp.Resources = []kmsg.IncrementalAlterConfigsResponseResource{{ErrorCode: tt.probe}}
			return resp, nil, true
		})
		var granted bool
		var err error
		f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
			granted, err = r.Conn.Auth.Group(ctx, tt.op, "g")
			return nil
		})}})
		f.dial().ask(1, heartbeat("m"))
		if granted != tt.granted || (err != nil) != tt.fails {
			t.Errorf("%+v: granted %v, error %v", tt, granted, err)
		}
	}
}

// From v4 on a broker gives a key's error no message, not even null, but for what the authorizer refused.
func TestShareCoordinatorKeyType(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs()})
	w := f.dial()
	const good = "group:with:colons:AAAAAAAAAAAAAAAAAAAAAA:3"
	empty := func(message *string) bool { return message != nil && *message == "" }
	resp := w.ask(1, &kmsg.FindCoordinatorRequest{Version: 6, CoordinatorType: 2, CoordinatorKeys: []string{good, "bare", "a:b:c"}}).(*kmsg.FindCoordinatorResponse)
	if k := resp.Coordinators[0]; k.ErrorCode != 0 || k.Host != proxyHost || k.Port != f.cfg.NodePorts+k.NodeID || k.Key != good || !empty(k.ErrorMessage) {
		t.Errorf("good key: %+v", k)
	}
	for _, k := range resp.Coordinators[1:] {
		if k.ErrorCode != 42 || k.NodeID != -1 || !empty(k.ErrorMessage) {
			t.Errorf("bad key: %+v", k)
		}
	}
	for version := int16(4); version <= 5; version++ {
		resp = w.ask(2, &kmsg.FindCoordinatorRequest{Version: version, CoordinatorType: 2, CoordinatorKeys: []string{good}}).(*kmsg.FindCoordinatorResponse)
		if k := resp.Coordinators[0]; k.ErrorCode != 42 || !empty(k.ErrorMessage) {
			t.Errorf("v%d: %+v", version, k)
		}
	}
	resp = w.ask(3, &kmsg.FindCoordinatorRequest{Version: 3, CoordinatorType: 2, CoordinatorKey: good}).(*kmsg.FindCoordinatorResponse)
	if resp.ErrorCode != 42 || resp.ErrorMessage == nil || *resp.ErrorMessage != kerr.InvalidRequest.Description {
		t.Errorf("v3: %+v", resp)
	}
	_, secure := secured(t, nil)
	w = secure.dial()
	w.login("alice")
	resp = w.ask(3, &kmsg.FindCoordinatorRequest{Version: 6, CoordinatorType: 2, CoordinatorKeys: []string{good}}).(*kmsg.FindCoordinatorResponse)
	if k := resp.Coordinators[0]; k.ErrorCode != 31 || k.ErrorMessage == nil || *k.ErrorMessage != kerr.ClusterAuthorizationFailed.Description {
		t.Errorf("without CLUSTER_ACTION: %+v", resp)
	}
}

func TestSaslHandshakeV0TokensPassWithoutHeaders(t *testing.T) {
	// kfake knows v1 only; this upstream speaks v0 as old brokers do.
	addr := scripted(t, func(n int, frame []byte) []byte {
		switch n {
		case 0:
			return append(frame[4:8:8], 0, 0, 0, 0, 0, 1, 0, 5, 'P', 'L', 'A', 'I', 'N')
		case 1:
			if string(frame) != "\x00bob\x00pw" {
				t.Errorf("token arrived as %q", frame)
			}
			return []byte{} // PLAIN says nothing
		default:
			return append(frame[4:8:8], 0, 0, 0, 0)
		}
	})
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster})
	w := f.dial()
	w.ask(1, &kmsg.SASLHandshakeRequest{Version: 0, Mechanism: "PLAIN"})
	w.send(append(binary.BigEndian.AppendUint32(nil, 7), "\x00bob\x00pw"...))
	if b, err := w.receive(); err != nil || len(b) != 0 {
		t.Fatalf("token's answer %q, %v", b, err)
	}
	w.send(frameOf(3, &kmsg.HeartbeatRequest{}))
	if b, err := w.receive(); err != nil || len(b) != 8 {
		t.Fatalf("after login: % x, %v", b, err)
	}

	w = f.dial()
	w.send(frameOf(1, &kmsg.SASLHandshakeRequest{Version: 0, Mechanism: "GSSAPI"}))
	w.expectClosed()
}

func TestWhatFollowsARefusedOldHandshakeIsARequest(t *testing.T) {
	addr := scripted(t, func(n int, frame []byte) []byte {
		if n > 0 {
			t.Errorf("upstream got % x", frame)
		}
		return (&kmsg.SASLHandshakeResponse{ErrorCode: kerr.IllegalSaslState.Code}).AppendTo(frame[4:8:8]) // as where there is no SASL
	})
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster})
	w := f.dial()
	if e := w.ask(1, &kmsg.SASLHandshakeRequest{Mechanism: "SCRAM-SHA-256"}).(*kmsg.SASLHandshakeResponse).ErrorCode; e != kerr.IllegalSaslState.Code {
		t.Fatalf("error %d", e)
	}
	w.send(frameOf(2, &kmsg.LeaderAndISRRequest{})) // among brokers only
	w.expectClosed()
	eventually(t, "counted", func() bool { return f.closedWith(CloseUnsupportedAPI) == 1 })
}
