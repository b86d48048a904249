//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// An upgrade of upstream: its brokers, which are its controllers too, are restarted one
// after the other, while six consumers work and a producer goes on. Each time a third of
// the leaders moves away, connections end, and node ports stand for a broker that is gone.
func TestRollingRestartOfBrokersLosesNothing(t *testing.T) {
	needReplicas(t)
	const partitions, consumers, resume = 8, 6, 10 * time.Second
	tg := use(t)
	if len(tg.kafka.Nodes) < 3 {
		t.Skip("needs three brokers: E2E_SIZE=full, or E2E_BROKERS=3")
	}
	total := sized(20_000, 200_000)
	if os.Getenv("E2E_CLIENTS") != "" {
		total = 20_000 // one more kind of clients, not one more load
	}
	s := tg.scenarioOn(t, &mixed{kinds: kinds(t)}, partitions, 3, map[string]*string{
		"min.insync.replicas": kmsg.StringPtr("2"), "unclean.leader.election.enable": kmsg.StringPtr("false")})
	s.setGroup("share.record.lock.duration.ms", "15000")
	audit := client.NewAudit(partitions, total/partitions)
	stop := s.audit(audit, consumers, client.AuditRules{RejectEvery: 100, ReleaseEvery: 40, Hold: 50 * time.Millisecond}, nil)
	s.members(consumers)
	began, rest := time.Now(), make(chan struct{})
	produced := s.pour(partitions, total/partitions, 160*time.Second, rest)
	must(t, harness.Until("all partitions under way", firstPoll, func() error { return audit.AcceptedSince(began) }))
	for i := range tg.kafka.Nodes {
		stopped, before := time.Now(), audit.SettledCount()
		must(t, tg.kafka.RestartNode(i))
		back, meanwhile := time.Now(), audit.SettledCount()
		if audit.AcceptedSince(stopped) != nil {
			t.Logf("while broker %d was away: %v", i+1, audit.AcceptedSince(stopped))
		}
		must(t, harness.Until("records of every partition after a broker's restart", resume, func() error { return audit.AcceptedSince(back) }))
		t.Logf("broker %d away for %v with %d settled meanwhile; new records of every partition %v later",
			i+1, back.Sub(stopped).Round(time.Millisecond), meanwhile-before, time.Since(back).Round(time.Millisecond))
	}
	close(rest)
	must(t, <-produced)
	must(t, harness.Until("all settled", 3*time.Minute, func() error { return audit.Settled(20 * time.Second) }))
	stop()
	v := audit.Verdict()
	t.Log(v)
	for _, problem := range v.Problems {
		t.Error(problem)
	}
	if v.Accepted+v.Archived+v.Unknown != v.Produced {
		t.Errorf("the sum is wrong: %v", v)
	}
	if len(v.ByClient) != consumers {
		t.Errorf("only these consumers took part: %v", v.ByClient)
	}
}

// pour produces perPartition records to each partition, straight to upstream, at a pace
// that would take so long; once rest is closed, five times as fast.
func (s *scenario) pour(partitions, perPartition int, over time.Duration, rest <-chan struct{}) <-chan error {
	s.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(s.kafka.Bootstrap, ",")...), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(200*time.Millisecond))
	must(s.T, err)
	done := make(chan error, 1)
	const pace = 50 * time.Millisecond
	go func() {
		defer cl.Close()
		tick := time.NewTicker(pace)
		defer tick.Stop()
		step := float64(perPartition) * float64(pace) / float64(over)
		due := 0.0
		for sent := 0; sent < perPartition; <-tick.C {
			select {
			case <-rest:
				due += 5 * step
			default:
				due += step
			}
			var batch []*kgo.Record
			for ; sent < min(int(due), perPartition); sent++ {
				for p := range partitions {
					batch = append(batch, &kgo.Record{Topic: s.topic, Partition: int32(p), Value: []byte("value")})
				}
			}
			if err := cl.ProduceSync(s.Context(), batch...).FirstErr(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return done
}

// mixed starts consumers of several kinds in turn.
type mixed struct {
	kinds []client.Kind
	next  int
}

// Name implements client.Kind.
func (m *mixed) Name() string { return "mixed" }

// RecordLimit implements client.Kind.
func (m *mixed) RecordLimit() bool { return false }

// Start implements client.Kind.
func (m *mixed) Start(c client.Config) (client.ShareClient, error) {
	k := m.kinds[m.next%len(m.kinds)]
	m.next++
	return k.Start(c)
}
