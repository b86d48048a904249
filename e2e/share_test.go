//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// firstPoll covers joining, which takes five seconds on native Kafka with clients
// that heartbeat only every five.
const firstPoll = 40 * time.Second

func TestEveryRecordAcceptedOnceAtCountOne(t *testing.T) {
	const partitions, consumers = 4, 3
	forEachClient(t, partitions, func(s *scenario) {
		perPartition := sized(20_000, 100_000) / partitions
		audit := client.NewAudit(partitions, perPartition)
		// Who has got a batch works on it for a while, and batches, which are handed out whole, are small: so there is
		// something for everybody.
		stop := s.audit(audit, consumers, client.AuditRules{Hold: 30 * time.Millisecond}, nil)
		s.members(consumers) // first, so that all of them get a part
		began := time.Now()
		const batch = 500
		for range perPartition / batch {
			for p := range partitions {
				s.produce(int32(p), batch, "k")
			}
		}
		must(s.T, harness.Until("all accepted", 4*time.Minute, func() error { return audit.Settled(time.Hour) }))
		s.Logf("%d records in %v", partitions*perPartition, time.Since(began).Round(10*time.Millisecond))
		stop()
		v := audit.Verdict()
		s.Log(v)
		for _, problem := range v.CleanRun() {
			s.Error(problem)
		}
		if len(v.ByClient) != consumers {
			s.Errorf("only these consumers took part: %v", v.ByClient)
		}
	})
}

// audit starts n consumers that feed the audit. The returned func stops and closes them.
func (s *scenario) audit(a *client.Audit, n int, rules client.AuditRules, adjust func(*client.Config)) (stop func()) {
	s.Helper()
	var all []client.ShareClient
	for i := range n {
		c := s.start("c", adjust)
		must(s.T, c.StartAudit(rules, a.Sink(fmt.Sprintf("c%d", i+1))))
		all = append(all, c)
	}
	return func() {
		s.Helper()
		for i, c := range all {
			if err := c.StopAudit(); err != nil {
				s.Errorf("stop c%d: %v", i+1, err)
			}
			if err := c.Close(); err != nil {
				s.Errorf("close c%d: %v", i+1, err)
			}
		}
	}
}

func TestImplicitModeAcceptsEveryRecordOnce(t *testing.T) {
	const partitions, perPartition = 4, 1000
	forEachClient(t, partitions, func(s *scenario) {
		for p := range partitions {
			s.produce(int32(p), perPartition, "k")
		}
		audit := client.NewAudit(partitions, perPartition)
		stop := s.audit(audit, 2, client.AuditRules{}, implicit)
		must(s.T, harness.Until("all accepted", time.Minute, func() error { return audit.Settled(time.Hour) }))
		stop()
		for _, problem := range audit.Verdict().CleanRun() {
			s.Error(problem)
		}
	})
}

func TestRejectedAndReleasedRecordsAddUp(t *testing.T) {
	const partitions, perPartition = 4, 1000
	forEachClient(t, partitions, func(s *scenario) {
		for p := range partitions {
			s.produce(int32(p), perPartition, "k")
		}
		audit := client.NewAudit(partitions, perPartition)
		stop := s.audit(audit, 3, client.AuditRules{RejectEvery: 50, ReleaseEvery: 20}, nil)
		must(s.T, harness.Until("all settled", time.Minute, func() error { return audit.Settled(time.Hour) }))
		stop()
		v := audit.Verdict()
		s.Log(v)
		for _, problem := range v.Problems {
			s.Error(problem)
		}
		const rejected, released = partitions * perPartition / 50, partitions * perPartition / 20
		if v.Archived != rejected || v.Redelivered != released || v.Accepted != v.Produced-rejected {
			s.Errorf("archived %d, want %d; redelivered %d, want %d; accepted %d", v.Archived, rejected, v.Redelivered, released, v.Accepted)
		}
	})
}

func TestReleasedRecordComesBackAtCountTwo(t *testing.T) {
	forEachClient(t, 1, func(s *scenario) {
		s.produce(0, 10, "k")
		c := s.start("c", nil)
		records := s.pollSome(c, firstPoll)
		checkOffsets(s.T, records, 0, 10, 1)
		for _, r := range records {
			how := client.Accept
			if r.Offset == 3 || r.Offset == 4 {
				how = client.Release
			}
			must(s.T, c.Ack(r, how))
		}
		s.commit(c)
		again := s.pollSome(c, 10*time.Second)
		checkOffsets(s.T, again, 3, 2, 2)
		s.ackAll(c, again, client.Accept)
		s.onlySentinelComes(c, 10)
		must(s.T, c.Close())
	})
}

func TestRejectedRecordNeverComesBack(t *testing.T) {
	forEachClient(t, 1, func(s *scenario) {
		s.produce(0, 5, "k")
		c := s.start("c", nil)
		records := s.pollSome(c, firstPoll)
		checkOffsets(s.T, records, 0, 5, 1)
		s.ackAll(c, records, client.Reject)
		s.onlySentinelComes(c, 5)
		must(s.T, c.Close())
		other := s.start("other", nil)
		s.onlySentinelComes(other, 6)
		must(s.T, other.Close())
	})
}

// onlySentinelComes produces one more record, at the given offset, and checks that
// nothing else of the partition is delivered before or with it.
func (s *scenario) onlySentinelComes(c client.ShareClient, offset int64) {
	s.Helper()
	s.produce(0, 1, "sentinel")
	records := s.pollSome(c, firstPoll)
	checkOffsets(s.T, records, offset, 1, 1)
	s.ackAll(c, records, client.Accept)
}

func TestExpiredLockHandsRecordsOver(t *testing.T) {
	const lock = 15 * time.Second
	forEachClient(t, 1, func(s *scenario) {
		s.Parallel() // most of it is waiting for the lock
		s.setGroup("share.record.lock.duration.ms", "15000")
		s.produce(0, 5, "k")
		slow := s.start("slow", nil)
		records := s.pollSome(slow, firstPoll)
		acquired := time.Now()
		checkOffsets(s.T, records, 0, 5, 1)
		other := s.start("other", nil)
		again := s.pollSome(other, lock+10*time.Second)
		waited := time.Since(acquired)
		checkOffsets(s.T, again, 0, 5, 2)
		if waited < lock-2*time.Second || waited > lock+5*time.Second {
			s.Errorf("handed over after %v, lock %v", waited, lock)
		}
		for _, r := range records { // too late (check 136)
			must(s.T, slow.Ack(r, client.Accept))
		}
		failed, err := slow.Commit()
		must(s.T, err)
		if failed[0] == "" {
			s.Error("an ack for records that somebody else holds by now succeeded")
		}
		s.ackAll(other, again, client.Accept)
		s.onlySentinelComes(other, 5)
		must(s.T, slow.Close())
		must(s.T, other.Close())
	})
}

func TestClosedConsumerFreesRecordsWithinASecond(t *testing.T) {
	for _, explicit := range []bool{true, false} {
		t.Run(map[bool]string{true: "explicit", false: "implicit"}[explicit], func(t *testing.T) {
			forEachClient(t, 1, func(s *scenario) { closeFrees(s, explicit) })
		})
	}
}

func closeFrees(s *scenario, explicit bool) {
	s.produce(0, 10, "k")
	mode := func(c *client.Config) { c.Explicit = explicit }
	leaving := s.start("leaving", mode)
	checkOffsets(s.T, s.pollSome(leaving, firstPoll), 0, 10, 1)
	staying := s.start("staying", nil)
	got := make(chan []client.Record, 1)
	go func() {
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			records, err := staying.Poll(500 * time.Millisecond)
			if err != nil || len(records) > 0 {
				got <- records
				return
			}
		}
		got <- nil
	}()
	s.members(2)
	must(s.T, leaving.Close())
	closed := time.Now()
	records := <-got
	waited := time.Since(closed)
	checkOffsets(s.T, records, 0, 10, 2)
	if waited > time.Second {
		s.Errorf("free %v after the close", waited)
	}
	s.ackAll(staying, records, client.Accept)
	must(s.T, staying.Close())
}

func TestImplicitModeAcceptsOnNextPoll(t *testing.T) {
	forEachClient(t, 1, func(s *scenario) {
		s.produce(0, 10, "k")
		c := s.start("c", implicit)
		checkOffsets(s.T, s.pollSome(c, firstPoll), 0, 10, 1)
		if more := tryPoll(s.T, c, 2*time.Second); len(more) > 0 {
			s.Fatalf("came again: %v", more)
		}
		must(s.T, c.Close())
		other := s.start("other", nil)
		s.onlySentinelComes(other, 10)
		must(s.T, other.Close())
	})
}

func TestRecordLimitGivesExactlyOneRecordPerPoll(t *testing.T) {
	const n = 12
	forEachClient(t, 1, func(s *scenario) {
		if !s.kind.RecordLimit() {
			s.Skip("this client has no share.acquire.mode")
		}
		s.produce(0, n, "k")
		c := s.start("c", func(c *client.Config) { c.Strict, c.MaxRecords = true, 1 })
		for offset := range int64(n) {
			records := s.pollSome(c, firstPoll)
			checkOffsets(s.T, records, offset, 1, 1)
			s.ackAll(c, records, client.Accept)
		}
		must(s.T, c.Close())
	})
}
