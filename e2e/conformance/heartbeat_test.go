//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The group of these worlds is made by the tests themselves.
func membership(t *testing.T, partitions int) (*world, *beater) {
	t.Helper()
	w := start(t, setup{foreign: true, partitions: partitions})
	return w, w.beater(w.group)
}

// owns waits until the member is assigned all partitions of the topics.
func (b *beater) owns(partitions int, topics ...topic) {
	b.w.Helper()
	settle("all partitions", func() error {
		if n := b.count(topics...); n != partitions {
			return fmt.Errorf("%d of %d partitions", n, partitions)
		}
		return nil
	}, b)
}

func TestCheck010_FirstHeartbeatMakesTheGroup(t *testing.T) {
	w, b := membership(t, 1)
	resp := b.subscribes(w.main)
	if resp.MemberEpoch < 1 || resp.HeartbeatIntervalMillis != 5000 || resp.Assignment == nil || resp.ErrorMessage != nil {
		t.Fatalf("%+v", resp)
	}
	w.is("state", w.listed(w.group), "Stable")
}

func TestCheck011_LoneMemberIsAssignedEverything(t *testing.T) {
	w, b := membership(t, 5)
	other := w.createTopic(w.main.name+"-2", 2, nil)
	b.subscribes(w.main, other)
	b.owns(7, w.main, other)
	w.is("assigned", b.has(w.main)+" | "+b.has(other), "0 1 2 3 4 | 0 1")
}

func TestCheck012_JoinNeedsTopics(t *testing.T) {
	w, b := membership(t, 1)
	for _, topics := range [][]string{unchanged, {}} {
		w.is("message", b.refused(kerr.InvalidRequest, topics), "SubscribedTopicNames must be set in first request.")
	}
	w.is("listed", w.listed(w.group), "")
}

func TestCheck013_MemberIdHasOneTo36Chars(t *testing.T) {
	w, b := membership(t, 1)
	for _, id := range []string{"", " ", strings.Repeat("m", 37), strings.Repeat("\u00e9", 37), strings.Repeat("\U0001f600", 19)} {
		b.id = id
		b.refused(kerr.InvalidRequest, []string{w.main.name})
	}
	for _, id := range []string{strings.Repeat("m", 36), strings.Repeat("\u00e9", 36), strings.Repeat("\U0001f600", 18), "\u00a0"} {
		b := w.beater(w.group)
		b.id = id
		b.subscribes(w.main)
		b.leaves()
	}
}

func TestCheck014_GroupIdAndRackMayNotBeEmpty(t *testing.T) {
	w, b := membership(t, 1)
	for _, empty := range []string{"", " ", "\t \n"} {
		nobody := w.beater(empty)
		w.is("message", nobody.refused(kerr.InvalidRequest, []string{w.main.name}), "GroupId can't be empty.")
		b.rack = kmsg.StringPtr(empty)
		w.is("message", b.refused(kerr.InvalidRequest, []string{w.main.name}), "RackId can't be empty.")
	}
	b.rack = nil
	b.subscribes(w.main)
	racked := w.beater(w.group)
	racked.rack = kmsg.StringPtr("r1")
	racked.subscribes(w.main)
}

func TestCheck015_EpochBelowMinusOneIsInvalid(t *testing.T) {
	w, b := membership(t, 1)
	b.epoch = -2
	w.is("message", b.refused(kerr.InvalidRequest, []string{w.main.name}), "MemberEpoch is invalid.")
}

func TestCheck016_EpochOnUnknownGroup(t *testing.T) {
	w, b := membership(t, 1)
	for _, epoch := range []int32{5, -1} {
		b.epoch = epoch
		if message := b.refused(kerr.GroupIDNotFound, []string{w.main.name}); !strings.Contains(message, w.group) {
			t.Errorf("epoch %d: message %q", epoch, message)
		}
	}
	w.is("listed", w.listed(w.group), "")
}

func TestCheck017_EpochOfUnknownMember(t *testing.T) {
	w, b := membership(t, 1)
	b.subscribes(w.main)
	stranger := w.beater(w.group)
	stranger.epoch = 1
	stranger.refused(kerr.UnknownMemberID, unchanged)
	stranger.refused(kerr.UnknownMemberID, []string{w.main.name})
}

func TestCheck018_CurrentAndPreviousEpochAreAccepted(t *testing.T) {
	w, b := membership(t, 2)
	b.subscribes(w.main)
	b.owns(2, w.main)
	first := b.epoch
	other := w.beater(w.group)
	other.subscribes(w.main)
	settle("a later epoch", func() error {
		if b.epoch == first {
			return errors.New("the same epoch")
		}
		return nil
	}, b, other)
	now := b.epoch
	for _, epoch := range []int32{first, now, first} {
		b.epoch = epoch
		if resp := b.beats(unchanged); resp.MemberEpoch != now {
			t.Fatalf("at epoch %d: %+v, want %d", epoch, resp, now)
		}
	}
	for _, epoch := range []int32{now + 1, first - 1, now + 100} {
		if epoch > 0 {
			b.epoch = epoch
			b.refused(kerr.FencedMemberEpoch, unchanged)
		}
	}
	b.epoch = now
	b.beats(unchanged)
}

func TestCheck019_KeepAliveHasNoAssignment(t *testing.T) {
	w, b := membership(t, 2)
	b.subscribes(w.main)
	b.owns(2, w.main)
	epoch := b.epoch
	for range 3 {
		if resp := b.beats(unchanged); resp.Assignment != nil || resp.MemberEpoch != epoch || resp.HeartbeatIntervalMillis != 5000 {
			t.Fatalf("%+v", resp)
		}
	}
}

func TestCheck020_RepeatedSubscriptionIsAnsweredWithTheAssignment(t *testing.T) {
	w, b := membership(t, 2)
	b.subscribes(w.main)
	b.owns(2, w.main)
	epoch := b.epoch
	resp := b.subscribes(w.main)
	if resp.Assignment == nil || b.has(w.main) != "0 1" || resp.MemberEpoch != epoch {
		t.Fatalf("%+v", resp)
	}
}

func TestCheck021_RejoiningMemberIsTheSame(t *testing.T) {
	w, b := membership(t, 2)
	b.subscribes(w.main)
	b.owns(2, w.main)
	b.epoch = 0
	if resp := b.subscribes(w.main); resp.Assignment == nil || b.has(w.main) != "0 1" {
		t.Fatalf("%+v", resp)
	}
	if n := len(w.describeGroup(w.group).Members); n != 1 {
		t.Fatalf("%d members", n)
	}
}

func TestCheck022_LeaveIsAnsweredAndSeen(t *testing.T) {
	w, b := membership(t, 2)
	b.subscribes(w.main)
	other := w.beater(w.group)
	other.subscribes(w.main)
	b.epoch = -1
	resp := b.beats(unchanged)
	if resp.MemberEpoch != -1 || resp.Assignment != nil || resp.HeartbeatIntervalMillis != 0 {
		t.Fatalf("%+v", resp)
	}
	members := w.describeGroup(w.group).Members
	if len(members) != 1 || members[0].MemberID != other.id {
		t.Fatalf("%+v", members)
	}
	other.owns(2, w.main)
}

func TestCheck023_LeaveOfUnknownMember(t *testing.T) {
	w, b := membership(t, 1)
	b.subscribes(w.main)
	stranger := w.beater(w.group)
	stranger.epoch = -1
	stranger.refused(kerr.UnknownMemberID, unchanged)
	b.leaves()
	b.refused(kerr.UnknownMemberID, unchanged)
}

func TestCheck024_SilentMemberIsRemoved(t *testing.T) {
	w, b := membership(t, 2)
	timeout := 2000
	if full() {
		timeout = 45_000
	} else {
		w.set(w.group, "share.heartbeat.interval.ms", "1000")
		w.set(w.group, "share.session.timeout.ms", fmt.Sprint(timeout))
	}
	silent := w.beater(w.group)
	silent.subscribes(w.main)
	b.subscribes(w.main)
	settle("a partition each", func() error {
		if _, err := shares(w.main, 2, b, silent); err != nil || b.count(w.main) != 1 {
			return fmt.Errorf("%v, %v", b.assigned, silent.assigned)
		}
		return nil
	}, b, silent)
	began := time.Now()
	w.until("the other's partitions", time.Duration(timeout)*time.Millisecond+30*time.Second, func() error {
		if b.beats(unchanged); b.count(w.main) != 2 {
			return fmt.Errorf("%v", b.assigned)
		}
		return nil
	})
	if took := time.Since(began); took < time.Duration(timeout)*time.Millisecond*9/10 {
		t.Errorf("removed after %v, its time is %d ms", took, timeout)
	}
	members := w.describeGroup(w.group).Members
	if len(members) != 1 || members[0].MemberID != b.id {
		t.Fatalf("%+v", members)
	}
	silent.refused(kerr.UnknownMemberID, unchanged)
}

func TestCheck025_FullGroupTakesNobody(t *testing.T) {
	w, _ := membership(t, 1)
	members := make([]*beater, groupLimit)
	for i := range members {
		members[i] = w.beater(w.group)
		members[i].subscribes(w.main)
	}
	one := w.beater(w.group)
	one.refused(kerr.GroupMaxSizeReached, []string{w.main.name})
	for _, b := range []*beater{members[0], members[groupLimit-1]} {
		b.beats(unchanged)
	}
	members[0].epoch = 0
	members[0].subscribes(w.main) // who is in already may join anew
	members[1].leaves()
	one.subscribes(w.main)
}

func TestCheck026_TopicThatMayNotBeDescribedRefusesTheJoin(t *testing.T) {
	w := start(t, setup{foreign: true, guarded: true})
	secret := w.createTopic(w.main.name+"-secret", 1, nil)
	w.deny(kmsg.ACLResourceTypeTopic, secret.name, kmsg.ACLOperationDescribe)
	w.deny(kmsg.ACLResourceTypeTopic, "no-"+w.main.name, kmsg.ACLOperationDescribe)
	b := w.beater(w.group)
	for _, name := range []string{secret.name, "no-" + w.main.name} {
		w.until("denial", 20*time.Second, func() error {
			probe := w.beater(w.group + "-probe")
			if code := probe.ask([]string{name}).ErrorCode; code != kerr.TopicAuthorizationFailed.Code {
				return fmt.Errorf("code %d", code)
			}
			return nil
		})
		b.refused(kerr.TopicAuthorizationFailed, []string{w.main.name, name})
	}
	w.is("listed", w.listed(w.group), "")
	b.subscribes(w.main)
	other := w.beater(w.group)
	other.refused(kerr.TopicAuthorizationFailed, []string{w.main.name, secret.name})
	if n := len(w.describeGroup(w.group).Members); n != 1 {
		t.Fatalf("%d members", n)
	}
}

func TestCheck027_GroupWithoutReadRefusesHeartbeats(t *testing.T) {
	w := start(t, setup{foreign: true, guarded: true})
	b := w.beater(w.group)
	b.subscribes(w.main)
	w.deny(kmsg.ACLResourceTypeGroup, w.group)
	w.until("denial", 20*time.Second, func() error {
		if code := b.ask(unchanged).ErrorCode; code != kerr.GroupAuthorizationFailed.Code {
			return fmt.Errorf("code %d", code)
		}
		return nil
	})
	b.refused(kerr.GroupAuthorizationFailed, unchanged)
	b.id = "" // before the member id is looked at
	b.refused(kerr.GroupAuthorizationFailed, unchanged)
}

// topicsOf names the assigned topics by their number in the list.
func (b *beater) topicsOf(topics ...topic) string {
	var known []string
	rest := maps.Clone(b.assigned)
	for i, t := range topics {
		if _, ok := rest[t.id]; ok {
			known = append(known, fmt.Sprint(i))
			delete(rest, t.id)
		}
	}
	for id := range rest {
		known = append(known, fmt.Sprintf("%x", id))
	}
	slices.Sort(known)
	return strings.Join(known, " ")
}
