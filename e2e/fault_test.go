//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// needReplicas skips what makes sense only with kshare.
func needReplicas(t *testing.T) {
	t.Helper()
	if native() {
		t.Skip("needs kshare")
	}
}

// Two replicas, three consumers with records in their hands at any moment, a backlog
// and a steady stream on top; one replica is killed in the middle and comes back five
// seconds later. Records are released and rejected on the way, so that every kind of
// transition meets the fault.
func TestKilledReplicaLosesNothing(t *testing.T) {
	needReplicas(t)
	const partitions = 4
	forEachClient(t, partitions, func(s *scenario) {
		perPartition := sized(12_000, 100_000) / partitions
		backlog := perPartition / 2
		s.setGroup("share.record.lock.duration.ms", "15000")
		audit := client.NewAudit(partitions, perPartition)
		stop := s.audit(audit, 3, client.AuditRules{RejectEvery: 100, ReleaseEvery: 40, Hold: 100 * time.Millisecond}, nil)
		s.members(3)
		for p := range partitions {
			s.produce(int32(p), backlog, "k")
		}
		produced := s.stream(partitions, perPartition-backlog, 16*time.Second)
		must(s.T, harness.Until("a quarter settled", 60*time.Second, func() error {
			if n := audit.SettledCount(); n < partitions*perPartition/4 {
				return fmt.Errorf("%d settled", n)
			}
			return nil
		}))
		s.replicas.Process(0).Kill()
		killed := audit.SettledCount()
		<-time.After(5 * time.Second) // the outage itself, not a wait for something
		s.Logf("replica 0 killed with %d settled, %d when it came back", killed, audit.SettledCount())
		must(s.T, s.replicas.Start(0))
		must(s.T, s.replicas.WaitReady(0, 60*time.Second))
		must(s.T, <-produced)
		must(s.T, harness.Until("all settled", 2*time.Minute, func() error { return audit.Settled(20 * time.Second) }))
		stop()
		v := audit.Verdict()
		s.Log(v)
		for _, problem := range v.Problems {
			s.Error(problem)
		}
		if v.Accepted+v.Archived+v.Unknown != v.Produced {
			s.Errorf("the sum is wrong: %v", v)
		}
	})
}

// stream produces perPartition records to each partition, evenly over the duration,
// straight to upstream: the producer is not what this scenario is about.
func (s *scenario) stream(partitions, perPartition int, over time.Duration) <-chan error {
	done := make(chan error, 1)
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(s.kafka.Bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics())
	if err != nil {
		done <- err
		return done
	}
	const steps = 80
	go func() {
		defer cl.Close()
		tick := time.NewTicker(over / steps)
		defer tick.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), over+time.Minute)
		defer cancel()
		for sent, step := 0, 1; sent < perPartition; step++ {
			var batch []*kgo.Record
			for ; sent < perPartition*min(step, steps)/steps; sent++ {
				for p := range partitions {
					batch = append(batch, &kgo.Record{Topic: s.topic, Partition: int32(p), Value: fmt.Appendf(nil, "%d", sent)})
				}
			}
			if err := cl.ProduceSync(ctx, batch...).FirstErr(); err != nil {
				done <- err
				return
			}
			<-tick.C
		}
		done <- nil
	}()
	return done
}

func TestKilledReplicasRecordsAreFreeWithinTenSeconds(t *testing.T) {
	needReplicas(t)
	forEachClient(t, 1, func(s *scenario) {
		s.produce(0, 10, "k")
		s.replicas.Balancer.Only(0)
		defer s.replicas.Balancer.Only(-1)
		holder := s.start("holder", nil)
		checkOffsets(s.T, s.pollSome(holder, firstPoll), 0, 10, 1)
		s.replicas.Balancer.Only(1)
		other := s.start("other", nil)
		got := make(chan []client.Record, 1)
		go func() { got <- tryPoll(s.T, other, time.Minute) }()
		s.members(2)
		s.replicas.Process(0).Kill()
		killed := time.Now()
		records := <-got
		waited := time.Since(killed)
		must(s.T, s.replicas.Start(0))
		must(s.T, s.replicas.WaitReady(0, 60*time.Second))
		checkOffsets(s.T, records, 0, 10, 2)
		s.Logf("free after %v", waited.Round(10*time.Millisecond))
		if waited > 10*time.Second {
			s.Errorf("the dead replica's records came back after %v", waited)
		}
		s.ackAll(other, records, client.Accept)
		must(s.T, other.Close())
	})
}
