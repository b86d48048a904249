//go:build e2e

package conformance

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Dead letters (KIP-1191). Which there are and what they hold is compared with testdata/dead_letters, where those of Kafka
// 4.4.0 for the same history are kept (-record, on native, writes them anew).

const (
	deadLetterTopic = "errors.deadletterqueue.topic.name"
	deadLetterCopy  = "errors.deadletterqueue.copy.record.enable"
)

// deadTopic makes a topic that takes dead letters.
func (w *world) deadTopic(partitions int, configs ...string) topic {
	w.Helper()
	all := map[string]string{}
	if allowed().deadLetterGuard {
		all["errors.deadletterqueue.group.enable"] = "true"
	}
	for i := 0; i < len(configs); i += 2 {
		all[configs[i]] = configs[i+1]
	}
	return w.createTopic("dlq."+w.main.name, partitions, all)
}

// letters are the records of a dead letter topic, one per line: its partition, headers, key and value. They are in the
// order of the records that they are for; lines of one record are as many as its letters. Names that differ from run to
// run are replaced.
func (w *world) letters(dead topic, partitions int) []string {
	w.Helper()
	type line struct {
		partition, offset int
		text              string
	}
	var lines []line
	for p := range int32(partitions) {
		for _, r := range w.records(dead.at(p)) {
			l := line{text: fmt.Sprintf("%d", p)}
			for _, h := range r.Headers {
				value := string(h.Value)
				switch h.Key {
				case "__dlq.errors.partition":
					l.partition, _ = strconv.Atoi(value)
				case "__dlq.errors.offset":
					l.offset, _ = strconv.Atoi(value)
				}
				l.text += fmt.Sprintf(" %s=%s", strings.TrimPrefix(h.Key, "__dlq.errors"), value)
			}
			l.text += " key " + show(r.Key) + " value " + show(r.Value)
			l.text = strings.NewReplacer(w.group, "GROUP", w.main.name, "TOPIC").Replace(l.text)
			lines = append(lines, l)
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
	})
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.text
	}
	return texts
}

// show is what there is of a key or a value; a long one is told by its length and checksum.
func show(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > 40:
		return fmt.Sprintf("of %d bytes, %08x", len(b), crc32.ChecksumIEEE(b))
	}
	return strconv.Quote(string(b))
}

// records are all records of a partition. Their batches must be uncompressed and of now.
func (w *world) records(p tp) (all []kmsg.Record) {
	w.Helper()
	for next := int64(0); next < w.endOffset(p); {
		raw := w.fetchLog(p, next)
		for _, s := range w.batches(raw) {
			size := 12 + int(binary.BigEndian.Uint32(raw[8:]))
			var rb kmsg.RecordBatch
			if err := rb.ReadFrom(raw[:size]); err != nil || rb.Attributes&0xf != 0 {
				w.Fatalf("batch: %v, attributes %x", err, rb.Attributes)
			}
			if age := time.Since(time.UnixMilli(rb.FirstTimestamp)); age < -time.Second || age > 10*time.Minute {
				w.Fatalf("a dead letter's time is %v ago", age)
			}
			for b := rb.Records; len(b) > 0; {
				length, n := binary.Varint(b)
				var r kmsg.Record
				if err := r.ReadFrom(b[:n+int(length)]); err != nil {
					w.Fatal(err)
				}
				all = append(all, r)
				b = b[n+int(length):]
			}
			raw, next = raw[size:], s.last+1
		}
	}
	return all
}

// dies waits until there are so many dead letters and nothing of the partitions is left to be done, and compares the
// letters with those that Kafka has written.
func (w *world) dies(dead topic, deadPartitions, n int, golden string, parts ...tp) {
	w.Helper()
	w.until("dead letters", 60*time.Second, func() error {
		if got := w.letters(dead, deadPartitions); len(got) < n {
			return fmt.Errorf("%d of %d:\n%s", len(got), n, strings.Join(got, "\n"))
		}
		return nil
	})
	for _, p := range parts {
		w.lagBecomes(p, 0)
		if start, _ := w.described(p); !allowed().startLags && start != w.endOffset(p) {
			w.Fatalf("start offset %d, though nothing is left to be done below %d", start, w.endOffset(p))
		}
	}
	got := []byte(strings.Join(w.letters(dead, deadPartitions), "\n") + "\n")
	file := filepath.Join("testdata", "dead_letters", golden+".txt")
	if *record {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			w.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		w.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		compareLines(w.T, got, want)
	}
}

func TestCheck139_DeadLetters(t *testing.T) {
	states.record(t)
	t.Run("headers", func(t *testing.T) { deadLetterHistory(t, false) })
	t.Run("copies", func(t *testing.T) { deadLetterHistory(t, true) })
	t.Run("kinds of copies", kindsOfCopies)
	t.Run("aborted and deleted", neitherAbortedNorDeleted)
	t.Run("turned on midway", deadLettersTurnedOn)
	t.Run("settings", deadLetterSettings)
	t.Run("missing topic", missingDeadLetterTopic)
	t.Run("refused topic", refusedDeadLetterTopic)
	t.Run("another prefix", deadLettersWithoutPrefix)
}

// deadLetterHistory finishes records in each way that there is, with a delivery limit of two.
func deadLetterHistory(t *testing.T, copies bool) {
	w := enter(t, setup{partitions: 3, configs: map[string]string{"share.delivery.count.limit": "2",
		"share.record.lock.duration.ms": fmt.Sprint(shortLock), deadLetterCopy: fmt.Sprint(copies)}})
	dead := w.deadTopic(2)
	w.set(w.group, deadLetterTopic, dead.name)
	w.keepLoaded()
	for p := range int32(3) {
		for i := range 2 {
			var records []kmsg.Record
			for n := range 5 {
				records = append(records, kmsg.Record{Key: fmt.Appendf(nil, "k%d-%d", p, 5*i+n), Value: fmt.Appendf(nil, "value of %d-%d", p, 5*i+n)})
			}
			w.put(w.p(p), batch{records: records})
		}
	}
	// By acknowledgement.
	m := w.member()
	m.takes("0-9x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 0), reject(1, 2), ack{3, 5, []int8{typeGap, typeReject, typeRelease}}, release(6, 9))
	m.gathers("5-9x2", w.p(0))
	req := m.fetching()
	req.MaxRecords = 0
	carry(req, w.p(0), reject(5, 5), release(6, 6), accept(7, 7))
	w.code("acknowledge by ShareFetch", m.do(req).ackFailure(w.p(0)), nil)
	// 8 and 9 are left to their lock.

	// By the session's close.
	closing := w.member()
	closing.takes("0-9x1", w.p(1))
	closing.ack(nil, w.p(1), accept(0, 4), release(5, 9))
	closing.gathers("5-9x2", w.p(1))
	last := closing.acknowledging()
	last.ShareSessionEpoch = -1
	carry(last, w.p(1), reject(6, 7))
	closing.doAck(last)

	// By the connection's end.
	cut := w.member()
	cut.takes("0-9x1", w.p(2))
	cut.ack(nil, w.p(2), accept(0, 6), release(7, 9))
	cut.gathers("7-9x2", w.p(2))
	cut.c.Close()

	golden := map[bool]string{false: "headers", true: "copies"}[copies]
	w.dies(dead, 2, 7+5+3, golden, w.p(0), w.p(1), w.p(2))
}

func kindsOfCopies(t *testing.T) {
	const most = 40_000 // bytes of a batch, of the dead letter topic
	w := enter(t, setup{configs: map[string]string{deadLetterCopy: "true"}})
	dead := w.deadTopic(1, "max.message.bytes", fmt.Sprint(most))
	w.set(w.group, deadLetterTopic, dead.name)
	long := func(n int, of byte) []byte { return bytes.Repeat([]byte{of}, n) }
	own := []kmsg.Header{{Key: "own", Value: []byte("header")}}
	records := []kmsg.Record{
		{},
		{Key: []byte{}, Value: []byte{}},
		{Key: []byte("key alone")},
		{Value: []byte("value alone")},
		{Key: []byte("k"), Value: []byte("with a header"), Headers: own},
		{Key: []byte("k"), Value: long(10_000, 'a')},
	}
	w.put(w.p(0), batch{records: records})
	w.put(w.p(0), batch{records: records, gzip: true})
	var large []kmsg.Record
	for i := range 6 { // no two of them fit one batch of the dead letter topic
		large = append(large, kmsg.Record{Key: fmt.Appendf(nil, "large %d", i), Value: long(30_000, byte('b'+i))})
	}
	w.put(w.p(0), batch{records: large})
	w.put(w.p(0), batch{records: []kmsg.Record{{Key: []byte("too large"), Value: long(50_000, 'x')}, {Key: []byte("after it"), Value: []byte("v")}}})
	m := w.member()
	m.takes("0-19x1", w.p(0))
	m.ack(nil, w.p(0), reject(0, 19))
	w.dies(dead, 1, 19, "kinds", w.p(0))
}

// deadLetterSettings are set as an operator does it, with kafka-configs.sh.
func deadLetterSettings(t *testing.T) {
	w := enter(t, setup{})
	dead := w.deadTopic(1)
	classes, err := suite.KafkaClasses(suite.Version("KAFKA_NEW"))
	if err != nil {
		t.Fatal(err)
	}
	tool := func(args ...string) string {
		out, err := suite.JavaMain(classes, time.Minute, "org.apache.kafka.tools.ConfigCommand", append([]string{"--bootstrap-server", w.tg.bootstrap,
			"--entity-type", "groups", "--entity-name", w.group}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	tool("--alter", "--add-config", deadLetterTopic+"="+dead.name+","+deadLetterCopy+"=true")
	if out := tool("--describe"); !strings.Contains(out, deadLetterTopic+"="+dead.name+" ") || !strings.Contains(out, deadLetterCopy+"=true ") {
		t.Fatalf("described: %s", out)
	}
	w.put(w.p(0), batch{records: []kmsg.Record{{Key: []byte("k"), Value: []byte("v")}}})
	m := w.member()
	m.takes("0-0x1", w.p(0))
	m.ack(nil, w.p(0), reject(0, 0))
	w.dies(dead, 1, 1, "settings", w.p(0))
	w.code("internal topic", w.trySet(w.group, deadLetterTopic, "__dlq"), kerr.InvalidConfig)
	w.code("no topic", w.trySet(w.group, deadLetterTopic, " "), nil)
	var prefix *kerr.Error
	if allowed().deadLetterPrefixAtOnce {
		prefix = kerr.InvalidConfig
	}
	w.code("without the prefix", w.trySet(w.group, deadLetterTopic, "other"), prefix)
}

func missingDeadLetterTopic(t *testing.T) {
	w := enter(t, setup{})
	name := "dlq.missing-" + w.main.name
	w.set(w.group, deadLetterTopic, name)
	w.produce(w.p(0), 3)
	m := w.member()
	m.takes("0-2x1", w.p(0))
	m.ack(nil, w.p(0), reject(0, 2))
	w.lagBecomes(w.p(0), 0)
	w.produce(w.p(0), 1)
	m.takes("3-3x1", w.p(0))
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = &name
	req.Topics = append(req.Topics, rt)
	w.code("metadata of "+name, ask[*kmsg.MetadataResponse](w, w.admin, req).Topics[0].ErrorCode, kerr.UnknownTopicOrPartition)
}

// rejectsInVain rejects records of a group whose dead letters may not go to the topic.
func (w *world) rejectsInVain(dead topic) {
	w.Helper()
	w.set(w.group, deadLetterTopic, dead.name)
	w.produce(w.p(0), 3)
	m := w.member()
	m.takes("0-2x1", w.p(0))
	m.ack(nil, w.p(0), reject(0, 2))
	w.lagBecomes(w.p(0), 0)
	if n := w.endOffset(dead.at(0)); n != 0 {
		w.Errorf("%d dead letters", n)
	}
}

func refusedDeadLetterTopic(t *testing.T) {
	w := enter(t, setup{guarded: true})
	dead := w.createTopic("dlq."+w.main.name, 1, nil)
	if !allowed().deadLetterGuard {
		w.deny(kmsg.ACLResourceTypeTopic, dead.name, kmsg.ACLOperationWrite)
	}
	w.rejectsInVain(dead)
}

// A broker takes the name of a topic without the prefix, but writes nothing to it.
func deadLettersWithoutPrefix(t *testing.T) {
	if allowed().deadLetterPrefixAtOnce {
		t.Skip("such a name is refused")
	}
	w := enter(t, setup{})
	dead := w.createTopic("other."+w.main.name, 1, map[string]string{"errors.deadletterqueue.group.enable": "true"})
	w.rejectsInVain(dead)
}

// Records that are archived because their transaction is aborted or because they are deleted have no dead letter.
func neitherAbortedNorDeleted(t *testing.T) {
	w := enter(t, setup{configs: map[string]string{"share.isolation.level": "read_committed"}})
	dead := w.deadTopic(1)
	w.set(w.group, deadLetterTopic, dead.name)
	x := w.transaction()
	x.produce(w.p(0), 3) // 0-2
	x.end(w.p(0), false) // 3
	w.produce(w.p(0), 2) // 4-5
	w.produce(w.p(0), 5) // 6-10
	m := w.member()
	m.gathers("3-10x1", w.p(0))
	m.ack(nil, w.p(0), gap(3, 3), reject(4, 4), accept(5, 5), release(6, 10))
	w.deleteRecords(w.p(0), 11)
	w.produce(w.p(0), 1)
	m.takes("11-11x1", w.p(0))
	m.ack(nil, w.p(0), accept(11, 11))
	w.dies(dead, 1, 1, "neither", w.p(0))
}

func deadLettersTurnedOn(t *testing.T) {
	w := enter(t, setup{})
	dead := w.deadTopic(1)
	w.produce(w.p(0), 9)
	m := w.member()
	m.takes("0-8x1", w.p(0))
	m.ack(nil, w.p(0), reject(0, 2))
	w.set(w.group, deadLetterTopic, dead.name)
	m.ack(nil, w.p(0), reject(3, 5))
	w.lagBecomes(w.p(0), 3)
	w.set(w.group, deadLetterTopic, "")
	m.ack(nil, w.p(0), reject(6, 8))
	w.dies(dead, 1, 3, "turned_on_midway", w.p(0))
}
