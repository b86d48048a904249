package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
)

// DescribeGroups (15) describes classic groups; a share group is none.
//
//	v3: authorized operations; v6: unknown groups are an error, with a message (KIP-1043)
//
// Behaviours: state Dead, which is all that versions below v6 tell; kshare describes share groups by
// ShareGroupDescribe (77).

const deadIsError int16 = 6

func (s *Server) describeGroups(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeGroupsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
	found := codeNone
	if req.Version >= deadIsError {
		found = codeNoSuchGroup
	}
	for _, group := range req.Groups {
		g := kmsg.NewDescribeGroupsResponseGroup()
		g.Group = group
		g.ErrorCode = s.refusal(ctx, r.Conn, opDescribe, group, found)
		if g.ErrorCode == codeNone && req.IncludeAuthorizedOperations {
			var err error
			if g.AuthorizedOperations, err = s.groupOperations(ctx, r.Conn, group); err != nil {
				g.ErrorCode = codeCoordUnavailable
			}
		}
		if g.ErrorCode == found {
			g.State, g.ErrorMessage = coordinator.StateDead, notOfType("classic", group, found)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp, nil
}

func splitDescribeGroups(s *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.DescribeGroupsRequest)
	mine, rest := *req, *req
	mine.Groups, rest.Groups = sift(req.Groups, s.isShareGroup)
	return divided(&mine, len(mine.Groups), &rest, len(rest.Groups))
}

func mergeDescribeGroups(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(*kmsg.DescribeGroupsResponse), theirs.(*kmsg.DescribeGroupsResponse)
	out.Groups = append(out.Groups, up.Groups...)
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	return out
}
