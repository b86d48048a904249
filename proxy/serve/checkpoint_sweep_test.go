package serve

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
)

func TestLateCommitForADeletedGroupIsClearedAway(t *testing.T) {
	w := newWorld(t, 2)
	topic, a := latest(t, w)
	w.checkpointed(0)
	w.settled()
	c, _ := w.checkpoint("t", 0)
	// What the other replica committed a moment before it heard of the deletion arrives after it.
	late := w.reps[1].cps
	late.change("g", time.Hour, func(todo *todo) { todo.committed, todo.parts[tpOf(topic.ID, 0)] = true, struct{}{} })
	w.deleteGroup(a)
	_, err := late.commit(w.ctx, "g", []coordinator.Checkpoint{c})
	w.must(err)
	if _, ok := w.checkpoint("t", 0); !ok {
		t.Fatal("the late commit is not there")
	}
	late.later("g", tpOf(topic.ID, 0))
	w.eventually("the checkpoint to go", func() bool { _, ok := w.checkpoint("t", 0); return !ok })
}

func TestListHidesCheckpointsUnlessAskedFor(t *testing.T) {
	w := newWorld(t, 1)
	latest(t, w)
	w.checkpointed(0)
	r := w.reps[0]
	list := func(types ...string) (names []string) {
		req := kmsg.NewPtrListGroupsRequest()
		req.Version, req.TypesFilter = 5, types
		own, theirs := r.apis[16].Split(r.srv, req)
		up, err := theirs.(*kmsg.ListGroupsRequest).RequestWith(w.ctx, w.admin)
		w.must(err)
		up.Groups = append(up.Groups, kmsg.ListGroupsResponseGroup{Group: "kshare.app", ProtocolType: "consumer", GroupState: "Stable", GroupType: "classic"})
		resp := r.apis[16].Merge(r.ask(w.ctx, r.conn(-1), own), up).(*kmsg.ListGroupsResponse)
		for _, g := range resp.Groups {
			names = append(names, g.Group)
		}
		slices.Sort(names)
		return names
	}
	for _, c := range []struct{ types, want []string }{
		{nil, []string{"g", "kshare.app"}},
		{[]string{"classic", "consumer"}, []string{"kshare.app"}}, // as the tools ask without being told
		{[]string{"classic"}, []string{"kshare.app", "kshare.g"}},
	} {
		if have := list(c.types...); !slices.Equal(have, c.want) {
			t.Errorf("types %v: %v, want %v", c.types, have, c.want)
		}
	}
}

func TestCheckpointsOfFormerLivesGetDeleteMarks(t *testing.T) {
	w := newWorld(t, 1)
	latest(t, w)
	other := w.topic("u", 1)
	w.checkpointed(0)
	w.settled()
	c, _ := w.checkpoint("t", 0)
	c.ID, c.Incarnation = other.ID, c.Incarnation-1
	w.must(w.recommit(w.reps[0], other, c, 5)) // the group has nothing to do with u any more
	w.reps[0].cps.Touch("g")
	w.eventually("the mark", func() bool { c, ok := w.checkpoint("u", 0); return ok && c.Deleted })
	w.settled()
	w.checkpointed(0)
	w.wipe()
	w.reps[0].member("g", "a").join("t", "u")
	if p, ok, err := w.reps[0].groups.Initialized(w.ctx, "g", other.ID, 0); err != nil || !ok || p.StartOffset != -1 {
		t.Errorf("%+v %v %v", p, ok, err)
	}
	if p, ok, err := w.reps[0].groups.Initialized(w.ctx, "g", w.mustTopic("t").ID, 0); err != nil || !ok || p.StartOffset != 0 {
		t.Errorf("the mark voids others: %+v %v %v", p, ok, err)
	}
}
