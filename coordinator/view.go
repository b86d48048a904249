package coordinator

import "slices"

// The methods here read. Those that take the log time now (µs) see members whose session is over as gone,
// without changing anything: only ops do that.

// Configured reports whether the id has configs of its own.
func (g *Group) Configured() bool { return len(g.configs) > 0 }

// Overdue reports whether an Expire at now would remove members.
func (g *Group) Overdue(now int64) bool {
	return len(g.members) > 0 && now >= g.earliest && slices.ContainsFunc(g.members, func(m *member) bool { return m.deadline <= now })
}

// State is Empty, Stable, or Dead where the group does not exist.
func (g *Group) State(now int64) string {
	switch {
	case !g.exists:
		return StateDead
	case slices.ContainsFunc(g.members, func(m *member) bool { return m.deadline > now }):
		return StateStable
	}
	return StateEmpty
}

// Describe copies what ShareGroupDescribe shows.
func (g *Group) Describe(group string, now int64) Description {
	d := Description{Group: group, State: g.State(now), GroupEpoch: g.epoch, AssignmentEpoch: g.assignmentEpoch, Assignor: AssignorName}
	for _, m := range g.members {
		if m.deadline <= now {
			continue
		}
		d.Members = append(d.Members, MemberDescription{
			Member: m.id, Rack: m.rack, Epoch: m.epoch, ClientID: m.client.ID, ClientHost: m.client.Host,
			Topics: slices.Clone(m.topics), Assignment: slices.Clone(m.assigned),
		})
	}
	return d
}

// Initialized returns the starting point of a share-partition.
func (g *Group) Initialized(topic [16]byte, partition int32) (Initialized, bool) {
	t := g.topicByID(topic)
	if t == nil {
		return Initialized{}, false
	}
	i, ok := t.search(partition)
	if !ok {
		return Initialized{}, false
	}
	return t.runs[i].Initialized, true
}

// InitializedPartitions lists all share-partitions of the group, by topic name.
func (g *Group) InitializedPartitions() []TopicPartitions {
	var all []TopicPartitions
	for _, t := range g.topics {
		if len(t.runs) > 0 {
			all = append(all, TopicPartitions{ID: t.id, Name: t.name, Partitions: t.initialized()})
		}
	}
	return all
}
