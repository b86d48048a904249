package upstream

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Timestamps that ListOffset gives a meaning of their own.
const (
	// AtEnd asks for the high watermark.
	AtEnd int64 = -1
	// AtLogStart asks for the first offset that is still there.
	AtLogStart int64 = -2
)

// listTries is how often a ListOffset is tried before its caller is told of the trouble.
const listTries = 6

// ListOffset asks the partition's leader for an offset: AtEnd, AtLogStart, or the first one whose record's timestamp is
// at least that many ms since 1970, -1 if there is none. leaderEpoch is that of the leader that was asked. It tries again
// for a second or two where a leader is moving.
func (c *Client) ListOffset(ctx context.Context, tp TP, timestamp int64) (offset int64, leaderEpoch int32, err error) {
	for try := range listTries {
		offset, leaderEpoch, err = c.listOffset(ctx, tp, timestamp)
		if err == nil || ctx.Err() != nil || !retriable(err) {
			break
		}
		c.topics.join(nil, [][16]byte{tp.ID})
		if !pause(ctx, min(50*time.Millisecond<<try, 500*time.Millisecond)) {
			break
		}
	}
	if err != nil {
		return -1, -1, fmt.Errorf("list offsets of %v: %w", tp, err)
	}
	return offset, leaderEpoch, nil
}

func (c *Client) listOffset(ctx context.Context, tp TP, timestamp int64) (int64, int32, error) {
	topic, leader, err := c.leader(ctx, tp)
	if err != nil {
		return -1, -1, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	reqTopic := kmsg.NewListOffsetsRequestTopic()
	reqTopic.Topic = topic.Name
	part := kmsg.NewListOffsetsRequestTopicPartition()
	part.Partition, part.Timestamp, part.CurrentLeaderEpoch = tp.Partition, timestamp, leader.epoch
	reqTopic.Partitions = append(reqTopic.Partitions, part)
	req.Topics = append(req.Topics, reqTopic)
	resp, err := ask[*kmsg.ListOffsetsResponse](ctx, c.kgo, leader.node, req)
	if err != nil {
		return -1, -1, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if t.Topic != topic.Name || p.Partition != tp.Partition {
				continue
			}
			if err := codeError(p.ErrorCode); err != nil {
				return -1, -1, err
			}
			return p.Offset, leader.epoch, nil
		}
	}
	return -1, -1, fmt.Errorf("%w: node %d left the partition out of its answer", ErrUnavailable, leader.node)
}

// EndOfEpoch asks the partition's leader where its log of an earlier leader epoch ends: at the first offset of the epoch
// that follows there (OffsetForLeaderEpoch, KIP-101). What was read under the earlier epoch from that offset on is in the
// log no more: an unclean leader election has cut it. end is -1 if the leader cannot tell. leaderEpoch is the leader's own.
func (c *Client) EndOfEpoch(ctx context.Context, tp TP, epoch int32) (end int64, leaderEpoch int32, err error) {
	topic, leader, err := c.leader(ctx, tp)
	if err != nil {
		return -1, -1, err
	}
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1 // a consumer
	reqTopic := kmsg.NewOffsetForLeaderEpochRequestTopic()
	reqTopic.Topic = topic.Name
	part := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	part.Partition, part.CurrentLeaderEpoch, part.LeaderEpoch = tp.Partition, leader.epoch, epoch
	reqTopic.Partitions = append(reqTopic.Partitions, part)
	req.Topics = append(req.Topics, reqTopic)
	resp, err := ask[*kmsg.OffsetForLeaderEpochResponse](ctx, c.kgo, leader.node, req)
	if err != nil {
		return -1, -1, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if t.Topic == topic.Name && p.Partition == tp.Partition {
				return p.EndOffset, leader.epoch, codeError(p.ErrorCode)
			}
		}
	}
	return -1, -1, fmt.Errorf("%w: node %d left the partition out of its answer", ErrUnavailable, leader.node)
}

// leader finds the topic and who leads the partition, asking for metadata where it must.
func (c *Client) leader(ctx context.Context, tp TP) (*topicEntry, partitionLeader, error) {
	e, err := c.topics.entry(ctx, tp.ID)
	if err == nil && e != nil && tp.Partition >= e.Partitions { // added since, perhaps
		e, err = c.topics.entryAnew(ctx, e, tp)
	}
	if err != nil {
		return nil, partitionLeader{}, err
	}
	if e == nil {
		return nil, partitionLeader{}, errNoSuch
	}
	l, ok := e.leader(tp.Partition)
	switch {
	case !ok:
		return nil, partitionLeader{}, errNoSuch
	case l.node < 0:
		return nil, partitionLeader{}, fmt.Errorf("%w: the partition has no leader", ErrNotLeader)
	}
	return e, l, nil
}

// codeError turns a partition's error code into one of our errors; nil for 0.
func codeError(code int16) error {
	err := kerr.ErrorForCode(code)
	switch err {
	case nil:
		return nil
	case kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InconsistentTopicID:
		return fmt.Errorf("%w: %w", ErrUnknownTopicOrPartition, err)
	case kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.LeaderNotAvailable,
		kerr.ReplicaNotAvailable, kerr.KafkaStorageError, kerr.OffsetNotAvailable:
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case kerr.OffsetOutOfRange:
		return fmt.Errorf("%w: %w", ErrOffsetOutOfRange, err)
	case kerr.TopicAuthorizationFailed:
		return fmt.Errorf("%w: READ on the topic is needed: %w", ErrUnauthorized, err)
	case kerr.CorruptMessage, kerr.UnsupportedVersion, kerr.UnsupportedCompressionType:
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
