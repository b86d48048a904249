package serve

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
)

func (r *rep) offsets(group string, version int16, topics ...kmsg.DescribeShareGroupOffsetsRequestGroupTopic) kmsg.DescribeShareGroupOffsetsResponseGroup {
	r.w.Helper()
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	req.Version = version
	g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	g.GroupID, g.Topics = group, topics
	req.Groups = append(req.Groups, g)
	return r.ask(r.w.ctx, r.conn(-1), req).(*kmsg.DescribeShareGroupOffsetsResponse).Groups[0]
}

func TestCheck119And120_OffsetsAndLag(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 2, 10)
	other := w.reps[1]
	p := other.offsets("g", 1).Topics[0].Partitions[0]
	if p.StartOffset != -1 || p.Lag != -1 || p.ErrorCode != 0 {
		t.Errorf("before the first fetch: %+v", p)
	}
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	if p := other.offsets("g", 1).Topics[0].Partitions[0]; p.StartOffset != -1 || p.Lag != -1 {
		t.Errorf("before the first acknowledgement: %+v", p)
	}
	if code := a.ackCode(topic, 0, accept(2, 4), accept(7, 7)); code != 0 {
		t.Fatalf("code %d", code)
	}
	if p := other.offsets("g", 1).Topics[0].Partitions[0]; p.StartOffset != 0 || p.Lag != 6 {
		t.Errorf("four accepted out of order: %+v", p)
	}
	if code := a.ackCode(topic, 0, accept(0, 1)); code != 0 {
		t.Fatalf("code %d", code)
	}
	if p := other.offsets("g", 1).Topics[0].Partitions[0]; p.StartOffset != 5 || p.Lag != 4 {
		t.Errorf("six accepted: %+v", p)
	}
}

func TestCheck121_UnknownTopicsAndGroupsAreNoErrors(t *testing.T) {
	w := newWorld(t, 1)
	named := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
	named.Topic, named.Partitions = "nowhere", []int32{0}
	g := w.reps[0].offsets("nobody", 1, named)
	if p := g.Topics[0].Partitions[0]; g.ErrorCode != 0 || p.ErrorCode != 0 || p.StartOffset != -1 {
		t.Errorf("%+v", g)
	}
	if g := w.reps[0].offsets("nobody", 1); g.ErrorCode != 0 || len(g.Topics) != 0 {
		t.Errorf("%+v", g)
	}
}

func TestCheck117_DescribeShowsMembers(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	req := kmsg.NewPtrShareGroupDescribeRequest()
	req.Version, req.GroupIDs, req.IncludeAuthorizedOperations = 1, []string{"g", "unknown", ""}, true
	groups := a.r.ask(w.ctx, a.c, req).(*kmsg.ShareGroupDescribeResponse).Groups
	g := groups[0]
	if g.ErrorCode != 0 || g.GroupState != "Stable" || g.Assignor != "simple" || len(g.Members) != 2 || g.AuthorizedOperations == -2147483648 {
		t.Fatalf("%+v", g)
	}
	var partitions int
	for _, m := range g.Members {
		if m.ClientHost != "/127.0.0.1" || m.ClientID != "test" || !slices.Equal(m.SubscribedTopicNames, []string{"t"}) {
			t.Errorf("%+v", m)
		}
		for _, p := range m.Assignment.TopicPartitions {
			if p.TopicID != topic.ID || p.Topic != "t" {
				t.Errorf("%+v", p)
			}
			partitions += len(p.Partitions)
		}
	}
	if partitions == 0 {
		t.Error("nothing is assigned")
	}
	if g := groups[1]; g.ErrorCode != codeNoSuchGroup || g.GroupState != "" || len(g.Members) != 0 {
		t.Errorf("unknown group: %+v", g)
	}
	if groups[2].ErrorCode == 0 {
		t.Errorf("empty id: %+v", groups[2])
	}
	a.c.Auth = denies{topic: "t"} // check 118
	g = a.r.ask(w.ctx, a.c, req).(*kmsg.ShareGroupDescribeResponse).Groups[0]
	if g.ErrorCode != codeTopicDenied || len(g.Members) != 0 || g.GroupState != "" {
		t.Errorf("with a topic that may not be described: %+v", g)
	}
}

func TestCheck115And116_ListGroupsFilters(t *testing.T) {
	w, _, a, _ := groupFromStart(t, 1, 1)
	w.eventually("the group in the index", func() bool { return a.r.groups.IsShareGroup("g") })
	list := func(types, states []string) []kmsg.ListGroupsResponseGroup {
		req := kmsg.NewPtrListGroupsRequest()
		req.Version, req.TypesFilter, req.StatesFilter = 5, types, states
		api := a.r.apis[16]
		own, theirs := api.Split(a.r.srv, req)
		resp := a.r.ask(w.ctx, a.c, own)
		if theirs != nil {
			up := kmsg.NewPtrListGroupsResponse()
			up.Version = 4
			up.Groups = []kmsg.ListGroupsResponseGroup{{Group: "classic", ProtocolType: "consumer", GroupState: "Stable"}}
			resp = api.Merge(resp, up)
		} else {
			resp = resp.(listAnswer).ListGroupsResponse
		}
		return resp.(*kmsg.ListGroupsResponse).Groups
	}
	names := func(groups []kmsg.ListGroupsResponseGroup) (out []string) {
		for _, g := range groups {
			out = append(out, g.Group+" "+g.GroupType)
		}
		slices.Sort(out)
		return out
	}
	for _, c := range []struct {
		types, states, want []string
	}{
		{nil, nil, []string{"classic classic", "g share"}},
		{[]string{"SHARE"}, nil, []string{"g share"}},
		{[]string{"classic"}, nil, []string{"classic classic"}},
		{[]string{"consumer"}, nil, nil},
		{[]string{"nonsense"}, nil, nil},
		{[]string{"share"}, []string{"stable"}, []string{"g share"}},
		{[]string{"share"}, []string{" stable "}, []string{"g share"}},
		{[]string{" share "}, nil, nil},
		{[]string{"share"}, []string{"Empty"}, nil},
	} {
		if have := names(list(c.types, c.states)); !slices.Equal(have, c.want) {
			t.Errorf("types %v, states %v: %v, want %v", c.types, c.states, have, c.want)
		}
	}
}

func TestCheck125_DeletedGroupStartsAnew(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 3)
	w.gets(a.open(topic, maxRecords(2)), topic, entry{0, 1, 1})
	if code := a.ackCode(topic, 0, accept(0, 1)); code != 0 {
		t.Fatalf("code %d", code)
	}
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Version, del.Groups = 3, []string{"g"}
	if g := a.r.ask(w.ctx, a.c, del).(*kmsg.DeleteGroupsResponse).Groups[0]; g.ErrorCode != coordinatorCode(coordinator.ErrNonEmptyGroup) || g.ErrorMessage != nil {
		t.Errorf("with members: %+v", g)
	}
	for _, m := range []*member{a, b} {
		req := kmsg.NewPtrShareGroupHeartbeatRequest()
		req.Version, req.GroupID, req.MemberID, req.MemberEpoch = 1, "g", m.id, -1
		m.r.ask(w.ctx, m.c, req)
	}
	del.Groups = []string{"g", "unknown", "g"}
	if got := a.r.ask(w.ctx, a.c, del).(*kmsg.DeleteGroupsResponse).Groups; len(got) != 2 || got[0].ErrorCode != 0 || got[1].ErrorCode != codeNoSuchGroup {
		t.Fatalf("empty group, named twice: %+v", got)
	}
	if p, _ := part(a.fetch(), topic.ID, 0); p.ErrorCode != codeUnknown {
		t.Errorf("fetch from a deleted group: %+v", p)
	}
	w.alter("g", "share.auto.offset.reset", "earliest")
	again := a.r.member("g", "again").join("t")
	w.gets(again.open(topic), topic, entry{0, 2, 1})
}

func coordinatorCode(kind error) int16 {
	code, _ := coordinatorError(&coordinator.Error{Kind: kind})
	return code
}

func TestConfigRequestsAreSplitByWhoseKeysTheyAre(t *testing.T) {
	w := newWorld(t, 1)
	api := w.reps[0].apis[44]
	value := "1"
	config := func(name string) kmsg.IncrementalAlterConfigsRequestResourceConfig {
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = name, &value
		return c
	}
	resource := func(kind kmsg.ConfigResourceType, name string, keys ...string) kmsg.IncrementalAlterConfigsRequestResource {
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kind, name
		for _, k := range keys {
			r.Configs = append(r.Configs, config(k))
		}
		return r
	}
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{
		resource(kmsg.ConfigResourceTypeTopic, "t", "retention.ms"),
		resource(kmsg.ConfigResourceTypeGroupConfig, "g", "share.session.timeout.ms", "consumer.session.timeout.ms", "nonsense"),
		resource(kmsg.ConfigResourceTypeGroupConfig, "h", "consumer.session.timeout.ms"),
	}
	own, theirs := api.Split(nil, req)
	mine, rest := own.(*kmsg.IncrementalAlterConfigsRequest), theirs.(*kmsg.IncrementalAlterConfigsRequest)
	if len(mine.Resources) != 1 || len(mine.Resources[0].Configs) != 2 {
		t.Errorf("own %+v", mine.Resources)
	}
	if len(rest.Resources) != 3 || len(rest.Resources[1].Configs) != 1 || rest.Resources[1].Configs[0].Name != "consumer.session.timeout.ms" {
		t.Errorf("theirs %+v", rest.Resources)
	}
	// Either side alone would not see that a group is named twice.
	twice := *req
	twice.Resources = append(slices.Clone(req.Resources), resource(kmsg.ConfigResourceTypeGroupConfig, "h", "share.session.timeout.ms"))
	own, theirs = api.Split(nil, &twice)
	if rest := theirs.(*kmsg.IncrementalAlterConfigsRequest).Resources; len(rest) != 2 {
		t.Errorf("theirs of a group named twice: %+v", rest)
	}
	codes := map[string][]int16{}
	for _, res := range w.reps[0].ask(w.ctx, w.reps[0].conn(-1), own).(*kmsg.IncrementalAlterConfigsResponse).Resources {
		codes[res.ResourceName] = append(codes[res.ResourceName], res.ErrorCode)
	}
	if !slices.Equal(codes["h"], []int16{codeInvalidRequest, codeInvalidRequest}) {
		t.Errorf("a group named twice is answered %v", codes)
	}
	req.Resources = req.Resources[:1]
	if own, theirs := api.Split(nil, req); own != nil || theirs != nil {
		t.Error("a request about topics alone should be relayed as it is")
	}
}

func TestNoConfigNamesAreAllConfigsOfBothSides(t *testing.T) {
	w := newWorld(t, 1)
	for _, names := range [][]string{nil, {}} {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "g", ConfigNames: names}}
		if own, theirs := w.reps[0].apis[32].Split(nil, req); own == nil || theirs == nil {
			t.Errorf("names %#v: own %v, theirs %v", names, own, theirs)
		}
	}
}

// A broker describes with an empty message, not null, and says in words what the authorizer refused.
func TestConfigAnswersHaveTheMessagesOfABroker(t *testing.T) {
	w := newWorld(t, 1)
	r := w.reps[0]
	for _, c := range []struct {
		granted        int8
		described, set string
	}{{opDescribeConfigs, "", "Group authorization failed."}, {opAlterConfigs, "Group authorization failed.", "null"}} {
		conn := r.conn(-1)
		conn.Auth = grants{group: c.granted}
		told := func(message *string) string {
			if message == nil {
				return "null"
			}
			return *message
		}
		describe := kmsg.NewPtrDescribeConfigsRequest()
		describe.Version = 4
		describe.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "g"}}
		if got := r.ask(w.ctx, conn, describe).(*kmsg.DescribeConfigsResponse).Resources[0]; told(got.ErrorMessage) != c.described {
			t.Errorf("described with code %d, message %q, want %q", got.ErrorCode, told(got.ErrorMessage), c.described)
		}
		incremental := kmsg.NewPtrIncrementalAlterConfigsRequest()
		incremental.Version = 1
		incremental.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "g"}}
		if got := r.ask(w.ctx, conn, incremental).(*kmsg.IncrementalAlterConfigsResponse).Resources[0]; told(got.ErrorMessage) != c.set {
			t.Errorf("altered with code %d, message %q, want %q", got.ErrorCode, told(got.ErrorMessage), c.set)
		}
		whole := kmsg.NewPtrAlterConfigsRequest()
		whole.Version = 2
		whole.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "g"}}
		if got := r.ask(w.ctx, conn, whole).(*kmsg.AlterConfigsResponse).Resources[0]; told(got.ErrorMessage) != c.set {
			t.Errorf("replaced with code %d, message %q, want %q", got.ErrorCode, told(got.ErrorMessage), c.set)
		}
	}
}

func TestCheck127And128_DescribeAndAlterConfigs(t *testing.T) {
	w := newWorld(t, 1)
	r := w.reps[0]
	describe := func() map[string]kmsg.DescribeConfigsResponseResourceConfig {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.Version, req.IncludeSynonyms = 4, true
		res := kmsg.NewDescribeConfigsRequestResource()
		res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeGroupConfig, "g"
		req.Resources = append(req.Resources, res)
		got := r.ask(w.ctx, r.conn(-1), req).(*kmsg.DescribeConfigsResponse).Resources[0]
		if got.ErrorCode != 0 {
			t.Fatalf("%+v", got)
		}
		out := map[string]kmsg.DescribeConfigsResponseResourceConfig{}
		for _, c := range got.Configs {
			out[c.Name] = c
		}
		return out
	}
	const lock = "share.record.lock.duration.ms"
	if c := describe()[lock]; c.Source != kmsg.ConfigSourceDefaultConfig || *c.Value != "30000" {
		t.Errorf("untouched: %+v", c)
	}
	w.alter("g", lock, "15000")
	if c := describe()[lock]; c.Source != kmsg.ConfigSource(8) || *c.Value != "15000" || len(c.ConfigSynonyms) != 2 {
		t.Errorf("set: %+v", c)
	}
	for key, value := range map[string]string{"group.type": "share", lock: "1", "share.auto.offset.reset": "sometimes"} {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		res := kmsg.NewIncrementalAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeGroupConfig, "g"
		res.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: key, Value: &value}}
		req.Resources = append(req.Resources, res)
		got := r.ask(w.ctx, r.conn(-1), req).(*kmsg.IncrementalAlterConfigsResponse).Resources[0]
		if got.ErrorCode != coordinatorCode(coordinator.ErrInvalidConfig) || got.ErrorMessage == nil {
			t.Errorf("%s=%s: %+v", key, value, got)
		}
	}
}

func TestCheck094_RecreatedTopicStartsFresh(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 2)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	w.deleteTopic("t")
	again := w.topic("t", 1)
	if again.ID == topic.ID {
		t.Fatal("the topic id did not change")
	}
	w.produce("t", 0, 1, 1)
	w.eventually("the old id's error", func() bool {
		p, _ := part(a.fetch(maxWait(50*time.Millisecond)), topic.ID, 0)
		return p.ErrorCode == codeUnknownTopic
	})
	w.eventually("the new topic's records", func() bool {
		a.join("t")
		return len(got(a.fetch(with(again, 0), maxWait(100*time.Millisecond)), again, 0)) > 0
	})
	if p, _ := part(a.fetch(), topic.ID, 0); p.ErrorCode != codeUnknownTopic || len(p.AcquiredRecords) != 0 {
		t.Errorf("%+v", p)
	}
}

// deleteTopic deletes it upstream.
func (w *world) deleteTopic(name string) {
	w.Helper()
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &name}}
	del.TopicNames = []string{name}
	_, err := del.RequestWith(w.ctx, w.admin)
	w.must(err)
}

// Nobody but members' heartbeats tells a group that a topic is gone, and an administrator looks at a group without any too.
func TestCheck030_DeletedTopicHasNoOffsetsInAGroupWithoutMembers(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 5)
	w.gets(a.open(topic), topic, entry{0, 4, 1})
	if code := a.ackCode(topic, 0, accept(0, 2)); code != 0 {
		t.Fatalf("code %d", code)
	}
	w.leave(a, b)
	r := w.reps[0]
	w.is("before", r.startOffsets("g"), "t/0@3 lag 2")
	w.deleteTopic("t")
	w.is("deleted", r.startOffsets("g"), "")
	again := w.topic("t", 1)
	w.is("made again", r.startOffsets("g"), "")
	if again.ID == topic.ID {
		t.Fatal("the topic id did not change")
	}
	w.produce("t", 0, 1, 2)
	if resp := r.alterOffsets(a.c, "g", "t/0@1"); resp.ErrorCode != 0 {
		t.Fatalf("%+v", resp)
	}
	w.is("altered", r.startOffsets("g"), "t/0@1 lag 1")
}
