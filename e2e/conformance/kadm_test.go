//go:build e2e

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kadmCaller performs calls by kadm, named and with arguments as AdminSide.java has them. What comes of a call is lines of
// text in their order; a refusal is told as its error.
func kadmCaller(cl *kgo.Client) func(call string, args ...string) ([]string, error) {
	calls := kadmCalls{kadm.NewClient(cl)}
	return func(call string, args ...string) ([]string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		perform := map[string]func(context.Context, []string) ([]string, error){
			"describeShareGroups":      calls.describeShareGroups,
			"describeConsumerGroups":   calls.describeConsumerGroups,
			"describeClassicGroups":    calls.describeClassicGroups,
			"deleteShareGroups":        calls.deleteGroups,
			"listGroups":               calls.listGroups,
			"listShareGroupOffsets":    calls.listShareGroupOffsets,
			"listConsumerGroupOffsets": calls.listConsumerGroupOffsets,
			"alterShareGroupOffsets":   calls.alterShareGroupOffsets,
			"deleteShareGroupOffsets":  calls.deleteShareGroupOffsets,
			"findShareCoordinators":    calls.findShareCoordinators,
			"listConfigResources":      calls.listConfigResources,
		}[call]
		if perform == nil {
			return nil, fmt.Errorf("unknown call %s", call)
		}
		lines, err := perform(ctx, args)
		var refused *kerr.Error
		switch {
		case err == nil:
		case errors.As(err, &refused):
			lines = append(lines, refused.Message)
		default:
			return nil, err
		}
		slices.Sort(lines)
		return lines, nil
	}
}

type kadmCalls struct{ *kadm.Client }

// outcome is done, or why not.
func outcome(err error, done string, args ...any) string {
	if err != nil {
		var refused *kerr.Error
		if errors.As(err, &refused) {
			return refused.Message
		}
		return err.Error()
	}
	return fmt.Sprintf(done, args...)
}

func (c kadmCalls) describeShareGroups(ctx context.Context, groups []string) (lines []string, err error) {
	described, err := c.DescribeShareGroups(ctx, groups...)
	for _, g := range described.Sorted() {
		lines = append(lines, g.GroupID+": "+outcome(g.Err, "group %s %s at %d, group epoch %d, assignment epoch %d, assignor %s, may %v",
			g.GroupID, g.GroupState, g.Coordinator.NodeID, g.GroupEpoch, g.AssignmentEpoch, g.Assignor, g.AuthorizedOperations))
		for _, m := range g.Members {
			slices.Sort(m.SubscribedTopicNames) // in no defined order
			lines = append(lines, fmt.Sprintf("member %s epoch %d client %s host %s rack %v reads %q has %s", m.MemberID, m.MemberEpoch, m.ClientID,
				m.ClientHost, m.RackID, m.SubscribedTopicNames, partitionsOf(m.Assignment)))
		}
	}
	return lines, err
}

func partitionsOf(s kadm.TopicsSet) string {
	var parts []string
	for _, t := range s.Sorted() {
		parts = append(parts, fmt.Sprint(t.Topic, ":", t.Partitions))
	}
	return strings.Join(parts, " ")
}

func (c kadmCalls) describeConsumerGroups(ctx context.Context, groups []string) (lines []string, err error) {
	described, err := c.DescribeConsumerGroups(ctx, groups...)
	for _, g := range described.Sorted() {
		lines = append(lines, g.Group+": "+outcome(g.Err, "%s assignor '%s' members %d", g.State, g.AssignorName, len(g.Members)))
	}
	return lines, err
}

func (c kadmCalls) describeClassicGroups(ctx context.Context, groups []string) (lines []string, err error) {
	described, err := c.DescribeGroups(ctx, groups...)
	for _, g := range described.Sorted() {
		lines = append(lines, g.Group+": "+outcome(g.Err, "%s protocol '%s' members %d", g.State, g.Protocol, len(g.Members)))
	}
	return lines, err
}

func (c kadmCalls) deleteGroups(ctx context.Context, groups []string) (lines []string, err error) {
	deleted, err := c.DeleteGroups(ctx, groups...)
	for _, g := range deleted.Sorted() {
		lines = append(lines, g.Group+": "+outcome(g.Err, "deleted")+" "+g.ErrMessage)
	}
	return lines, err
}

func (c kadmCalls) listGroups(ctx context.Context, filters []string) (lines []string, err error) {
	filter := map[string][]string{}
	for _, f := range filters {
		key, value, _ := strings.Cut(f, "=")
		filter[key] = append(filter[key], value)
	}
	listed, err := c.ListGroupsByType(ctx, filter["type"], filter["state"]...)
	for _, g := range listed.Sorted() {
		if of := filter["protocol"]; of == nil || slices.Contains(of, g.ProtocolType) {
			lines = append(lines, fmt.Sprintf("%s %s '%s' %s at %d", g.Group, g.GroupType, g.ProtocolType, g.State, g.Coordinator))
		}
	}
	return lines, err
}

// listShareGroupOffsets asks for all partitions, as kadm always does, and prints those that are named.
func (c kadmCalls) listShareGroupOffsets(ctx context.Context, args []string) (lines []string, err error) {
	described, err := c.DescribeShareGroupOffsets(ctx, args[0])
	for _, g := range described.Sorted() {
		if g.Err != nil || len(g.Offsets) == 0 {
			lines = append(lines, g.Group+": "+outcome(g.Err, "none"))
		}
		for _, partitions := range g.Offsets {
			for _, o := range partitions {
				at := fmt.Sprintf("%s:%d", o.Topic, o.Partition)
				if named := args[1:]; len(named) == 0 || slices.Contains(named, at) {
					lines = append(lines, at+": "+outcome(o.Err, "%d leader epoch %d lag %d", o.StartOffset, o.LeaderEpoch, o.Lag))
				}
			}
		}
	}
	return lines, err
}

func (c kadmCalls) listConsumerGroupOffsets(ctx context.Context, args []string) (lines []string, err error) {
	offsets, err := c.FetchOffsets(ctx, args[0])
	for _, o := range offsets.Sorted() {
		lines = append(lines, fmt.Sprintf("%s:%d: %d %v", o.Topic, o.Partition, o.At, o.Err))
	}
	return lines, err
}

func (c kadmCalls) alterShareGroupOffsets(ctx context.Context, args []string) (lines []string, err error) {
	offsets := kadm.Offsets{}
	for _, arg := range args[1:] {
		at, offset, _ := strings.Cut(arg, "=")
		topic, partition, _ := strings.Cut(at, ":")
		p, err := strconv.ParseInt(partition, 10, 32)
		if err != nil {
			return nil, err
		}
		o, err := strconv.ParseInt(offset, 10, 64)
		if err != nil {
			return nil, err
		}
		offsets.AddOffset(topic, int32(p), o, -1)
	}
	altered, err := c.AlterShareGroupOffsets(ctx, args[0], offsets)
	for t, partitions := range altered {
		for p, err := range partitions {
			lines = append(lines, fmt.Sprintf("%s:%d: %s", t, p, outcome(err, "altered")))
		}
	}
	return lines, err
}

func (c kadmCalls) deleteShareGroupOffsets(ctx context.Context, args []string) (lines []string, err error) {
	deleted, err := c.DeleteShareGroupOffsets(ctx, args[0], args[1:]...)
	for _, t := range slices.Sorted(maps.Keys(deleted)) {
		lines = append(lines, t+": "+outcome(deleted[t], "deleted"))
	}
	return lines, err
}

func (c kadmCalls) findShareCoordinators(ctx context.Context, keys []string) (lines []string, err error) {
	for _, f := range c.FindShareCoordinators(ctx, keys...).Sorted() {
		lines = append(lines, f.Name+": "+outcome(f.Err, "at %d", f.NodeID)+" "+f.ErrMessage)
	}
	return lines, nil
}

// listConfigResources asks for groups, whatever the argument, which is the name of their type.
func (c kadmCalls) listConfigResources(ctx context.Context, _ []string) (lines []string, err error) {
	listed, err := c.ListConfigResources(ctx, kadm.ConfigResourceGroupConfig)
	if err == nil {
		err = listed.Err
	}
	for _, r := range listed.Resources {
		lines = append(lines, fmt.Sprint(r.Type, " ", r.Name))
	}
	return lines, err
}
