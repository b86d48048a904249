//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// deadLetters makes a dead letter topic for the scenario's group.
func (s *scenario) deadLetters(partitions int) (topic string) {
	s.Helper()
	topic = "dlq." + s.topic
	s.createTopic(s.T, topic, partitions, -1, nil)
	s.setGroup("errors.deadletterqueue.topic.name", topic)
	s.setGroup("errors.deadletterqueue.copy.record.enable", "true")
	return topic
}

// place is where a record stands in the scenario's topic.
type place struct {
	partition int32
	offset    int64
}

// letters counts, until the test ends, the dead letters that are read straight from upstream, and checks each one.
type letters struct {
	cl    *kgo.Client
	count map[place]int
}

func (s *scenario) readLetters(topic string) *letters {
	s.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(s.kafka.Bootstrap, ",")...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond), kgo.DisableClientMetrics())
	must(s.T, err)
	s.Cleanup(cl.Close)
	return &letters{cl, map[place]int{}}
}

// poll reads what there is by now; key is that of the record at a place.
func (l *letters) poll(s *scenario, key func(place) string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	for _, r := range l.cl.PollFetches(ctx).Records() {
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[strings.TrimPrefix(h.Key, "__dlq.errors.")] = string(h.Value)
		}
		partition, _ := strconv.Atoi(headers["partition"])
		offset, _ := strconv.Atoi(headers["offset"])
		at := place{int32(partition), int64(offset)}
		l.count[at]++
		if len(headers) != 6 || headers["topic"] != s.topic || headers["group"] != s.group || headers["message"] != "Offset rejected by client." ||
			headers["delivery.count"] == "" || string(r.Key) != key(at) {
			s.Fatalf("dead letter with key %q and headers %v", r.Key, headers)
		}
	}
}

// Consumers reject every third record while replicas are killed, each with letters that it
// is about to write. Each of these records has its dead letter in the end, no other has one,
// and one comes twice only if a replica died between writing and noting it.
func TestKilledReplicasLoseNoDeadLetter(t *testing.T) {
	needReplicas(t)
	const partitions, every = 4, 3
	perPartition, kills := sized(5_000, 40_000), sized(2, 6)
	s := use(t).scenario(t, client.Franz{Suite: suite}, partitions)
	s.setGroup("share.record.lock.duration.ms", "15000")
	s.setGroup("share.delivery.count.limit", "10") // what the dead replicas' clients held has a higher count
	read := s.readLetters(s.deadLetters(3))
	for p := range int32(partitions) {
		s.produce(p, perPartition, "k")
	}
	audit := client.NewAudit(partitions, perPartition)
	stop := s.audit(audit, 4, client.AuditRules{RejectEvery: every, Hold: 20 * time.Millisecond},
		func(c *client.Config) { c.MaxRecords, c.Strict = 50, true }) // so that they are busy for a while
	for i := range kills {
		at := partitions * perPartition * (i + 1) / (kills + 2)
		must(s.T, harness.Until(fmt.Sprintf("%d settled", at), time.Minute, func() error {
			if n := audit.SettledCount(); n < at {
				return fmt.Errorf("%d settled", n)
			}
			return nil
		}))
		replica := i % s.replicas.Count()
		s.replicas.Process(replica).Kill()
		must(s.T, s.replicas.Start(replica))
		must(s.T, s.replicas.WaitReady(replica, time.Minute))
	}
	must(s.T, harness.Until("all settled", 2*time.Minute, func() error { return audit.Settled(20 * time.Second) }))
	stop()
	v := audit.Verdict()
	s.Log(v)
	for _, problem := range v.Problems {
		s.Error(problem)
	}
	s.checkpointed(partitions, int64(perPartition)) // so nothing waits for its letter any more
	must(s.T, harness.Until("dead letters", time.Minute, func() error {
		read.poll(s, func(at place) string { return fmt.Sprintf("k%d", at.offset) })
		if want := partitions * (perPartition / every); len(read.count) < want {
			return fmt.Errorf("%d of %d", len(read.count), want)
		}
		return nil
	}))
	twice := 0
	for at, n := range read.count {
		if at.offset%every != every-1 {
			s.Errorf("%v has a dead letter and was not rejected", at)
		}
		if n > 1 {
			twice++
		}
	}
	s.Logf("%d dead letters, %d came more than once", len(read.count), twice)
	if limit := kills * partitions * 500; twice > limit {
		s.Errorf("%d dead letters came more than once; the dead replicas cannot have had more than %d in hand", twice, limit)
	}
}

// A rejection has returned ok, and the replica that is to write the dead letters is killed
// at different points of its way; in the end with the brokers halted, so that it cannot
// have come to the end of it.
func TestDeadLettersOfAKilledReplicaAreWritten(t *testing.T) {
	needReplicas(t)
	for _, c := range []struct {
		name string
		wait time.Duration
		halt bool // brokers, from before the rejection until the kill
		all  bool // replicas are killed, and nobody consumes afterwards
	}{
		{"at once", 0, false, false},
		{"soon", 2 * time.Millisecond, false, false},
		{"a little later", 10 * time.Millisecond, false, false},
		{"while it writes", 500 * time.Millisecond, true, false},
		{"while it writes, and the other one too", 500 * time.Millisecond, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := use(t).scenario(t, client.Franz{Suite: suite}, 1)
			read := s.readLetters(s.deadLetters(1))
			s.replicas.Balancer.Only(0)
			defer s.replicas.Balancer.Only(-1)
			s.produce(0, 10, "k")
			consumer := s.start("c", nil)
			records := s.pollSome(consumer, firstPoll)
			checkOffsets(s.T, records, 0, 10, 1)
			if c.halt {
				s.signalBrokers(syscall.SIGSTOP)
				defer s.signalBrokers(syscall.SIGCONT)
			}
			s.ackAll(consumer, records, client.Reject)
			<-time.After(c.wait) // nothing tells from outside how far it is
			s.replicas.Process(0).Kill()
			if c.all {
				s.replicas.Process(1).Kill()
			}
			s.signalBrokers(syscall.SIGCONT)
			s.replicas.Balancer.Only(-1)
			must(s.T, s.replicas.Start(0))
			must(s.T, s.replicas.WaitReady(0, time.Minute))
			if c.all {
				must(s.T, s.replicas.Start(1))
				must(s.T, s.replicas.WaitReady(1, time.Minute))
				consumer.Kill()
			}
			must(s.T, harness.Until("dead letters", time.Minute, func() error {
				read.poll(s, func(at place) string { return fmt.Sprintf("k%d", at.offset) })
				if len(read.count) < 10 {
					return fmt.Errorf("of %v", read.count)
				}
				return nil
			}))
			s.checkpointed(1, 10)
			twice := 0
			for at, n := range read.count {
				if n > 1 {
					twice++
				}
				if n > 2 {
					s.Errorf("%v has %d dead letters", at, n)
				}
			}
			s.Logf("%d came twice", twice)
		})
	}
}

// signalBrokers halts the brokers or lets them go on.
func (s *scenario) signalBrokers(sig syscall.Signal) {
	s.Helper()
	for _, node := range s.kafka.Nodes {
		must(s.T, syscall.Kill(node.Pid(), sig))
	}
}
