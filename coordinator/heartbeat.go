package coordinator

import "slices"

// Member epochs with a meaning of their own.
const (
	epochJoin  = 0
	epochLeave = -1
)

// heartbeat applies one ShareGroupHeartbeat. The order of checks is Kafka's: group, size, member, epoch.
func (g *Group) heartbeat(o Heartbeat, now int64) HeartbeatResult {
	if o.Epoch < epochLeave {
		return HeartbeatResult{Code: CodeInvalid}
	}
	if !g.exists {
		return HeartbeatResult{Code: CodeGroupMissing}
	}
	g.expire(o.AsOf, now)
	i, m := g.find(o.Member)
	if o.Epoch == epochLeave {
		return g.leave(i, m)
	}
	switch {
	case m == nil && len(g.members) >= int(o.Settings.MaxSize):
		return HeartbeatResult{Code: CodeGroupFull}
	case m == nil && o.Epoch != epochJoin:
		return HeartbeatResult{Code: CodeUnknownMember}
	case m != nil && o.Epoch != epochJoin && o.Epoch != m.epoch && o.Epoch != m.previous:
		return HeartbeatResult{Code: CodeFencedEpoch, Epoch: m.epoch}
	}
	joined := m == nil
	if joined {
		m = &member{id: o.Member, previous: -1}
		g.members = slices.Insert(g.members, i, m)
	}
	m.deadline = now + g.sessionTimeout(o.Settings)
	if len(g.members) == 1 || m.deadline < g.earliest {
		g.earliest = m.deadline
	}
	if g.update(m, o) || joined {
		g.rewatch()
		g.initialize(now)
		g.epoch++
	}
	g.reassign(o.Settings, now)
	moved := m.deliver(g.assignmentEpoch)
	result := HeartbeatResult{Epoch: m.epoch}
	if o.Epoch == epochJoin || o.Topics != nil || moved {
		result.HasAssignment, result.Assignment = true, m.assigned
	}
	return result
}

func (g *Group) leave(i int, m *member) HeartbeatResult {
	if m == nil {
		return HeartbeatResult{Code: CodeUnknownMember}
	}
	g.members = slices.Delete(g.members, i, i+1)
	g.epoch++
	g.membersLeft()
	return HeartbeatResult{Epoch: epochLeave}
}

// update takes over what the member says of itself and reports whether its subscription changed.
func (g *Group) update(m *member, o Heartbeat) (resubscribed bool) {
	if o.Rack != nil {
		m.rack = o.Rack
	}
	if o.Client != nil {
		m.client = *o.Client
	}
	if o.Topics == nil {
		return false
	}
	topics := slices.Clone(o.Topics)
	slices.Sort(topics)
	topics = slices.Compact(topics)
	if slices.Equal(topics, m.topics) {
		return false
	}
	m.topics = topics
	return true
}

// deliver hands the member its target, if it has not got this one, and reports whether its partitions
// changed by that. A member does not confirm revocation, so this is all of reconciliation.
func (m *member) deliver(assignmentEpoch int32) (moved bool) {
	if m.epoch == assignmentEpoch {
		return false
	}
	m.previous, m.epoch = m.epoch, assignmentEpoch
	moved = !equalAssignment(m.assigned, m.target)
	m.assigned = m.target
	return moved
}

// reassign computes a new target when the group has changed since the last one, but not more often than
// the assignment interval allows (KIP-1263). Until then members keep the old target and its epoch.
func (g *Group) reassign(s Settings, now int64) {
	if g.epoch <= g.assignmentEpoch {
		return
	}
	if g.assignedAt != 0 && now-g.assignedAt < g.assignmentInterval(s) {
		return
	}
	g.assign()
	g.assignmentEpoch = g.epoch
	g.assignedAt = now
}

// assign asks the assignor for a new target and gives it to the members.
func (g *Group) assign() {
	var topics []assignable
	for _, t := range g.topics {
		if partitions := t.initialized(); len(partitions) > 0 && g.subscribed(t.name) {
			topics = append(topics, assignable{id: t.id, name: t.name, partitions: partitions})
		}
	}
	subscribers := make([]subscriber, len(g.members))
	for i, m := range g.members {
		subscribers[i] = subscriber{topics: m.topics, current: m.target}
	}
	for i, target := range assignSimple(topics, subscribers) {
		if m := g.members[i]; !equalAssignment(m.target, target) {
			m.target = target
		}
	}
}

func equalAssignment(a, b []TopicPartitions) bool {
	return slices.EqualFunc(a, b, func(a, b TopicPartitions) bool {
		return a.ID == b.ID && a.Name == b.Name && slices.Equal(a.Partitions, b.Partitions)
	})
}
