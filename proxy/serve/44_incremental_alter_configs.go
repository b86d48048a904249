package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
)

// IncrementalAlterConfigs (44) for GROUP resources (KIP-848, KIP-932).
//
//	v0-1: v1 is flexible
//
// Resources of other types, and groups of which only upstream's keys (consumer.*, streams.*) are changed, go upstream. A
// group with keys of both is changed in both places; each takes its part wholly or not at all, and the first error is
// told. A group that is named twice is refused here, whoever owns the keys. A group need not exist. Before Kafka 4.0 there
// is no resource type 32: such an upstream is not asked, and its keys are as unknown as any other.

func (s *Server) incrementalAlterConfigs(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.IncrementalAlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	count := map[string]int{}
	for _, res := range req.Resources {
		count[res.ResourceName]++
	}
	for _, res := range req.Resources {
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = res.ResourceType, res.ResourceName
		ops := make([]coordinator.ConfigOp, len(res.Configs))
		for i, c := range res.Configs {
			ops[i] = coordinator.ConfigOp{Key: c.Name, Op: coordinator.ConfigOpKind(c.Op), Value: c.Value}
		}
		alter := func() error { return s.o.Groups.AlterConfigs(ctx, res.ResourceName, ops, req.ValidateOnly) }
		out.ErrorCode, out.ErrorMessage = s.alterConfig(ctx, r.Conn, res.ResourceType, res.ResourceName, count[res.ResourceName], alter)
		resp.Resources = append(resp.Resources, out)
	}
	return resp, nil
}

// alterConfig applies the checks that both ways of altering share, then alters.
func (s *Server) alterConfig(ctx context.Context, c *Conn, kind kmsg.ConfigResourceType, name string, times int, alter func() error) (int16, *string) {
	if times > 1 {
		return codeInvalidRequest, text("Each resource must appear at most once.")
	}
	if code, msg := s.mayConfig(ctx, c, opAlterConfigs, kind, name); code != codeNone {
		return code, msg
	}
	return coordinatorError(alter())
}

// splitIncrementalAlter divides a request by resource type, and a group's changes by who owns the key.
func splitIncrementalAlter(_ *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.IncrementalAlterConfigsRequest)
	mine, rest := *req, *req
	mine.Resources, rest.Resources = nil, nil
	named := map[string]int{}
	for _, r := range req.Resources {
		if r.ResourceType == kmsg.ConfigResourceTypeGroupConfig {
			named[r.ResourceName]++
		}
	}
	for _, r := range req.Resources {
		if r.ResourceType != kmsg.ConfigResourceTypeGroupConfig {
			rest.Resources = append(rest.Resources, r)
			continue
		}
		if named[r.ResourceName] > 1 {
			mine.Resources = append(mine.Resources, r)
			continue
		}
		here, there := r, r
		here.Configs, there.Configs = nil, nil
		for _, c := range r.Configs {
			if upstreamsKey(c.Name) {
				there.Configs = append(there.Configs, c)
			} else {
				here.Configs = append(here.Configs, c)
			}
		}
		if len(there.Configs) > 0 {
			rest.Resources = append(rest.Resources, there)
		}
		if len(here.Configs) > 0 || len(there.Configs) == 0 {
			mine.Resources = append(mine.Resources, here)
		}
	}
	return divided(&mine, len(mine.Resources), &rest, len(rest.Resources))
}

// splitIncrementalAlterBefore gives GROUP resources to kshare as a whole.
func splitIncrementalAlterBefore(_ *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.IncrementalAlterConfigsRequest)
	mine, rest := *req, *req
	mine.Resources, rest.Resources = sift(req.Resources, func(r kmsg.IncrementalAlterConfigsRequestResource) bool {
		return r.ResourceType == kmsg.ConfigResourceTypeGroupConfig
	})
	return divided(&mine, len(mine.Resources), &rest, len(rest.Resources))
}

// mergeIncrementalAlter joins the answers, one per resource.
func mergeIncrementalAlter(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(*kmsg.IncrementalAlterConfigsResponse), theirs.(*kmsg.IncrementalAlterConfigsResponse)
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	of := func(r kmsg.IncrementalAlterConfigsResponseResource) resource {
		return resource{r.ResourceType, r.ResourceName}
	}
	out.Resources = mergeResources(out.Resources, up.Resources, of, func(told *kmsg.IncrementalAlterConfigsResponseResource, r kmsg.IncrementalAlterConfigsResponseResource) {
		told.UnknownTags = r.UnknownTags
		if told.ErrorCode == codeNone {
			told.ErrorCode, told.ErrorMessage = r.ErrorCode, r.ErrorMessage
		}
	})
	return out
}
