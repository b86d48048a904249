package upstream

import (
	"errors"
	"fmt"
)

// What can be wrong with a topic, a partition or a read. They come wrapped, with the topic and partition in the text.
var (
	// ErrUnknownTopicOrPartition: upstream knows no such topic id, topic or partition (any more).
	ErrUnknownTopicOrPartition = errors.New("unknown topic or partition")
	// ErrNotLeader: no node admits to leading the partition, and refreshing the metadata did not help. Retriable.
	ErrNotLeader = errors.New("not leader or follower")
	// ErrOffsetOutOfRange: the offset is below the log start or above the end; the View says where these are.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrCorrupt: what stands at the offset is no well-formed record batch of magic 2.
	ErrCorrupt = errors.New("corrupt record batch")
	// ErrUnauthorized: kshare's own service account lacks a grant.
	ErrUnauthorized = errors.New("the service account lacks a grant")
	// ErrUnavailable: upstream, or the node that is asked for, cannot be reached at present. Retriable.
	ErrUnavailable = errors.New("upstream unavailable")
	// ErrLogin: upstream refuses kshare's own login, or what it takes could not be had. It comes with ErrUnavailable, for
	// passwords get renewed.
	ErrLogin = errors.New("kshare's own login failed")
	// ErrClosed: the client's Run has ended, or the Tail was closed.
	ErrClosed = errors.New("upstream client closed")
)

// errNoSuch is the ErrUnknownTopicOrPartition that fresh metadata proves.
var errNoSuch = fmt.Errorf("%w: it is not in the metadata", ErrUnknownTopicOrPartition)

// retriable says whether trying again soon may help. For a topic that a node does not know it may: nodes learn of topics
// at different times.
func retriable(err error) bool {
	return !errors.Is(err, errNoSuch) &&
		(errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknownTopicOrPartition))
}
