package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// OffsetFetch (9): a share group has no committed offsets; other groups are upstream's.
//
//	v2: an error on top, null = all topics; v5: leader epoch; v8: several groups (KIP-709); v10: topics by id
//
// Behaviours: no error, but offset -1 for each partition that is asked for, and no topics for "all".

const (
	topLevelError int16 = 2
	severalGroups int16 = 8
)

func (s *Server) offsetFetch(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.OffsetFetchRequest)
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	if req.Version < severalGroups {
		code := s.refusal(ctx, r.Conn, opDescribe, req.Group, codeNone)
		if req.Version >= topLevelError {
			resp.ErrorCode = code
		}
		if code == codeNone || req.Version < topLevelError {
			resp.Topics = noOffsets(req.Topics, code)
		}
		return resp, nil
	}
	for _, g := range req.Groups {
		out := kmsg.NewOffsetFetchResponseGroup()
		out.Group = g.Group
		if out.ErrorCode = s.refusal(ctx, r.Conn, opDescribe, g.Group, codeNone); out.ErrorCode == codeNone {
			out.Topics = noGroupOffsets(g.Topics)
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp, nil
}

func noOffsets(asked []kmsg.OffsetFetchRequestTopic, code int16) (topics []kmsg.OffsetFetchResponseTopic) {
	for _, t := range asked {
		out := kmsg.NewOffsetFetchResponseTopic()
		out.Topic = t.Topic
		for _, id := range t.Partitions {
			p := kmsg.NewOffsetFetchResponseTopicPartition()
			p.Partition, p.Offset, p.Metadata, p.ErrorCode = id, -1, text(""), code
			out.Partitions = append(out.Partitions, p)
		}
		topics = append(topics, out)
	}
	return topics
}

func noGroupOffsets(asked []kmsg.OffsetFetchRequestGroupTopic) (topics []kmsg.OffsetFetchResponseGroupTopic) {
	for _, t := range asked {
		out := kmsg.NewOffsetFetchResponseGroupTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		for _, id := range t.Partitions {
			p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			p.Partition, p.Offset, p.Metadata = id, -1, text("")
			out.Partitions = append(out.Partitions, p)
		}
		topics = append(topics, out)
	}
	return topics
}

func splitOffsetFetch(s *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.OffsetFetchRequest)
	if req.Version < severalGroups {
		if s.isShareGroup(req.Group) {
			return req, nil
		}
		return nil, nil
	}
	mine, rest := *req, *req
	mine.Groups, rest.Groups = sift(req.Groups, func(g kmsg.OffsetFetchRequestGroup) bool { return s.isShareGroup(g.Group) })
	return divided(&mine, len(mine.Groups), &rest, len(rest.Groups))
}

func mergeOffsetFetch(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(*kmsg.OffsetFetchResponse), theirs.(*kmsg.OffsetFetchResponse)
	out.Groups = append(out.Groups, up.Groups...)
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	return out
}
