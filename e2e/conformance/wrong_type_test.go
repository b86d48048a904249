//go:build e2e

package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// joinGroup is a JoinGroup of a consumer without a member id yet.
func joinGroup(group string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType = 7, group, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 30_000, 30_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", []byte{0, 0, 0, 0, 0, 0, 0, 0}
	req.Protocols = append(req.Protocols, p)
	return req
}

// consumerHeartbeat is the first ConsumerGroupHeartbeat of a member (KIP-848).
func consumerHeartbeat(group, member string, topics ...string) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.RebalanceTimeoutMillis = group, member, 30_000
	req.SubscribedTopicNames, req.Topics = topics, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	return req
}

func offsetCommit(group string, p tp) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = 8, group, -1
	t := kmsg.NewOffsetCommitRequestTopic()
	part := kmsg.NewOffsetCommitRequestTopicPartition()
	part.Partition, part.Offset = p.p, 3
	t.Topic, t.Partitions = p.name, append(t.Partitions, part)
	req.Topics = append(req.Topics, t)
	return req
}

// classicGroup makes an empty group of type classic, by an offset.
func (w *world) classicGroup() string {
	w.Helper()
	group := w.group + "-classic"
	w.until("the classic group", 60*time.Second, func() error {
		resp := ask[*kmsg.OffsetCommitResponse](w, w.admin, offsetCommit(group, w.p(0)))
		err := kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
		if err != nil {
			w.findCoordinator(0, group)
		}
		return err
	})
	return group
}

// consumerGroup makes a group of type consumer with one member.
func (w *world) consumerGroup() string {
	w.Helper()
	group := w.group + "-consumer"
	w.until("the consumer group", 60*time.Second, func() error {
		resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](w, w.admin, consumerHeartbeat(group, w.unique(), w.main.name))
		err := kerr.ErrorForCode(resp.ErrorCode)
		if err != nil {
			w.findCoordinator(0, group)
		}
		return err
	})
	return group
}

func TestCheck039_JoinGroupOnShareGroup(t *testing.T) {
	w := start(t, setup{})
	for version := int16(2); version <= 9; version++ {
		req := joinGroup(w.group)
		req.Version = version
		resp := ask[*kmsg.JoinGroupResponse](w, w.admin, req)
		w.code(fmt.Sprint("JoinGroup v", version), resp.ErrorCode, kerr.InconsistentGroupProtocol)
		w.is("member id", resp.MemberID, "")
	}
	w.is("state", w.listed(w.group), "Stable")
}

func TestCheck040_MembershipOfOtherKindsOnShareGroup(t *testing.T) {
	w := start(t, setup{})
	resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](w, w.admin, consumerHeartbeat(w.group, w.unique(), w.main.name))
	w.code("ConsumerGroupHeartbeat", resp.ErrorCode, kerr.GroupIDNotFound)
	w.is("message", w.message(resp.ErrorMessage), "Group "+w.group+" is not a consumer group.")
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Version, sync.Group, sync.MemberID, sync.Generation = 5, w.group, "m", 1
	sync.ProtocolType, sync.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("range")
	w.code("SyncGroup", ask[*kmsg.SyncGroupResponse](w, w.admin, sync).ErrorCode, kerr.UnknownMemberID)
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Version, beat.Group, beat.MemberID, beat.Generation = 4, w.group, "m", 1
	w.code("Heartbeat", ask[*kmsg.HeartbeatResponse](w, w.admin, beat).ErrorCode, kerr.UnknownMemberID)
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Version, leave.Group, leave.MemberID = 2, w.group, "m"
	w.code("LeaveGroup v2", ask[*kmsg.LeaveGroupResponse](w, w.admin, leave).ErrorCode, kerr.UnknownMemberID)
	many := kmsg.NewPtrLeaveGroupRequest()
	many.Version, many.Group, many.Members = 5, w.group, []kmsg.LeaveGroupRequestMember{{MemberID: "m"}}
	got := ask[*kmsg.LeaveGroupResponse](w, w.admin, many)
	w.code("LeaveGroup v5", got.ErrorCode, nil)
	w.code("LeaveGroup v5, member", got.Members[0].ErrorCode, kerr.UnknownMemberID)
}

func TestCheck041_OffsetsOfOtherKindsOnShareGroup(t *testing.T) {
	w := start(t, setup{})
	commit := ask[*kmsg.OffsetCommitResponse](w, w.admin, offsetCommit(w.group, w.p(0)))
	w.code("OffsetCommit", commit.Topics[0].Partitions[0].ErrorCode, kerr.GroupIDNotFound)
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Version = 8
	g := kmsg.NewOffsetFetchRequestGroup()
	t1 := kmsg.NewOffsetFetchRequestGroupTopic()
	t1.Topic, t1.Partitions = w.main.name, []int32{0}
	g.Group, g.Topics = w.group, append(g.Topics, t1)
	fetch.Groups = append(fetch.Groups, g)
	got := ask[*kmsg.OffsetFetchResponse](w, w.admin, fetch).Groups[0]
	w.code("OffsetFetch", got.ErrorCode, nil)
	if p := got.Topics[0].Partitions[0]; p.Offset != -1 || p.ErrorCode != 0 {
		t.Errorf("OffsetFetch: %+v", p)
	}
	fetch.Groups[0].Topics = nil
	if got := ask[*kmsg.OffsetFetchResponse](w, w.admin, fetch).Groups[0]; got.ErrorCode != 0 || len(got.Topics) != 0 {
		t.Errorf("OffsetFetch of all: %+v", got)
	}
	del := kmsg.NewPtrOffsetDeleteRequest()
	del.Group = w.group
	dt := kmsg.NewOffsetDeleteRequestTopic()
	dt.Topic, dt.Partitions = w.main.name, []kmsg.OffsetDeleteRequestTopicPartition{{}}
	del.Topics = append(del.Topics, dt)
	w.code("OffsetDelete", ask[*kmsg.OffsetDeleteResponse](w, w.admin, del).ErrorCode, kerr.GroupIDNotFound)
}

func TestCheck042_ShareGroupOnTheIdOfAnother(t *testing.T) {
	w := start(t, setup{foreign: true})
	for kind, group := range map[string]string{"classic": w.classicGroup(), "consumer": w.consumerGroup()} {
		b := w.beater(group)
		want := "Group " + group + " is not a share group."
		w.is(kind, b.refused(kerr.GroupIDNotFound, []string{w.main.name}), want)
		resp := w.alterOffsets(group, place{w.p(0), 1})
		w.code(kind+": AlterShareGroupOffsets", resp.ErrorCode, kerr.GroupIDNotFound)
		w.is(kind, w.message(resp.ErrorMessage), want)
		gone := w.deleteOffsets(group, w.main.name)
		w.code(kind+": DeleteShareGroupOffsets", gone.ErrorCode, kerr.GroupIDNotFound)
		w.is(kind, w.message(gone.ErrorMessage), want)
		if got := w.describeOffsets(1, group).Topics; len(got) != 0 {
			t.Errorf("%s: DescribeShareGroupOffsets: %+v", kind, got)
		}
	}
}

func TestCheck043_DescribingAGroupOfAnotherType(t *testing.T) {
	w := start(t, setup{foreign: true})
	for kind, group := range map[string]string{"classic": w.classicGroup(), "consumer": w.consumerGroup()} {
		g := w.describeGroup(group)
		w.code(kind, g.ErrorCode, kerr.GroupIDNotFound)
		w.is(kind, w.message(g.ErrorMessage), "Group "+group+" is not a share group.")
		w.is(kind+": state", g.GroupState, "")
		if len(g.Members) != 0 {
			t.Errorf("%s: %+v", kind, g)
		}
	}
}

func TestCheck044_GroupTypeIsNoConfig(t *testing.T) {
	w := start(t, setup{})
	code, message := w.alterConfig(w.group, false, configOp{"group.type", kmsg.IncrementalAlterConfigOpSet, kmsg.StringPtr("share")})
	w.code("group.type", code, kerr.InvalidConfig)
	if !strings.Contains(message, "Unknown group config name: group.type") {
		t.Errorf("message %q", message)
	}
}
