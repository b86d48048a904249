package upstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// versionsAge is how long the answer to APIVersions is kept.
const versionsAge = time.Minute

// groupTries is how often a group is asked for while its coordinator moves or loads.
const groupTries = 5

// GroupInUse says whether upstream has a group of that id that is no share group: classic, consumer or streams, however
// empty. A share group of upstream's own does not count: the group that kshare serves takes its place.
func (c *Client) GroupInUse(ctx context.Context, group string) (bool, error) {
	versions, err := c.APIVersions(ctx)
	if err != nil {
		return false, fmt.Errorf("group %q: %w", group, err)
	}
	for try := range groupTries {
		var used bool
		if used, err = c.groupInUse(ctx, group, versions); err == nil {
			return used, nil
		}
		if ctx.Err() != nil || !errors.Is(err, ErrUnavailable) || !pause(ctx, 50*time.Millisecond<<try) {
			break
		}
	}
	return false, fmt.Errorf("group %q: %w", group, err)
}

// groupInUse asks the group's coordinator. DescribeGroups knows classic groups only; one that it does not know is Dead
// (GROUP_ID_NOT_FOUND from v6 on), and so is every group of another type: these have describe APIs of their own.
func (c *Client) groupInUse(ctx context.Context, group string, versions map[int16][2]int16) (bool, error) {
	classic := kmsg.NewPtrDescribeGroupsRequest()
	classic.Groups = []string{group}
	shards := c.kgo.RequestSharded(ctx, classic)
	if len(shards) != 1 {
		return false, fmt.Errorf("%w: %d answers about one group", ErrUnavailable, len(shards))
	}
	switch err := shards[0].Err; {
	case errors.Is(err, kerr.GroupAuthorizationFailed): // at the look for the coordinator
		return groupExists(kerr.GroupAuthorizationFailed.Code, "")
	case err != nil:
		return false, unavailable(ctx, err)
	}
	resp := shards[0].Resp.(*kmsg.DescribeGroupsResponse)
	if len(resp.Groups) != 1 {
		return false, fmt.Errorf("%w: %d groups described in place of one", ErrUnavailable, len(resp.Groups))
	}
	if used, err := groupExists(resp.Groups[0].ErrorCode, resp.Groups[0].State); used || err != nil {
		return used, err
	}

	coordinator := shards[0].Meta.NodeID
	if _, ok := versions[int16(kmsg.ConsumerGroupDescribe)]; ok {
		req := kmsg.NewPtrConsumerGroupDescribeRequest()
		req.Groups = []string{group}
		resp, err := ask[*kmsg.ConsumerGroupDescribeResponse](ctx, c.kgo, coordinator, req)
		if err != nil {
			return false, err
		}
		for _, g := range resp.Groups {
			if used, err := groupExists(g.ErrorCode, g.State); used || err != nil {
				return used, err
			}
		}
	}
	if _, ok := versions[int16(kmsg.StreamsGroupDescribe)]; ok {
		req := kmsg.NewPtrStreamsGroupDescribeRequest()
		req.Groups = []string{group}
		resp, err := ask[*kmsg.StreamsGroupDescribeResponse](ctx, c.kgo, coordinator, req)
		if err != nil {
			return false, err
		}
		for _, g := range resp.Groups {
			if used, err := groupExists(g.ErrorCode, g.State); used || err != nil {
				return used, err
			}
		}
	}
	return false, nil
}

// groupExists reads a group description. UNSUPPORTED_VERSION is the answer of a broker whose group protocol of that kind
// is switched off: it has no such groups.
func groupExists(code int16, state string) (bool, error) {
	switch err := kerr.ErrorForCode(code); err {
	case nil:
		return state != "Dead", nil
	case kerr.GroupIDNotFound, kerr.UnsupportedVersion:
		return false, nil
	case kerr.GroupAuthorizationFailed:
		return false, fmt.Errorf("%w: DESCRIBE on the group is needed: %w", ErrUnauthorized, err)
	default:
		return false, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

// apiVersions is an answer to APIVersions.
type apiVersions struct {
	at     time.Time
	ranges map[int16][2]int16
}

// APIVersions returns the version ranges that all of upstream's nodes support, by API key; not to be written to. It is
// kept for a minute, and while upstream is away. A node that does not answer is left out, unless none does.
func (c *Client) APIVersions(ctx context.Context) (map[int16][2]int16, error) {
	known := func() map[int16][2]int16 {
		if v := c.versions.Load(); v != nil && time.Since(v.at) < versionsAge {
			return v.ranges
		}
		return nil
	}
	if ranges := known(); ranges != nil {
		return ranges, nil
	}
	select {
	case c.versioning <- struct{}{}:
		defer func() { <-c.versioning }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if ranges := known(); ranges != nil {
		return ranges, nil
	}
	var common map[int16][2]int16
	err := fmt.Errorf("%w: no nodes known yet", ErrUnavailable)
	for _, node := range c.Nodes() {
		ranges, nodeErr := c.nodeVersions(ctx, node.ID)
		if nodeErr != nil {
			err = nodeErr
			continue
		}
		common = intersect(common, ranges)
	}
	if common == nil {
		if old := c.versions.Load(); old != nil && ctx.Err() == nil {
			return old.ranges, nil
		}
		return nil, fmt.Errorf("api versions: %w", err)
	}
	c.versions.Store(&apiVersions{time.Now(), common})
	return common, nil
}

func (c *Client) nodeVersions(ctx context.Context, node int32) (map[int16][2]int16, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kshare", "0"
	resp, err := ask[*kmsg.ApiVersionsResponse](ctx, c.kgo, node, req)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, fmt.Errorf("%w: node %d: %w", ErrUnavailable, node, err)
	}
	ranges := make(map[int16][2]int16, len(resp.ApiKeys))
	for _, k := range resp.ApiKeys {
		ranges[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	return ranges, nil
}

// intersect returns what both support; nil is everything.
func intersect(a, b map[int16][2]int16) map[int16][2]int16 {
	if a == nil {
		return b
	}
	both := make(map[int16][2]int16, len(a))
	for key, x := range a {
		y, ok := b[key]
		if r := [2]int16{max(x[0], y[0]), min(x[1], y[1])}; ok && r[0] <= r[1] {
			both[key] = r
		}
	}
	return both
}
