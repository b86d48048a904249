package coordinator

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// snapshotVersion is the version of the encoding and of the semantics behind it. A replica that meets
// another one refuses the group rather than guess.
const snapshotVersion = 1

// AppendSnapshot appends the whole state. Equal states have equal snapshots. It implements
// statelog.Machine.
func (g *Group) AppendSnapshot(dst []byte) []byte {
	b := appendBool(append(dst, snapshotVersion), g.exists)
	b = appendInt32(appendInt32(b, g.epoch), g.assignmentEpoch)
	b = binary.AppendVarint(binary.AppendVarint(b, g.assignedAt), g.lastIncarnation)
	b = binary.AppendUvarint(b, uint64(len(g.configs)))
	for _, s := range g.configs {
		b = appendString(appendString(b, s.Key), s.Value)
	}
	b = binary.AppendUvarint(b, uint64(len(g.topics)))
	for _, t := range g.topics {
		b = t.append(b)
	}
	subscriptions, numbers := g.subscriptions()
	b = binary.AppendUvarint(b, uint64(len(subscriptions)))
	for _, topics := range subscriptions {
		b = appendStrings(b, topics)
	}
	b = binary.AppendUvarint(b, uint64(len(g.members)))
	for i, m := range g.members {
		b = binary.AppendUvarint(m.append(b), uint64(numbers[i]))
		b = g.appendTarget(b, m.target)
		same := equalAssignment(m.assigned, m.target)
		if b = appendBool(b, same); !same {
			b = g.appendTarget(b, m.assigned)
		}
	}
	return b
}

// subscriptions lists the distinct subscriptions, in the order of members, and each member's number in
// it: members of one group mostly want the same.
func (g *Group) subscriptions() (distinct [][]string, numbers []int) {
	numbers = make([]int, len(g.members))
	for i, m := range g.members {
		n := slices.IndexFunc(distinct, func(topics []string) bool { return slices.Equal(topics, m.topics) })
		if n < 0 {
			n = len(distinct)
			distinct = append(distinct, m.topics)
		}
		numbers[i] = n
	}
	return distinct, numbers
}

func (t *topic) append(b []byte) []byte {
	b = appendTopic(b, Topic{ID: t.id, Name: t.name, Partitions: t.partitions})
	b = binary.AppendUvarint(appendInt32(b, t.known), uint64(len(t.runs)))
	for _, r := range t.runs {
		b = appendInt32(appendInt32(b, r.first), r.last)
		b = binary.AppendVarint(binary.AppendVarint(b, r.Incarnation), r.StartOffset)
	}
	return b
}

func (m *member) append(b []byte) []byte {
	b = appendOptional(appendString(b, m.id), m.rack)
	b = appendString(appendString(b, m.client.ID), m.client.Host)
	b = appendInt32(appendInt32(b, m.epoch), m.previous)
	return binary.AppendVarint(b, m.deadline)
}

// appendTarget writes topics that the group knows by their number; a member may still have others.
func (g *Group) appendTarget(b []byte, target []TopicPartitions) []byte {
	b = binary.AppendUvarint(b, uint64(len(target)))
	for _, tp := range target {
		if i, t := g.topic(tp.Name); t != nil && t.id == tp.ID {
			b = binary.AppendUvarint(b, uint64(i)+1)
		} else {
			b = append(appendString(append(b, 0), tp.Name), tp.ID[:]...)
		}
		b = appendPartitions(b, tp.Partitions)
	}
	return b
}

// Restore replaces the state by a snapshot's. It implements statelog.Machine. On an error the group is
// as it was.
func (g *Group) Restore(snapshot []byte) error {
	r := &reader{b: snapshot}
	if v := r.byte(); r.err == nil && v != snapshotVersion {
		return fmt.Errorf("coordinator: snapshot of version %d, this replica knows %d", v, snapshotVersion)
	}
	n := &Group{exists: r.bool(), epoch: r.int32(), assignmentEpoch: r.int32(), assignedAt: r.varint(), lastIncarnation: r.varint()}
	for range r.count(2) {
		n.configs = append(n.configs, Setting{Key: r.string(), Value: r.string()})
	}
	for range r.count(20) {
		n.topics = append(n.topics, r.topicState())
	}
	subscriptions := make([][]string, r.count(1))
	for i := range subscriptions {
		subscriptions[i] = r.strings()
		if !ascending(subscriptions[i], strings.Compare) {
			r.fail("order of a subscription")
		}
	}
	for range r.count(10) {
		n.members = append(n.members, r.member(n, subscriptions))
	}
	if !ascending(n.configs, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) }) ||
		!ascending(n.topics, func(a, b *topic) int { return strings.Compare(a.name, b.name) }) ||
		!ascending(n.members, func(a, b *member) int { return strings.Compare(a.id, b.id) }) {
		r.fail("order")
	}
	if err := r.end(); err != nil {
		return err
	}
	n.earliest = earliestDeadline(n.members)
	n.watch = n.watchlist()
	*g = *n
	return nil
}

func ascending[T any](v []T, compare func(a, b T) int) bool {
	for i := 1; i < len(v); i++ {
		if compare(v[i-1], v[i]) >= 0 {
			return false
		}
	}
	return true
}

func (r *reader) topicState() *topic {
	head := r.topic()
	t := &topic{id: head.ID, name: head.Name, partitions: head.Partitions, known: r.int32()}
	if t.known < 0 || t.known > maxPartitions {
		r.fail("known partitions")
	}
	next := int32(0)
	for range r.count(4) {
		s := run{first: r.partition(), last: r.partition()}
		s.Incarnation, s.StartOffset = r.varint(), r.varint()
		if s.first < next || s.last < s.first {
			r.fail("run of partitions")
			break
		}
		if r.expanded += uint64(s.last - s.first + 1); r.expanded > maxExpanded {
			r.fail("too many partitions")
			break
		}
		next = s.last + 1
		t.runs = append(t.runs, s)
	}
	return t
}

func (r *reader) member(g *Group, subscriptions [][]string) *member {
	m := &member{id: r.string(), rack: r.optional()}
	m.client = Client{ID: r.string(), Host: r.string()}
	m.epoch, m.previous, m.deadline = r.int32(), r.int32(), r.varint()
	n := r.uvarint()
	if n >= uint64(len(subscriptions)) {
		r.fail("subscription number")
		return m
	}
	m.topics = subscriptions[n]
	m.target = r.target(g)
	if m.assigned = m.target; !r.bool() {
		m.assigned = r.target(g)
	}
	return m
}

func (r *reader) target(g *Group) []TopicPartitions {
	var target []TopicPartitions
	for range r.count(2) {
		n := r.uvarint()
		var tp TopicPartitions
		switch {
		case n == 0:
			tp = TopicPartitions{Name: r.string(), ID: r.id()}
		case n <= uint64(len(g.topics)):
			t := g.topics[n-1]
			tp = TopicPartitions{Name: t.name, ID: t.id}
		default:
			r.fail("topic number")
			return nil
		}
		tp.Partitions = r.partitions()
		target = append(target, tp)
	}
	return target
}
