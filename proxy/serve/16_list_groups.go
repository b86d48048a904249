package serve

import (
	"context"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ListGroups (16): share groups are put beside upstream's groups.
//
//	v4: states, and a filter on them; v5: types, and a filter on them (KIP-848)
//
// Behaviours: filters ignore case, and an unknown name in one matches nothing. Without DESCRIBE on the cluster
// only groups with DESCRIBE on themselves are listed. Where upstream knows less than the client asks for, kshare applies
// the type filter on its behalf. The groups that hold kshare's checkpoints are left out, unless classic groups alone are
// asked for by the type filter.

const (
	shareType   = "share"
	classicType = "classic" // of every group of an upstream that tells no types
)

// listAnswer is kshare's part of the answer, with the filter that Merge may have to apply to upstream's.
type listAnswer struct {
	*kmsg.ListGroupsResponse
	types []string
	all   bool // checkpoints are asked for
}

func (s *Server) listGroups(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ListGroupsRequest)
	resp := listAnswer{req.ResponseKind().(*kmsg.ListGroupsResponse), req.TypesFilter, onlyClassic(req.TypesFilter)}
	if !matches(req.TypesFilter, shareType) {
		return resp, nil
	}
	all, err := s.mayCluster(ctx, r.Conn, opDescribe)
	if err != nil {
		resp.ErrorCode = codeCoordUnavailable
		return resp, nil
	}
	states := make([]string, len(req.StatesFilter)) // a broker takes states, not types, with space around
	for i, state := range req.StatesFilter {
		states[i] = strings.TrimSpace(state)
	}
	for _, l := range s.o.Groups.List(ctx) {
		if !matches(states, l.State) {
			continue
		}
		if !all {
			ok, err := s.mayGroup(ctx, r.Conn, opDescribe, l.Group)
			if err != nil {
				resp.ErrorCode, resp.Groups = codeCoordUnavailable, nil
				return resp, nil
			}
			if !ok {
				continue
			}
		}
		g := kmsg.NewListGroupsResponseGroup()
		g.Group, g.ProtocolType, g.GroupState, g.GroupType = l.Group, shareType, l.State, shareType
		resp.Groups = append(resp.Groups, g)
	}
	return resp, nil
}

// onlyClassic tells whether classic groups and nothing else are asked for by their type.
func onlyClassic(filter []string) bool {
	return len(filter) == 1 && strings.EqualFold(filter[0], classicType)
}

// matches tells whether a filter lets a value pass; an empty one lets all.
func matches(filter []string, value string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, value) })
}

// splitList asks both sides, except for share groups alone, of which upstream has none.
func splitList(_ *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.ListGroupsRequest)
	mine, rest := *req, *req
	for _, f := range req.TypesFilter {
		if !strings.EqualFold(f, shareType) {
			return &mine, &rest
		}
	}
	if len(req.TypesFilter) > 0 {
		return &mine, nil
	}
	return &mine, &rest
}

// mergeList joins the lists. A share group of upstream's own under the same id is shown once.
func (s *Server) mergeList(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(listAnswer), theirs.(*kmsg.ListGroupsResponse)
	if up.ErrorCode != codeNone {
		return up
	}
	have := map[string]bool{}
	for _, g := range out.Groups {
		have[g.Group] = true
	}
	for _, g := range up.Groups {
		if up.Version < 5 {
			g.GroupType = classicType
		}
		if !have[g.Group] && matches(out.types, g.GroupType) && (out.all || !s.o.Checkpoints.Hides(g.Group, g.ProtocolType)) {
			out.Groups = append(out.Groups, g)
		}
	}
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	return out.ListGroupsResponse
}
