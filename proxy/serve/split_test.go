package serve

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestRequestsWithAListAreSplitOrPassedWhole(t *testing.T) {
	const topic, group = kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeGroupConfig
	for _, c := range []struct {
		asked, own, theirs []resource
	}{
		{asked: nil},
		{asked: []resource{{topic, "t"}}},
		{asked: []resource{{group, "g"}}, own: []resource{{group, "g"}}},
		{asked: []resource{{group, "g"}, {topic, "g"}, {group, "f"}, {topic, "t"}},
			own: []resource{{group, "g"}, {group, "f"}}, theirs: []resource{{topic, "g"}, {topic, "t"}}},
	} {
		req := kmsg.NewPtrAlterConfigsRequest()
		req.Version = 1
		for _, r := range c.asked {
			req.Resources = append(req.Resources, kmsg.AlterConfigsRequestResource{ResourceType: r.kind, ResourceName: r.name})
		}
		own, theirs := splitAlter(nil, req)
		for i, part := range []kmsg.Request{own, theirs} {
			want := [][]resource{c.own, c.theirs}[i]
			if (part == nil) != (want == nil) {
				t.Errorf("%v: own %v, theirs %v", c.asked, own, theirs)
			} else if part != nil && (part.GetVersion() != 1 || !slices.Equal(alterNames(part), want)) {
				t.Errorf("%v: a part is %v at version %d, want %v", c.asked, alterNames(part), part.GetVersion(), want)
			}
		}
	}
}

func alterNames(req kmsg.Request) (names []resource) {
	for _, r := range req.(*kmsg.AlterConfigsRequest).Resources {
		names = append(names, resource{r.ResourceType, r.ResourceName})
	}
	return names
}

// Upstream's part of an answer about one group goes into kshare's; a topic of the group's name is something else.
func TestAnswersAboutOneGroupAreMerged(t *testing.T) {
	type part struct {
		kind kmsg.ConfigResourceType
		name string
		code int16
		keys []string
	}
	const topic, group = kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeGroupConfig
	describe := func(throttle int32, parts []part) *kmsg.DescribeConfigsResponse {
		resp := kmsg.NewPtrDescribeConfigsResponse()
		resp.ThrottleMillis = throttle
		for _, p := range parts {
			r := kmsg.DescribeConfigsResponseResource{ResourceType: p.kind, ResourceName: p.name, ErrorCode: p.code}
			for _, k := range p.keys {
				r.Configs = append(r.Configs, kmsg.DescribeConfigsResponseResourceConfig{Name: k})
			}
			resp.Resources = append(resp.Resources, r)
		}
		return resp
	}
	alter := func(throttle int32, parts []part) *kmsg.IncrementalAlterConfigsResponse {
		resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
		resp.ThrottleMillis = throttle
		for _, p := range parts {
			resp.Resources = append(resp.Resources, kmsg.IncrementalAlterConfigsResponseResource{
				ResourceType: p.kind, ResourceName: p.name, ErrorCode: p.code, ErrorMessage: text(fmt.Sprint(p.code))})
		}
		return resp
	}
	const lock, session = "share.record.lock.duration.ms", "consumer.session.timeout.ms"
	own := []part{{group, "g", 0, []string{lock}}, {group, "denied", 30, nil}, {group, "refused", 0, []string{lock}}}
	theirs := []part{{topic, "g", 3, nil}, {group, "refused", 42, nil}, {group, "g", 0, []string{session, lock}},
		{group, "denied", 0, []string{session}}, {topic, "t", 0, []string{"retention.ms"}}}

	described := mergeDescribe(describe(5, own), describe(7, theirs)).(*kmsg.DescribeConfigsResponse)
	var got []string
	for _, r := range described.Resources {
		line := fmt.Sprint(r.ResourceType, " ", r.ResourceName, " ", r.ErrorCode)
		for _, c := range r.Configs {
			line += " " + c.Name
		}
		got = append(got, line)
	}
	want := []string{"GROUP_CONFIG g 0 " + lock + " " + session, "GROUP_CONFIG denied 30", "GROUP_CONFIG refused 0 " + lock,
		"TOPIC g 3", "TOPIC t 0 retention.ms"}
	if !slices.Equal(got, want) || described.ThrottleMillis != 7 {
		t.Errorf("described %q after %d ms, want %q", got, described.ThrottleMillis, want)
	}

	altered := mergeIncrementalAlter(alter(5, own), alter(3, theirs)).(*kmsg.IncrementalAlterConfigsResponse)
	got = nil
	for _, r := range altered.Resources {
		got = append(got, fmt.Sprint(r.ResourceType, " ", r.ResourceName, " ", r.ErrorCode, " ", *r.ErrorMessage))
	}
	want = []string{"GROUP_CONFIG g 0 0", "GROUP_CONFIG denied 30 30", "GROUP_CONFIG refused 42 42", "TOPIC g 3 3", "TOPIC t 0 0"}
	if !slices.Equal(got, want) || altered.ThrottleMillis != 5 {
		t.Errorf("altered %q after %d ms, want %q", got, altered.ThrottleMillis, want)
	}
}
