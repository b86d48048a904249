//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// redisReads are the commands that change nothing. Anything else counts as a write,
// so that a new command cannot slip by. A script counts by what it runs inside.
var redisReads = map[string]bool{
	"get": true, "getrange": true, "strlen": true, "mget": true, "exists": true, "smembers": true, "scard": true,
	"hget": true, "hgetall": true, "time": true, "ping": true, "info": true, "client": true, "hello": true,
	"monitor": true, "subscribe": true, "eval": true, "evalsha": true, "eval_ro": true, "evalsha_ro": true, "script": true,
}

// Once a ShareFetch waits with nothing to read, nothing about its group is written to
// Redis, and each of its keys is read at most once a second: only its own replica looks.
func TestWaitingFetchIsSilentOnRedis(t *testing.T) {
	needReplicas(t)
	const partitions = 4
	tg := use(t)
	s := tg.scenario(t, client.Franz{Suite: suite}, partitions)
	m := s.rawMember()
	m.fetch(0, 500*time.Millisecond) // opens the session and resolves the start offsets
	m.fetch(1, 500*time.Millisecond)

	ctx := context.Background()
	before, err := s.redis.Calls(ctx)
	must(t, err)
	stop, err := s.redis.Monitor()
	must(t, err)
	began := time.Now()
	m.fetch(2, 10*time.Second)
	waited := time.Since(began)
	commands := stop()
	after, err := s.redis.Calls(ctx)
	must(t, err)
	if waited < 9*time.Second {
		t.Fatalf("the fetch waited only %v", waited)
	}
	logDelta(t, before, after, waited)
	s.judgeSilence(commands, began.Add(time.Second), began.Add(waited-500*time.Millisecond))
	s.judgeArrival(commands, began.Add(500*time.Millisecond))
}

func logDelta(t *testing.T, before, after map[string]int64, over time.Duration) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if d := after[name] - before[name]; d > 0 {
			t.Logf("%-12s %4d calls in %v (all keys, leases included)", name, d, over.Round(time.Second))
		}
	}
}

func (s *scenario) judgeSilence(commands []harness.Command, from, to time.Time) {
	s.Helper()
	reads := map[string]int{}
	for _, c := range commands {
		if c.At.Before(from) || c.At.After(to) || !strings.Contains(c.Line, s.group) {
			continue
		}
		if !redisReads[c.Name] {
			s.Errorf("written while the fetch waited: %s", c.Line)
			continue
		}
		if !c.Script {
			for _, key := range keysOf(c.Line, s.group) {
				reads[key]++
			}
		}
	}
	if len(reads) == 0 {
		s.Error("no catch-up read at all was seen: is the group's name in the keys?")
	}
	seconds := to.Sub(from).Seconds()
	for key, n := range reads {
		s.Logf("%d reads in %.1f s of %s", n, seconds, key)
		if float64(n) > seconds+1 {
			s.Errorf("%s read %d times in %.1f s", key, n, seconds)
		}
	}
}

// keysOf returns the arguments of a MONITOR line that name the group.
func keysOf(line, group string) []string {
	var keys []string
	for _, arg := range strings.Split(line, `" "`) {
		if strings.Contains(arg, group) {
			keys = append(keys, strings.Trim(arg, `"`))
		}
	}
	return keys
}

// judgeArrival checks that taking the request in cost one command per key at most:
// they all fit into one pipeline.
func (s *scenario) judgeArrival(commands []harness.Command, until time.Time) {
	s.Helper()
	writes := map[string]int{}
	for _, c := range commands {
		if c.At.After(until) || c.Script || !strings.Contains(c.Line, s.group) {
			continue
		}
		for _, key := range keysOf(c.Line, s.group) {
			writes[key]++
		}
	}
	for key, n := range writes {
		s.Logf("arrival: %d commands on %s", n, key)
		if n > 2 { // one, and perhaps a catch-up read
			s.Errorf("arrival cost %d commands on %s", n, key)
		}
	}
}

// rawMember is a share group member that speaks by single requests, so that a fetch
// can wait longer than any client library lets it.
type rawMember struct {
	s      *scenario
	id     string
	topic  [16]byte
	node   int32
	client *kgo.Client

	partitions []int32 // those that the node leads
}

func (s *scenario) rawMember() *rawMember {
	s.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(s.bootstrap, ",")...),
		kgo.RequestTimeoutOverhead(time.Minute), kgo.DisableClientMetrics())
	must(s.T, err)
	s.Cleanup(cl.Close)
	m := &rawMember{s: s, id: fmt.Sprintf("raw-%d", time.Now().UnixNano()), client: cl}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	md, err := s.admin.Metadata(ctx, s.topic)
	must(s.T, err)
	m.topic = md.Topics[s.topic].ID
	m.node = md.Topics[s.topic].Partitions[0].Leader
	for _, p := range md.Topics[s.topic].Partitions {
		if p.Leader == m.node {
			m.partitions = append(m.partitions, p.Partition)
		}
	}
	epoch := int32(0)
	must(s.T, harness.Until("an assignment", 30*time.Second, func() error {
		hb := kmsg.NewPtrShareGroupHeartbeatRequest()
		hb.GroupID, hb.MemberID, hb.MemberEpoch = s.group, m.id, epoch
		if epoch == 0 {
			hb.SubscribedTopicNames = []string{s.topic}
		}
		resp, err := hb.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return err
		}
		epoch = resp.MemberEpoch
		if resp.Assignment == nil || len(resp.Assignment.TopicPartitions) == 0 {
			return fmt.Errorf("no assignment at epoch %d", epoch)
		}
		return nil
	}))
	return m
}

// fetch sends one ShareFetch and fails the test if records or errors come.
func (m *rawMember) fetch(epoch int32, wait time.Duration) {
	m.s.Helper()
	req := kmsg.NewPtrShareFetchRequest()
	req.GroupID, req.MemberID, req.ShareSessionEpoch = &m.s.group, &m.id, epoch
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = int32(wait.Milliseconds()), 1, 1<<20
	req.MaxRecords, req.BatchSize = 500, 500
	if epoch == 0 {
		topic := kmsg.NewShareFetchRequestTopic()
		topic.TopicID = m.topic
		for _, p := range m.partitions {
			partition := kmsg.NewShareFetchRequestTopicPartition()
			partition.Partition = p
			topic.Partitions = append(topic.Partitions, partition)
		}
		req.Topics = append(req.Topics, topic)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait+30*time.Second)
	defer cancel()
	r, err := m.client.Broker(int(m.node)).Request(ctx, req)
	must(m.s.T, err)
	resp := r.(*kmsg.ShareFetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		m.s.Fatalf("ShareFetch at session epoch %d: %v", epoch, err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil || len(p.AcquiredRecords) > 0 {
				m.s.Fatalf("partition %d: %v, acquired %v", p.Partition, err, p.AcquiredRecords)
			}
		}
	}
}
