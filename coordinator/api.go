package coordinator

import "context"

// Topic is what the coordinator needs to know about a topic of the upstream cluster.
type Topic struct {
	ID         [16]byte
	Name       string
	Partitions int32
}

// Topics answers which topics exist upstream.
type Topics interface {
	// TopicsByName returns the topics of the given names that exist. A missing name is one that does
	// not exist, surely so only when fresh is true.
	TopicsByName(ctx context.Context, names []string, fresh bool) (map[string]Topic, error)
}

// GroupUse tells whether a group id is taken upstream by a group of another kind.
type GroupUse interface {
	// InUse reports whether upstream has a classic, consumer or other group of that id.
	InUse(ctx context.Context, group string) (bool, error)
}

// HeartbeatRequest is one ShareGroupHeartbeat (key 76).
type HeartbeatRequest struct {
	Group, Member string
	// Epoch is 0 to join, -1 to leave, else the last epoch that the member received.
	Epoch int32
	Rack  *string
	// Topics is the subscription; nil means unchanged, empty means nothing.
	Topics               []string
	ClientID, ClientHost string
}

// HeartbeatResponse is the answer to a heartbeat that was accepted.
type HeartbeatResponse struct {
	Member            string
	Epoch, IntervalMs int32
	Assignment        []TopicPartitions
	// HasAssignment is false where the assignment goes out as null: unchanged.
	HasAssignment bool
}

// TopicPartitions names partitions of one topic, in ascending order.
type TopicPartitions struct {
	ID         [16]byte
	Name       string
	Partitions []int32
}

// Group states as Kafka names them.
const (
	StateEmpty  = "Empty"
	StateStable = "Stable"
	StateDead   = "Dead"
	// StateUnknown is shown where Redis did not tell.
	StateUnknown = "Unknown"
)

// Description is a group as ShareGroupDescribe (key 77) shows it.
type Description struct {
	Group, State                string
	GroupEpoch, AssignmentEpoch int32
	Assignor                    string
	Members                     []MemberDescription
}

// MemberDescription is one member of a Description.
type MemberDescription struct {
	Member               string
	Rack                 *string
	Epoch                int32
	ClientID, ClientHost string
	Topics               []string
	// Assignment is what was delivered to the member.
	Assignment []TopicPartitions
}

// Listing is a share group as ListGroups shows it.
type Listing struct {
	Group string
	State string
}

// Initialized is the starting point of a share-partition.
type Initialized struct {
	// Incarnation is unique among all initializations of the share-partition and rises.
	Incarnation int64
	// StartOffset is -1 where share.auto.offset.reset decides.
	StartOffset int64
}
