package main

import (
	"context"

	"kshare/coordinator"
	"kshare/proxy/upstream"
)

// topics lets the coordinator ask upstream for topics in its own terms.
type topics struct{ *upstream.Client }

func (t topics) TopicsByName(ctx context.Context, names []string, fresh bool) (map[string]coordinator.Topic, error) {
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

// groupUse lets the coordinator ask whether a group id is taken upstream.
type groupUse struct{ client *upstream.Client }

func (u groupUse) InUse(ctx context.Context, group string) (bool, error) {
	return u.client.GroupInUse(ctx, group)
}
