package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"kshare/proxy/serve"
)

// echoHeartbeat serves ShareGroupHeartbeat by echoing the member id.
func echoHeartbeat(before func(ctx context.Context, r *serve.Request) error) serve.API {
	return serve.API{Key: 76, Min: 1, Max: 1, Serve: func(ctx context.Context, r *serve.Request) (kmsg.Response, error) {
		if before != nil {
			if err := before(ctx, r); err != nil {
				return nil, err
			}
		}
		req := r.Body.(*kmsg.ShareGroupHeartbeatRequest)
		resp := req.ResponseKind().(*kmsg.ShareGroupHeartbeatResponse)
		resp.MemberID = kmsg.StringPtr(req.MemberID)
		return resp, nil
	}}
}

func heartbeat(member string) *kmsg.ShareGroupHeartbeatRequest {
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID = 1, "g", member
	return req
}

func TestServedAndRelayedAnswersKeepRequestOrder(t *testing.T) {
	up := startUpstream(t)
	asked := 0
	api := echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		// Every third asks upstream, in between the client's own requests.
		if asked++; asked%3 == 0 {
			if _, err := r.Conn.Auth.Group(ctx, opRead, fmt.Sprint("g", asked)); err != nil {
				return err
			}
			_, err := r.Conn.Auth.Topics(ctx, opRead, []string{"orders", fmt.Sprint("t", asked)})
			return err
		}
		return nil
	})
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}})
	w := f.dial()
	const n = 200
	reqs := make([]kmsg.Request, n)
	for i := range n {
		switch {
		case i%4 == 1:
			reqs[i] = heartbeat(fmt.Sprint("m", i))
		case i%7 == 0:
			reqs[i] = &kmsg.FindCoordinatorRequest{Version: 4, CoordinatorKeys: []string{"a", "b"}}
		case i%2 == 0:
			reqs[i] = &kmsg.MetadataRequest{Version: 12}
		default:
			reqs[i] = &kmsg.ListGroupsRequest{Version: 4}
		}
	}
	go func() {
		var stream []byte
		for i, req := range reqs {
			stream = append(stream, frameOf(int32(i), req)...)
		}
		_, _ = w.conn.Write(stream)
	}()
	for i, req := range reqs {
		resp := w.expect(int32(i), req)
		if hb, ok := resp.(*kmsg.ShareGroupHeartbeatResponse); ok && *hb.MemberID != fmt.Sprint("m", i) {
			t.Fatalf("request %d got the answer of member %s", i, *hb.MemberID)
		}
	}
}

func TestServedRequestWaitsForEarlierRelayedOnes(t *testing.T) {
	up := startUpstream(t)
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	var answered, served atomic.Bool
	up.ControlKey(16, func(kmsg.Request) (kmsg.Response, error, bool) {
		<-gate
		answered.Store(true)
		return nil, nil, false
	})
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(context.Context, *serve.Request) error {
		served.Store(true)
		if !answered.Load() {
			return errors.New("served before the earlier request was answered")
		}
		return nil
	})}})
	w := f.dial()
	w.ask(0, &kmsg.MetadataRequest{Version: 12}) // else kshare asks first whether the client is accepted, behind the list
	list := &kmsg.ListGroupsRequest{Version: 4}
	w.send(append(frameOf(1, list), frameOf(2, heartbeat("m"))...))
	// Upstream answers only once the second request has taken its turn, be it to wait or, wrongly, to be served.
	eventually(t, "the served request's turn", func() bool { return served.Load() || f.settling() })
	open()
	w.expect(1, list)
	w.expect(2, heartbeat("m"))
}

// settling tells whether a request waits for the answers to earlier ones of its connection.
func (f *fixture) settling() bool {
	for _, c := range f.openConns() {
		c.mu.Lock()
		waits := c.settled != nil
		c.mu.Unlock()
		if waits {
			return true
		}
	}
	return false
}

func TestWaitingRequestEndsWhenClientGoesAway(t *testing.T) {
	up := startUpstream(t)
	for _, behind := range []int{0, 1, 50} {
		t.Run(fmt.Sprintf("%d requests read ahead", behind), func(t *testing.T) {
			started, ended := make(chan struct{}), make(chan struct{})
			f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
				close(started)
				<-ctx.Done()
				close(ended)
				return ctx.Err()
			})}})
			w := f.dial()
			w.send(frameOf(1, heartbeat("m")))
			<-started
			for range behind {
				w.send(frameOf(2, &kmsg.ListGroupsRequest{Version: 4}))
			}
			_ = w.conn.Close()
			select {
			case <-ended:
			case <-time.After(5 * time.Second):
				t.Fatal("still serving a client that is gone")
			}
			eventually(t, "ConnClosed", func() bool { return f.fake.closedConns() == 1 })
		})
	}
}

func TestRequestSentWithTheCloseIsStillServed(t *testing.T) {
	up := startUpstream(t)
	served := make(chan struct{})
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(ctx context.Context, r *serve.Request) error {
		if ctx.Err() == nil {
			close(served)
		}
		return nil
	})}})
	w := f.dial()
	w.send(frameOf(1, heartbeat("m")))
	_ = w.conn.Close()
	select {
	case <-served:
	case <-time.After(5 * time.Second):
		t.Fatal("not served")
	}
}

func TestServeErrorAndPanicCloseOnlyTheirConnection(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(func(_ context.Context, r *serve.Request) error {
		switch r.Body.(*kmsg.ShareGroupHeartbeatRequest).MemberID {
		case "error":
			return errors.New("unsupported")
		case "panic":
			panic("bug")
		}
		return nil
	})}})
	bystander := f.dial()
	bystander.ask(1, heartbeat("m"))
	for _, member := range []string{"error", "panic"} {
		w := f.dial()
		w.send(frameOf(1, heartbeat(member)))
		w.expectClosed()
	}
	bystander.ask(2, heartbeat("m"))
	eventually(t, "both counted", func() bool { return f.closedWith(CloseServe) == 2 })
}

func TestSplitRequestIsAnsweredByBothSides(t *testing.T) {
	up := startUpstream(t)
	api := serve.API{Key: 16, Min: 0, Max: 5, Relayed: true,
		Split: func(_ *serve.Server, body kmsg.Request) (own, theirs kmsg.Request) {
			req := body.(*kmsg.ListGroupsRequest)
			switch {
			case len(req.StatesFilter) == 1 && req.StatesFilter[0] == "theirs":
				return nil, body
			case len(req.StatesFilter) == 1 && req.StatesFilter[0] == "ours":
				return body, nil
			}
			return body, body
		},
		Serve: func(_ context.Context, r *serve.Request) (kmsg.Response, error) {
			if theirs, ok := r.Theirs.(*kmsg.ListGroupsResponse); ok != (len(r.Body.(*kmsg.ListGroupsRequest).StatesFilter) == 0) {
				return nil, fmt.Errorf("upstream's answer: %v", theirs)
			}
			resp := r.Body.(*kmsg.ListGroupsRequest).ResponseKind().(*kmsg.ListGroupsResponse)
			resp.Groups = append(resp.Groups, kmsg.ListGroupsResponseGroup{Group: "shared", ProtocolType: "share"})
			return resp, nil
		},
		Merge: func(own, theirs kmsg.Response) kmsg.Response {
			merged := theirs.(*kmsg.ListGroupsResponse)
			merged.Groups = append(merged.Groups, own.(*kmsg.ListGroupsResponse).Groups...)
			return merged
		},
	}
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}})
	for _, node := range []int32{0, 1, 2} {
		w := dialWire(t, f.nodeAddr(node))
		commit := kmsg.NewPtrOffsetCommitRequest()
		commit.Version, commit.Group, commit.Generation = 7, "classic", -1
		commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "orders", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1, LeaderEpoch: -1}}}}
		w.ask(0, commit)
		classic := 0
		if up.CoordinatorFor("classic") == node {
			classic = 1
		}
		for corr, tt := range []struct {
			states  []string
			version int16
			want    int
		}{{nil, 4, classic + 1}, {[]string{"ours"}, 4, 1}, {[]string{"theirs"}, 4, 0}, {nil, 2, classic + 1}, {nil, 5, classic + 1}} {
			req := &kmsg.ListGroupsRequest{Version: tt.version, StatesFilter: tt.states}
			if got := w.ask(int32(corr), req).(*kmsg.ListGroupsResponse).Groups; len(got) != tt.want {
				t.Errorf("node %d v%d states %v: %d groups, want %d: %v", node, tt.version, tt.states, len(got), tt.want, got)
			}
		}
	}
}

// What kshare answers by itself, or adds to upstream's answer, does not end at what upstream knows.
func TestVersionsBeyondUpstreamsAreServed(t *testing.T) {
	versions := withoutShareGroups()
	versions.SetMaxKeyVersion(42, 1)
	up := startUpstream(t, kfake.MaxVersions(versions))
	api := serve.API{Key: 42, Min: 0, Max: 3, Relayed: true,
		Split: func(_ *serve.Server, body kmsg.Request) (own, theirs kmsg.Request) {
			req := body.(*kmsg.DeleteGroupsRequest)
			mine, rest := *req, *req
			mine.Groups, rest.Groups = req.Groups[:1], req.Groups[1:]
			switch {
			case req.Groups[0] != "ours":
				return nil, nil
			case len(rest.Groups) == 0:
				return &mine, nil
			}
			return &mine, &rest
		},
		Serve: func(_ context.Context, r *serve.Request) (kmsg.Response, error) {
			resp := r.Body.(*kmsg.DeleteGroupsRequest).ResponseKind().(*kmsg.DeleteGroupsResponse)
			resp.Groups = append(resp.Groups, kmsg.DeleteGroupsResponseGroup{Group: "ours", ErrorMessage: kmsg.StringPtr("said")})
			return resp, nil
		},
		Merge: func(own, theirs kmsg.Response) kmsg.Response {
			merged := own.(*kmsg.DeleteGroupsResponse)
			merged.Groups = append(merged.Groups, theirs.(*kmsg.DeleteGroupsResponse).Groups...)
			return merged
		},
	}
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}})
	w := f.dial()
	if got := rangesOf(w.ask(1, apiVersionsRequest(3)))[42]; got != (versionRange{0, 3}) {
		t.Errorf("advertised %v", got)
	}
	for version := int16(0); version <= 3; version++ {
		for _, groups := range [][]string{{"ours"}, {"ours", "theirs"}, {"theirs"}} {
			resp := w.ask(2, &kmsg.DeleteGroupsRequest{Version: version, Groups: groups}).(*kmsg.DeleteGroupsResponse)
			if len(resp.Groups) != len(groups) {
				t.Fatalf("v%d, %v: %+v", version, groups, resp.Groups)
			}
			for i, g := range resp.Groups {
				if said := g.ErrorMessage != nil; g.Group != groups[i] || said != (version == 3 && g.Group == "ours") {
					t.Errorf("v%d: %+v", version, g)
				}
			}
		}
	}
}

func TestUpstreamIsAskedOnlyWhatItKnows(t *testing.T) {
	for version, want := range map[string]string{"3.9": "topic", "4.0": "topic group"} {
		t.Run(version, func(t *testing.T) {
			up := startUpstream(t, kfake.MaxVersions(kversion.FromString(version)))
			var asked []string
			up.ControlKey(32, func(r kmsg.Request) (kmsg.Response, error, bool) {
				up.KeepControl()
				for _, res := range r.(*kmsg.DescribeConfigsRequest).Resources {
					asked = append(asked, res.ResourceName)
				}
				return r.ResponseKind(), nil, true
			})
			apis := (&serve.Server{}).APIs()
			api := apis[slices.IndexFunc(apis, func(a serve.API) bool { return a.Key == 32 })]
			api.Serve = func(_ context.Context, r *serve.Request) (kmsg.Response, error) { return r.Body.ResponseKind(), nil }
			f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}})
			w := f.dial()
			topic := kmsg.DescribeConfigsRequestResource{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "topic"}
			group := kmsg.DescribeConfigsRequestResource{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "group"}
			w.ask(1, &kmsg.DescribeConfigsRequest{Version: 4, Resources: []kmsg.DescribeConfigsRequestResource{topic, group}})
			if got := strings.Join(asked, " "); got != want {
				t.Errorf("upstream was asked about %q, want %q", got, want)
			}
			asked = nil
			w.ask(2, &kmsg.DescribeConfigsRequest{Version: 4, Resources: []kmsg.DescribeConfigsRequestResource{group}})
			if got, rest := strings.Join(asked, " "), strings.TrimPrefix(want, "topic"); got != strings.TrimSpace(rest) {
				t.Errorf("upstream was asked about %q, want %q", got, rest)
			}
			w.ask(3, &kmsg.DescribeConfigsRequest{Version: 4})
		})
	}
}

// A group's keys that only newer upstreams have are then kshare's to refuse, in words that name them.
func TestUpstreamIsGivenOnlyConfigsThatItKnows(t *testing.T) {
	for version, want := range map[string][2]string{"3.9": {"topic", "group"}, "4.0": {"topic group", ""}} {
		t.Run(version, func(t *testing.T) {
			up := startUpstream(t, kfake.MaxVersions(kversion.FromString(version)))
			var asked [2][]string // upstream, kshare
			note := func(of int, r kmsg.Request) (kmsg.Response, error) {
				for _, res := range r.(*kmsg.IncrementalAlterConfigsRequest).Resources {
					asked[of] = append(asked[of], res.ResourceName)
				}
				return r.ResponseKind(), nil
			}
			up.ControlKey(44, func(r kmsg.Request) (kmsg.Response, error, bool) {
				up.KeepControl()
				resp, err := note(0, r)
				return resp, err, true
			})
			apis := (&serve.Server{}).APIs()
			api := apis[slices.IndexFunc(apis, func(a serve.API) bool { return a.Key == 44 })]
			api.Serve = func(_ context.Context, r *serve.Request) (kmsg.Response, error) { return note(1, r.Body) }
			w := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{api}}).dial()
			resource := func(kind kmsg.ConfigResourceType, name, key string) kmsg.IncrementalAlterConfigsRequestResource {
				return kmsg.IncrementalAlterConfigsRequestResource{ResourceType: kind, ResourceName: name,
					Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: key, Value: kmsg.StringPtr("50000")}}}
			}
			topic := resource(kmsg.ConfigResourceTypeTopic, "topic", "retention.ms")
			group := resource(kmsg.ConfigResourceTypeGroupConfig, "group", "consumer.session.timeout.ms")
			for i, resources := range [][]kmsg.IncrementalAlterConfigsRequestResource{{topic, group}, {group}, {topic}} {
				asked = [2][]string{}
				w.ask(int32(i), &kmsg.IncrementalAlterConfigsRequest{Version: 1, Resources: resources})
				for of, side := range []string{"upstream", "kshare"} {
					var expected []string
					for _, r := range resources {
						if slices.Contains(strings.Fields(want[of]), r.ResourceName) {
							expected = append(expected, r.ResourceName)
						}
					}
					if !slices.Equal(asked[of], expected) {
						t.Errorf("request %d: %s was given %q, want %q", i, side, asked[of], expected)
					}
				}
			}
		})
	}
}
