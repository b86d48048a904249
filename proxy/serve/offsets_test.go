package serve

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// alterOffsets sends an AlterShareGroupOffsets with entries "topic/partition@offset".
func (r *rep) alterOffsets(c *Conn, group string, entries ...string) *kmsg.AlterShareGroupOffsetsResponse {
	r.w.Helper()
	req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	req.GroupID = group
	for _, e := range entries {
		t := kmsg.NewAlterShareGroupOffsetsRequestTopic()
		p := kmsg.NewAlterShareGroupOffsetsRequestTopicPartition()
		_, err := fmt.Sscanf(strings.NewReplacer("/", " ", "@", " ").Replace(e), "%s %d %d", &t.Topic, &p.Partition, &p.StartOffset)
		r.w.must(err)
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
	}
	return r.ask(r.w.ctx, c, req).(*kmsg.AlterShareGroupOffsetsResponse)
}

// altered prints an answer: "topic/partition:code", in order.
func altered(resp *kmsg.AlterShareGroupOffsetsResponse) string {
	var out []string
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out = append(out, fmt.Sprintf("%s/%d:%d", t.Topic, p.Partition, p.ErrorCode))
		}
	}
	return strings.Join(out, " ")
}

func (r *rep) deleteOffsets(c *Conn, group string, topics ...string) *kmsg.DeleteShareGroupOffsetsResponse {
	r.w.Helper()
	req := kmsg.NewPtrDeleteShareGroupOffsetsRequest()
	req.GroupID = group
	for _, name := range topics {
		t := kmsg.NewDeleteShareGroupOffsetsRequestTopic()
		t.Topic = name
		req.Topics = append(req.Topics, t)
	}
	return r.ask(r.w.ctx, c, req).(*kmsg.DeleteShareGroupOffsetsResponse)
}

func deleted(resp *kmsg.DeleteShareGroupOffsetsResponse) string {
	var out []string
	for _, t := range resp.Topics {
		out = append(out, fmt.Sprintf("%s:%d", t.Topic, t.ErrorCode))
	}
	return strings.Join(out, " ")
}

// startOffsets prints what DescribeShareGroupOffsets tells of a group: "topic/partition@offset lag".
func (r *rep) startOffsets(group string) string {
	r.w.Helper()
	var out []string
	for _, t := range r.offsets(group, 1).Topics {
		for _, p := range t.Partitions {
			out = append(out, fmt.Sprintf("%s/%d@%d lag %d", t.Topic, p.Partition, p.StartOffset, p.Lag))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (w *world) is(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: %q, want %q", what, got, want)
	}
}

// leaves ends the memberships; the share sessions stay.
func (w *world) leave(members ...*member) {
	w.Helper()
	for _, m := range members {
		if code := m.beat(-1); code != 0 {
			w.Fatalf("leave of %s: code %d", m.id, code)
		}
	}
}

func TestCheck122_AlteredOffsetsAreWhereTheEmptyGroupGoesOn(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 10)
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	if code := a.ackCode(topic, 0, accept(0, 5)); code != 0 {
		t.Fatalf("code %d", code)
	}
	r := w.reps[0]
	if resp := r.alterOffsets(a.c, "g", "t/0@2"); resp.ErrorCode != coordinatorCode(coordinator.ErrNonEmptyGroup) || resp.ErrorMessage == nil || len(resp.Topics) != 0 {
		t.Errorf("with members: %+v", resp)
	}
	w.leave(a, b)
	resp := r.alterOffsets(a.c, "g", "t/0@2")
	if resp.ErrorCode != 0 || altered(resp) != "t/0:0" || resp.Topics[0].TopicID != topic.ID {
		t.Fatalf("%+v", resp)
	}
	for i, r := range w.reps {
		w.is(fmt.Sprint("replica ", i), r.startOffsets("g"), "t/0@2 lag 8")
	}
	if code := a.ackCode(topic, 0, accept(6, 9)); code == 0 {
		t.Error("what was acquired before is still acknowledged")
	}
	b.join("t")
	w.gets(b.open(topic), topic, entry{2, 9, 1})
	if resp := r.alterOffsets(a.c, ""); resp.ErrorCode != coordinatorCode(coordinator.ErrInvalidGroupID) {
		t.Errorf("without a group id: %+v", resp)
	}
}

func TestCheck122_AlteringMakesAnUnknownGroup(t *testing.T) {
	w := newWorld(t, 2)
	topic := w.topic("t", 2)
	w.produce("t", 0, 5, 1)
	r := w.reps[0]
	if resp := r.alterOffsets(r.conn(-1), "g"); resp.ErrorCode != 0 || r.groups.IsShareGroup("g") {
		t.Errorf("nothing to set: %+v", resp)
	}
	if resp := r.alterOffsets(r.conn(-1), "g", "t/0@3"); altered(resp) != "t/0:0" {
		t.Fatalf("%+v", resp)
	}
	d, err := r.groups.Describe(w.ctx, "g")
	w.must(err)
	if d.State != coordinator.StateEmpty || d.GroupEpoch != 1 || d.AssignmentEpoch != 1 {
		t.Errorf("%+v", d)
	}
	w.is("offsets", r.startOffsets("g"), "t/0@3 lag 2")
	w.eventually("the group on the other replica's list", func() bool { return w.reps[1].groups.IsShareGroup("g") })
	m := w.reps[1].member("g", "m").join("t")
	w.gets(m.open(topic), topic, entry{3, 4, 1})
}

func TestCheck123_UnknownTopicsAndPartitionsDoNotKeepOthersFromBeingAltered(t *testing.T) {
	w := newWorld(t, 1)
	w.topic("t", 2)
	r := w.reps[0]
	resp := r.alterOffsets(r.conn(-1), "g", "t/0@3", "t/2@1", "nowhere/0@1", "t/1@-2", "t/-1@0", "t/1@4", "t/1@6")
	want := fmt.Sprintf("nowhere/0:%d t/0:0 t/2:%[1]d t/1:%d t/-1:%[1]d t/1:0 t/1:0", codeUnknownTopic, codeInvalidRequest)
	w.is("answer", altered(resp), want)
	w.is("offsets", r.startOffsets("g"), "t/0@3 lag -3, t/1@6 lag -6")
	for _, t2 := range resp.Topics {
		for _, p := range t2.Partitions {
			if (p.ErrorCode == 0) != (p.ErrorMessage == nil) {
				t.Errorf("%s/%d: %+v", t2.Topic, p.Partition, p)
			}
		}
	}
	resp = r.alterOffsets(r.conn(-1), "other", "nowhere/0@1", "t/2@1")
	if resp.ErrorCode != 0 || r.groups.IsShareGroup("other") {
		t.Errorf("a group for nothing: %+v", resp)
	}
}

func TestCheck124_DeletedOffsetsAreUpToTheResetPolicy(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 4)
	other := w.topic("other", 1)
	w.gets(a.open(topic, maxRecords(2)), topic, entry{0, 1, 1})
	if code := a.ackCode(topic, 0, accept(0, 1)); code != 0 {
		t.Fatalf("code %d", code)
	}
	r := w.reps[0]
	if resp := r.deleteOffsets(a.c, "g", "t"); resp.ErrorCode != coordinatorCode(coordinator.ErrNonEmptyGroup) || len(resp.Topics) != 0 {
		t.Errorf("with members: %+v", resp)
	}
	w.leave(a, b)
	resp := r.deleteOffsets(a.c, "g", "t", "other", "t", "nowhere")
	w.is("answer", deleted(resp), fmt.Sprintf("t:0 other:%d nowhere:%[1]d", codeUnknownTopic))
	if resp.Topics[0].TopicID != topic.ID || resp.Topics[1].TopicID == other.ID || *resp.Topics[1].ErrorMessage != "There is no offset information to delete." {
		t.Errorf("%+v", resp.Topics)
	}
	w.is("offsets", w.reps[1].startOffsets("g"), "")
	w.is("again", deleted(r.deleteOffsets(a.c, "g", "t")), fmt.Sprintf("t:%d", codeUnknownTopic))
	b.join("t")
	w.gets(b.open(topic), topic, entry{0, 3, 1})
	for group, want := range map[string]error{"nobody": coordinator.ErrGroupIDNotFound, "": coordinator.ErrInvalidGroupID} {
		if resp := r.deleteOffsets(a.c, group, "t"); resp.ErrorCode != coordinatorCode(want) {
			t.Errorf("group %q: %+v", group, resp)
		}
	}
}

func TestOffsetsOfAGroupOfAnotherTypeAreNotChanged(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	r := w.reps[0]
	offsets := []upstream.GroupOffset{{Topic: topic, LeaderEpoch: -1}}
	w.must(r.up.CommitGroupOffsets(w.ctx, "classic", offsets))
	w.must(offsets[0].Err)
	const want = "Group classic is not a share group."
	for _, entries := range [][]string{{"t/0@0"}, nil} {
		if resp := r.alterOffsets(r.conn(-1), "classic", entries...); resp.ErrorCode != codeNoSuchGroup || *resp.ErrorMessage != want {
			t.Errorf("alter %v: %+v", entries, resp)
		}
	}
	if resp := r.deleteOffsets(r.conn(-1), "classic", "t"); resp.ErrorCode != codeNoSuchGroup || *resp.ErrorMessage != want {
		t.Errorf("delete: %+v", resp)
	}
}

// grants allows one operation on each kind of resource.
type grants struct {
	group, topic, cluster int8
	denied                string // this topic is none of them
	err                   error
}

func (g grants) Group(_ context.Context, op int8, _ string) (bool, error) {
	return op == g.group, g.err
}
func (g grants) Cluster(_ context.Context, op int8) (bool, error) { return op == g.cluster, g.err }
func (g grants) Topics(_ context.Context, op int8, names []string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = op == g.topic && n != g.denied
	}
	return out, g.err
}

func TestCheck131_ChangingOffsetsNeedsPermissions(t *testing.T) {
	w := newWorld(t, 1)
	w.topic("t", 1)
	w.topic("secret", 1)
	r := w.reps[0]
	as := func(g grants) *Conn {
		c := r.conn(-1)
		c.Auth = g
		return c
	}
	w.is("the set of a readable topic", altered(r.alterOffsets(as(grants{group: opRead, topic: opRead, denied: "secret"}), "g", "t/0@1", "secret/0@1")),
		fmt.Sprintf("secret/0:%d t/0:0", codeTopicDenied))
	w.is("offsets", r.startOffsets("g"), "t/0@1 lag -1")
	w.is("a denied topic", deleted(r.deleteOffsets(as(grants{group: opDelete, topic: opRead, denied: "t"}), "g", "t")), fmt.Sprintf("t:%d", codeTopicDenied))
	for what, c := range map[string]*Conn{"without READ": as(grants{group: opDelete, topic: opRead}), "in an outage": as(grants{err: errors.New("away")})} {
		want := codeGroupDenied
		if what == "in an outage" {
			want = codeCoordUnavailable
		}
		if resp := r.alterOffsets(c, "g", "t/0@5"); resp.ErrorCode != want || len(resp.Topics) != 0 {
			t.Errorf("alter %s: %+v", what, resp)
		}
	}
	if resp := r.deleteOffsets(as(grants{group: opRead, topic: opRead}), "g", "t"); resp.ErrorCode != codeGroupDenied || len(resp.Topics) != 0 {
		t.Errorf("delete without DELETE: %+v", resp)
	}
	w.is("offsets", r.startOffsets("g"), "t/0@1 lag -1")
	w.is("delete", deleted(r.deleteOffsets(as(grants{group: opDelete, topic: opRead}), "g", "t")), "t:0")
}

// Whoever serves the fetch that comes after an administrator's change may not have heard of it.
func TestReplicaThatHasNotHeardOfChangedOffsetsGoesByThem(t *testing.T) {
	for what, change := range map[string]func(r *rep, c *Conn){
		"altered": func(r *rep, c *Conn) { r.alterOffsets(c, "g", "t/0@3") },
		"deleted": func(r *rep, c *Conn) { r.deleteOffsets(c, "g", "t") },
		"the whole group deleted": func(r *rep, c *Conn) {
			req := kmsg.NewPtrDeleteGroupsRequest()
			req.Groups = []string{"g"}
			r.ask(r.w.ctx, c, req)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 1)
			g := w.newGate()
			w.reps = append(w.reps, w.startReplica())
			_, topic, a, b := groupOn(t, w, 10)
			w.gets(b.open(topic, maxRecords(6)), topic, entry{0, 5, 1})
			if code := b.ackCode(topic, 0, accept(0, 5)); code != 0 {
				t.Fatalf("code %d", code)
			}
			w.leave(a, b)
			b.acknowledge(-1, topic, 0)
			first := int64(0)
			if what == "altered" {
				first = 3
			}
			g.deaf.Store(true)
			change(w.reps[0], a.c)
			a.join("t")
			late := a.on(w.reps[1])
			w.eventually("records from the new start on", func() bool {
				have := got(late.open(topic), topic, 0)
				if len(have) > 0 && !slices.Equal(have, []entry{{first, 9, 1}}) {
					t.Fatalf("acquired %v, want from %d", have, first)
				}
				return len(have) > 0
			})
		})
	}
}

func TestChangedOffsetsReachTheCheckpoint(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 10)
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	if code := a.ackCode(topic, 0, accept(0, 7)); code != 0 {
		t.Fatalf("code %d", code)
	}
	w.checkpointed(8)
	w.leave(a, b)
	w.reps[0].alterOffsets(a.c, "g", "t/0@3")
	w.checkpointed(3)
	w.settled()
	w.wipe()
	b = w.reps[0].member("g", "b").join("t")
	w.gets(b.open(topic), topic, entry{3, 9, 1})
	w.leave(b)
	w.reps[0].deleteOffsets(b.c, "g", "t")
	w.eventually("a delete mark, or nothing", func() bool {
		c, ok := w.checkpoint("t", 0)
		return !ok || c.Deleted
	})
	w.settled()
	w.wipe()
	b = w.reps[0].member("g", "b")
	w.alter("g", "share.auto.offset.reset", "earliest")
	w.gets(b.join("t").open(topic), topic, entry{0, 9, 1})
}

// A start offset by latest that such a replica resolved must hold for all, else what was produced since is skipped.
func TestStartAfterDeletedOffsetsIsResolvedOnce(t *testing.T) {
	w := newWorld(t, 1)
	g := w.newGate()
	w.reps = append(w.reps, w.startReplica())
	topic, a := latest(t, w)
	b := w.reps[1].member("g", "b").join("t")
	b.open(topic)
	w.leave(a, b)
	g.deaf.Store(true)
	w.reps[0].deleteOffsets(a.c, "g", "t")
	a.join("t")
	w.eventually("the log's catch-up", func() bool {
		started := true
		w.reps[1].srv.logs.Get(logName("g", tpOf(topic.ID, 0))).Cached(func(p *sharestate.Partition) { started = p.Started() })
		return !started
	})
	w.gets(a.on(w.reps[1]).open(topic), topic)
	w.produce("t", 0, 2, 1)
	w.eventually("what was produced after the start", func() bool {
		have := got(a.open(topic), topic, 0)
		if len(have) > 0 && have[0].first != 0 {
			t.Fatalf("acquired %v, want from 0", have)
		}
		return len(have) > 0
	})
}

func TestGroupsLogTakesNoMoreOffsetsThanThereArePartitions(t *testing.T) {
	of := func(topic byte, entries ...[2]int64) coordinator.TopicOffsets {
		o := coordinator.TopicOffsets{Topic: coordinator.Topic{ID: [16]byte{topic}}}
		for _, e := range entries {
			o.Offsets = append(o.Offsets, coordinator.PartitionOffset{Partition: int32(e[0]), Offset: e[1]})
		}
		return o
	}
	type at = [2]int64
	got := lastWords([]coordinator.TopicOffsets{of(1, at{0, 1}, at{1, 2}, at{0, 3}), of(2, at{0, 4}, at{0, 5}), of(1, at{1, 6}), of(2, at{0, 7})})
	want := []coordinator.TopicOffsets{of(1, at{0, 3}), of(1, at{1, 6}), of(2, at{0, 7})}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRequestsWithVeryManyEntriesAreAnswered(t *testing.T) {
	w := newWorld(t, 1)
	r := w.reps[0]
	c := r.conn(-1)
	c.Auth = grants{group: opDelete, cluster: opDescribeConfigs}
	const many = 1 << 20
	deletes := kmsg.NewPtrDeleteShareGroupOffsetsRequest()
	deletes.GroupID, deletes.Topics = "g", make([]kmsg.DeleteShareGroupOffsetsRequestTopic, many/2)
	lists := kmsg.NewPtrListConfigResourcesRequest()
	lists.Version, lists.ResourceTypes = 1, make([]int8, many)
	for i := range many / 2 {
		deletes.Topics[i].Topic = strconv.Itoa(i)
		lists.ResourceTypes[i] = groupType
	}
	for _, req := range []kmsg.Request{deletes, lists} {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			resp, err := r.apis[req.Key()].Serve(w.ctx, &Request{Body: req, Conn: c})
			if err != nil {
				t.Error(err)
			}
			if merge := r.apis[req.Key()].Merge; merge != nil {
				up := req.ResponseKind()
				up.SetVersion(1)
				merge(resp, up)
			}
		}()
		select {
		case <-answered:
		case <-time.After(20 * time.Second):
			t.Fatalf("no answer to %T", req)
		}
	}
}

func TestWhatIsNamedTwiceIsDescribedOnce(t *testing.T) {
	w, _, _, _ := groupFromStart(t, 2, 1)
	named := func(topic string, partitions ...int32) kmsg.DescribeShareGroupOffsetsRequestGroupTopic {
		t := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
		t.Topic, t.Partitions = topic, partitions
		return t
	}
	var got []string
	for _, topic := range w.reps[0].offsets("g", 1, named("t", 0, 0), named("nowhere", 1), named("t", 1, 0), named("nowhere", 1)).Topics {
		for _, p := range topic.Partitions {
			got = append(got, fmt.Sprintf("%s/%d", topic.Topic, p.Partition))
		}
	}
	w.is("described", strings.Join(got, " "), "t/0 t/1 nowhere/1")
}
