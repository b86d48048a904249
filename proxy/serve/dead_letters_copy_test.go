package serve

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"kshare/proxy/upstream"
)

// copying makes a topic t2 with the batches, has all its records rejected by a group that wants copies, and gives the dead
// letters.
func copying(w *world, batches ...[]*kgo.Record) []*kgo.Record {
	w.Helper()
	w.topic("t2", 1)
	client, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.DisableClientMetrics(), kgo.ManualFlushing(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ProducerBatchMaxBytes(90<<20))
	w.must(err)
	defer client.Close()
	w.alter("g", deadTopic, "dlq.t", "errors.deadletterqueue.copy.record.enable", "true", "share.auto.offset.reset", "earliest")
	n := int64(0)
	for _, records := range batches {
		for _, r := range records {
			r.Topic = "t2"
		}
		w.write(client, records...)
		n += int64(len(records))
	}
	found, err := w.reps[0].up.TopicsByName(w.ctx, []string{"t2"}, true)
	w.must(err)
	topic := found["t2"]
	a := w.reps[1].member("g", "a").join("t2")
	a.open(topic, maxRecords(0))
	a.takes(topic, 0, n-1)
	a.ackCode(topic, 0, reject(0, n-1))
	w.passed(w.reps[0], topic, n)
	if lost := count(w.reps[0].dead.lost) + count(w.reps[1].dead.lost); lost != 0 || w.dead() != n {
		w.Fatalf("%v lost, %d dead letters", lost, w.dead())
	}
	return w.deadLetters(int(n))
}

func checkCopy(t *testing.T, i int, letter, of *kgo.Record) {
	t.Helper()
	if !tells(letter, "t2", 0, i, 1, rejectedText) || string(letter.Key) != string(of.Key) || string(letter.Value) != string(of.Value) ||
		(letter.Key == nil) != (of.Key == nil) || (letter.Value == nil) != (of.Value == nil) {
		t.Errorf("dead letter %d: key %q, value of %d bytes, %v", i, letter.Key, len(letter.Value), letter.Headers)
	}
}

func TestDeadLettersCopyTheRecordIfTold(t *testing.T) {
	w := newWorld(t, 2)
	w.topic("dlq.t", 1)
	var records []*kgo.Record
	for i := range 4 {
		records = append(records, &kgo.Record{Key: fmt.Appendf(nil, "key %d", i),
			Value: []byte(strings.Repeat("x", 100<<10) + strconv.Itoa(i)), Headers: []kgo.RecordHeader{{Key: "own"}}})
	}
	records[1].Key, records[1].Value = nil, nil
	for i, letter := range copying(w, records) {
		checkCopy(t, i, letter, records[i])
	}
}

func TestDeadLetterGoesWithoutACopyThatItsTopicDoesNotTake(t *testing.T) {
	w := newWorld(t, 2)
	w.topic("dlq.t", 1, "max.message.bytes", "20000")
	records := []*kgo.Record{
		{Key: []byte("small"), Value: []byte("v")},
		{Key: []byte("large"), Value: make([]byte, 30_000)},
		{Value: make([]byte, 30_000)},
		{Key: []byte("as large as may be"), Value: make([]byte, 19_000)},
	}
	letters := copying(w, records)
	records[1].Key, records[1].Value, records[2].Value = nil, nil, nil
	for i, letter := range letters {
		checkCopy(t, i, letter, records[i])
	}
}

// A small batch may unpack to more than a replica has memory for.
func TestBatchThatUnpacksTooLargeIsNotCopied(t *testing.T) {
	w := newWorld(t, 2)
	w.topic("dlq.t", 1)
	var vast []*kgo.Record
	for range upstream.MostUnpacked>>17 + 1 {
		vast = append(vast, &kgo.Record{Key: []byte("k"), Value: make([]byte, 128<<10)})
	}
	around := []*kgo.Record{{Key: []byte("before")}, {Key: []byte("after")}}
	letters := copying(w, around[:1], vast, around[1:])
	for _, r := range vast {
		r.Key, r.Value = nil, nil
	}
	for i, of := range slices.Concat(around[:1], vast, around[1:]) {
		checkCopy(t, i, letters[i], of)
	}
}
