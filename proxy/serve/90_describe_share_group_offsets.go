package serve

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// DescribeShareGroupOffsets (90), KIP-932.
//
//	v0: Kafka 4.1
//	v1: Lag (KIP-1226)
//
// Behaviours: existence and type of the group are not asked for; Topics null means every initialized partition
// of topics that the client may DESCRIBE and that exist still; what is named twice is answered once; named topics without that permission come last, with an error. StartOffset is
// -1 until the first state write that a broker would have made. Lag is the partition's end less StartOffset less what is
// finished behind it, which is negative where the start offset was set beyond the end.

func (s *Server) describeShareGroupOffsets(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeShareGroupOffsetsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeShareGroupOffsetsResponse)
	ctx, cancel := answerWithin(ctx, 0)
	defer cancel()
	for _, g := range req.Groups {
		out := kmsg.NewDescribeShareGroupOffsetsResponseGroup()
		out.GroupID = g.GroupID
		out.ErrorCode, out.ErrorMessage = s.describeOffsets(ctx, r.Conn, g, &out)
		if out.ErrorCode != codeNone {
			out.Topics = nil
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp, nil
}

func (s *Server) describeOffsets(ctx context.Context, c *Conn, g kmsg.DescribeShareGroupOffsetsRequestGroup, out *kmsg.DescribeShareGroupOffsetsResponseGroup) (int16, *string) {
	if ok, err := s.mayGroup(ctx, c, opDescribe, g.GroupID); err != nil {
		return codeCoordUnavailable, nil
	} else if !ok {
		return codeGroupDenied, nil
	}
	initialized, err := s.o.Groups.InitializedPartitions(ctx, g.GroupID) // as they are now, for all that follows
	if err == nil && g.Topics == nil {
		out.Topics, err = s.initializedTopics(ctx, c, initialized)
	} else if err == nil {
		out.Topics, err = s.namedTopics(ctx, c, g.Topics)
	}
	if err != nil {
		return coordinatorError(err)
	}
	s.fillOffsets(ctx, g.GroupID, out.Topics)
	return codeNone, nil
}

// initializedTopics lists the group's initialized partitions, without topics that the client may not DESCRIBE, and without
// those that do not exist any more under their id: a group without members hears of that only when one joins.
func (s *Server) initializedTopics(ctx context.Context, c *Conn, topics []coordinator.TopicPartitions) ([]kmsg.DescribeShareGroupOffsetsResponseGroupTopic, error) {
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Name
	}
	allowed, err := s.mayTopics(ctx, c, opDescribe, names)
	if err != nil {
		return nil, err
	}
	known, err := s.o.Upstream.TopicsByName(ctx, names, true)
	if err != nil {
		return nil, err
	}
	var out []kmsg.DescribeShareGroupOffsetsResponseGroupTopic
	for _, t := range topics {
		if allowed[t.Name] && known[t.Name].ID == t.ID {
			out = append(out, offsetsTopic(t.Name, t.ID, t.Partitions, codeNone, nil))
		}
	}
	return out, nil
}

// namedTopics lists what the request asks for.
func (s *Server) namedTopics(ctx context.Context, c *Conn, topics []kmsg.DescribeShareGroupOffsetsRequestGroupTopic) ([]kmsg.DescribeShareGroupOffsetsResponseGroupTopic, error) {
	topics = namedOnce(topics)
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Topic
	}
	allowed, err := s.mayTopics(ctx, c, opDescribe, names)
	if err != nil {
		return nil, err
	}
	known, err := s.o.Upstream.TopicsByName(ctx, names, false)
	if err != nil {
		return nil, err
	}
	var out, denied []kmsg.DescribeShareGroupOffsetsResponseGroupTopic
	for _, t := range topics {
		if !allowed[t.Topic] {
			denied = append(denied, offsetsTopic(t.Topic, [16]byte{}, t.Partitions, codeTopicDenied, codeText(codeTopicDenied)))
			continue
		}
		out = append(out, offsetsTopic(t.Topic, known[t.Topic].ID, t.Partitions, codeNone, nil))
	}
	return append(out, denied...), nil
}

// namedOnce merges what is named twice, topics and partitions, so that each is looked up once, however many a request has.
func namedOnce(topics []kmsg.DescribeShareGroupOffsetsRequestGroupTopic) (once []kmsg.DescribeShareGroupOffsetsRequestGroupTopic) {
	type partition struct {
		topic string
		p     int32
	}
	at, seen := map[string]int{}, map[partition]bool{}
	for _, t := range topics {
		i, again := at[t.Topic]
		if !again {
			i = len(once)
			at[t.Topic] = i
			once = append(once, kmsg.DescribeShareGroupOffsetsRequestGroupTopic{Topic: t.Topic})
		}
		for _, p := range t.Partitions {
			if !seen[partition{t.Topic, p}] {
				seen[partition{t.Topic, p}] = true
				once[i].Partitions = append(once[i].Partitions, p)
			}
		}
	}
	return once
}

func offsetsTopic(name string, id [16]byte, partitions []int32, code int16, msg *string) kmsg.DescribeShareGroupOffsetsResponseGroupTopic {
	t := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopic()
	t.Topic, t.TopicID = name, id
	for _, n := range partitions {
		p := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopicPartition()
		p.Partition, p.StartOffset, p.Lag, p.ErrorCode, p.ErrorMessage = n, -1, -1, code, msg
		t.Partitions = append(t.Partitions, p)
	}
	return t
}

// fillOffsets looks all partitions up that have a topic id.
func (s *Server) fillOffsets(ctx context.Context, group string, topics []kmsg.DescribeShareGroupOffsetsResponseGroupTopic) {
	type place struct{ topic, part int }
	var places []place
	for i, t := range topics {
		for j := range t.Partitions {
			if t.TopicID != [16]byte{} {
				places = append(places, place{i, j})
			}
		}
	}
	inParallel(len(places), func(i int) {
		t := &topics[places[i].topic]
		p := &t.Partitions[places[i].part]
		s.fillOffset(ctx, group, upstream.TP{ID: t.TopicID, Partition: p.Partition}, p)
	})
}

func (s *Server) fillOffset(ctx context.Context, group string, tp upstream.TP, p *kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition) {
	sum, err := s.summary(ctx, group, tp)
	if err != nil {
		p.ErrorCode = codeCoordUnavailable
		return
	}
	p.StartOffset, p.LeaderEpoch = sum.StartOffset, sum.LeaderEpoch
	if sum.StartOffset < 0 {
		return
	}
	end, _, err := s.o.Upstream.ListOffset(ctx, tp, upstream.AtEnd)
	if err != nil {
		p.ErrorCode, _ = partitionTrouble(err)
		return
	}
	p.Lag = end - sum.StartOffset - sum.DeliveryComplete
}

// summary is the share-partition's state as of now; StartOffset -1 where there is none.
func (s *Server) summary(ctx context.Context, group string, tp upstream.TP) (sum sharestate.Summary, err error) {
	sum.StartOffset = -1
	init, ok, err := s.o.Groups.Initialized(ctx, group, tp.ID, tp.Partition)
	if err != nil || !ok {
		return sum, err
	}
	incarnation := int64(-1)
	err = s.logs.Get(logName(group, tp)).View(ctx, 0, func(p *sharestate.Partition) {
		sum, incarnation = p.Summary(), p.Incarnation()
	})
	if err != nil && !errors.Is(err, statelog.ErrMissing) {
		return sum, err
	}
	if incarnation < init.Incarnation { // nothing has been fetched in this life yet
		sum = sharestate.Summary{StartOffset: init.StartOffset}
	}
	return sum, nil
}
