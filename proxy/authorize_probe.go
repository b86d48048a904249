package proxy

import (
	"context"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Where upstream does not tell what a principal may do, a probe asks for one
// operation: a request that any broker authorizes before it looks at anything
// else, and that changes nothing.

// fetchVersion names topics by name, and the replica that asks.
const fetchVersion = 12

const (
	brokerResource kmsg.ConfigResourceType = 4
	groupResource  kmsg.ConfigResourceType = 32
)

// verdict makes of a probe's error code what is granted: bit(op) or nothing.
func verdict(code int16, op int8, denied *kerr.Error, granted ...*kerr.Error) (uint32, error) {
	if code == denied.Code {
		return 0, nil
	}
	if code == 0 {
		return bit(op), nil
	}
	for _, e := range granted {
		if code == e.Code {
			return bit(op), nil
		}
	}
	return 0, kerr.ErrorForCode(code)
}

// probeCluster is for a principal that may not DESCRIBE the cluster. Configs
// of the brokers are the cluster's.
func (a *authorizer) probeCluster(ctx context.Context, op int8) (granted uint32, err error) {
	var code int16
	switch op {
	case opDescribeConfigs:
		code, err = a.probeDescribeConfigs(ctx, brokerResource, "")
	case opAlterConfigs:
		code, err = a.probeAlterConfigs(ctx, brokerResource, "")
	case opClusterAction:
		return a.probeClusterAction(ctx)
	default:
		return 0, fmt.Errorf("cluster: operation %d cannot be asked for", op)
	}
	if err != nil {
		return 0, err
	}
	if granted, err = verdict(code, op, kerr.ClusterAuthorizationFailed); err != nil {
		err = fmt.Errorf("cluster: probing operation %d: %w", op, err)
	}
	return granted, err
}

// probeGroup asks for an operation on a group, which is hidden from a principal
// that may not DESCRIBE it.
func (a *authorizer) probeGroup(ctx context.Context, op int8, group string, hidden bool) (granted uint32, err error) {
	var code int16
	switch op {
	case opRead:
		code, err = a.probeRead(ctx, group)
	case opDelete:
		code, err = a.probeDelete(ctx, group)
	case opDescribeConfigs, opAlterConfigs:
		return a.probeGroupConfigs(ctx, op, group)
	default:
		return 0, fmt.Errorf("group %q: operation %d cannot be asked for here: %w", group, op, kerr.NotCoordinator)
	}
	if err != nil {
		return 0, err
	}
	if hidden && op == opRead && code == kerr.GroupIDNotFound.Code {
		return 0, nil // kfake, which looks for the group first; a broker never says so to a Heartbeat
	}
	granted, err = verdict(code, op, kerr.GroupAuthorizationFailed, kerr.UnknownMemberID, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress,
		kerr.InvalidGroupID, kerr.GroupIDNotFound)
	if err != nil {
		err = fmt.Errorf("group %q: probing operation %d: %w", group, op, err)
	}
	return granted, err
}

// probeGroupConfigs asks for an operation on a group's configs. An upstream
// without them has no ACLs for them either: who may do so with the whole
// cluster's configs may do it with a group's then. It is asked but once for
// what it does not know, for it logs an error each time.
func (a *authorizer) probeGroupConfigs(ctx context.Context, op int8, group string) (granted uint32, err error) {
	a.mu.Lock()
	has := a.groupConfigs
	a.mu.Unlock()
	code := kerr.InvalidRequest.Code
	switch {
	case has && op == opDescribeConfigs:
		code, err = a.probeDescribeConfigs(ctx, groupResource, group)
	case has:
		code, err = a.probeAlterConfigs(ctx, groupResource, group)
	}
	if err != nil {
		return 0, err
	}
	if code == kerr.InvalidRequest.Code {
		a.mu.Lock()
		a.groupConfigs = false
		a.mu.Unlock()
		allowed, err := a.Cluster(ctx, op)
		if allowed {
			granted = bit(op)
		}
		return granted, err
	}
	if granted, err = verdict(code, op, kerr.GroupAuthorizationFailed); err != nil {
		err = fmt.Errorf("group %q: probing operation %d: %w", group, op, err)
	}
	return granted, err
}

// probeRead is a classic Heartbeat of a member that cannot exist.
func (a *authorizer) probeRead(ctx context.Context, group string) (int16, error) {
	req := kmsg.NewHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = group, "kshare-authorization-probe", math.MaxInt32
	resp, err := a.c.ask(ctx, &req)
	if err != nil {
		return 0, err
	}
	return resp.(*kmsg.HeartbeatResponse).ErrorCode, nil
}

// probeDelete is an OffsetDelete of nothing.
func (a *authorizer) probeDelete(ctx context.Context, group string) (int16, error) {
	req := kmsg.NewOffsetDeleteRequest()
	req.Group = group
	resp, err := a.c.ask(ctx, &req)
	if err != nil {
		return 0, err
	}
	return resp.(*kmsg.OffsetDeleteResponse).ErrorCode, nil
}

// probeDescribeConfigs asks for none of a resource's configs.
func (a *authorizer) probeDescribeConfigs(ctx context.Context, kind kmsg.ConfigResourceType, name string) (int16, error) {
	req := kmsg.NewDescribeConfigsRequest()
	req.Version = 1
	req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kind, ResourceName: name, ConfigNames: []string{}}}
	resp, err := a.c.ask(ctx, &req)
	if err != nil {
		return 0, err
	}
	for _, r := range resp.(*kmsg.DescribeConfigsResponse).Resources {
		return r.ErrorCode, nil
	}
	return kerr.UnknownServerError.Code, nil
}

// probeAlterConfigs validates a change of nothing.
func (a *authorizer) probeAlterConfigs(ctx context.Context, kind kmsg.ConfigResourceType, name string) (int16, error) {
	req := kmsg.NewIncrementalAlterConfigsRequest()
	req.ValidateOnly = true
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kind, ResourceName: name}}
	resp, err := a.c.ask(ctx, &req)
	if err != nil {
		return 0, err
	}
	for _, r := range resp.(*kmsg.IncrementalAlterConfigsResponse).Resources {
		return r.ErrorCode, nil
	}
	return kerr.UnknownServerError.Code, nil
}

// probeTopics tells which topics the principal may READ.
func (a *authorizer) probeTopics(ctx context.Context, names []string) (map[string]bool, error) {
	codes, err := a.probeFetch(ctx, -1, names)
	if err != nil {
		return nil, err
	}
	readable := map[string]bool{}
	for _, name := range names {
		code, ok := codes[name]
		if !ok {
			return nil, fmt.Errorf("topic %q: upstream says nothing of it", name)
		}
		granted, err := verdict(code, opRead, kerr.TopicAuthorizationFailed, kerr.UnknownTopicOrPartition)
		if err != nil {
			return nil, fmt.Errorf("topic %q: probing operation %d: %w", name, opRead, err)
		}
		readable[name] = granted != 0
	}
	return readable, nil
}

// probeClusterAction is a Fetch by a replica that cannot exist, of a topic
// that cannot either: brokers refuse followers by the topic's error.
func (a *authorizer) probeClusterAction(ctx context.Context) (uint32, error) {
	const topic = "kshare authorization probe" // no topic may have spaces
	codes, err := a.probeFetch(ctx, math.MaxInt32, []string{topic})
	if err != nil {
		return 0, err
	}
	granted, err := verdict(codes[topic], opClusterAction, kerr.TopicAuthorizationFailed, kerr.UnknownTopicOrPartition)
	if err != nil {
		err = fmt.Errorf("cluster: probing operation %d: %w", opClusterAction, err)
	}
	return granted, err
}

// probeFetch fetches from a partition that no topic has, and returns the error
// codes by topic. It opens no fetch session.
func (a *authorizer) probeFetch(ctx context.Context, replica int32, topics []string) (map[string]int16, error) {
	req := kmsg.NewFetchRequest()
	req.Version, req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = fetchVersion, replica, 0, 0, 1, -1
	for _, name := range topics {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.PartitionMaxBytes = math.MaxInt32, 1
		t := kmsg.NewFetchRequestTopic()
		t.Topic, t.Partitions = name, append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
	}
	resp, err := a.c.ask(ctx, &req)
	if err != nil {
		return nil, err
	}
	got := resp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
		return nil, fmt.Errorf("probing by a fetch: %w", err)
	}
	codes := map[string]int16{}
	for _, t := range got.Topics {
		for _, p := range t.Partitions {
			codes[t.Topic] = p.ErrorCode
		}
	}
	return codes, nil
}
