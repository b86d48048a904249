package serve

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/proxy/upstream"
)

// AlterShareGroupOffsets (91), KIP-932.
//
//	v0: Kafka 4.1
//
// Behaviours: READ on the group and on each topic; a group with members is NON_EMPTY_GROUP, one that does not exist is
// made, by the first partition that can be set. Topics that are denied or unknown come first in the answer, an unknown
// partition with its topic; the others are set all the same. An offset is not compared with the log, which the next fetch
// does; -1 makes the reset policy decide. A partition that is named twice is set to what comes last.

func (s *Server) alterShareGroupOffsets(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.AlterShareGroupOffsetsRequest)
	resp := req.ResponseKind().(*kmsg.AlterShareGroupOffsetsResponse)
	ctx, cancel := answerWithin(ctx, 0)
	defer cancel()
	if code, msg := s.mayChangeOffsets(ctx, r.Conn, opRead, req.GroupID); code != codeNone {
		resp.ErrorCode, resp.ErrorMessage = code, msg
		return resp, nil
	}
	names := make([]string, len(req.Topics))
	for i, t := range req.Topics {
		names[i] = t.Topic
	}
	known, err := s.readableTopics(ctx, r.Conn, names)
	if err != nil {
		resp.ErrorCode = codeCoordUnavailable
		return resp, nil
	}
	var news []coordinator.TopicOffsets
	var refused, set []kmsg.AlterShareGroupOffsetsResponseTopic
	for _, t := range req.Topics {
		out, offsets := alterTopic(t, known[t.Topic])
		if len(offsets.Offsets) > 0 {
			news = append(news, offsets)
		}
		if known[t.Topic].code != codeNone {
			refused = append(refused, out)
		} else {
			set = append(set, out)
		}
	}
	news = lastWords(news)
	if err := s.o.Groups.SetOffsets(ctx, req.GroupID, news); err != nil {
		resp.ErrorCode, resp.ErrorMessage = coordinatorError(err)
		return resp, nil
	}
	s.beginSet(ctx, req.GroupID, news)
	resp.Topics = append(refused, set...)
	return resp, nil
}

// alterTopic answers for one topic of the request, and says what is to be set of it.
func alterTopic(t kmsg.AlterShareGroupOffsetsRequestTopic, known readable) (out kmsg.AlterShareGroupOffsetsResponseTopic, news coordinator.TopicOffsets) {
	out.Topic, out.TopicID = t.Topic, known.ID
	news.Topic = coordinator.Topic{ID: known.ID, Name: known.Name, Partitions: known.Partitions}
	for _, p := range t.Partitions {
		o := kmsg.NewAlterShareGroupOffsetsResponseTopicPartition()
		o.Partition = p.Partition
		switch {
		case known.code != codeNone:
			o.ErrorCode, o.ErrorMessage = known.code, codeText(known.code)
		case p.Partition < 0 || p.Partition >= known.Partitions:
			o.ErrorCode, o.ErrorMessage = codeUnknownTopic, codeText(codeUnknownTopic)
		case p.StartOffset < -1:
			o.ErrorCode, o.ErrorMessage = codeInvalidRequest, text("The start offset must not be below -1.")
		default:
			news.Offsets = append(news.Offsets, coordinator.PartitionOffset{Partition: p.Partition, Offset: p.StartOffset})
		}
		out.Partitions = append(out.Partitions, o)
	}
	return out, news
}

// lastWords leaves out what a later entry sets again: the group's log is to take no more than there are partitions.
func lastWords(news []coordinator.TopicOffsets) []coordinator.TopicOffsets {
	set := map[upstream.TP]bool{}
	for i := len(news) - 1; i >= 0; i-- {
		t := &news[i]
		slices.Reverse(t.Offsets)
		t.Offsets = slices.DeleteFunc(t.Offsets, func(p coordinator.PartitionOffset) bool {
			tp := upstream.TP{ID: t.Topic.ID, Partition: p.Partition}
			later := set[tp]
			set[tp] = true
			return later
		})
		slices.Reverse(t.Offsets)
	}
	return slices.DeleteFunc(news, func(t coordinator.TopicOffsets) bool { return len(t.Offsets) == 0 })
}

// mayChangeOffsets makes the checks that come before a group's offsets are changed.
func (s *Server) mayChangeOffsets(ctx context.Context, c *Conn, op int8, group string) (int16, *string) {
	switch ok, err := s.mayGroup(ctx, c, op, group); {
	case err != nil:
		return codeCoordUnavailable, nil
	case !ok:
		return codeGroupDenied, codeText(codeGroupDenied)
	}
	return codeNone, nil
}

// readable is a topic that a request names, or with a code why it may not be changed by it.
type readable struct {
	upstream.Topic
	code int16
}

// readableTopics finds the named topics, with the codes of those that the client may not READ or that do not exist.
func (s *Server) readableTopics(ctx context.Context, c *Conn, names []string) (map[string]readable, error) {
	allowed, err := s.mayTopics(ctx, c, opRead, names)
	if err != nil {
		return nil, err
	}
	out := make(map[string]readable, len(names))
	mine, denied := sift(names, func(name string) bool { return allowed[name] })
	for _, name := range denied {
		out[name] = readable{code: codeTopicDenied}
	}
	found, err := s.o.Upstream.TopicsByName(ctx, mine, true)
	if err != nil {
		return nil, err
	}
	for _, name := range mine {
		if t, exists := found[name]; exists {
			out[name] = readable{Topic: t}
		} else {
			out[name] = readable{code: codeUnknownTopic}
		}
	}
	return out, nil
}

// beginSet begins the life of share-partitions whose offsets were just set.
func (s *Server) beginSet(ctx context.Context, group string, topics []coordinator.TopicOffsets) {
	lives := map[upstream.TP]coordinator.Initialized{}
	for _, t := range topics {
		for _, p := range t.Offsets {
			tp := upstream.TP{ID: t.Topic.ID, Partition: p.Partition}
			if init, ok, err := s.o.Groups.Initialized(ctx, group, tp.ID, tp.Partition); err == nil && ok {
				lives[tp] = init
			}
		}
	}
	s.beginLives(ctx, group, lives)
}
