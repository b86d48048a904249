//go:build e2e

package conformance

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (w *world) createTopic(name string, partitions int, configs map[string]string) topic {
	w.Helper()
	made, err := w.tryCreateTopic(name, partitions, configs)
	if err != nil {
		w.Fatalf("create topic %s: %v", name, err)
	}
	return made
}

func (w *world) tryCreateTopic(name string, partitions int, configs map[string]string) (topic, error) {
	w.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 20_000
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, int32(partitions), 1
	for key, value := range configs {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = key, &value
		rt.Configs = append(rt.Configs, c)
	}
	req.Topics = append(req.Topics, rt)
	made := ask[*kmsg.CreateTopicsResponse](w, w.admin, req).Topics[0]
	if made.ErrorCode != 0 {
		return topic{}, kerr.ErrorForCode(made.ErrorCode)
	}
	w.until("leaders of "+name, 20*time.Second, func() error {
		req := kmsg.NewPtrMetadataRequest()
		req.Version = 12
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = &name
		req.Topics = append(req.Topics, rt)
		got := ask[*kmsg.MetadataResponse](w, w.admin, req).Topics[0]
		if got.ErrorCode != 0 || got.TopicID != made.TopicID || len(got.Partitions) != partitions {
			return fmt.Errorf("%w, id %x, %d partitions", kerr.ErrorForCode(got.ErrorCode), got.TopicID, len(got.Partitions))
		}
		for _, p := range got.Partitions {
			if p.ErrorCode != 0 {
				return kerr.ErrorForCode(p.ErrorCode)
			}
		}
		return nil
	})
	return topic{name, made.TopicID}, nil
}

func (w *world) deleteTopic(t topic) {
	w.Helper()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Version, req.TimeoutMillis = 6, 20_000
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.TopicID = t.id
	req.Topics = append(req.Topics, rt)
	w.code("DeleteTopics", ask[*kmsg.DeleteTopicsResponse](w, w.admin, req).Topics[0].ErrorCode, nil)
}

// createPlacedTopic makes a topic whose partitions have the given replicas, and returns when the first ones lead.
func (w *world) createPlacedTopic(name string, configs map[string]string, replicas ...[]int32) topic {
	w.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 20_000
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, -1, -1
	for i, r := range replicas {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition, a.Replicas = int32(i), r
		rt.ReplicaAssignment = append(rt.ReplicaAssignment, a)
	}
	for key, value := range configs {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = key, &value
		rt.Configs = append(rt.Configs, c)
	}
	req.Topics = append(req.Topics, rt)
	made := ask[*kmsg.CreateTopicsResponse](w, w.admin, req).Topics[0]
	w.code("CreateTopics", made.ErrorCode, nil)
	t := topic{name, made.TopicID}
	for i, r := range replicas {
		w.ledBy(t.at(int32(i)), r[0])
	}
	return t
}

// setTopic sets a config of a topic.
func (w *world) setTopic(t topic, key, value string) {
	w.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, t.name
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = key, &value
	res.Configs = append(res.Configs, c)
	req.Resources = append(req.Resources, res)
	w.code("set "+key, ask[*kmsg.IncrementalAlterConfigsResponse](w, w.admin, req).Resources[0].ErrorCode, nil)
}

// addPartitions makes a topic larger.
func (w *world) addPartitions(t topic, to int32) {
	w.Helper()
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.Version, req.TimeoutMillis = 3, 20_000
	rt := kmsg.NewCreatePartitionsRequestTopic()
	rt.Topic, rt.Count = t.name, to
	req.Topics = append(req.Topics, rt)
	w.code("CreatePartitions", ask[*kmsg.CreatePartitionsResponse](w, w.admin, req).Topics[0].ErrorCode, nil)
}
