package upstream

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func byPlace(a, b GroupOffset) int {
	return strings.Compare(a.Topic.Name, b.Topic.Name)*10 + int(a.Partition-b.Partition)
}

func TestOffsetsOfAGroupWithoutMembers(t *testing.T) {
	everywhere(t, func(f *fixture) {
		f.Helper()
		one, two := f.topic("one", 3), f.topic("two", 1)
		group := f.prefix + "kshare.g"
		if have, err := f.c.GroupOffsets(f.ctx, group, nil); err != nil || len(have) != 0 {
			t.Fatalf("of no group: %v %v", have, err)
		}
		offsets := []GroupOffset{
			{Topic: one, Partition: 0, Offset: 7, LeaderEpoch: -1, Metadata: `{"a":"b"}`},
			{Topic: two, Partition: 0, Offset: 8, LeaderEpoch: 0, Metadata: ""},
			{Topic: one, Partition: 2, Offset: 9, LeaderEpoch: -1, Metadata: strings.Repeat("x", 4000)},
			{Topic: one, Partition: 17, Offset: 9, LeaderEpoch: -1},
		}
		eventually(f, "the commit", func() bool {
			err := f.c.CommitGroupOffsets(f.ctx, group, offsets)
			return err == nil && offsets[0].Err == nil
		})
		for i, o := range offsets {
			if want := i == 3; errors.Is(o.Err, ErrUnknownTopicOrPartition) != want || !want && o.Err != nil {
				f.Errorf("commit %d: %v", i, o.Err)
			}
		}
		offsets = offsets[:3]
		slices.SortFunc(offsets, byPlace)
		check := func(what string, of []GroupOffset, want ...GroupOffset) {
			f.Helper()
			have, err := f.c.GroupOffsets(f.ctx, group, of)
			slices.SortFunc(have, byPlace)
			if err != nil || len(have) != len(want) {
				f.Fatalf("%s: %v %v", what, have, err)
			}
			for i, w := range want {
				if h := have[i]; h.Topic.Name != w.Topic.Name || h.Partition != w.Partition || h.Offset != w.Offset || h.Metadata != w.Metadata || h.Err != nil {
					f.Errorf("%s: %+v, want %+v", what, h, w)
				}
			}
		}
		check("all", nil, offsets...)
		check("two of them, and one that was never committed", []GroupOffset{{Topic: one, Partition: 0}, {Topic: one, Partition: 1}, {Topic: two}},
			offsets[0], offsets[2])
		check("none", []GroupOffset{})

		names, err := f.c.ListSimpleGroups(f.ctx, f.prefix+"kshare.")
		if err != nil || !slices.Equal(names, []string{group}) {
			f.Errorf("listed: %v %v", names, err)
		}
		for range 2 {
			if err := f.c.DeleteGroup(f.ctx, group); err != nil {
				f.Fatal(err)
			}
		}
		check("after the deletion", nil)
	})
}

func TestTooMuchTextBesideAnOffsetIsSaid(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		if f.cluster != nil { // the fake takes any
			f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.OffsetMetadataTooLarge, Count: -1})
		}
		offsets := []GroupOffset{{Topic: topic, LeaderEpoch: -1, Metadata: strings.Repeat("x", 4097)}}
		eventually(f, "an answer", func() bool { return f.c.CommitGroupOffsets(f.ctx, f.prefix+"g", offsets) == nil })
		if err := offsets[0].Err; !errors.Is(err, ErrMetadataTooLarge) {
			f.Error(err)
		}
	})
}

func TestTroubleWithGroupOffsetsHasItsKind(t *testing.T) {
	for _, c := range []struct {
		err  *kerr.Error
		want error
	}{
		{kerr.GroupAuthorizationFailed, ErrUnauthorized},
		{kerr.UnknownServerError, ErrUnavailable},
		{kerr.NonEmptyGroup, ErrGroupNotEmpty},
	} {
		t.Run(c.err.Message, func(t *testing.T) {
			f := newFixture(t, newCluster(t))
			f.topic("t", 1)
			f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch, kmsg.DeleteGroups, kmsg.ListGroups}, Err: c.err, Count: -1})
			if err := f.c.DeleteGroup(f.ctx, "g"); !errors.Is(err, c.want) {
				t.Errorf("delete: %v", err)
			}
			if c.err == kerr.NonEmptyGroup {
				return
			}
			if _, err := f.c.GroupOffsets(f.ctx, "g", nil); !errors.Is(err, c.want) {
				t.Errorf("fetch: %v", err)
			}
		})
	}
}
