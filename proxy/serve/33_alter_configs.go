package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
)

// AlterConfigs (33), the legacy form, for GROUP resources: the values given become exactly the group's configs.
//
//	v0-2: v2 is flexible
//
// A group's resource is kshare's as a whole here: replacing it upstream as well would wipe what the other keys are there.

func (s *Server) alterConfigs(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.AlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	count := map[string]int{}
	for _, res := range req.Resources {
		count[res.ResourceName]++
	}
	for _, res := range req.Resources {
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = res.ResourceType, res.ResourceName
		ops := make([]coordinator.ConfigOp, len(res.Configs))
		for i, c := range res.Configs {
			ops[i] = coordinator.ConfigOp{Key: c.Name, Op: coordinator.ConfigSet, Value: c.Value}
		}
		alter := func() error { return s.o.Groups.ReplaceConfigs(ctx, res.ResourceName, ops, req.ValidateOnly) }
		out.ErrorCode, out.ErrorMessage = s.alterConfig(ctx, r.Conn, res.ResourceType, res.ResourceName, count[res.ResourceName], alter)
		resp.Resources = append(resp.Resources, out)
	}
	return resp, nil
}

// splitAlter gives GROUP resources to kshare and the rest to upstream.
func splitAlter(_ *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.AlterConfigsRequest)
	mine, rest := *req, *req
	mine.Resources, rest.Resources = sift(req.Resources, func(r kmsg.AlterConfigsRequestResource) bool {
		return r.ResourceType == kmsg.ConfigResourceTypeGroupConfig
	})
	return divided(&mine, len(mine.Resources), &rest, len(rest.Resources))
}

func mergeAlter(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(*kmsg.AlterConfigsResponse), theirs.(*kmsg.AlterConfigsResponse)
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	out.Resources = append(out.Resources, up.Resources...)
	return out
}
