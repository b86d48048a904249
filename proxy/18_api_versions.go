package proxy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

// ApiVersions: v0-5, upstream's answer made to fit what kshare is
//
//   - keys that are decoded here are clamped to the versions kmsg knows, Fetch
//     to those without addresses; broker-only keys are left out; the served
//     keys are added in their exact ranges
//   - the response header is never flexible
//   - v3: finalized features, with share.version
//   - v4: supported features whose range starts at 0 show, share.version so
//   - v5: the client says which cluster and node it means (KIP-1242); upstream
//     checks that, or kshare where upstream is too old to
//   - a version above v5 is answered in v0 form, UNSUPPORTED_VERSION and the
//     range of this key only (KIP-511); an upstream that does not know the
//     client's version is asked in its own newest

const (
	shareVersion = "share.version"
	// As a freshly formatted Kafka 4.4 cluster has it.
	shareVersionMax, shareVersionLevel = 2, 2
)

func (c *conn) apiVersions(r request) error {
	newest := kmsgMax(apiVersionsKey)
	if r.version > newest {
		return c.respond(r.corr, apiVersionsUnsupported(newest))
	}
	if r.version >= 3 {
		h := r.header
		var err error
		if r, err = parseRequest(h, r.frame, true); err != nil {
			return err
		}
	}
	body, err := r.decode()
	if err != nil {
		return err
	}
	req := body.(*kmsg.ApiVersionsRequest)
	var resp *kmsg.ApiVersionsResponse
	if failed := c.working(func(ctx context.Context) { resp, err = c.askApiVersions(ctx, req) }); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	asked := resp.Version
	resp.Version = r.version
	if r.version >= 5 && asked < 5 && resp.ErrorCode == 0 {
		if e := c.checkMeant(req); e != nil {
			resp = &kmsg.ApiVersionsResponse{Version: r.version, ErrorCode: e.Code, FinalizedFeaturesEpoch: -1}
		}
	}
	if resp.ErrorCode == 0 {
		c.keepRanges(resp)
		c.s.table.advertise(resp)
	}
	return c.respond(r.corr, resp)
}

// askApiVersions asks upstream at the client's version, or at the newest that
// upstream knows. The response's Version says which it was.
func (c *conn) askApiVersions(ctx context.Context, req *kmsg.ApiVersionsRequest) (*kmsg.ApiVersionsResponse, error) {
	theirs := *req
	if known, ok := c.s.newestApiVersions(c.node); ok {
		theirs.Version = min(theirs.Version, known)
	}
	resp, err := c.askApiVersionsOnce(ctx, &theirs)
	if err != nil || resp.ErrorCode != kerr.UnsupportedVersion.Code {
		return resp, err
	}
	// Brokers before 2.4 say no range; v0 is what they all know.
	highest := int16(0)
	for _, k := range resp.ApiKeys {
		if k.ApiKey == apiVersionsKey {
			highest = k.MaxVersion
		}
	}
	c.s.apiVersionsMax.Store(c.node, newestKnown{highest, time.Now()})
	theirs.Version = min(req.Version, highest)
	return c.askApiVersionsOnce(ctx, &theirs)
}

// newestKnown spares the attempt at a version that a node did not know. It is
// believed for a while only, for brokers get upgraded.
type newestKnown struct {
	version int16
	at      time.Time
}

const newestKnownFor = time.Minute

func (s *Server) newestApiVersions(node int32) (int16, bool) {
	known, ok := s.apiVersionsMax.Load(node)
	if !ok || time.Since(known.(newestKnown).at) > newestKnownFor {
		return 0, false
	}
	return known.(newestKnown).version, true
}

func (c *conn) askApiVersionsOnce(ctx context.Context, req *kmsg.ApiVersionsRequest) (*kmsg.ApiVersionsResponse, error) {
	b, err := c.askBytes(ctx, req)
	if err != nil {
		return nil, err
	}
	version := req.Version
	if r := (kbin.Reader{Src: b}); r.Int16() == kerr.UnsupportedVersion.Code {
		version = 0
	}
	resp, err := decodeResponse(apiVersionsKey, version, b)
	if err != nil {
		return nil, closing(CloseUpstreamProtocol, fmt.Errorf("ApiVersions v%d response: %w", version, err))
	}
	return resp.(*kmsg.ApiVersionsResponse), nil
}

func apiVersionsUnsupported(newest int16) *kmsg.ApiVersionsResponse {
	return &kmsg.ApiVersionsResponse{
		ErrorCode: kerr.UnsupportedVersion.Code,
		ApiKeys:   []kmsg.ApiVersionsResponseApiKey{{ApiKey: apiVersionsKey, MaxVersion: newest}},
	}
}

// checkMeant does for an older upstream what KIP-1242 asks of a broker. The
// bootstrap listener stands for no certain node, so there the node is not
// compared.
func (c *conn) checkMeant(req *kmsg.ApiVersionsRequest) *kerr.Error {
	cluster := c.s.deps.cluster.ClusterID()
	switch {
	case (req.ClusterID == nil) != (req.NodeID == -1):
		return kerr.InvalidRequest
	case req.ClusterID == nil:
		return nil
	case cluster != "" && *req.ClusterID != cluster:
		return kerr.RebootstrapRequired
	case c.node != bootstrapNode && req.NodeID != c.node:
		return kerr.RebootstrapRequired
	}
	return nil
}

// advertise makes upstream's list of APIs and features kshare's own.
func (t *table) advertise(resp *kmsg.ApiVersionsResponse) {
	resp.ApiKeys = t.advertisedKeys(resp.ApiKeys)
	if resp.Version < 3 {
		return
	}
	resp.SupportedFeatures = slices.DeleteFunc(resp.SupportedFeatures, func(f kmsg.ApiVersionsResponseSupportedFeature) bool { return f.Name == shareVersion })
	resp.FinalizedFeatures = slices.DeleteFunc(resp.FinalizedFeatures, func(f kmsg.ApiVersionsResponseFinalizedFeature) bool { return f.Name == shareVersion })
	if resp.Version >= 4 {
		resp.SupportedFeatures = append(resp.SupportedFeatures, kmsg.ApiVersionsResponseSupportedFeature{Name: shareVersion, MaxVersion: shareVersionMax})
	}
	resp.FinalizedFeatures = append(resp.FinalizedFeatures, kmsg.ApiVersionsResponseFinalizedFeature{
		Name: shareVersion, MaxVersionLevel: shareVersionLevel, MinVersionLevel: shareVersionLevel})
	// An unknown epoch (-1) would void the list.
	resp.FinalizedFeaturesEpoch = max(resp.FinalizedFeaturesEpoch, 0)
}

func (t *table) advertisedKeys(theirs []kmsg.ApiVersionsResponseApiKey) []kmsg.ApiVersionsResponseApiKey {
	ours := make([]kmsg.ApiVersionsResponseApiKey, 0, len(theirs)+8)
	seen := map[int16]bool{}
	for _, k := range theirs {
		r := t.of(k.ApiKey)
		switch {
		case seen[k.ApiKey]:
			continue
		case r.kind == refused, r.api != nil && !r.api.Relayed:
			continue
		case k.ApiKey == apiVersionsKey:
			k.MinVersion, k.MaxVersion = 0, kmsgMax(apiVersionsKey)
		case k.ApiKey == findCoordinatorKey && k.MaxVersion >= batchedCoordinators:
			k.MaxVersion = r.max
		case r.max >= 0:
			k.MaxVersion = min(k.MaxVersion, r.max)
		}
		if r.api != nil {
			k.MaxVersion = max(k.MaxVersion, r.api.Max)
		}
		if k.MinVersion <= k.MaxVersion {
			seen[k.ApiKey] = true
			ours = append(ours, k)
		}
	}
	for key, r := range t {
		if r.api != nil && !seen[int16(key)] && r.api.Min <= r.api.Max {
			ours = append(ours, servedRange(r.api))
		}
	}
	slices.SortStableFunc(ours, func(a, b kmsg.ApiVersionsResponseApiKey) int { return int(a.ApiKey) - int(b.ApiKey) })
	return ours
}

func servedRange(a *serve.API) kmsg.ApiVersionsResponseApiKey {
	return kmsg.ApiVersionsResponseApiKey{ApiKey: a.Key, MinVersion: a.Min, MaxVersion: a.Max}
}
