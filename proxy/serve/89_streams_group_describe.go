package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// StreamsGroupDescribe (89), KIP-1071, where upstream has it: a share group is no streams group.
//
//	v0: Kafka 4.1

func (s *Server) streamsGroupDescribe(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.StreamsGroupDescribeRequest)
	resp := req.ResponseKind().(*kmsg.StreamsGroupDescribeResponse)
	for _, group := range req.Groups {
		g := kmsg.NewStreamsGroupDescribeResponseGroup()
		g.Group = group
		g.ErrorCode = s.refusal(ctx, r.Conn, opDescribe, group, codeNoSuchGroup)
		g.ErrorMessage = notOfType("streams", group, g.ErrorCode)
		resp.Groups = append(resp.Groups, g)
	}
	return resp, nil
}

func splitStreamsDescribe(s *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.StreamsGroupDescribeRequest)
	mine, rest := *req, *req
	mine.Groups, rest.Groups = sift(req.Groups, s.isShareGroup)
	return divided(&mine, len(mine.Groups), &rest, len(rest.Groups))
}

func mergeStreamsDescribe(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(*kmsg.StreamsGroupDescribeResponse), theirs.(*kmsg.StreamsGroupDescribeResponse)
	out.Groups = append(out.Groups, up.Groups...)
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	return out
}
