//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// Clients that know nothing of share groups must not notice kshare: the same results
// as straight at Kafka.

// path is a way to the cluster.
type path struct{ name, bootstrap string }

func (tg *target) paths() []path {
	return []path{{"direct", tg.kafka.Bootstrap}, {"kshare", tg.bootstrap}}
}

func uniqueName(t *testing.T) string {
	return fmt.Sprintf("%s-%x", notNameByte.ReplaceAllString(t.Name(), "-"), time.Now().UnixMilli()&0xffffff)
}

func TestJavaProducerAndConsumerGroupSameAsDirect(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	protocols := []string{"classic"}
	if strings.HasPrefix(tg.kafka.Version, "4.") {
		protocols = append(protocols, "consumer") // KIP-848
	}
	topic := uniqueName(t)
	tg.createTopic(t, topic, 3, -1, nil)
	driver, err := client.Java{Suite: suite, Version: suite.Version("KAFKA_NEW")}.Launch("ordinary-" + topic)
	must(t, err)
	defer driver.Kill()
	const n = 2000
	for _, p := range tg.paths() {
		acknowledged, err := driver.ProduceOrdinary(topic, n, map[string]string{"bootstrap.servers": p.bootstrap})
		must(t, err)
		if acknowledged != n {
			t.Fatalf("produced by way of %s: %d of %d acknowledged", p.name, acknowledged, n)
		}
	}
	for _, protocol := range protocols {
		digests := map[string]string{}
		for _, p := range tg.paths() {
			got, digest, err := driver.ConsumeOrdinary(topic, 2*n, map[string]string{
				"bootstrap.servers": p.bootstrap, "group.id": topic + protocol + p.name,
				"group.protocol": protocol, "auto.offset.reset": "earliest",
			})
			must(t, err)
			if got != 2*n {
				t.Errorf("%s group by way of %s: %d of %d records", protocol, p.name, got, 2*n)
			}
			digests[p.name] = digest
		}
		if digests["direct"] != digests["kshare"] {
			t.Errorf("%s group: other records by way of kshare: %v", protocol, digests)
		}
	}
}

func TestTransactionsReadCommittedSameAsDirect(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	topic := uniqueName(t)
	tg.createTopic(t, topic, 2, -1, nil)
	want := produceInTransactions(t, tg.bootstrap, topic)
	for _, p := range tg.paths() {
		got := readCommitted(t, p.bootstrap, topic, len(want))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("by way of %s: %d records, want %d: %v", p.name, len(got), len(want), got)
		}
	}
}

// produceInTransactions commits and aborts in turn and returns what was committed.
func produceInTransactions(t *testing.T, bootstrap, topic string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.TransactionalID("tx-"+topic), kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.DisableClientMetrics())
	must(t, err)
	defer cl.Close()
	var committed []string
	for tx := range 6 {
		must(t, cl.BeginTransaction())
		var records []*kgo.Record
		for i := range 20 {
			records = append(records, kgo.StringRecord(fmt.Sprintf("tx%d-%d", tx, i)))
		}
		must(t, cl.ProduceSync(ctx, records...).FirstErr())
		if tx%2 == 0 {
			must(t, cl.EndTransaction(ctx, kgo.TryCommit))
			for _, r := range records {
				committed = append(committed, string(r.Value))
			}
		} else {
			must(t, cl.EndTransaction(ctx, kgo.TryAbort))
		}
	}
	slices.Sort(committed)
	return committed
}

// readCommitted reads until n records are there and the ends of all partitions are reached.
func readCommitted(t *testing.T, bootstrap, topic string, n int) []string {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableClientMetrics())
	must(t, err)
	defer cl.Close()
	var values []string
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for len(values) < n && ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

func TestKcatMetadataSameAsDirect(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	topic := uniqueName(t)
	tg.createTopic(t, topic, 3, -1, nil)
	seen := map[string]string{}
	for _, p := range tg.paths() {
		var out string
		must(t, harness.Until("the new topic on the broker that is asked", 30*time.Second, func() (err error) {
			if out, err = suite.Output(30*time.Second, nil, "kcat", "-b", p.bootstrap, "-L", "-J"); err == nil && !strings.Contains(out, topic) {
				err = fmt.Errorf("%s tells nothing of %s", p.name, topic)
			}
			return err
		}))
		var md map[string]any
		must(t, json.Unmarshal([]byte(out), &md))
		delete(md, "query")
		delete(md, "originating_broker") // the one that answered: any
		delete(md, "controllerid")       // KRaft brokers name a random one
		b, err := json.MarshalIndent(md, "", " ")
		must(t, err)
		seen[p.name] = normalise(string(b))
	}
	compare(t, "kcat -L", seen)
}

func TestKafkajsProducesAndConsumesSameAsDirect(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	seen := map[string]string{}
	for _, p := range tg.paths() {
		topic := uniqueName(t) + p.name
		tg.createTopic(t, topic, 2, -1, nil)
		out, err := suite.Output(90*time.Second, []string{"KAFKAJS_NO_PARTITIONER_WARNING=1"},
			"node", filepath.Join("node", "roundtrip.js"), p.bootstrap, topic, topic+"-g", "200")
		must(t, err)
		seen[p.name] = out
	}
	compare(t, "kafkajs", seen)
	if !strings.Contains(seen["kshare"], `"n":200`) {
		t.Errorf("kafkajs: %s", seen["kshare"])
	}
}

const (
	topicsTool = "org.apache.kafka.tools.TopicCommand"
	groupsTool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
)

func configsTool(version string) string {
	if strings.HasPrefix(version, "3.") {
		return "kafka.admin.ConfigCommand"
	}
	return "org.apache.kafka.tools.ConfigCommand"
}

// The command-line tools of upstream's own release, and, in full runs, the newest.
func TestKafkaToolsSameAsDirect(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	topic := uniqueName(t)
	tg.createTopic(t, topic, 3, -1, nil)
	group := topic + "-g"
	consumeAndCommit(t, tg, topic, group)
	versions := []string{tg.kafka.Version}
	if newest := suite.Version("KAFKA_NEW"); full() && newest != tg.kafka.Version {
		versions = append(versions, newest)
	}
	for _, version := range versions {
		for _, command := range [][]string{
			{topicsTool, "--list"},
			{topicsTool, "--describe", "--topic", topic},
			{groupsTool, "--list"},
			{groupsTool, "--describe", "--group", group, "--offsets"},
			{groupsTool, "--describe", "--group", group, "--state"},
			{configsTool(version), "--describe", "--entity-type", "topics", "--entity-name", topic, "--all"},
			{configsTool(version), "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "retention.ms=3600000"},
		} {
			t.Run(version+"/"+strings.Join(command[:2], ""), func(t *testing.T) { tg.compareTool(t, version, command) })
		}
	}
}

// compareTool runs one tool directly and through kshare.
func (tg *target) compareTool(t *testing.T, version string, command []string) {
	t.Helper()
	seen := tg.runTool(t, version, command)
	for name, out := range seen {
		seen[name] = sortLines(normalise(out))
	}
	seen["direct"] = strings.TrimRight(checkpointGroup.ReplaceAllString(seen["direct"], ""), "\n")
	compare(t, strings.Join(command, " "), seen)
	if strings.TrimSpace(seen["direct"]) == "" {
		t.Error("the tool printed nothing")
	}
}

// runTool runs one tool each way and returns what it printed.
func (tg *target) runTool(t *testing.T, version string, command []string) map[string]string {
	t.Helper()
	classes, err := suite.KafkaClasses(version)
	must(t, err)
	seen := map[string]string{}
	for _, p := range tg.paths() {
		seen[p.name], err = suite.JavaMain(classes, time.Minute, command[0], append([]string{"--bootstrap-server", p.bootstrap}, command[1:]...)...)
		must(t, err)
	}
	return seen
}

func consumeAndCommit(t *testing.T, tg *target, topic, group string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var records []*kgo.Record
	for i := range 30 {
		records = append(records, &kgo.Record{Topic: topic, Partition: int32(i % 3), Value: []byte("v")})
	}
	must(t, tg.client.ProduceSync(ctx, records...).FirstErr())
	offsets := kadm.Offsets{}
	for p := range int32(3) {
		offsets.Add(kadm.Offset{Topic: topic, Partition: p, At: int64(p), LeaderEpoch: -1})
	}
	must(t, tg.admin.CommitAllOffsets(ctx, group, offsets))
}

var addressPattern = regexp.MustCompile(`127\.0\.\d+\.\d+:\d+`)

// normalise makes what may differ equal: the addresses, and the widths of columns
// that hold them.
func normalise(s string) string {
	s = addressPattern.ReplaceAllString(s, "ADDRESS")
	return regexp.MustCompile(`[ \t]+`).ReplaceAllString(s, " ")
}

// checkpointGroup is a line that lists one of the groups in which kshare keeps its
// checkpoints upstream, and which it hides.
var checkpointGroup = regexp.MustCompile(`(?m)^kshare\..*\n?`)

// sortLines undoes the order of a listing, which comes out of hash maps.
func sortLines(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

func compare(t *testing.T, what string, seen map[string]string) {
	t.Helper()
	if seen["direct"] != seen["kshare"] {
		t.Errorf("%s differs\ndirect:\n%s\nkshare:\n%s", what, seen["direct"], seen["kshare"])
	}
}

// The search for upstream addresses must be able to find them: without kshare in
// between, it does. (With kshare every test looks for them, see use.)
func TestAddressSearchFindsUpstreamWithoutKshare(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	var port int
	_, err := fmt.Sscanf(strings.Split(tg.kafka.Bootstrap, ",")[0], harness.UpstreamHost+":%d", &port)
	must(t, err)
	b, err := harness.NewBalancer("127.0.0.1", []int{port}, []string{harness.UpstreamHost}, harness.UpstreamHost)
	must(t, err)
	defer b.Close()
	_, err = suite.Output(30*time.Second, nil, "kcat", "-b", fmt.Sprintf("127.0.0.1:%d", port), "-L")
	must(t, err)
	if found, _ := b.Leaks(); len(found) == 0 {
		t.Error("the upstream address went by unseen")
	}
}
