package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// misused is a replica that knows the share group g, with a connection whose ACLs the test sets.
func misused(t *testing.T) (*rep, *Conn) {
	w := newWorld(t, 1)
	w.topic("t", 1)
	r := w.reps[0]
	r.member("g", "m").join("t")
	w.eventually("the group in the index", func() bool { return r.groups.IsShareGroup("g") })
	return r, r.conn(-1)
}

// refusesWrongType sends the request, in all its versions, about a share group: it is kshare's alone, and the answer on the
// wire is want's.
func (r *rep) refusesWrongType(c *Conn, body kmsg.Request, want func(version int16) kmsg.Response) {
	r.w.Helper()
	for version := int16(0); version <= body.MaxVersion(); version++ {
		body.SetVersion(version)
		own, theirs := r.apis[body.Key()].Split(r.srv, body)
		if own == nil || theirs != nil {
			r.w.Fatalf("%T v%d: own %v, theirs %v", body, version, own, theirs)
		}
		expect, got := want(version), r.ask(r.w.ctx, c, own)
		expect.SetVersion(version)
		if !bytes.Equal(expect.AppendTo(nil), got.AppendTo(nil)) {
			r.w.Errorf("%T v%d:\nwant %+v\ngot  %+v", body, version, expect, got)
		}
	}
}

const (
	denied       = int16(30)
	noSuchGroup  = int16(69)
	noSuchMember = int16(25)
)

func TestCheck039_JoinGroupOnShareGroupIsInconsistent(t *testing.T) {
	r, c := misused(t)
	answer := func(code int16) func(int16) kmsg.Response {
		return func(int16) kmsg.Response { return &kmsg.JoinGroupResponse{ErrorCode: code, Generation: -1} }
	}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType, req.SessionTimeoutMillis = "g", "m", "consumer", 45_000
	r.refusesWrongType(c, req, answer(23))
	c.Auth = denies{group: "g"}
	r.refusesWrongType(c, req, answer(denied))
}

func TestCheck040_MembersOfOtherTypesAreUnknown(t *testing.T) {
	r, c := misused(t)
	heartbeat, sync := kmsg.NewPtrHeartbeatRequest(), kmsg.NewPtrSyncGroupRequest()
	heartbeat.Group, sync.Group, heartbeat.MemberID, sync.MemberID = "g", "g", "m", "m"
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group, leave.MemberID = "g", "m"
	leave.Members = []kmsg.LeaveGroupRequestMember{{MemberID: "m"}, {InstanceID: text("i")}}
	left := func(version, code int16) *kmsg.LeaveGroupResponse {
		resp := kmsg.NewPtrLeaveGroupResponse()
		if version < 3 || code == denied {
			resp.ErrorCode = code
			return resp
		}
		resp.Members = []kmsg.LeaveGroupResponseMember{{MemberID: "m", ErrorCode: code}, {InstanceID: text("i"), ErrorCode: code}}
		return resp
	}
	consumer, streams := kmsg.NewPtrConsumerGroupHeartbeatRequest(), kmsg.NewPtrStreamsGroupHeartbeatRequest()
	consumer.Group, streams.Group, consumer.MemberID, streams.MemberID = "g", "g", "m", "m"

	for _, code := range []int16{noSuchMember, denied} {
		groupCode, consumerMsg, streamsMsg := noSuchGroup, text("Group g is not a consumer group."), text("Group g is not a streams group.")
		if code == denied {
			c.Auth = denies{group: "g"}
			groupCode, consumerMsg, streamsMsg = denied, nil, nil
		}
		r.refusesWrongType(c, heartbeat, func(int16) kmsg.Response { return &kmsg.HeartbeatResponse{ErrorCode: code} })
		r.refusesWrongType(c, sync, func(int16) kmsg.Response { return &kmsg.SyncGroupResponse{ErrorCode: code} })
		r.refusesWrongType(c, leave, func(version int16) kmsg.Response { return left(version, code) })
		for _, epoch := range []int32{0, 1, -1} {
			consumer.MemberEpoch, streams.MemberEpoch = epoch, epoch
			r.refusesWrongType(c, consumer, func(int16) kmsg.Response {
				return &kmsg.ConsumerGroupHeartbeatResponse{ErrorCode: groupCode, ErrorMessage: consumerMsg}
			})
			r.refusesWrongType(c, streams, func(int16) kmsg.Response {
				resp := kmsg.NewPtrStreamsGroupHeartbeatResponse()
				resp.ErrorCode, resp.ErrorMessage, resp.Status = groupCode, streamsMsg, []kmsg.StreamsGroupHeartbeatResponseStatus{}
				return resp
			})
		}
	}
}

func TestShareGroupIsDescribedAsNoOtherType(t *testing.T) {
	r, c := misused(t)
	classic, consumer, streams := kmsg.NewPtrDescribeGroupsRequest(), kmsg.NewPtrConsumerGroupDescribeRequest(), kmsg.NewPtrStreamsGroupDescribeRequest()
	classic.Groups, consumer.Groups, streams.Groups = []string{"g"}, []string{"g"}, []string{"g"}
	const unsaid = -2147483648
	for _, operations := range []bool{false, true} {
		classic.IncludeAuthorizedOperations, consumer.IncludeAuthorizedOperations, streams.IncludeAuthorizedOperations = operations, operations, operations
		r.refusesWrongType(c, classic, func(version int16) kmsg.Response {
			g := kmsg.DescribeGroupsResponseGroup{Group: "g", State: "Dead", AuthorizedOperations: unsaid}
			if version >= 6 {
				g.ErrorCode, g.ErrorMessage = noSuchGroup, text("Group g is not a classic group.")
			} else if version >= 3 && operations {
				g.AuthorizedOperations = 1<<opRead | 1<<opDelete | 1<<opDescribe | 1<<opDescribeConfigs | 1<<opAlterConfigs
			}
			return &kmsg.DescribeGroupsResponse{Groups: []kmsg.DescribeGroupsResponseGroup{g}}
		})
		r.refusesWrongType(c, consumer, func(int16) kmsg.Response {
			return &kmsg.ConsumerGroupDescribeResponse{Groups: []kmsg.ConsumerGroupDescribeResponseGroup{
				{Group: "g", ErrorCode: noSuchGroup, ErrorMessage: text("Group g is not a consumer group."), AuthorizedOperations: unsaid}}}
		})
		r.refusesWrongType(c, streams, func(int16) kmsg.Response {
			return &kmsg.StreamsGroupDescribeResponse{Groups: []kmsg.StreamsGroupDescribeResponseGroup{
				{Group: "g", ErrorCode: noSuchGroup, ErrorMessage: text("Group g is not a streams group."), AuthorizedOperations: unsaid}}}
		})
	}
	c.Auth = denies{group: "g"}
	r.refusesWrongType(c, classic, func(int16) kmsg.Response {
		return &kmsg.DescribeGroupsResponse{Groups: []kmsg.DescribeGroupsResponseGroup{{Group: "g", ErrorCode: denied, AuthorizedOperations: unsaid}}}
	})
	r.refusesWrongType(c, consumer, func(int16) kmsg.Response {
		return &kmsg.ConsumerGroupDescribeResponse{Groups: []kmsg.ConsumerGroupDescribeResponseGroup{{Group: "g", ErrorCode: denied, AuthorizedOperations: unsaid}}}
	})
	r.refusesWrongType(c, streams, func(int16) kmsg.Response {
		return &kmsg.StreamsGroupDescribeResponse{Groups: []kmsg.StreamsGroupDescribeResponseGroup{{Group: "g", ErrorCode: denied, AuthorizedOperations: unsaid}}}
	})
}

func TestCheck041_OffsetsAreNeitherCommittedNorDeleted(t *testing.T) {
	r, c := misused(t)
	id := [16]byte{1, 2, 3}
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group = "g"
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", TopicID: id, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 0}, {Partition: 7}}}}
	txn := kmsg.NewPtrTxnOffsetCommitRequest()
	txn.Group, txn.TransactionalID = "g", "tx"
	txn.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", TopicID: id, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 0}, {Partition: 7}}}}
	del := kmsg.NewPtrOffsetDeleteRequest()
	del.Group, del.Topics = "g", []kmsg.OffsetDeleteRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}}}

	for _, code := range []int16{noSuchGroup, denied} {
		if code == denied {
			c.Auth = denies{group: "g"}
		}
		for _, generation := range []int32{-1, 0, 5} {
			commit.Generation, txn.Generation = generation, generation
			r.refusesWrongType(c, commit, func(int16) kmsg.Response {
				return &kmsg.OffsetCommitResponse{Topics: []kmsg.OffsetCommitResponseTopic{{Topic: "t", TopicID: id,
					Partitions: []kmsg.OffsetCommitResponseTopicPartition{{Partition: 0, ErrorCode: code}, {Partition: 7, ErrorCode: code}}}}}
			})
			r.refusesWrongType(c, txn, func(int16) kmsg.Response {
				return &kmsg.TxnOffsetCommitResponse{Topics: []kmsg.TxnOffsetCommitResponseTopic{{Topic: "t", TopicID: id,
					Partitions: []kmsg.TxnOffsetCommitResponseTopicPartition{{Partition: 0, ErrorCode: code}, {Partition: 7, ErrorCode: code}}}}}
			})
		}
		r.refusesWrongType(c, del, func(int16) kmsg.Response { return &kmsg.OffsetDeleteResponse{ErrorCode: code} })
	}
}

func TestCheck041_OffsetFetchFindsNoOffsets(t *testing.T) {
	r, c := misused(t)
	id := [16]byte{1, 2, 3}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.Topics = "g", []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0, 7}}}
	req.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", TopicID: id, Partitions: []int32{0, 7}}}}}
	none := kmsg.OffsetFetchResponse{
		Topics: []kmsg.OffsetFetchResponseTopic{{Topic: "t", Partitions: []kmsg.OffsetFetchResponseTopicPartition{
			{Partition: 0, Offset: -1, LeaderEpoch: -1, Metadata: text("")}, {Partition: 7, Offset: -1, LeaderEpoch: -1, Metadata: text("")}}}},
		Groups: []kmsg.OffsetFetchResponseGroup{{Group: "g", Topics: []kmsg.OffsetFetchResponseGroupTopic{{Topic: "t", TopicID: id,
			Partitions: []kmsg.OffsetFetchResponseGroupTopicPartition{
				{Partition: 0, Offset: -1, LeaderEpoch: -1, Metadata: text("")}, {Partition: 7, Offset: -1, LeaderEpoch: -1, Metadata: text("")}}}}}},
	}
	r.refusesWrongType(c, req, func(int16) kmsg.Response { return &none })

	c.Auth = denies{group: "g"}
	refused := kmsg.OffsetFetchResponse{ErrorCode: denied, Groups: []kmsg.OffsetFetchResponseGroup{{Group: "g", ErrorCode: denied}}}
	r.refusesWrongType(c, req, func(version int16) kmsg.Response {
		if version >= 2 {
			return &refused
		}
		parts := []kmsg.OffsetFetchResponseTopicPartition{
			{Partition: 0, Offset: -1, Metadata: text(""), ErrorCode: denied}, {Partition: 7, Offset: -1, Metadata: text(""), ErrorCode: denied}}
		return &kmsg.OffsetFetchResponse{Topics: []kmsg.OffsetFetchResponseTopic{{Topic: "t", Partitions: parts}}}
	})

	c.Auth = nil
	req.Topics, req.Groups[0].Topics = nil, nil // all
	r.refusesWrongType(c, req, func(int16) kmsg.Response {
		return &kmsg.OffsetFetchResponse{Groups: []kmsg.OffsetFetchResponseGroup{{Group: "g"}}}
	})
}

// wrongTypeRequests names the groups in one request of each API, as far as it takes several.
func wrongTypeRequests(groups ...string) []kmsg.Request {
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Version = 9
	for _, g := range groups {
		fetch.Groups = append(fetch.Groups, kmsg.OffsetFetchRequestGroup{Group: g})
	}
	return []kmsg.Request{
		&kmsg.OffsetCommitRequest{Group: groups[0]}, &kmsg.OffsetFetchRequest{Group: groups[0]}, fetch,
		&kmsg.JoinGroupRequest{Group: groups[0]}, &kmsg.HeartbeatRequest{Group: groups[0]}, &kmsg.LeaveGroupRequest{Group: groups[0]},
		&kmsg.SyncGroupRequest{Group: groups[0]}, &kmsg.DescribeGroupsRequest{Groups: groups},
		&kmsg.TxnOffsetCommitRequest{TransactionalID: "g", Group: groups[0]}, &kmsg.OffsetDeleteRequest{Group: groups[0]},
		&kmsg.ConsumerGroupHeartbeatRequest{Group: groups[0]}, &kmsg.ConsumerGroupDescribeRequest{Groups: groups},
		&kmsg.StreamsGroupHeartbeatRequest{Group: groups[0]}, &kmsg.StreamsGroupDescribeRequest{Groups: groups},
	}
}

func TestOtherGroupsAreUpstreams(t *testing.T) {
	r, _ := misused(t)
	for _, req := range wrongTypeRequests("other", "another") {
		if own, theirs := r.apis[req.Key()].Split(r.srv, req); own != nil || theirs != nil {
			t.Errorf("%T should be relayed as it is, got %v and %v", req, own, theirs)
		}
	}
	groupsOf := func(req kmsg.Request) (groups []string) {
		switch req := req.(type) {
		case *kmsg.OffsetFetchRequest:
			for _, g := range req.Groups {
				groups = append(groups, g.Group)
			}
		case *kmsg.DescribeGroupsRequest:
			groups = req.Groups
		case *kmsg.ConsumerGroupDescribeRequest:
			groups = req.Groups
		case *kmsg.StreamsGroupDescribeRequest:
			groups = req.Groups
		}
		return groups
	}
	several := 0
	for _, req := range wrongTypeRequests("a", "g", "b") {
		if len(groupsOf(req)) < 2 {
			continue
		}
		several++
		own, theirs := r.apis[req.Key()].Split(r.srv, req)
		if own == nil || theirs == nil || !slices.Equal(groupsOf(own), []string{"g"}) || !slices.Equal(groupsOf(theirs), []string{"a", "b"}) {
			t.Errorf("%T: own %v, theirs %v", req, own, theirs)
			continue
		}
		merged := r.apis[req.Key()].Merge(withGroup(own.ResponseKind()), withGroup(theirs.ResponseKind()))
		if want := withGroup(withGroup(own.ResponseKind())); fmt.Sprint(merged) != fmt.Sprint(want) {
			t.Errorf("%T: merged %+v", req, merged)
		}
	}
	if several != 4 {
		t.Errorf("%d APIs with several groups", several)
	}
}

// withGroup adds a group to a response that holds several.
func withGroup(resp kmsg.Response) kmsg.Response {
	switch resp := resp.(type) {
	case *kmsg.OffsetFetchResponse:
		resp.Groups = append(resp.Groups, kmsg.OffsetFetchResponseGroup{Group: "x"})
	case *kmsg.DescribeGroupsResponse:
		resp.Groups = append(resp.Groups, kmsg.DescribeGroupsResponseGroup{Group: "x"})
	case *kmsg.ConsumerGroupDescribeResponse:
		resp.Groups = append(resp.Groups, kmsg.ConsumerGroupDescribeResponseGroup{Group: "x"})
	case *kmsg.StreamsGroupDescribeResponse:
		resp.Groups = append(resp.Groups, kmsg.StreamsGroupDescribeResponseGroup{Group: "x"})
	}
	return resp
}

// mute is an upstream that cannot be asked for ACLs.
type mute struct{ denies }

func (mute) Group(context.Context, int8, string) (bool, error) { return false, errors.New("no answer") }

// groupACLs tells of groups alone; the principal may describe all topics and do nothing with the cluster.
type groupACLs struct {
	denies
	may func(op int8) (bool, error)
}

func (a groupACLs) Group(_ context.Context, op int8, _ string) (bool, error) { return a.may(op) }
func (groupACLs) Cluster(context.Context, int8) (bool, error)                { return false, nil }

func TestUnknownACLsOfAGroupAreNoDenial(t *testing.T) {
	r, c := misused(t)
	unsure := func(about int8) groupACLs {
		return groupACLs{may: func(op int8) (bool, error) {
			if op == about {
				return false, errors.New("no answer")
			}
			return true, nil
		}}
	}
	retriable := func(what string, code int16) {
		t.Helper()
		if !kerr.IsRetriable(kerr.ErrorForCode(code)) {
			t.Errorf("%s: code %d", what, code)
		}
	}
	c.Auth = unsure(opDescribe)
	list := kmsg.NewPtrListGroupsRequest()
	list.Version = 5
	retriable("ListGroups", r.ask(r.w.ctx, c, list).(listAnswer).ErrorCode)
	c.Auth = unsure(opDelete)
	if got := r.ask(r.w.ctx, c, list).(listAnswer); got.ErrorCode != codeNone || len(got.Groups) != 1 {
		t.Errorf("ListGroups, when it is known what counts: %+v", got.ListGroupsResponse)
	}
	share := kmsg.NewPtrShareGroupDescribeRequest()
	share.Version, share.GroupIDs, share.IncludeAuthorizedOperations = 1, []string{"g"}, true
	described := r.ask(r.w.ctx, c, share).(*kmsg.ShareGroupDescribeResponse).Groups[0]
	retriable("ShareGroupDescribe", described.ErrorCode)
	if described.AuthorizedOperations != unsaidOperations || described.GroupState != "" {
		t.Errorf("ShareGroupDescribe: %+v", described)
	}
	classic := kmsg.NewPtrDescribeGroupsRequest()
	classic.Version, classic.Groups, classic.IncludeAuthorizedOperations = 5, []string{"g"}, true
	retriable("DescribeGroups", r.ask(r.w.ctx, c, classic).(*kmsg.DescribeGroupsResponse).Groups[0].ErrorCode)
}

func TestUnknownACLsAreNoRefusal(t *testing.T) {
	r, c := misused(t)
	c.Auth = mute{}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = "g"
	if code := r.ask(r.w.ctx, c, req).(*kmsg.HeartbeatResponse).ErrorCode; !kerr.IsRetriable(kerr.ErrorForCode(code)) {
		t.Errorf("code %d", code)
	}
}
