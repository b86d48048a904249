//go:build e2e

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestCheck126_ToolsWorkUnmodified(t *testing.T) {
	states.record(t)
	t.Run("kafka-share-groups", shareGroupsTool)
	t.Run("kafka-groups", groupsTool)
	t.Run("kafka-configs", configsTool)
	t.Run("kafka-console-share-consumer", consoleTool)
	t.Run("kafka-verifiable-share-consumer", verifiableTool)
}

func shareGroupsTool(t *testing.T) {
	w := enter(t, setup{foreign: true, alone: true, partitions: 2, topic: map[string]string{"retention.ms": "-1"}})
	tr := w.transcript()
	day := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 10 {
		w.put(w.p(0), batch{n: 1, at: day.Add(time.Duration(i) * time.Hour)})
	}
	w.produceEach(w.p(1), 4, 1)
	second := w.createTopic(w.main.name+"-2", 1, nil)
	w.produceEach(second.at(0), 3, 1)
	tr.call(second.name, "SECOND")
	share := func(args ...string) { tr.run("kafka-share-groups", args...) }

	tr.say("before there is a group")
	share("--list")
	share("--describe", "--group", w.group)

	tr.say("one member, which has accepted 0-3 and 5 of partition 0")
	b := w.join(w.group, w.main, second)
	tr.call(b.id, "MEMBER")
	m := w.member()
	m.takes("0-9x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 3))
	m.ack(nil, w.p(0), accept(5, 5)) // with this a broker writes down where the first one has moved the start to
	w.lagBecomes(w.p(0), 5)
	// A broker counts the group's epoch on when it has initialized the partitions, which kshare does with the join.
	d := w.describeGroup(w.group)
	tr.columns = []string{fmt.Sprintf("conformance 3 %d ", b.epoch), "conformance 3 EPOCH ",
		fmt.Sprintf("Stable %d %d 1", d.GroupEpoch, d.AssignmentEpoch), "Stable EPOCH EPOCH 1"}
	share("--list")
	share("--list", "--state")
	share("--list", "--state", "Stable")
	share("--list", "--state", "Empty")
	share("--describe", "--group", w.group)
	share("--describe", "--group", w.group, "--offsets", "--verbose")
	share("--describe", "--group", w.group, "--members")
	share("--describe", "--group", w.group, "--members", "--verbose")
	share("--describe", "--group", w.group, "--state")
	share("--describe", "--group", w.group, "--state", "--verbose", "--timeout", "20000")
	share("--describe", "--all-groups")
	share("--describe", "--all-groups", "--members")
	share("--describe", "--all-groups", "--state")
	share("--delete", "--group", w.group)
	share("--delete-offsets", "--group", w.group, "--topic", w.main.name)
	share("--reset-offsets", "--group", w.group, "--to-earliest", "--all-topics", "--execute")

	tr.say("the member is gone")
	b.leaves()
	m.c.Close()
	share("--list", "--state")
	share("--describe", "--group", w.group, "--state")
	share("--describe", "--group", w.group, "--members")
	share("--describe", "--group", w.group)

	tr.say("offsets are reset")
	reset := func(args ...string) { share(append([]string{"--reset-offsets", "--group", w.group}, args...)...) }
	reset("--to-earliest", "--all-topics")
	reset("--to-earliest", "--execute")
	reset("--to-earliest", "--all-topics", "--dry-run")
	reset("--to-earliest", "--all-topics", "--execute")
	share("--describe", "--group", w.group)
	reset("--to-latest", "--topic", w.main.name+":0", "--execute")
	reset("--to-offset", "2", "--topic", w.main.name, "--execute")
	reset("--to-offset", "99", "--topic", w.main.name, "--dry-run")
	reset("--to-current", "--topic", w.main.name, "--dry-run")
	reset("--to-datetime", "2020-01-01T04:30:00.000", "--topic", w.main.name+":0", "--execute")
	reset("--to-latest", "--topic", w.main.name+":0,1", "--topic", second.name, "--dry-run")
	reset("--to-latest", "--topic", "no-"+w.main.name, "--execute")
	reset("--to-latest", "--topic", w.main.name+":7", "--execute")
	reset("--to-earliest", "--all-topics", "--export", "--dry-run")
	file := filepath.Join(suite.Dir, w.main.name+".csv")
	if err := os.WriteFile(file, fmt.Appendf(nil, "%s,0,7\n%s,1,1\n", w.main.name, w.main.name), 0o644); err != nil {
		t.Fatal(err)
	}
	tr.call(file, "FILE")
	reset("--from-file", file, "--execute")
	share("--describe", "--group", w.group, "--verbose")

	tr.say("a group that does not exist")
	share("--reset-offsets", "--group", w.group+"-new", "--to-latest", "--topic", w.main.name, "--execute")
	share("--describe", "--group", w.group+"-new", "--state", "--verbose")
	share("--describe", "--group", w.group+"-new")

	tr.say("offsets are deleted")
	share("--delete-offsets", "--group", w.group, "--topic", w.main.name, "--topic", "no-"+w.main.name)
	share("--delete-offsets", "--group", w.group, "--topic", w.main.name)
	share("--delete-offsets", "--group", "no-"+w.group, "--topic", w.main.name)
	share("--describe", "--group", w.group)

	tr.say("groups are deleted")
	share("--delete", "--group", w.group)
	share("--delete", "--group", w.group)
	share("--list")
	tr.start("kafka-share-groups", "--delete", "--all-groups") // what it says is of all tests' groups, some of which have members
	share("--list")
	tr.compare("kafka-share-groups")
}

func groupsTool(t *testing.T) {
	w := enter(t, setup{foreign: true})
	tr := w.transcript()
	w.twoGroups()
	groups := func(args ...string) { tr.run("kafka-groups", append([]string{"--list"}, args...)...) }
	groups()
	groups("--share")
	groups("--consumer")
	groups("--streams")
	groups("--group-type", "share")
	groups("--group-type", "classic")
	groups("--group-type", "nonsense")
	groups("--protocol", "share")
	groups("--protocol", "consumer")
	groups("--share", "--protocol", "consumer")
	tr.compare("kafka-groups")
}

func configsTool(t *testing.T) {
	w := enter(t, setup{foreign: true})
	tr := w.transcript()
	configs := func(args ...string) { tr.run("kafka-configs", append([]string{"--entity-type", "groups"}, args...)...) }
	named := func(args ...string) { configs(append([]string{"--entity-name", w.group + "-own"}, args...)...) }
	tr.say("nothing is set")
	named("--describe")
	named("--describe", "--all")
	tr.say("configs are set")
	named("--alter", "--add-config", "share.record.lock.duration.ms=20000,share.auto.offset.reset=[by_duration:PT1H],share.renew.acknowledge.enable=false")
	named("--describe")
	named("--describe", "--all")
	configs("--describe")
	named("--alter", "--add-config", "share.delivery.count.limit=3", "--delete-config", "share.renew.acknowledge.enable")
	named("--describe")
	tr.say("configs are refused")
	named("--alter", "--add-config", "share.nonsense=1")
	named("--alter", "--add-config", "share.record.lock.duration.ms=1")
	named("--alter", "--add-config", "share.session.timeout.ms=60001")
	named("--alter", "--add-config", "share.auto.offset.reset=sometimes")
	named("--alter", "--delete-config", "share.isolation.level")
	named("--describe")
	tr.say("configs are deleted")
	named("--alter", "--delete-config", "share.record.lock.duration.ms,share.auto.offset.reset,share.delivery.count.limit")
	named("--describe")
	configs("--describe")
	tr.compare("kafka-configs")
}

func consoleTool(t *testing.T) {
	w := enter(t, setup{foreign: true})
	tr := w.transcript()
	for i := range 6 {
		w.put(w.p(0), batch{records: []kmsg.Record{{Key: fmt.Appendf(nil, "key %d", i), Value: fmt.Appendf(nil, "value %d", i),
			Headers: []kmsg.Header{{Key: "h", Value: []byte("v")}}}}})
	}
	consume := func(args ...string) {
		tr.run("kafka-console-share-consumer", append([]string{"--topic", w.main.name, "--group", w.group,
			"--formatter-property", "print.offset=true", "--formatter-property", "print.delivery=true"}, args...)...)
	}
	tr.say("released, accepted in part, rejected")
	consume("--max-messages", "6", "--release")
	consume("--max-messages", "2", "--command-property", "max.poll.records=1", "--command-property", "share.acquire.mode=record_limit")
	consume("--max-messages", "1", "--reject", "--command-property", "max.poll.records=1", "--command-property", "share.acquire.mode=record_limit",
		"--formatter-property", "print.key=true", "--formatter-property", "print.partition=true", "--formatter-property", "print.headers=true",
		"--formatter-property", "print.epoch=true", "--formatter-property", "key.separator= | ")
	consume("--max-messages", "3", "--key-deserializer", "org.apache.kafka.common.serialization.StringDeserializer",
		"--value-deserializer", "org.apache.kafka.common.serialization.StringDeserializer", "--formatter-property", "print.key=true")
	tr.say("nothing is left")
	consume("--timeout-ms", "8000")
	consume("--max-messages", "1", "--reject", "--release")
	w.lagBecomes(w.p(0), 0)
	tr.compare("kafka-console-share-consumer")
}

func verifiableTool(t *testing.T) {
	w := enter(t, setup{foreign: true})
	tr := w.transcript()
	w.produceEach(w.p(0), 12, 1)
	consume := func(group string, args ...string) {
		tr.run("kafka-verifiable-share-consumer", append([]string{"--topic", w.main.name, "--group-id", group}, args...)...)
	}
	for _, mode := range []string{"auto", "sync", "async"} {
		tr.say("acknowledgement mode %s", mode)
		consume(w.group+"-"+mode, "--max-messages", "12", "--offset-reset-strategy", "earliest", "--acknowledgement-mode", mode)
		of := *w
		of.group += "-" + mode
		of.lagBecomes(w.p(0), 0)
	}
	tr.say("a pattern of acknowledgements")
	consume(w.group+"-pattern", "--max-messages", "18", "--offset-reset-strategy", "earliest", "--acknowledgement-mode", "sync",
		"--ack-pattern", "accept,release,reject,accept")
	tr.say("every record")
	consume(w.group+"-verbose", "--max-messages", "2", "--offset-reset-strategy", "earliest", "--verbose")
	tr.compare("kafka-verifiable-share-consumer")
}
