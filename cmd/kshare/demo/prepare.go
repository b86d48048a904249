package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// partitions is less than half of the consumers: the members of a share group are dealt out over the partitions, and each partition
// must have one that is neither dead nor asleep.
const partitions = 2

// prepare makes the topic and configures the group, both through kshare with ordinary admin requests.
func (p *play) prepare(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(p.replica(0).Bootstrap), kgo.DisableClientMetrics())
	if err != nil {
		return fmt.Errorf("admin client: %w", err)
	}
	defer client.Close()
	created, err := kadm.NewClient(client).CreateTopic(ctx, partitions, -1, nil, p.o.Topic)
	if err != nil && !errors.Is(created.Err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w", p.o.Topic, err)
	}
	configs := map[string]string{
		"share.auto.offset.reset":       "earliest",
		"share.record.lock.duration.ms": strconv.FormatInt(p.o.Lock.Milliseconds(), 10),
	}
	maps.Copy(configs, p.o.GroupConfigs)
	return configureGroup(ctx, client, p.o.Group, configs)
}

func configureGroup(ctx context.Context, client *kgo.Client, group string, configs map[string]string) error {
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType = kmsg.ConfigResourceTypeGroupConfig
	resource.ResourceName = group
	for name, value := range configs {
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name, config.Value = name, &value
		resource.Configs = append(resource.Configs, config)
	}
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("configure group %s: %w", group, err)
	}
	for _, r := range response.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			message := ""
			if r.ErrorMessage != nil {
				message = ": " + *r.ErrorMessage
			}
			return fmt.Errorf("configure group %s: %w%s", group, err, message)
		}
	}
	return nil
}

// produce writes the numbers 0, 1, 2, ... in time with the rate, as an ordinary producer through the first replica.
func (p *play) produce(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(p.replica(0).Bootstrap), kgo.DisableClientMetrics(),
		kgo.DefaultProduceTopic(p.o.Topic), kgo.ProducerLinger(20*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	const step = 100 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	perStep := max(1, p.o.Rate*int(step)/int(time.Second))
	size := perStep
	for next := 0; next < p.o.Records; size = perStep {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case size = <-p.bursts:
		case <-tick.C:
		}
		var batch []*kgo.Record
		for range min(size, p.o.Records-next) {
			text := strconv.Itoa(next)
			batch = append(batch, &kgo.Record{Key: []byte(text), Value: []byte(text)})
			next++
		}
		for _, result := range client.ProduceSync(ctx, batch...) {
			if result.Err != nil {
				return result.Err
			}
			p.ledger.produced()
		}
	}
	return nil
}
