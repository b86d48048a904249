//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

var suite *harness.Suite

func TestMain(m *testing.M) {
	var err error
	if suite, err = harness.NewSuite(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	code := m.Run()
	suite.Close()
	os.Exit(code)
}

// target is what share consumers are pointed at: kshare replicas over a Kafka
// without share groups, or Kafka 4.4 itself. Started once, at first use.
type target struct {
	bootstrap string
	kafka     *harness.Kafka
	redis     *harness.Redis    // nil on native
	replicas  *harness.Replicas // nil on native
	client    *kgo.Client       // admin and producer, by way of bootstrap
	admin     *kadm.Client
}

var startTarget = sync.OnceValues(func() (*target, error) {
	if native() {
		return startNative()
	}
	return startKshare()
})

func native() bool { return os.Getenv("E2E_TARGET") == "native" }
func full() bool   { return os.Getenv("E2E_SIZE") == "full" }

// sized picks by E2E_SIZE.
func sized(smoke, fullSize int) int {
	if full() {
		return fullSize
	}
	return smoke
}

// brokers is how many there are behind kshare.
func brokers() int {
	if n, err := strconv.Atoi(os.Getenv("E2E_BROKERS")); err == nil {
		return n
	}
	return sized(1, 3)
}

func startNative() (*target, error) {
	k, err := suite.StartKafka(harness.KafkaOptions{Version: suite.Version("KAFKA_NEW"), ShareGroups: true})
	if err != nil {
		return nil, err
	}
	return (&target{bootstrap: k.Bootstrap, kafka: k}).connect()
}

func startKshare() (*target, error) {
	version := os.Getenv("E2E_KAFKA")
	if version == "" {
		version = suite.Version("KAFKA_OLD")
	}
	k, err := suite.StartKafka(harness.KafkaOptions{Version: version, Nodes: brokers()})
	if err != nil {
		return nil, err
	}
	r, err := suite.StartRedis()
	if err != nil {
		return nil, err
	}
	rs, err := suite.StartReplicas(2, k, r)
	if err != nil {
		return nil, err
	}
	suite.OnClose(rs.Close)
	return (&target{bootstrap: rs.Bootstrap, kafka: k, redis: r, replicas: rs}).connect()
}

func (tg *target) connect() (*target, error) {
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(tg.bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(20*time.Millisecond), // what one call produces travels in one batch
		kgo.RecordDeliveryTimeout(30*time.Second),
		kgo.DisableClientMetrics(),
	)
	if err != nil {
		return nil, err
	}
	suite.OnClose(cl.Close)
	tg.client, tg.admin = cl, kadm.NewClient(cl)
	return tg, nil
}

// use returns the target for one test, and looks at the end of the test whether a
// replica has died or a client was told an upstream address.
func use(t *testing.T) *target {
	t.Helper()
	tg, err := startTarget()
	if err != nil {
		t.Fatal(err)
	}
	if tg.replicas != nil {
		before, _ := tg.replicas.Balancer.Leaks()
		t.Cleanup(func() {
			if err := tg.replicas.Err(); err != nil {
				t.Errorf("a replica ended by itself: %v", err)
			}
			if leaks, _ := tg.replicas.Balancer.Leaks(); len(leaks) > len(before) {
				t.Errorf("a client was told an upstream address: %s", leaks[len(before):])
			}
		})
	}
	suite.Explain(t, "")
	return tg
}

// kinds are the client implementations that scenarios run with.
func kinds(t *testing.T) []client.Kind {
	names := os.Getenv("E2E_CLIENTS")
	if names == "" {
		names = "java,franz,python"
	}
	var ks []client.Kind
	for name := range strings.SplitSeq(names, ",") {
		name, version, _ := strings.Cut(name, "@")
		switch name {
		case "java":
			if version == "" {
				version = suite.Version("KAFKA_NEW")
			}
			ks = append(ks, client.Java{Suite: suite, Version: version})
		case "franz":
			ks = append(ks, client.Franz{Suite: suite})
		case "python":
			ks = append(ks, client.Python{Suite: suite})
		default:
			t.Fatalf("E2E_CLIENTS: unknown client %q", name)
		}
	}
	return ks
}

// scenario is one test with one client kind: a topic and a share group of its own.
type scenario struct {
	*testing.T
	*target
	kind  client.Kind
	topic string
	group string
	names map[string]int
}

// forEachClient runs a scenario as a sub-test per client kind, on a fresh topic, for
// a fresh group that starts at the earliest record.
func forEachClient(t *testing.T, partitions int, run func(s *scenario)) {
	tg := use(t)
	for _, kind := range kinds(t) {
		t.Run(kind.Name(), func(t *testing.T) { run(tg.scenario(t, kind, partitions)) })
	}
}

var notNameByte = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func (tg *target) scenario(t *testing.T, kind client.Kind, partitions int) *scenario {
	return tg.scenarioOn(t, kind, partitions, -1, nil)
}

// scenarioOn is scenario with a number of replicas and configs for the topic.
func (tg *target) scenarioOn(t *testing.T, kind client.Kind, partitions, replication int, configs map[string]*string) *scenario {
	base := fmt.Sprintf("%s-%x", notNameByte.ReplaceAllString(t.Name(), "-"), time.Now().UnixMilli()&0xffffff)
	s := &scenario{T: t, target: tg, kind: kind, topic: base, group: base + "-g", names: map[string]int{}}
	suite.Explain(t, s.topic)
	tg.createTopic(t, s.topic, partitions, replication, configs)
	s.setGroup("share.auto.offset.reset", "earliest")
	return s
}

func (tg *target) createTopic(t *testing.T, topic string, partitions, replication int, configs map[string]*string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := tg.admin.CreateTopic(ctx, int32(partitions), int16(replication), configs, topic); err != nil {
		t.Fatalf("create topic %s: %v", topic, err)
	}
	must(t, harness.Until("leaders of "+topic, 30*time.Second, func() error {
		md, err := tg.admin.Metadata(ctx, topic)
		if err != nil {
			return err
		}
		for _, p := range md.Topics[topic].Partitions {
			if p.Err != nil || p.Leader < 0 {
				return fmt.Errorf("partition %d: leader %d, %v", p.Partition, p.Leader, p.Err)
			}
		}
		if n := len(md.Topics[topic].Partitions); n != partitions {
			return fmt.Errorf("%d partitions", n)
		}
		return nil
	}))
}

// setGroup sets a config of the scenario's share group.
func (s *scenario) setGroup(key, value string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	must(s.T, s.setGroupConfig(ctx, s.group, key, value))
}

// setGroupConfig is an IncrementalAlterConfigs on a GROUP resource.
func (tg *target) setGroupConfig(ctx context.Context, group, key, value string) error {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = 32, group
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = key, &value
	res.Configs = append(res.Configs, c)
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(ctx, tg.client)
	if err != nil {
		return fmt.Errorf("set %s of group %s: %w", key, group, err)
	}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return fmt.Errorf("set %s of group %s: %w", key, group, err)
		}
	}
	return nil
}

// start starts a consumer, which is killed at the end of the test if it still runs.
func (s *scenario) start(name string, adjust func(*client.Config)) client.ShareClient {
	s.Helper()
	c := client.Config{Bootstrap: s.bootstrap, Group: s.group, Topic: s.topic, Explicit: true}
	s.names[name]++
	c.Name = fmt.Sprintf("%s-%s%d", s.topic, name, s.names[name])
	if adjust != nil {
		adjust(&c)
	}
	sc, err := s.kind.Start(c)
	if err != nil {
		s.Fatalf("start %s: %v", name, err)
	}
	s.Cleanup(sc.Kill)
	return sc
}

func implicit(c *client.Config) { c.Explicit = false }

// produce appends n records to one partition, in one batch if they are few.
func (s *scenario) produce(partition int32, n int, key string) {
	s.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: s.topic, Partition: partition, Key: fmt.Appendf(nil, "%s%d", key, i), Value: []byte("value")}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := s.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		s.Fatalf("produce: %v", err)
	}
}

// pollSome polls until something comes.
func (s *scenario) pollSome(c client.ShareClient, timeout time.Duration) []client.Record {
	s.Helper()
	records := tryPoll(s.T, c, timeout)
	if len(records) == 0 {
		s.Fatalf("nothing came within %v", timeout)
	}
	return records
}

func tryPoll(t *testing.T, c client.ShareClient, timeout time.Duration) []client.Record {
	t.Helper()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		records, err := c.Poll(min(time.Second, timeout))
		if err != nil {
			t.Fatal(err)
		}
		if len(records) > 0 {
			return records
		}
	}
	return nil
}

// ackAll acknowledges records in one way and commits.
func (s *scenario) ackAll(c client.ShareClient, records []client.Record, how client.AckType) {
	s.Helper()
	for _, r := range records {
		must(s.T, c.Ack(r, how))
	}
	s.commit(c)
}

func (s *scenario) commit(c client.ShareClient) {
	s.Helper()
	failed, err := c.Commit()
	must(s.T, err)
	if len(failed) > 0 {
		s.Fatalf("commit failed: %v", failed)
	}
}

// members waits until the group has n members, each with an assignment.
func (s *scenario) members(n int) {
	s.Helper()
	must(s.T, s.assigned(s.group, n))
}

func (tg *target) assigned(group string, n int) error {
	return harness.Until(fmt.Sprintf("%d assigned members of %s", n, group), 30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		groups, err := tg.admin.DescribeShareGroups(ctx, group)
		if err != nil {
			return err
		}
		g := groups[group]
		assigned := 0
		for _, m := range g.Members {
			if len(m.Assignment) > 0 {
				assigned++
			}
		}
		if g.Err != nil || assigned < n {
			return fmt.Errorf("%d assigned of %d members, state %s, %v", assigned, len(g.Members), g.GroupState, g.Err)
		}
		return nil
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checkOffsets(t *testing.T, records []client.Record, first int64, n, count int) {
	t.Helper()
	if len(records) != n {
		t.Fatalf("%d records, want %d: %v", len(records), n, records)
	}
	for i, r := range records {
		if r.Offset != first+int64(i) || r.Count != count {
			t.Fatalf("record %d is %v, want offset %d with delivery count %d; all: %v", i, r, first+int64(i), count, records)
		}
	}
}
