package serve

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// listConfigs asks the replica, and an upstream of the given version that answers with resources "type name"; -1 is one
// that does not know the key. It prints the answer: the code if it is an error, else its resources.
func (r *rep) listConfigs(c *Conn, upstream int16, code int16, theirs []string, types ...int8) string {
	r.w.Helper()
	req := kmsg.NewPtrListConfigResourcesRequest()
	req.Version, req.ResourceTypes = 1, types
	api := r.apis[74]
	own, _ := api.Split(r.srv, req)
	resp := r.ask(r.w.ctx, c, own)
	var out *kmsg.ListConfigResourcesResponse
	if upstream < 0 {
		out = resp.(configList).ListConfigResourcesResponse
	} else {
		up := kmsg.NewPtrListConfigResourcesResponse()
		up.Version, up.ErrorCode = upstream, code
		for _, s := range theirs {
			var res kmsg.ListConfigResourcesResponseConfigResource
			_, err := fmt.Sscan(s, &res.Type, &res.Name)
			r.w.must(err)
			up.ConfigResources = append(up.ConfigResources, res)
		}
		out = api.Merge(resp, up).(*kmsg.ListConfigResourcesResponse)
	}
	if out.ErrorCode != 0 {
		if len(out.ConfigResources) > 0 {
			r.w.Errorf("an error with content: %+v", out)
		}
		return fmt.Sprint("code ", out.ErrorCode)
	}
	var names []string
	for _, res := range out.ConfigResources {
		names = append(names, fmt.Sprint(res.Type, " ", res.Name))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func TestCheck130_GroupsWithConfigsAreListedBesideUpstreamsResources(t *testing.T) {
	w := newWorld(t, 1)
	r := w.reps[0]
	w.alter("mine", "share.record.lock.duration.ms", "15000")
	w.alter("both", "share.record.lock.duration.ms", "15000")
	w.eventually("both in the index", func() bool { return len(r.groups.ConfiguredGroups()) == 2 })
	metrics, all := []string{"16 m"}, []string{"2 t", "4 1", "16 m", "32 both", "32 theirs"}
	unsupported := fmt.Sprint("code ", codeUnsupported)
	for _, c := range []struct {
		upstream int16
		theirs   []string
		types    []int8
		want     string
	}{
		{1, all, nil, "16 m, 2 t, 32 both, 32 mine, 32 theirs, 4 1"},
		{1, all[3:], []int8{32}, "32 both, 32 mine, 32 theirs"},
		{1, all[:1], []int8{2}, "2 t"},
		{0, metrics, nil, "16 m, 32 both, 32 mine"},
		{0, metrics, []int8{32}, "32 both, 32 mine"},
		{0, metrics, []int8{16}, "16 m"},
		{0, metrics, []int8{32, 16}, "16 m, 32 both, 32 mine"},
		{0, metrics, []int8{32, 2}, unsupported},
		{-1, nil, nil, "32 both, 32 mine"},
		{-1, nil, []int8{32}, "32 both, 32 mine"},
		{-1, nil, []int8{16}, unsupported},
	} {
		w.is(fmt.Sprint("upstream v", c.upstream, ", types ", c.types), r.listConfigs(r.conn(-1), c.upstream, 0, c.theirs, c.types...), c.want)
	}
	w.is("a type that upstream does not know", r.listConfigs(r.conn(-1), 1, codeUnsupported, nil, 99), unsupported)
	req := kmsg.NewPtrListConfigResourcesRequest()
	if own, theirs := r.apis[74].Split(r.srv, req); own != nil || theirs != nil {
		t.Error("v0 should be relayed as it is")
	}
}

func TestCheck131_ListingConfigsNeedsDescribeConfigsOnTheCluster(t *testing.T) {
	w := newWorld(t, 1)
	r := w.reps[0]
	w.alter("g", "share.record.lock.duration.ms", "15000")
	c := r.conn(-1)
	for _, upstream := range []int16{-1, 0, 1} {
		c.Auth = grants{cluster: opDescribe}
		w.is("denied", r.listConfigs(c, upstream, 0, nil), fmt.Sprint("code ", codeClusterDenied))
		c.Auth = grants{err: errors.New("away")}
		w.is("in an outage", r.listConfigs(c, upstream, 0, nil), fmt.Sprint("code ", codeCoordUnavailable))
		c.Auth = grants{cluster: opDescribeConfigs}
		w.is("granted", r.listConfigs(c, upstream, 0, nil), "32 g")
	}
}
