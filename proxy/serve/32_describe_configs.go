package serve

import (
	"context"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
)

// DescribeConfigs (32) for GROUP resources (KIP-848, KIP-932).
//
//	v1: synonyms and sources; v3: types and documentation; v4: flexible
//
// kshare answers for its own keys of a group (share.*, errors.deadletterqueue.*). Upstream is asked about the same group
// for the keys that it may have (consumer.*, streams.*). Before Kafka 4.0 there is no resource type 32, and a request with
// it is refused as a whole; such an upstream is not asked. A group need not exist.

func (s *Server) describeConfigs(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.DescribeConfigsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for _, res := range req.Resources {
		resp.Resources = append(resp.Resources, s.describeConfig(ctx, r.Conn, req, res))
	}
	return resp, nil
}

func (s *Server) describeConfig(ctx context.Context, c *Conn, req *kmsg.DescribeConfigsRequest, res kmsg.DescribeConfigsRequestResource) kmsg.DescribeConfigsResponseResource {
	out := kmsg.NewDescribeConfigsResponseResource()
	out.ResourceType, out.ResourceName = res.ResourceType, res.ResourceName
	if code, msg := s.mayConfig(ctx, c, opDescribeConfigs, res.ResourceType, res.ResourceName); code != codeNone {
		out.ErrorCode, out.ErrorMessage = code, msg
		return out
	}
	entries, err := s.o.Groups.DescribeConfigs(ctx, res.ResourceName, res.ConfigNames)
	if err != nil {
		out.ErrorCode, out.ErrorMessage = coordinatorError(err)
		return out
	}
	out.ErrorMessage = text("") // as a broker has it, not null
	for _, e := range entries {
		out.Configs = append(out.Configs, configEntry(e, req))
	}
	return out
}

func configEntry(e coordinator.ConfigEntry, req *kmsg.DescribeConfigsRequest) kmsg.DescribeConfigsResponseResourceConfig {
	out := kmsg.NewDescribeConfigsResponseResourceConfig()
	out.Name, out.Value = e.Name, &e.Value
	out.Source, out.ConfigType = kmsg.ConfigSource(e.Source), kmsg.ConfigType(e.Type)
	out.IsDefault = e.Source == coordinator.SourceDefault
	if req.IncludeDocumentation {
		out.Documentation = &e.Documentation
	}
	if req.IncludeSynonyms {
		for _, syn := range e.Synonyms {
			o := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			o.Name, o.Value, o.Source = syn.Name, &syn.Value, kmsg.ConfigSource(syn.Source)
			out.ConfigSynonyms = append(out.ConfigSynonyms, o)
		}
	}
	return out
}

// mayConfig checks the permission for an operation on a GROUP resource; kshare answers for no other type.
func (s *Server) mayConfig(ctx context.Context, c *Conn, op int8, kind kmsg.ConfigResourceType, name string) (int16, *string) {
	if kind != kmsg.ConfigResourceTypeGroupConfig {
		return codeInvalidRequest, text("Resource type " + kind.String() + " is not served here")
	}
	if ok, err := s.mayGroup(ctx, c, op, name); err != nil {
		return codeCoordUnavailable, nil
	} else if !ok {
		return codeGroupDenied, text("Group authorization failed.")
	}
	return codeNone, nil
}

// upstreamsKey tells whether a group config is one that upstream may have: Kafka's other kinds of groups share the
// resource. Unknown keys are not among them, so that kshare refuses them itself.
func upstreamsKey(key string) bool {
	return strings.HasPrefix(key, "consumer.") || strings.HasPrefix(key, "streams.")
}

// splitDescribe gives GROUP resources to kshare, and to upstream what may be its business.
func splitDescribe(_ *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.DescribeConfigsRequest)
	mine, rest := *req, *req
	mine.Resources, rest.Resources = nil, nil
	for _, r := range req.Resources {
		if r.ResourceType != kmsg.ConfigResourceTypeGroupConfig {
			rest.Resources = append(rest.Resources, r)
			continue
		}
		mine.Resources = append(mine.Resources, r)
		if r.ResourceName != "" && (len(r.ConfigNames) == 0 || slices.ContainsFunc(r.ConfigNames, upstreamsKey)) {
			rest.Resources = append(rest.Resources, r)
		}
	}
	return divided(&mine, len(mine.Resources), &rest, len(rest.Resources))
}

// beforeGroupConfigs divides a request for upstreams before 4.0, which are known by their ConsumerGroupHeartbeat (68): it
// has no v1.
func beforeGroupConfigs(split func(*Server, kmsg.Request) (own, theirs kmsg.Request)) *Older {
	return &Older{Key: 68, Version: 1, Split: split}
}

// splitDescribeBefore gives GROUP resources to kshare as a whole.
func splitDescribeBefore(_ *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.DescribeConfigsRequest)
	mine, rest := *req, *req
	mine.Resources, rest.Resources = sift(req.Resources, func(r kmsg.DescribeConfigsRequestResource) bool {
		return r.ResourceType == kmsg.ConfigResourceTypeGroupConfig
	})
	return divided(&mine, len(mine.Resources), &rest, len(rest.Resources))
}

// mergeDescribe joins the answers: where both are about one group, upstream adds the keys that kshare does not own, and
// what it has against the question does not count.
func mergeDescribe(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(*kmsg.DescribeConfigsResponse), theirs.(*kmsg.DescribeConfigsResponse)
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	of := func(r kmsg.DescribeConfigsResponseResource) resource { return resource{r.ResourceType, r.ResourceName} }
	out.Resources = mergeResources(out.Resources, up.Resources, of, func(told *kmsg.DescribeConfigsResponseResource, r kmsg.DescribeConfigsResponseResource) {
		if r.ErrorCode != codeNone || told.ErrorCode != codeNone {
			return
		}
		told.UnknownTags = r.UnknownTags
		for _, c := range r.Configs {
			if !coordinator.OwnsConfig(c.Name) {
				told.Configs = append(told.Configs, c)
			}
		}
	})
	return out
}
