package serve

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ListConfigResources (74), KIP-714, KIP-1142.
//
//	v0: client metrics only (Kafka 3.7, as ListClientMetricsResources)
//	v1: the types that are asked for, or all (Kafka 4.1)
//
// Behaviours: DESCRIBE_CONFIGS on the cluster. Groups with configs of their own are listed, whether they exist or not:
// those of kshare beside upstream's. Where upstream knows v0 only, or nothing, there is a list of groups, and of what v0
// lists; any other type is UNSUPPORTED_VERSION then, as it is to a broker that does not know the type.

const (
	clientMetricsType = int8(kmsg.ConfigResourceTypeClientMetrics)
	groupType         = int8(kmsg.ConfigResourceTypeGroupConfig)
)

// configList is kshare's part of the answer, with what Merge needs to choose from upstream's.
type configList struct {
	*kmsg.ListConfigResourcesResponse
	types  []int8
	groups []kmsg.ListConfigResourcesResponseConfigResource
}

func (s *Server) listConfigResources(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ListConfigResourcesRequest)
	types := slices.Compact(slices.Sorted(slices.Values(req.ResourceTypes))) // each once, however many a request has
	resp := configList{ListConfigResourcesResponse: req.ResponseKind().(*kmsg.ListConfigResourcesResponse), types: types}
	ctx, cancel := answerWithin(ctx, 0)
	defer cancel()
	switch ok, err := s.mayCluster(ctx, r.Conn, opDescribeConfigs); {
	case err != nil:
		resp.ErrorCode = codeCoordUnavailable
		return resp, nil
	case !ok:
		resp.ErrorCode = codeClusterDenied
		return resp, nil
	}
	if resp.wants(groupType) {
		for _, group := range s.o.Groups.ListConfigured(ctx) {
			c := kmsg.NewListConfigResourcesResponseConfigResource()
			c.Name, c.Type = group, groupType
			resp.groups = append(resp.groups, c)
		}
	}
	return resp.only(groupType), nil
}

// wants tells whether a type is asked for.
func (l configList) wants(kind int8) bool { return len(l.types) == 0 || slices.Contains(l.types, kind) }

// only is the answer of who knows no more than the given types.
func (l configList) only(known ...int8) configList {
	l.ErrorCode, l.ConfigResources = codeNone, l.groups
	if slices.ContainsFunc(l.types, func(kind int8) bool { return !slices.Contains(known, kind) }) {
		l.ErrorCode, l.ConfigResources = codeUnsupported, nil
	}
	return l
}

// splitConfigList asks both sides; v0 is upstream's alone.
func splitConfigList(_ *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	req := body.(*kmsg.ListConfigResourcesRequest)
	if req.Version < 1 {
		return nil, nil
	}
	mine, rest := *req, *req
	return &mine, &rest
}

// mergeConfigList joins the lists. A group with configs in both places is shown once.
func mergeConfigList(own, theirs kmsg.Response) kmsg.Response {
	out, up := own.(configList), theirs.(*kmsg.ListConfigResourcesResponse)
	switch {
	case up.ErrorCode != codeNone:
		return up
	case out.ErrorCode != codeNone && out.ErrorCode != codeUnsupported:
		return out.ListConfigResourcesResponse
	case up.Version < 1:
		out = out.only(groupType, clientMetricsType)
		if out.ErrorCode != codeNone || !out.wants(clientMetricsType) {
			return out.ListConfigResourcesResponse
		}
	default:
		out = out.only(out.types...)
	}
	for _, c := range up.ConfigResources {
		if c.Type != groupType || !slices.ContainsFunc(out.groups, func(g kmsg.ListConfigResourcesResponseConfigResource) bool { return g.Name == c.Name }) {
			out.ConfigResources = append(out.ConfigResources, c)
		}
	}
	out.ThrottleMillis, out.UnknownTags = max(out.ThrottleMillis, up.ThrottleMillis), up.UnknownTags
	return out.ListConfigResourcesResponse
}
