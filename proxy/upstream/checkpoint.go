package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The committed offsets of a group without members are a small durable store that every cluster has: a simple consumer
// (generation -1) writes them, nothing rebalances, and each carries a few KiB of text. kshare keeps its checkpoints in
// them. The service account needs READ, DESCRIBE and DELETE on these groups and READ on the topics.

var (
	// ErrMetadataTooLarge: the text beside a committed offset exceeds the brokers' offset.metadata.max.bytes.
	ErrMetadataTooLarge = errors.New("metadata of a committed offset is too large")
	// ErrGroupNotEmpty: the group has members, or its type takes no such request.
	ErrGroupNotEmpty = errors.New("group is in use")
)

// GroupOffset is one committed offset of a group.
type GroupOffset struct {
	Topic       Topic // id and name; the partition count is not looked at
	Partition   int32
	Offset      int64
	LeaderEpoch int32 // -1 = unknown
	Metadata    string
	// Err is what upstream says against this one; the others of the request are not touched by it.
	Err error
}

// GroupOffsets returns what is committed for the group on the named partitions, or on all with nil. A partition without a
// committed offset, and a group that does not exist, give nothing.
func (c *Client) GroupOffsets(ctx context.Context, group string, of []GroupOffset) ([]GroupOffset, error) {
	if of != nil && len(of) == 0 {
		return nil, nil // upstream may take that for all
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	place := map[[16]byte]int{}
	for _, o := range of {
		i, ok := place[o.Topic.ID]
		if !ok {
			i = len(g.Topics)
			place[o.Topic.ID] = i
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic, t.TopicID = o.Topic.Name, o.Topic.ID // v10 goes by id, older ones by name
			g.Topics = append(g.Topics, t)
		}
		g.Topics[i].Partitions = append(g.Topics[i].Partitions, o.Partition)
	}
	req.Groups = append(req.Groups, g)
	resp, err := request[*kmsg.OffsetFetchResponse](ctx, c, req)
	if err != nil {
		return nil, fmt.Errorf("committed offsets of group %q: %w", group, err)
	}
	return groupOffsets(group, resp)
}

func groupOffsets(group string, resp *kmsg.OffsetFetchResponse) ([]GroupOffset, error) {
	if len(resp.Groups) != 1 {
		return nil, fmt.Errorf("committed offsets of group %q: %w: %d groups answered", group, ErrUnavailable, len(resp.Groups))
	}
	g := resp.Groups[0]
	switch err := kerr.ErrorForCode(g.ErrorCode); err {
	case nil:
	case kerr.GroupIDNotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("committed offsets of group %q: %w", group, groupError(g.ErrorCode))
	}
	var out []GroupOffset
	for _, t := range g.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 && p.Offset < 0 {
				continue
			}
			o := GroupOffset{Topic: Topic{ID: t.TopicID, Name: t.Topic}, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch,
				Err: groupError(p.ErrorCode)}
			if p.Metadata != nil {
				o.Metadata = *p.Metadata
			}
			out = append(out, o)
		}
	}
	return out, nil
}

// CommitGroupOffsets commits offsets for a group without members. What upstream refuses has its Err set; err is of the
// whole request.
func (c *Client) CommitGroupOffsets(ctx context.Context, group string, offsets []GroupOffset) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation, req.MemberID = group, -1, ""
	type part struct {
		topic     [16]byte
		partition int32
	}
	place, where := map[[16]byte]int{}, map[part]*GroupOffset{}
	for n := range offsets {
		o := &offsets[n]
		where[part{o.Topic.ID, o.Partition}] = o
		i, ok := place[o.Topic.ID]
		if !ok {
			i = len(req.Topics)
			place[o.Topic.ID] = i
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic, t.TopicID = o.Topic.Name, o.Topic.ID
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = o.Partition, o.Offset, o.LeaderEpoch, &o.Metadata
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
		o.Err = fmt.Errorf("%w: not in the answer", ErrUnavailable)
	}
	names := map[string][16]byte{}
	for _, t := range req.Topics {
		names[t.Topic] = t.TopicID
	}
	resp, err := request[*kmsg.OffsetCommitResponse](ctx, c, req)
	if err != nil {
		return fmt.Errorf("offset commit of group %q: %w", group, err)
	}
	for _, t := range resp.Topics {
		id := t.TopicID
		if id == [16]byte{} {
			id = names[t.Topic]
		}
		for _, p := range t.Partitions {
			if o := where[part{id, p.Partition}]; o != nil {
				o.Err = groupError(p.ErrorCode)
			}
		}
	}
	return nil
}

// DeleteGroup deletes a group without members; that it does not exist is no error.
func (c *Client) DeleteGroup(ctx context.Context, group string) error {
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Groups = []string{group}
	resp, err := request[*kmsg.DeleteGroupsResponse](ctx, c, req)
	if err != nil {
		return fmt.Errorf("deleting group %q: %w", group, err)
	}
	for _, g := range resp.Groups {
		if g.Group != group || g.ErrorCode == kerr.GroupIDNotFound.Code {
			continue
		}
		if err := groupError(g.ErrorCode); err != nil {
			return fmt.Errorf("deleting group %q: %w", group, err)
		}
	}
	return nil
}

// ListSimpleGroups lists the groups that hold nothing but committed offsets and whose id begins with prefix, as far as
// the nodes that answer know.
func (c *Client) ListSimpleGroups(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	var failed error
	for _, shard := range c.kgo.RequestSharded(ctx, kmsg.NewPtrListGroupsRequest()) {
		if shard.Err != nil {
			failed = unavailable(ctx, shard.Err)
			continue
		}
		resp := shard.Resp.(*kmsg.ListGroupsResponse)
		if err := groupError(resp.ErrorCode); err != nil {
			failed = err
		}
		for _, g := range resp.Groups {
			if g.ProtocolType == "" && strings.HasPrefix(g.Group, prefix) {
				names = append(names, g.Group)
			}
		}
	}
	if failed != nil {
		return names, fmt.Errorf("groups %s*: %w", prefix, failed)
	}
	return names, nil
}

// request sends a request to where it belongs, and makes transport errors ErrUnavailable. A coordinator that is not known
// yet, as on a cluster that never had a group, is asked for a few times.
func request[R kmsg.Response](ctx context.Context, c *Client, req kmsg.Request) (R, error) {
	var none R
	for try := 0; ; try++ {
		resp, err := c.kgo.Request(ctx, req)
		if err == nil {
			return resp.(R), nil
		}
		var coded *kerr.Error
		if !errors.As(err, &coded) {
			return none, unavailable(ctx, err)
		}
		if !coded.Retriable || try == groupTries || !pause(ctx, 50*time.Millisecond<<try) {
			return none, groupError(coded.Code)
		}
	}
}

// groupError turns an error code of a group request into one of our errors; nil for 0.
func groupError(code int16) error {
	err := kerr.ErrorForCode(code)
	switch err {
	case nil:
		return nil
	case kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed:
		return fmt.Errorf("%w: %w", ErrUnauthorized, err)
	case kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InconsistentTopicID:
		return fmt.Errorf("%w: %w", ErrUnknownTopicOrPartition, err)
	case kerr.OffsetMetadataTooLarge:
		return fmt.Errorf("%w: %w", ErrMetadataTooLarge, err)
	case kerr.NonEmptyGroup, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.GroupIDNotFound, kerr.InvalidGroupID, kerr.RebalanceInProgress:
		return fmt.Errorf("%w: %w", ErrGroupNotEmpty, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
