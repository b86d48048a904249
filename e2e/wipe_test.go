//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// All of Redis is lost while no replica is up that could put anything back, and the
// group goes by latest, so that starting by the reset policy would skip records. The
// consumers live through it: they are told to join again, and go on where the
// checkpoint says. What is produced meanwhile comes, and nothing that was accepted.
func TestAllOfRedisLostLosesNoRecord(t *testing.T) {
	needReplicas(t)
	const partitions, before, after = 2, 3000, 2000
	forEachClient(t, partitions, func(s *scenario) {
		s.setGroup("share.auto.offset.reset", "latest")
		s.setGroup("share.record.lock.duration.ms", "17000")
		audit := client.NewAudit(partitions, before+after)
		stop := s.audit(audit, 2, client.AuditRules{}, nil)
		s.members(2)
		s.checkpointed(partitions, 0)
		for p := range partitions {
			s.produce(int32(p), before, "b")
		}
		must(s.T, harness.Until("all before accepted", time.Minute, func() error {
			if n := audit.SettledCount(); n < partitions*before {
				return fmt.Errorf("%d settled", n)
			}
			return nil
		}))
		s.checkpointed(partitions, before)

		for i := range s.replicas.Count() {
			s.replicas.Process(i).Kill()
		}
		must(s.T, s.redis.Client.FlushAll(context.Background()).Err())
		for i := range s.replicas.Count() {
			must(s.T, s.replicas.Start(i))
		}
		for i := range s.replicas.Count() {
			must(s.T, s.replicas.WaitReady(i, time.Minute))
		}
		for p := range partitions {
			s.produce(int32(p), after, "a")
		}
		must(s.T, harness.Until("all settled", 2*time.Minute, func() error { return audit.Settled(time.Hour) }))
		stop()
		for _, problem := range audit.Verdict().CleanRun() {
			s.Error(problem)
		}
		if value := s.groupConfig("share.record.lock.duration.ms"); value != "17000" {
			s.Errorf("the lock duration is %q after the loss", value)
		}
	})
}

// checkpointed waits until the checkpoint of every partition stands at the offset. Any
// tool for consumer groups can read it.
func (s *scenario) checkpointed(partitions int, offset int64) {
	s.Helper()
	must(s.T, harness.Until(fmt.Sprintf("checkpoint at %d", offset), 30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		all, err := s.admin.FetchOffsets(ctx, "kshare."+s.group)
		if err != nil {
			return err
		}
		for p := range partitions {
			if o, ok := all.Lookup(s.topic, int32(p)); !ok || o.At != offset {
				return fmt.Errorf("partition %d: %v %v", p, o.At, ok)
			}
		}
		return nil
	}))
}

func (s *scenario) groupConfig(key string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req := kmsg.NewPtrDescribeConfigsRequest()
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName, res.ConfigNames = 32, s.group, []string{key}
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(ctx, s.target.client)
	must(s.T, err)
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			if c.Name == key && c.Value != nil {
				return *c.Value
			}
		}
	}
	return ""
}
