package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// DeleteGroups (42): share groups here, all others upstream.
//
//	v2: flexible; v3: messages (Kafka 4.4)
//
// Behaviours: DELETE on the group; a group with members is NON_EMPTY_GROUP; its configs stay. None of the codes that are
// answered here comes with a message, as Kafka 4.4.0 has it. A group that is named twice is answered once. The logs of its
// share-partitions stay too, in a life without a start offset: a group made anew under the id starts by the reset policy.

func (s *Server) deleteGroups(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DeleteGroupsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteGroupsResponse)
	named := map[string]bool{}
	for _, group := range req.Groups {
		if named[group] {
			continue
		}
		named[group] = true
		g := kmsg.NewDeleteGroupsResponseGroup()
		g.Group = group
		if ok, err := s.mayGroup(ctx, r.Conn, opDelete, group); err != nil {
			g.ErrorCode = codeCoordUnavailable
		} else if !ok {
			g.ErrorCode = codeGroupDenied
		} else {
			g.ErrorCode, _ = coordinatorError(s.deleteGroup(ctx, group))
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp, nil
}

func (s *Server) deleteGroup(ctx context.Context, group string) error {
	before, err := s.o.Groups.Standing(ctx, group)
	if err == nil {
		err = s.o.Groups.Delete(ctx, group)
	}
	if err == nil {
		s.endLives(ctx, group, before.Partitions)
	}
	return err
}

// splitDelete divides the list by what this replica knows to be share groups.
func splitDelete(s *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.DeleteGroupsRequest)
	mine, rest := *req, *req
	mine.Groups, rest.Groups = sift(req.Groups, s.isShareGroup)
	return divided(&mine, len(mine.Groups), &rest, len(rest.Groups))
}

func mergeDelete(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(*kmsg.DeleteGroupsResponse), theirs.(*kmsg.DeleteGroupsResponse)
	out.Groups = append(out.Groups, up.Groups...)
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	return out
}
