package coordinator

import (
	"slices"
	"strings"
)

// Group is the state of one share group id: the group itself while it exists, and the configs of that
// id, which need no group. It is not safe for concurrent use; its log guards it.
type Group struct {
	exists          bool
	epoch           int32
	assignmentEpoch int32
	// assignedAt is the log time (µs) of the last computed target; 0 lets the next one come at once.
	assignedAt int64
	// lastIncarnation is the highest one given out. It outlives the deletion of the group.
	lastIncarnation int64
	members         []*member // by id
	topics          []*topic  // by name
	configs         []Setting // by key; replaced, never changed in place

	// Derived, never in a snapshot.

	// watch is what the replica must ask upstream about. Replaced whenever it changes.
	watch *watchlist
	// earliest is at most the earliest session deadline, so that a keep-alive need not look at all.
	earliest int64
}

// member is one consumer of the group.
type member struct {
	id     string
	rack   *string
	client Client
	// epoch is the assignment epoch that was delivered last, previous the one before, which is still
	// accepted because the last answer may have been lost.
	epoch, previous int32
	// deadline is the log time (µs) at which the session is over.
	deadline int64
	topics   []string // sorted, distinct
	// target is what the assignor wants, assigned what was delivered. Never changed in place.
	target, assigned []TopicPartitions
}

// watchlist is what a group's topic metadata should be compared with.
type watchlist struct {
	// names are the topics that members subscribe to or that have initialized partitions, sorted.
	names []string
	// topics is what the group knows of them, by name.
	topics map[string]Topic
	// subscribed says which names members subscribe to.
	subscribed map[string]bool
}

// NewGroup returns the state of a group id that does not exist and has no configs.
func NewGroup() *Group {
	return &Group{watch: &watchlist{}}
}

// Apply folds one op at log time now (µs) into the group. It implements statelog.Machine. wake is true
// where replicas that keep a copy should look at once.
func (g *Group) Apply(dst, op []byte, now int64) (result []byte, wake bool, err error) {
	o, err := DecodeOp(op)
	if err != nil {
		return dst, false, err
	}
	switch o := o.(type) {
	case Heartbeat:
		return g.heartbeat(o, now).append(dst), false, nil
	case TopicMetadata:
		g.topicMetadata(o, now)
	case Resume:
		g.resume(o, now)
	case Expire:
		g.expire(o.AsOf, now)
	case SetConfig:
		wake = g.setConfig(o)
	case Create:
		wake = !g.exists
		g.exists = true
	case Delete:
		code := g.delete(o, now)
		return append(dst, byte(code)), code == CodeOK, nil
	case SetOffsets:
		code := g.setOffsets(o, now)
		return append(dst, byte(code)), code == CodeOK, nil
	case DeleteOffsets:
		code := g.deleteOffsets(o, now)
		return append(dst, byte(code)), code == CodeOK, nil
	}
	return append(dst, byte(CodeOK)), wake, nil
}

// empty evaluates timeouts and tells why an op that needs a group without members may not go on.
func (g *Group) empty(asOf AsOf, now int64) Code {
	if !g.exists {
		return CodeGroupMissing
	}
	if g.expire(asOf, now); len(g.members) > 0 {
		return CodeNonEmpty
	}
	return CodeOK
}

func (g *Group) delete(o Delete, now int64) Code {
	if code := g.empty(o.AsOf, now); code != CodeOK {
		return code
	}
	// The incarnation moves on, so that no checkpoint or share-partition of the old life counts later.
	incarnation := g.nextIncarnation(now)
	*g = Group{configs: g.configs, lastIncarnation: incarnation, watch: &watchlist{}}
	return CodeOK
}

func (g *Group) setConfig(o SetConfig) (changed bool) {
	var configs []Setting
	if !o.Replace {
		configs = slices.Clone(g.configs)
	}
	for _, key := range o.Delete {
		configs = slices.DeleteFunc(configs, func(s Setting) bool { return s.Key == key })
	}
	for _, s := range o.Set {
		i, found := searchSetting(configs, s.Key)
		if found {
			configs[i] = s
		} else {
			configs = slices.Insert(configs, i, s)
		}
	}
	if slices.Equal(configs, g.configs) {
		return false
	}
	g.configs = configs
	return true
}

func searchSetting(configs []Setting, key string) (int, bool) {
	return slices.BinarySearchFunc(configs, key, func(s Setting, key string) int {
		return strings.Compare(s.Key, key)
	})
}

// config returns the raw value that is set on the group.
func (g *Group) config(key string) (string, bool) {
	i, found := searchSetting(g.configs, key)
	if !found {
		return "", false
	}
	return g.configs[i].Value, true
}

// nextIncarnation is the log time, or the next number where several are given out within it.
func (g *Group) nextIncarnation(now int64) int64 {
	g.lastIncarnation = max(g.lastIncarnation+1, now)
	return g.lastIncarnation
}

func (g *Group) find(id string) (int, *member) {
	i, found := slices.BinarySearchFunc(g.members, id, func(m *member, id string) int {
		return strings.Compare(m.id, id)
	})
	if !found {
		return i, nil
	}
	return i, g.members[i]
}

// expire removes the members whose session is over; that is one change of the group, however many.
func (g *Group) expire(asOf AsOf, now int64) {
	if asOf != 0 {
		now = min(now, int64(asOf))
	}
	if len(g.members) == 0 || now < g.earliest {
		return
	}
	before := len(g.members)
	g.members = slices.DeleteFunc(g.members, func(m *member) bool { return m.deadline <= now })
	g.earliest = earliestDeadline(g.members)
	if len(g.members) < before {
		g.epoch++
		g.membersLeft()
	}
}

func earliestDeadline(members []*member) int64 {
	var earliest int64
	for i, m := range members {
		if i == 0 || m.deadline < earliest {
			earliest = m.deadline
		}
	}
	return earliest
}

// membersLeft follows the removal of members.
func (g *Group) membersLeft() {
	if len(g.members) == 0 {
		g.assignedAt = 0 // As in Kafka 4.4: who comes to an empty group is assigned at once.
	}
	g.rewatch()
}

func (g *Group) resume(o Resume, now int64) {
	deadline := now + g.sessionTimeout(o.Settings)
	for _, m := range g.members {
		m.deadline = max(m.deadline, deadline)
	}
	g.earliest = earliestDeadline(g.members)
}

// sessionTimeout is the group's session timeout in microseconds.
func (g *Group) sessionTimeout(s Settings) int64 {
	ms := g.number(keySessionTimeout, s.SessionTimeout, s.SessionTimeoutMin, s.SessionTimeoutMax)
	return int64(ms) * 1000
}

// assignmentInterval is the shortest time between two targets in microseconds.
func (g *Group) assignmentInterval(s Settings) int64 {
	ms := g.number(keyAssignmentInterval, s.AssignmentInterval, s.AssignmentIntervalMin, s.AssignmentIntervalMax)
	return int64(ms) * 1000
}

// number is an integer config in force: the group's where set, else the broker's, within the broker's
// bounds, which may have changed since the value was set.
func (g *Group) number(key string, broker, low, high int32) int32 {
	value := broker
	if raw, ok := g.config(key); ok {
		if v, err := parseInt32(raw); err == nil {
			value = v
		}
	}
	return max(low, min(high, value))
}
