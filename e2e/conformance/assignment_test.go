//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// divided waits until every partition has somebody and each member has between low and high of them.
func divided(t topic, partitions, low, high int, members ...*beater) []int {
	members[0].w.Helper()
	var counts []int
	settle("the partitions to be divided", func() (err error) {
		if counts, err = shares(t, partitions, members...); err != nil {
			return err
		}
		for _, b := range members {
			if n := b.count(t); n < low || n > high {
				return fmt.Errorf("%d of %d partitions at %s, want %d to %d", n, partitions, b.id, low, high)
			}
		}
		return nil
	}, members...)
	return counts
}

func TestCheck028_MissingTopicIsAssignedOnceItExists(t *testing.T) {
	w, b := membership(t, 1)
	missing := topic{name: w.main.name + "-later"}
	b.subscribes(w.main, missing)
	b.owns(1, w.main)
	only := w.beater(w.group + "-only")
	only.subscribes(missing)
	w.is("assigned", only.topicsOf(), "")
	missing = w.createTopic(missing.name, 2, nil)
	b.owns(3, w.main, missing)
	only.owns(2, missing)
}

func TestCheck029_AddedPartitionsAreAssignedAndReadFromTheirStart(t *testing.T) {
	w, b := membership(t, 1)
	w.set(w.group, "share.auto.offset.reset", "latest")
	b.subscribes(w.main)
	b.owns(1, w.main)
	w.produce(w.p(0), 3)
	m := w.member()
	m.getsNone(w.p(0))
	w.addPartitions(w.main, 2)
	w.endOffset(w.p(1)) // once there is a leader
	w.produce(w.p(1), 4)
	b.owns(2, w.main)
	m.gathers("0-3x1", w.p(1))
}

func TestCheck030_DeletedTopicIsGoneFromAssignmentAndOffsets(t *testing.T) {
	w, b := membership(t, 1)
	gone := w.createTopic(w.main.name+"-gone", 2, nil)
	b.subscribes(w.main, gone)
	b.owns(3, w.main, gone)
	w.is("described", w.initialized(w.group, w.main, gone), "0/0 1/0 1/1")
	left := w.group + "-left" // has no member to hear of it
	w.join(left, w.main, gone).leaves()
	w.deleteTopic(gone)
	settle("the deletion", func() error {
		if got := b.topicsOf(w.main, gone); got != "0" {
			return fmt.Errorf("assigned topics %q", got)
		}
		return nil
	}, b)
	for _, group := range []string{w.group, left} {
		w.until("the offsets of "+group+" to go", 30*time.Second, func() error {
			if got := w.initialized(group, w.main, gone); got != "0/0" {
				return errors.New(got)
			}
			return nil
		})
	}
}

func TestCheck031_ChangedSubscriptionChangesTheAssignment(t *testing.T) {
	w, b := membership(t, 2)
	other := w.createTopic(w.main.name+"-2", 3, nil)
	b.subscribes(w.main)
	b.owns(2, w.main)
	before := w.describeGroup(w.group).GroupEpoch
	b.subscribes(other)
	settle("the new topic alone", func() error {
		if got := b.topicsOf(w.main, other); got != "1" || b.count(other) != 3 {
			return fmt.Errorf("%v", b.assigned)
		}
		return nil
	}, b)
	d := w.describeGroup(w.group)
	if d.GroupEpoch <= before {
		t.Errorf("group epoch %d, was %d", d.GroupEpoch, before)
	}
	if names := d.Members[0].SubscribedTopicNames; !slices.Equal(names, []string{other.name}) {
		t.Errorf("subscription %v", names)
	}
}

func TestCheck032_EmptySubscriptionLeavesTheMemberWithNothing(t *testing.T) {
	w, b := membership(t, 2)
	b.subscribes(w.main)
	b.owns(2, w.main)
	if resp := b.subscribes(); resp.Assignment == nil || b.count(w.main) != 0 {
		t.Fatalf("%+v", resp)
	}
	b.beats(unchanged)
	if members := w.describeGroup(w.group).Members; len(members) != 1 || len(members[0].SubscribedTopicNames) != 0 {
		t.Fatalf("%+v", members)
	}
	w.is("state", w.listed(w.group), "Stable")
}

func TestCheck033_PartitionsAreDividedEvenly(t *testing.T) {
	w, a := membership(t, 4)
	two := w.createTopic(w.main.name+"-2", 2, nil)
	b := w.beater(w.group)
	a.subscribes(w.main)
	b.subscribes(w.main)
	w.is("2 members, 4 partitions", fmt.Sprint(divided(w.main, 4, 2, 2, a, b)), "[1 1 1 1]")
	var three []*beater
	for range 3 {
		m := w.beater(w.group + "-2")
		m.subscribes(two)
		three = append(three, m)
	}
	var counts []int
	settle("two members at each partition", func() (err error) {
		counts, err = shares(two, 2, three...)
		if err == nil && !slices.Equal(counts, []int{2, 2}) {
			err = fmt.Errorf("%v", counts)
		}
		return err
	}, three...)
	divided(two, 2, 1, 2, three...)
}

func TestCheck034_MoreMembersThanPartitionsShareThem(t *testing.T) {
	w, first := membership(t, 4)
	members := []*beater{first}
	first.subscribes(w.main)
	for range 3 {
		m := w.beater(w.group)
		m.subscribes(w.main)
		members = append(members, m)
	}
	w.is("4 members", fmt.Sprint(divided(w.main, 4, 1, 1, members...)), "[1 1 1 1]")
	fifth := w.beater(w.group)
	fifth.subscribes(w.main)
	members = append(members, fifth)
	settle("two members at each partition", func() error {
		if counts, err := shares(w.main, 4, members...); err != nil || !slices.Equal(counts, []int{2, 2, 2, 2}) {
			return fmt.Errorf("%v %w", counts, err)
		}
		return nil
	}, members...)
	divided(w.main, 4, 1, 2, members...)
}

func TestCheck035_JoiningMemberMovesNoMoreThanBalanceNeeds(t *testing.T) {
	w, a := membership(t, 6)
	b := w.beater(w.group)
	a.subscribes(w.main)
	b.subscribes(w.main)
	divided(w.main, 6, 3, 3, a, b)
	before := map[*beater][]int32{a: a.assigned[w.main.id], b: b.assigned[w.main.id]}
	c := w.beater(w.group)
	c.subscribes(w.main)
	w.is("3 members", fmt.Sprint(divided(w.main, 6, 2, 2, a, b, c)), "[1 1 1 1 1 1]")
	for _, m := range []*beater{a, b} {
		for _, p := range m.assigned[w.main.id] {
			if !slices.Contains(before[m], p) {
				t.Errorf("partition %d came to %s, which had %v", p, m.id, before[m])
			}
		}
	}
}

func TestCheck036_MembersOnlyGetWhatTheySubscribeTo(t *testing.T) {
	w, a := membership(t, 2)
	second, third := w.createTopic(w.main.name+"-2", 2, nil), w.createTopic(w.main.name+"-3", 2, nil)
	b := w.beater(w.group)
	a.subscribes(w.main, second)
	b.subscribes(second, third)
	settle("what each subscribes to", func() error {
		counts, err := shares(second, 2, a, b)
		if err == nil && (a.count(w.main) != 2 || b.count(third) != 2 || a.count(second) != 1 || !slices.Equal(counts, []int{1, 1})) {
			err = fmt.Errorf("%v and %v", a.assigned, b.assigned)
		}
		return err
	}, a, b)
	w.is("a", a.topicsOf(w.main, second, third), "0 1")
	w.is("b", b.topicsOf(w.main, second, third), "1 2")
}

func TestCheck037_GroupAndOffsetsOutliveItsMembers(t *testing.T) {
	w := start(t, setup{foreign: true})
	w.produce(w.p(0), 10)
	b := w.join(w.group, w.main)
	m := w.member()
	m.takes("0-9x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 3))
	m.close()
	b.leaves()
	w.is("state", w.listed(w.group), "Empty")
	d := w.describeGroup(w.group)
	if d.ErrorCode != 0 || d.GroupState != "Empty" || len(d.Members) != 0 {
		t.Fatalf("%+v", d)
	}
	w.lagBecomes(w.p(0), 6)
	b.epoch = 0
	b.subscribes(w.main)
	b.owns(1, w.main)
	w.member().takes("4-9x2", w.p(0))
}

// On kshare the replica that served the member dies; Kafka's one broker is restarted.
func TestCheck038_LostServerDoesNotLoseTheGroup(t *testing.T) {
	w := start(t, setup{foreign: true, alone: true, partitions: 2})
	b := w.beater(w.group)
	b.c = w.dial(w.tg.at(0, w.node))
	b.subscribes(w.main)
	b.owns(2, w.main)
	epoch := b.epoch
	if w.tg.replicas == nil {
		if err := w.tg.kafka.RestartNode(0); err != nil {
			t.Fatal(err)
		}
	} else {
		w.tg.replicas.Process(0).Kill()
		defer func() {
			if err := w.tg.replicas.Start(0); err != nil {
				t.Fatal(err)
			}
			serverBack(w)
		}()
	}
	w.admin = w.dial(w.tg.at(1, w.node))
	b.c = w.admin
	if resp := b.beats(unchanged); resp.MemberEpoch != epoch {
		t.Fatalf("%+v, had epoch %d", resp, epoch)
	}
	b.epoch = 0
	b.subscribes(w.main)
	w.is("assigned", b.has(w.main), "0 1")
	if n := len(w.describeGroup(w.group).Members); n != 1 {
		t.Fatalf("%d members", n)
	}
}

// initialized names the partitions that DescribeShareGroupOffsets tells of a group, topics by their number in the list.
func (w *world) initialized(group string, topics ...topic) string {
	w.Helper()
	var names []string
	for _, t := range w.describeOffsets(1, group).Topics {
		n := slices.IndexFunc(topics, func(k topic) bool { return k.id == t.TopicID })
		for _, p := range t.Partitions {
			names = append(names, fmt.Sprintf("%d/%d", n, p.Partition))
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
