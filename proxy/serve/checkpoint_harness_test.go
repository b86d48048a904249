package serve

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/proxy/upstream"
)

// wipe loses all of Redis while no replica is alive that could put anything back, and starts as many anew.
func (w *world) wipe() {
	w.Helper()
	n := len(w.reps)
	for _, r := range w.reps {
		r.kill()
	}
	w.redis.FlushAll()
	w.reps = nil
	for range n {
		w.reps = append(w.reps, w.startReplica())
	}
}

// checkpoint is what is committed for a share-partition of group g; false if nothing is.
func (w *world) checkpoint(topic string, partition int32) (coordinator.Checkpoint, bool) {
	w.Helper()
	all, err := w.reps[0].cps.fetch(w.ctx, "g", nil)
	w.must(err)
	for _, c := range all {
		if c.Topic == topic && c.Partition == partition {
			return c, true
		}
	}
	return coordinator.Checkpoint{}, false
}

func (w *world) checkpointed(offset int64) {
	w.Helper()
	w.eventually(fmt.Sprintf("the checkpoint at %d", offset), func() bool {
		c, ok := w.checkpoint("t", 0)
		return ok && c.Offset == offset && !c.Deleted
	})
}

// settled waits until no replica has anything to do for its checkpoints.
func (w *world) settled() {
	w.Helper()
	w.eventually("the checkpoints to be at rest", func() bool {
		for _, r := range w.reps {
			r.cps.mu.Lock()
			n := len(r.cps.todo)
			r.cps.mu.Unlock()
			if n > 0 {
				return false
			}
		}
		return true
	})
}

// deleteGroup makes the group empty and deletes it.
func (w *world) deleteGroup(a *member) {
	w.Helper()
	if code := a.beat(-1); code != 0 {
		w.Fatalf("leave: code %d", code)
	}
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Groups = []string{"g"}
	if code := a.r.ask(w.ctx, a.c, req).(*kmsg.DeleteGroupsResponse).Groups[0].ErrorCode; code != 0 {
		w.Fatalf("delete: code %d", code)
	}
}

func (w *world) recommit(r *rep, topic upstream.Topic, c coordinator.Checkpoint, offset int64) error {
	offsets := []upstream.GroupOffset{{Topic: topic, Partition: c.Partition, Offset: offset, LeaderEpoch: -1, Metadata: c.Encode()}}
	if err := r.up.CommitGroupOffsets(w.ctx, "kshare.g", offsets); err != nil {
		return err
	}
	return offsets[0].Err
}

func (w *world) mustTopic(name string) upstream.Topic {
	w.Helper()
	found, err := w.reps[0].up.TopicsByName(w.ctx, []string{name}, true)
	w.must(err)
	return found[name]
}

// beat sends a heartbeat and gives its code.
func (m *member) beat(epoch int32) int16 {
	m.w.Helper()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.MemberEpoch = 1, m.group, m.id, epoch
	return m.r.ask(m.w.ctx, m.c, req).(*kmsg.ShareGroupHeartbeatResponse).ErrorCode
}

// takes fetches until the member holds the offsets from first to last, delivered for the first time.
func (m *member) takes(t upstream.Topic, first, last int64) {
	m.w.Helper()
	for next := first; next <= last; {
		have := got(m.fetch(maxWait(5*time.Second)), t, 0)
		if len(have) == 0 || have[0].first != next || have[0].count != 1 {
			m.w.Fatalf("acquired %v, want what begins at %d", have, next)
		}
		next = have[len(have)-1].last + 1
	}
}

// latest is a group on topic t that goes by the reset policy latest, whose member a has the share-partition started.
func latest(t *testing.T, w *world) (upstream.Topic, *member) {
	t.Helper()
	topic := w.topic("t", 1)
	a := w.reps[0].member("g", "a").join("t")
	w.gets(a.open(topic), topic)
	return topic, a
}
