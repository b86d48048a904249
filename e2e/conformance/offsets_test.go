//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// place is a partition with an offset, for AlterShareGroupOffsets.
type place struct {
	tp
	offset int64
}

// alterOffsets sends an AlterShareGroupOffsets that names each place in a topic entry of its own.
func (w *world) alterOffsets(group string, places ...place) *kmsg.AlterShareGroupOffsetsResponse {
	w.Helper()
	req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	req.GroupID = group
	for _, p := range places {
		t := kmsg.NewAlterShareGroupOffsetsRequestTopic()
		part := kmsg.NewAlterShareGroupOffsetsRequestTopicPartition()
		part.Partition, part.StartOffset = p.p, p.offset
		t.Topic, t.Partitions = p.name, append(t.Partitions, part)
		req.Topics = append(req.Topics, t)
	}
	return ask[*kmsg.AlterShareGroupOffsetsResponse](w, w.admin, req)
}

// alters sets offsets, all of which must be taken.
func (w *world) alters(group string, places ...place) {
	w.Helper()
	resp := w.alterOffsets(group, places...)
	w.code("AlterShareGroupOffsets", resp.ErrorCode, nil)
	for _, p := range places {
		w.code(fmt.Sprintf("AlterShareGroupOffsets of %s/%d", p.name, p.p), altered(resp)[fmt.Sprintf("%s/%d", p.name, p.p)], nil)
	}
}

// altered gives the codes by "topic/partition".
func altered(resp *kmsg.AlterShareGroupOffsetsResponse) map[string]int16 {
	codes := map[string]int16{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			codes[fmt.Sprintf("%s/%d", t.Topic, p.Partition)] = p.ErrorCode
		}
	}
	return codes
}

func (w *world) deleteOffsets(group string, topics ...string) *kmsg.DeleteShareGroupOffsetsResponse {
	w.Helper()
	req := kmsg.NewPtrDeleteShareGroupOffsetsRequest()
	req.GroupID = group
	for _, name := range topics {
		t := kmsg.NewDeleteShareGroupOffsetsRequestTopic()
		t.Topic = name
		req.Topics = append(req.Topics, t)
	}
	return ask[*kmsg.DeleteShareGroupOffsetsResponse](w, w.admin, req)
}

func (w *world) deleteGroup(version int16, group string) kmsg.DeleteGroupsResponseGroup {
	w.Helper()
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Version, req.Groups = version, []string{group}
	got := ask[*kmsg.DeleteGroupsResponse](w, w.admin, req).Groups
	if len(got) != 1 || got[0].Group != group {
		w.Fatalf("%+v", got)
	}
	return got[0]
}

// startOffsets prints what DescribeShareGroupOffsets v1 tells of the topic: "0@5 lag 2, 1@-1 lag -1".
func (w *world) startOffsets(group string, of topic) string {
	w.Helper()
	var out []string
	for _, t := range w.describeOffsets(1, group).Topics {
		for _, p := range t.Partitions {
			if t.TopicID == of.id {
				w.code("DescribeShareGroupOffsets", p.ErrorCode, nil)
				out = append(out, fmt.Sprintf("%d@%d lag %d", p.Partition, p.StartOffset, p.Lag))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// message is the text of an error that must have one.
func (w *world) message(text *string) string {
	w.Helper()
	if text == nil {
		w.Fatal("an error without a message")
	}
	return *text
}

func TestCheck119_InitializedPartitionsAreDescribed(t *testing.T) {
	w := start(t, setup{partitions: 2})
	other := w.createTopic(w.main.name+"-2", 1, nil)
	w.produce(w.p(0), 3)
	w.is("all", w.initialized(w.group, w.main, other), "0/0 0/1")
	w.is("before the first fetch", w.startOffsets(w.group, w.main), "0@-1 lag -1, 1@-1 lag -1")
	m := w.member()
	m.takes("0-2x1", w.p(0))
	w.is("before the first acknowledgement", w.startOffsets(w.group, w.main), "0@-1 lag -1, 1@-1 lag -1")
	m.ack(nil, w.p(0), accept(0, 0))
	w.lagBecomes(w.p(0), 2)
	if start, lag := w.described(w.p(1)); start != -1 || lag != -1 {
		t.Fatalf("the other partition: %d, lag %d", start, lag)
	}
	if start, _ := w.described(other.at(0)); start != -1 {
		t.Fatalf("a topic of nobody: %d", start)
	}
	empty := []kmsg.DescribeShareGroupOffsetsRequestGroupTopic{}
	if got := w.describeOffsets(1, w.group, empty...).Topics; len(got) != 0 {
		t.Fatalf("no topics: %+v", got)
	}
}

func TestCheck120_LagCountsWhatIsNotFinished(t *testing.T) {
	w := start(t, setup{})
	w.produceEach(w.p(0), 10, 1)
	m := w.member()
	m.takes("0-9x1", w.p(0))
	m.ack(nil, w.p(0), accept(2, 4), reject(7, 7))
	w.lagBecomes(w.p(0), 6)
	m.ack(nil, w.p(0), accept(0, 0))
	w.lagBecomes(w.p(0), 5)
	if !allowed().startLags {
		start, _ := w.described(w.p(0))
		w.is("start offset", fmt.Sprint(start), "1")
	}
	if got := w.describeOffsets(0, w.group).Topics[0].Partitions[0]; got.Lag != -1 || got.StartOffset < 0 {
		t.Fatalf("v0: %+v", got)
	}
	w.produce(w.p(0), 3)
	w.lagBecomes(w.p(0), 8)
}

func TestCheck121_UnknownTopicsAndGroupsAreNoErrors(t *testing.T) {
	w := start(t, setup{})
	named := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
	named.Topic, named.Partitions = "no-"+w.main.name, []int32{0, 7}
	topics := w.describeOffsets(1, w.group, named).Topics
	if len(topics) != 1 || topics[0].TopicID != [16]byte{} || len(topics[0].Partitions) != 2 {
		t.Fatalf("%+v", topics)
	}
	for _, p := range topics[0].Partitions {
		if p.StartOffset != -1 || p.Lag != -1 || p.LeaderEpoch != 0 || p.ErrorCode != 0 || p.ErrorMessage != nil {
			t.Errorf("%+v", p)
		}
	}
	if got := w.describeOffsets(1, "no-"+w.group).Topics; len(got) != 0 {
		t.Errorf("%+v", got)
	}
	named.Topic, named.Partitions = w.main.name, []int32{0, 99}
	for _, p := range w.describeOffsets(1, "no-"+w.group, named).Topics[0].Partitions {
		if p.StartOffset != -1 || p.Lag != -1 || p.ErrorCode != 0 {
			t.Errorf("unknown group: %+v", p)
		}
	}
}

func TestCheck122_AlteredOffsetsAreWhereTheGroupGoesOn(t *testing.T) {
	w := start(t, setup{foreign: true})
	w.produceEach(w.p(0), 10, 1)
	b := w.join(w.group, w.main)
	m := w.member()
	m.takes("0-9x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 5), release(6, 7))
	resp := w.alterOffsets(w.group, place{w.p(0), 3})
	w.code("with members", resp.ErrorCode, kerr.NonEmptyGroup)
	w.is("message", w.message(resp.ErrorMessage), "The group is not empty.")
	if len(resp.Topics) != 0 {
		t.Fatalf("%+v", resp)
	}
	b.leaves()
	m.c.Close() // with the connection of the last session a broker drops its copy
	w.alters(w.group, place{w.p(0), 3})
	w.is("offsets", w.startOffsets(w.group, w.main), "0@3 lag 7")
	b.epoch = 0
	b.subscribes(w.main)
	b.owns(1, w.main)
	w.member().gathers("3-9x1", w.p(0))
	w.within("unknown group", func(w *world) {
		w.group += "-made"
		w.alters(w.group, place{w.p(0), 8})
		w.is("listed", w.listed(w.group), "Empty")
		d := w.describeGroup(w.group)
		if d.ErrorCode != 0 || d.GroupState != "Empty" || d.GroupEpoch != 1 || d.AssignmentEpoch != 1 {
			t.Fatalf("%+v", d)
		}
		w.join(w.group, w.main)
		m := w.member()
		m.takes("8-9x1", w.p(0))
	})
	w.within("by the reset policy", func(w *world) {
		w.group += "-reset"
		w.set(w.group, "share.auto.offset.reset", "earliest")
		w.alters(w.group, place{w.p(0), -1})
		w.is("offsets", w.startOffsets(w.group, w.main), "0@-1 lag -1")
		w.join(w.group, w.main)
		w.member().gathers("0-9x1", w.p(0))
	})
	w.within("beyond the end", func(w *world) {
		w.group += "-ahead"
		w.alters(w.group, place{w.p(0), 12})
		w.is("offsets", w.startOffsets(w.group, w.main), "0@12 lag -2")
		w.join(w.group, w.main)
		m := w.member()
		m.getsNone(w.p(0))
		w.produceEach(w.p(0), 4, 1)
		m.gathers("12-13x1", w.p(0))
	})
	w.within("no group id", func(w *world) {
		w.code("AlterShareGroupOffsets", w.alterOffsets("", place{w.p(0), 1}).ErrorCode, kerr.InvalidGroupID)
	})
}

func TestCheck123_UnknownTopicsAndPartitionsDoNotKeepOthersFromBeingAltered(t *testing.T) {
	w := start(t, setup{foreign: true, partitions: 2})
	w.produce(w.p(0), 5)
	unknown := topic{name: "no-" + w.main.name}
	resp := w.alterOffsets(w.group, place{w.p(0), 2}, place{w.p(9), 1}, place{unknown.at(0), 1}, place{w.p(1), 0})
	w.code("AlterShareGroupOffsets", resp.ErrorCode, nil)
	got, want := altered(resp), map[string]int16{}
	for p, code := range map[tp]int16{w.p(0): 0, w.p(1): 0, w.p(9): 3, unknown.at(0): 3} {
		want[fmt.Sprintf("%s/%d", p.name, p.p)] = code
	}
	w.is("codes", fmt.Sprint(got), fmt.Sprint(want))
	for _, t := range resp.Topics {
		if known := t.TopicID == w.main.id; known != (t.Topic == w.main.name) {
			w.Errorf("topic id of %s: %x", t.Topic, t.TopicID)
		}
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				w.is("message", w.message(p.ErrorMessage), "This server does not host this topic-partition.")
			} else if p.ErrorMessage != nil {
				w.Errorf("a success with a message: %s", *p.ErrorMessage)
			}
		}
	}
	w.is("offsets", w.startOffsets(w.group, w.main), "0@2 lag 3, 1@0 lag 0")
}

func TestCheck124_DeletedOffsetsAreUpToTheResetPolicy(t *testing.T) {
	w := start(t, setup{foreign: true})
	idle := w.createTopic(w.main.name+"-2", 1, nil)
	w.produceEach(w.p(0), 6, 1)
	b := w.join(w.group, w.main)
	m := w.member()
	m.takes("0-5x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 3))
	m.c.Close()
	resp := w.deleteOffsets(w.group, w.main.name)
	w.code("with members", resp.ErrorCode, kerr.NonEmptyGroup)
	w.is("message", w.message(resp.ErrorMessage), "The group is not empty.")
	if len(resp.Topics) != 0 {
		t.Fatalf("%+v", resp)
	}
	b.leaves()
	resp = w.deleteOffsets(w.group, w.main.name, idle.name, "no-"+w.main.name)
	w.code("DeleteShareGroupOffsets", resp.ErrorCode, nil)
	if len(resp.Topics) != 3 {
		t.Fatalf("%+v", resp.Topics)
	}
	for _, topic := range resp.Topics {
		want, id, message := kerr.UnknownTopicOrPartition, [16]byte{}, "There is no offset information to delete."
		switch topic.Topic {
		case w.main.name:
			want, id, message = nil, w.main.id, ""
		case "no-" + w.main.name:
			message = "This server does not host this topic-partition."
		}
		w.code(topic.Topic, topic.ErrorCode, want)
		if topic.TopicID != id {
			t.Errorf("topic id of %s: %x, want %x", topic.Topic, topic.TopicID, id)
		}
		if message != "" {
			w.is("message", w.message(topic.ErrorMessage), message)
		}
	}
	w.is("initialized", w.initialized(w.group, w.main), "")
	w.code("again", w.deleteOffsets(w.group, w.main.name).Topics[0].ErrorCode, kerr.UnknownTopicOrPartition)
	w.code("unknown group", w.deleteOffsets("no-"+w.group, w.main.name).ErrorCode, kerr.GroupIDNotFound)
	w.code("no group id", w.deleteOffsets("", w.main.name).ErrorCode, kerr.InvalidGroupID)
	b.epoch = 0
	b.subscribes(w.main)
	b.owns(1, w.main)
	w.member().gathers("0-5x1", w.p(0))
}

func TestCheck125_DeletedGroupIsGone(t *testing.T) {
	w := start(t, setup{foreign: true})
	w.produceEach(w.p(0), 6, 1)
	b := w.join(w.group, w.main)
	m := w.member()
	m.takes("0-5x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 3))
	m.c.Close()
	got := w.deleteGroup(3, w.group)
	w.code("with members", got.ErrorCode, kerr.NonEmptyGroup)
	if got.ErrorMessage != nil {
		t.Errorf("message %q", *got.ErrorMessage)
	}
	b.leaves()
	got = w.deleteGroup(3, w.group)
	w.code("empty", got.ErrorCode, nil)
	if got.ErrorMessage != nil {
		t.Errorf("a success with a message: %s", *got.ErrorMessage)
	}
	w.is("listed", w.listed(w.group), "")
	w.is("initialized", w.initialized(w.group, w.main), "")
	w.code("described", w.describeGroup(w.group).ErrorCode, kerr.GroupIDNotFound)
	for version := int16(0); version <= 3; version++ {
		w.code("again", w.deleteGroup(version, w.group).ErrorCode, kerr.GroupIDNotFound)
	}
	w.within("named twice", func(w *world) {
		twice := w.group + "-twice"
		w.alters(twice, place{w.p(0), 0})
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Version, req.Groups = 2, []string{twice, twice}
		got := ask[*kmsg.DeleteGroupsResponse](w, w.admin, req).Groups
		if len(got) != 1 || got[0].ErrorCode != 0 {
			w.Errorf("%+v", got)
		}
	})
	// Its configs, by which it starts at the earliest record, stay.
	b.epoch = 0
	b.subscribes(w.main)
	b.owns(1, w.main)
	var first string
	m = w.member()
	w.until("records", 30*time.Second, func() error {
		if first = m.fetch(w.p(0)).acquired(w.p(0)); first == "" {
			return errors.New("none")
		}
		return nil
	})
	w.is("acquired", first, "0-5x1")
}
