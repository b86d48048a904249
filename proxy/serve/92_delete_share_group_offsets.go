package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// DeleteShareGroupOffsets (92), KIP-932.
//
//	v0: Kafka 4.1
//
// Behaviours: DELETE on the group, READ on each topic; a group with members is NON_EMPTY_GROUP. A topic is deleted as a
// whole; afterwards the reset policy decides where it starts. What is denied, unknown or has no offsets is told per topic.
// A topic that is named twice is answered once.

func (s *Server) deleteShareGroupOffsets(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DeleteShareGroupOffsetsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteShareGroupOffsetsResponse)
	ctx, cancel := answerWithin(ctx, 0)
	defer cancel()
	if code, msg := s.mayChangeOffsets(ctx, r.Conn, opDelete, req.GroupID); code != codeNone {
		resp.ErrorCode, resp.ErrorMessage = code, msg
		return resp, nil
	}
	var names []string
	named := map[string]bool{}
	for _, t := range req.Topics {
		if !named[t.Topic] {
			named[t.Topic] = true
			names = append(names, t.Topic)
		}
	}
	known, err := s.readableTopics(ctx, r.Conn, names)
	if err != nil {
		resp.ErrorCode = codeCoordUnavailable
		return resp, nil
	}
	var ids [][16]byte
	for _, name := range names {
		if t := known[name]; t.code == codeNone {
			ids = append(ids, t.ID)
		}
	}
	over, err := s.o.Groups.DeleteOffsets(ctx, req.GroupID, ids)
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = coordinatorError(err)
		return resp, nil
	}
	s.endLives(ctx, req.GroupID, over)
	had := map[[16]byte]bool{}
	for _, p := range over {
		had[p.ID] = true
	}
	for _, name := range names {
		t := known[name]
		resp.Topics = append(resp.Topics, deletedTopic(name, t, had[t.ID]))
	}
	return resp, nil
}

// deletedTopic answers for one topic, given whether it had offsets.
func deletedTopic(name string, known readable, had bool) kmsg.DeleteShareGroupOffsetsResponseTopic {
	out := kmsg.NewDeleteShareGroupOffsetsResponseTopic()
	out.Topic = name
	switch {
	case known.code != codeNone:
		out.ErrorCode, out.ErrorMessage = known.code, codeText(known.code)
	case !had:
		out.ErrorCode, out.ErrorMessage = codeUnknownTopic, text("There is no offset information to delete.")
	default:
		out.TopicID = known.ID
	}
	return out
}
