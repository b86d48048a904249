package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ConsumerGroupDescribe (69), KIP-848, where upstream has it: a share group is no consumer group.
//
//	v0: Kafka 3.7; v1: member types (KIP-1099)

func (s *Server) consumerGroupDescribe(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ConsumerGroupDescribeRequest)
	resp := req.ResponseKind().(*kmsg.ConsumerGroupDescribeResponse)
	for _, group := range req.Groups {
		g := kmsg.NewConsumerGroupDescribeResponseGroup()
		g.Group = group
		g.ErrorCode = s.refusal(ctx, r.Conn, opDescribe, group, codeNoSuchGroup)
		g.ErrorMessage = notOfType("consumer", group, g.ErrorCode)
		resp.Groups = append(resp.Groups, g)
	}
	return resp, nil
}

func splitConsumerDescribe(s *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.ConsumerGroupDescribeRequest)
	mine, rest := *req, *req
	mine.Groups, rest.Groups = sift(req.Groups, s.isShareGroup)
	return divided(&mine, len(mine.Groups), &rest, len(rest.Groups))
}

func mergeConsumerDescribe(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(*kmsg.ConsumerGroupDescribeResponse), theirs.(*kmsg.ConsumerGroupDescribeResponse)
	out.Groups = append(out.Groups, up.Groups...)
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	return out
}
