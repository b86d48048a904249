package serve

import (
	"context"

	"kshare/coordinator"
	"kshare/proxy/upstream"
)

// UpstreamTopics is the [coordinator.Topics] that asks upstream.
type UpstreamTopics struct{ *upstream.Client }

// TopicsByName is [upstream.Client.TopicsByName] in the coordinator's terms.
func (t UpstreamTopics) TopicsByName(ctx context.Context, names []string, fresh bool) (map[string]coordinator.Topic, error) {
	found, err := t.Client.TopicsByName(ctx, names, fresh)
	if err != nil {
		return nil, err
	}
	result := make(map[string]coordinator.Topic, len(found))
	for name, topic := range found {
		result[name] = coordinator.Topic{ID: topic.ID, Name: topic.Name, Partitions: topic.Partitions}
	}
	return result, nil
}

// UpstreamGroups is the [coordinator.GroupUse] that asks upstream.
type UpstreamGroups struct{ *upstream.Client }

// InUse is [upstream.Client.GroupInUse].
func (u UpstreamGroups) InUse(ctx context.Context, group string) (bool, error) {
	return u.GroupInUse(ctx, group)
}
