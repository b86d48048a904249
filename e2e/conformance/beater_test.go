//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

// beater is a member of a share group towards the group coordinator, one heartbeat at a time.
type beater struct {
	w         *world
	c         *conn
	group, id string
	epoch     int32
	rack      *string
	// assigned is what the last assignment said, by topic id.
	assigned map[[16]byte][]int32
}

// beater makes one, on the connection that all of a world's use. Nothing is sent yet.
func (w *world) beater(group string) *beater {
	return &beater{w: w, c: w.admin, group: group, id: w.unique()}
}

// unchanged is the subscription of a heartbeat that says nothing of it.
var unchanged []string

// ask sends a heartbeat, whatever comes back. A coordinator that is not up yet is asked again.
func (b *beater) ask(topics []string) (resp *kmsg.ShareGroupHeartbeatResponse) {
	b.w.Helper()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.MemberEpoch, req.RackID, req.SubscribedTopicNames = 1, b.group, b.id, b.epoch, b.rack, topics
	b.w.until("heartbeat", 60*time.Second, func() error {
		resp = ask[*kmsg.ShareGroupHeartbeatResponse](b.w, b.c, req)
		err := kerr.ErrorForCode(resp.ErrorCode)
		if errors.Is(err, kerr.CoordinatorNotAvailable) || errors.Is(err, kerr.CoordinatorLoadInProgress) || errors.Is(err, kerr.NotCoordinator) {
			// The question makes a new broker create the topic that coordinators keep their state in.
			if at := b.w.findCoordinator(0, b.group)[0]; at.ErrorCode == 0 {
				b.w.admin = b.w.dial(net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))))
				b.c = b.w.admin
			}
			return err
		}
		return nil
	})
	return resp
}

// beats sends a heartbeat that must be accepted, and takes over what it says.
func (b *beater) beats(topics []string) *kmsg.ShareGroupHeartbeatResponse {
	b.w.Helper()
	resp := b.ask(topics)
	if resp.ErrorCode != 0 {
		message := ""
		if resp.ErrorMessage != nil {
			message = *resp.ErrorMessage
		}
		b.w.Fatalf("heartbeat of %s at epoch %d: %v %s", b.id, b.epoch, kerr.ErrorForCode(resp.ErrorCode), message)
	}
	if resp.MemberID == nil || *resp.MemberID != b.id {
		b.w.Fatalf("answered member %v, want %s", resp.MemberID, b.id)
	}
	b.epoch = resp.MemberEpoch
	if resp.Assignment != nil {
		b.assigned = map[[16]byte][]int32{}
		for _, t := range resp.Assignment.TopicPartitions {
			b.assigned[t.TopicID] = t.Partitions
		}
	}
	return resp
}

// subscribes sends a heartbeat with a subscription; with epoch 0 it is the join.
func (b *beater) subscribes(topics ...topic) *kmsg.ShareGroupHeartbeatResponse {
	b.w.Helper()
	names := []string{}
	for _, t := range topics {
		names = append(names, t.name)
	}
	return b.beats(names)
}

// refused sends a heartbeat that must be refused, and returns the message.
func (b *beater) refused(want *kerr.Error, topics []string) string {
	b.w.Helper()
	resp := b.ask(topics)
	b.w.code(fmt.Sprintf("heartbeat of %q at epoch %d", b.id, b.epoch), resp.ErrorCode, want)
	if resp.Assignment != nil || resp.MemberEpoch != 0 || resp.HeartbeatIntervalMillis != 0 {
		b.w.Fatalf("a refused heartbeat has content: %+v", resp)
	}
	if resp.ErrorMessage == nil {
		return ""
	}
	return *resp.ErrorMessage
}

// leaves ends the membership.
func (b *beater) leaves() {
	b.w.Helper()
	b.epoch = -1
	b.beats(unchanged)
}

// has names the partitions of a topic that are assigned: "0 1 2".
func (b *beater) has(t topic) string {
	return strings.Trim(fmt.Sprint(b.assigned[t.id]), "[]")
}

// count is how many partitions of the topics are assigned.
func (b *beater) count(topics ...topic) (n int) {
	for _, t := range topics {
		n += len(b.assigned[t.id])
	}
	return n
}

// settle sends keep-alives of all members until the condition holds.
func settle(what string, cond func() error, members ...*beater) {
	members[0].w.Helper()
	if err := harness.Until(what, 30*time.Second, func() error {
		err := cond()
		if err != nil {
			for _, b := range members {
				b.beats(unchanged)
			}
		}
		return err
	}); err != nil {
		members[0].w.Fatal(err)
	}
}

// shares tells for each partition of a topic how many of the members have it; an error unless all have any.
func shares(t topic, partitions int, members ...*beater) ([]int, error) {
	counts := make([]int, partitions)
	for _, b := range members {
		for _, p := range b.assigned[t.id] {
			if int(p) >= partitions {
				return nil, fmt.Errorf("partition %d of %d", p, partitions)
			}
			counts[p]++
		}
	}
	for p, n := range counts {
		if n == 0 {
			return counts, fmt.Errorf("partition %d is nobody's: %v", p, counts)
		}
	}
	return counts, nil
}

// findCoordinator looks the coordinators of keys up, at version 5.
func (w *world) findCoordinator(kind int8, keys ...string) []kmsg.FindCoordinatorResponseCoordinator {
	w.Helper()
	return w.findCoordinatorAt(5, kind, keys...)
}

func (w *world) findCoordinatorAt(version int16, kind int8, keys ...string) []kmsg.FindCoordinatorResponseCoordinator {
	w.Helper()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorType, req.CoordinatorKeys = version, kind, keys
	got := ask[*kmsg.FindCoordinatorResponse](w, w.admin, req).Coordinators
	if len(got) != len(keys) {
		w.Fatalf("%d coordinators of %d keys: %+v", len(got), len(keys), got)
	}
	return got
}

// describeGroup is what ShareGroupDescribe tells of a group.
func (w *world) describeGroup(group string) kmsg.ShareGroupDescribeResponseGroup {
	w.Helper()
	req := kmsg.NewPtrShareGroupDescribeRequest()
	req.Version, req.GroupIDs = 1, []string{group}
	got := ask[*kmsg.ShareGroupDescribeResponse](w, w.admin, req).Groups
	if len(got) != 1 || got[0].GroupID != group {
		w.Fatalf("described %+v, want %s", got, group)
	}
	return got[0]
}

// listed tells a group's state in ListGroups, "" if it is not listed.
func (w *world) listed(group string) string {
	w.Helper()
	req := kmsg.NewPtrListGroupsRequest()
	req.Version = 5
	for _, g := range ask[*kmsg.ListGroupsResponse](w, w.admin, req).Groups {
		if g.Group == group {
			return g.GroupState
		}
	}
	return ""
}
