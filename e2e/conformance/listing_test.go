//go:build e2e

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// listGroups prints the groups of this world that are listed: "name protocol state type", sorted, without the world's
// own part of the name.
func (w *world) listGroups(version int16, types, states []string) string {
	w.Helper()
	req := kmsg.NewPtrListGroupsRequest()
	req.Version, req.TypesFilter, req.StatesFilter = version, types, states
	resp := ask[*kmsg.ListGroupsResponse](w, w.admin, req)
	w.code("ListGroups", resp.ErrorCode, nil)
	var lines []string
	for _, g := range resp.Groups {
		if rest, ok := strings.CutPrefix(g.Group, w.group); ok {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", strings.TrimPrefix(rest, "-"), g.ProtocolType, g.GroupState, g.GroupType)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// twoGroups makes a share group with a member and one without, beside a classic and a consumer group.
func (w *world) twoGroups() {
	w.Helper()
	w.join(w.group+"-joined", w.main)
	w.join(w.group+"-left", w.main).leaves()
	w.classicGroup()
	w.consumerGroup()
}

func TestCheck115_ListingByType(t *testing.T) {
	w := start(t, setup{foreign: true})
	w.twoGroups()
	share := "joined share Stable share, left share Empty share"
	for _, c := range []struct {
		types []string
		want  string
	}{
		{[]string{"share"}, share},
		{[]string{"SHARE"}, share},
		{[]string{"consumer"}, "consumer consumer Stable consumer"},
		{[]string{"classic"}, "classic  Empty classic"},
		{[]string{"share", "classic"}, "classic  Empty classic, " + share},
		{[]string{"nonsense"}, ""},
		{nil, "classic  Empty classic, consumer consumer Stable consumer, " + share},
	} {
		w.is(fmt.Sprint(c.types), w.listGroups(5, c.types, nil), c.want)
	}
	w.is("v4", w.listGroups(4, nil, nil), "classic  Empty, consumer consumer Stable, joined share Stable, left share Empty")
	w.is("v3", w.listGroups(3, nil, nil), "classic, consumer consumer, joined share, left share")
}

func TestCheck116_ListingByState(t *testing.T) {
	w := start(t, setup{foreign: true})
	w.twoGroups()
	for _, c := range []struct {
		states []string
		want   string
	}{
		{[]string{"Empty"}, "classic  Empty classic, left share Empty share"},
		{[]string{"Stable"}, "consumer consumer Stable consumer, joined share Stable share"},
		{[]string{"stable"}, "consumer consumer Stable consumer, joined share Stable share"},
		{[]string{" stable "}, "consumer consumer Stable consumer, joined share Stable share"},
		{[]string{"Dead"}, ""},
		{[]string{"nonsense"}, ""},
	} {
		w.is(fmt.Sprint(c.states), w.listGroups(5, nil, c.states), c.want)
	}
	w.is("v4", w.listGroups(4, nil, []string{"Empty"}), "classic  Empty, left share Empty")
	w.is("both filters", w.listGroups(5, []string{"share"}, []string{"Empty"}), "left share Empty share")
}

func TestCheck117_DescribedGroup(t *testing.T) {
	w := start(t, setup{foreign: true, partitions: 2})
	b := w.beater(w.group)
	b.rack = kmsg.StringPtr("r1")
	b.subscribes(w.main)
	b.owns(2, w.main)
	g := w.describeGroup(w.group)
	w.code("ShareGroupDescribe", g.ErrorCode, nil)
	if g.ErrorMessage != nil || g.GroupState != "Stable" || g.Assignor != "simple" || g.GroupEpoch < 1 || g.AssignmentEpoch != b.epoch || g.AuthorizedOperations != -1<<31 || len(g.Members) != 1 {
		t.Fatalf("%+v", g)
	}
	m := g.Members[0]
	if m.MemberID != b.id || *m.RackID != "r1" || m.MemberEpoch != b.epoch || m.ClientID != "conformance" || m.ClientHost != "/127.0.0.1" && m.ClientHost != "/"+w.upstreamHost() || !slices.Equal(m.SubscribedTopicNames, []string{w.main.name}) {
		t.Errorf("%+v", m)
	}
	if a := m.Assignment.TopicPartitions; len(a) != 1 || a[0].TopicID != w.main.id || a[0].Topic != w.main.name || !slices.Equal(a[0].Partitions, []int32{0, 1}) {
		t.Errorf("%+v", a)
	}
	req := kmsg.NewPtrShareGroupDescribeRequest()
	req.Version, req.IncludeAuthorizedOperations, req.GroupIDs = 1, true, []string{w.group, "no-" + w.group, ""}
	for _, g := range ask[*kmsg.ShareGroupDescribeResponse](w, w.admin, req).Groups {
		switch g.GroupID {
		case w.group:
			var want int32
			for _, op := range []int{3, 6, 8, 10, 11} {
				want |= 1 << op
			}
			w.is("operations", fmt.Sprintf("%b", g.AuthorizedOperations), fmt.Sprintf("%b", want))
		case "":
			w.code("no group id", g.ErrorCode, kerr.InvalidGroupID)
		default:
			w.code("unknown group", g.ErrorCode, kerr.GroupIDNotFound)
			w.is("message", w.message(g.ErrorMessage), "Group "+g.GroupID+" not found.")
			w.is("state", g.GroupState, "")
		}
		if g.GroupID != w.group && (len(g.Members) != 0 || g.GroupEpoch != 0 || g.Assignor != "") {
			t.Errorf("%+v", g)
		}
	}
}

func TestCheck118_DescribedGroupWithAHiddenTopic(t *testing.T) {
	w := start(t, setup{foreign: true, guarded: true})
	secret := w.createTopic(w.main.name+"-secret", 1, nil)
	w.join(w.group, w.main, secret)
	w.join(w.group+"-open", w.main)
	w.deny(kmsg.ACLResourceTypeTopic, secret.name, kmsg.ACLOperationDescribe)
	w.until("denial", 20*time.Second, func() error {
		g := w.describeGroup(w.group)
		if g.ErrorCode != kerr.TopicAuthorizationFailed.Code {
			return fmt.Errorf("code %d", g.ErrorCode)
		}
		w.is("message", w.message(g.ErrorMessage), "The group has described topic(s) that the client is not authorized to describe.")
		if len(g.Members) != 0 || g.GroupState != "" {
			t.Errorf("%+v", g)
		}
		return nil
	})
	if g := w.describeGroup(w.group + "-open"); g.ErrorCode != 0 || len(g.Members) != 1 {
		t.Errorf("%+v", g)
	}
}
