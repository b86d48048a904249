//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
)

// What applications see of a share group through Kafka's own consumer, the Java KafkaShareConsumer of KAFKA_NEW.

// A poll of that consumer may leave a fetch under way, so it may have acquired more than its polls have given so far. No
// check may depend on its having nothing in hand, but for what another member is known to hold.

// javaConsumer is one in a process of its own, subscribed to the test's topic.
type javaConsumer struct {
	w *world
	*client.Driver
	early []client.Record    // polled while something else was waited for
	told  map[int64][]string // what the acknowledgement callback was told of each offset, in turn
}

// java starts a consumer, with its configs as key, value, ... In explicit mode it acknowledges record by record.
func (w *world) java(explicit bool, configs ...string) *javaConsumer {
	w.Helper()
	kind := client.Java{Suite: suite, Version: suite.Version("KAFKA_NEW"), Config: map[string]string{}, Callback: true}
	for i := 0; i < len(configs); i += 2 {
		kind.Config[configs[i]] = configs[i+1]
	}
	d, err := kind.StartDriver(client.Config{Name: w.main.name + "-" + w.unique(), Bootstrap: w.tg.bootstrap, Group: w.group,
		Topic: w.main.name, Explicit: explicit})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(d.Kill)
	return &javaConsumer{w: w, Driver: d, told: map[int64][]string{}}
}

// poll is one poll, which must not throw.
func (j *javaConsumer) poll(timeout time.Duration) []client.Record {
	j.w.Helper()
	records, err := j.Poll(timeout)
	if err != nil {
		j.w.Fatal(err)
	}
	j.listen()
	return records
}

// listen notes what the callback has been told.
func (j *javaConsumer) listen() {
	for _, a := range j.Told() {
		exception, _, _ := strings.Cut(a.Error, ":")
		j.told[a.Offset] = append(j.told[a.Offset], exception)
	}
}

// some polls until records come.
func (j *javaConsumer) some() (records []client.Record) {
	j.w.Helper()
	records, j.early = j.early, nil
	j.w.until("records", 40*time.Second, func() error {
		if len(records) == 0 {
			records = j.poll(5 * time.Second)
		}
		if len(records) == 0 {
			return errors.New("none")
		}
		return nil
	})
	return records
}

// gets polls until records come, which must be the wanted ones: "0-4x1 5-5x2".
func (j *javaConsumer) gets(want string) []client.Record {
	j.w.Helper()
	records := j.some()
	j.w.is("polled", ranges(records), want)
	return records
}

func ranges(records []client.Record) string {
	var each []string
	for _, r := range records {
		each = append(each, fmt.Sprintf("%d-%dx%d", r.Offset, r.Offset, r.Count))
	}
	return joinRanges(each)
}

// acknowledge acknowledges records without sending anything yet.
func (j *javaConsumer) acknowledge(how client.AckType, records ...client.Record) {
	j.w.Helper()
	for _, r := range records {
		if err := j.Ack(r, how); err != nil {
			j.w.Fatal(err)
		}
	}
}

// commits is a commitSync: its map must hold the partition, with the wanted exception ("" for none), and the callback must
// be told the same of the offsets.
func (j *javaConsumer) commits(exception string, offsets ...int64) {
	j.w.Helper()
	partitions, failed, err := j.CommitSync()
	if err != nil {
		j.w.Fatal(err)
	}
	j.listen()
	if !slices.Equal(partitions, []int32{0}) {
		j.w.Fatalf("commitSync has results for the partitions %v", partitions)
	}
	name, _, _ := strings.Cut(failed[0], ":")
	j.w.is("exception in the map", name, exception)
	j.hears(exception, offsets...)
}

// hears polls until the callback, which runs inside polls, has been told of the offsets, of each with that exception the
// last time. What it was told of them is forgotten then.
func (j *javaConsumer) hears(exception string, offsets ...int64) {
	j.w.Helper()
	j.w.until("callback", 20*time.Second, func() error {
		for _, o := range offsets {
			if told := j.told[o]; len(told) == 0 || told[len(told)-1] != exception {
				j.early = append(j.early, j.poll(200*time.Millisecond)...)
				return fmt.Errorf("told of %d: %q", o, told)
			}
		}
		return nil
	})
	for _, o := range offsets {
		delete(j.told, o)
	}
}

// closes is the orderly end.
func (j *javaConsumer) closes() {
	j.w.Helper()
	if err := j.Close(); err != nil {
		j.w.Fatal(err)
	}
}

func TestCheck132_JavaModesAcknowledgeAsToldOrByTheNextPoll(t *testing.T) {
	w := start(t, setup{})
	w.produce(w.p(0), 6)
	w.within("explicit", func(w *world) {
		j := w.java(true)
		records := j.gets("0-5x1")
		j.acknowledge(client.Accept, records[:2]...)
		j.acknowledge(client.Release, records[2:4]...)
		j.acknowledge(client.Reject, records[4:]...)
		j.commits("", 0, 1, 2, 3, 4, 5)
		w.lagBecomes(w.p(0), 2)
		j.acknowledge(client.Accept, j.gets("2-3x2")...)
		j.commits("", 2, 3)
		w.lagBecomes(w.p(0), 0)
		w.produce(w.p(0), 1)
		j.acknowledge(client.Accept, j.gets("6-6x1")...) // and nothing of what was rejected
		j.commits("", 6)
		j.closes()
	})
	w.within("implicit", func(w *world) {
		w.produce(w.p(0), 3)
		j := w.java(false)
		j.gets("7-9x1")
		w.lagBecomes(w.p(0), 3)
		j.hears("", 7, 8, 9) // polls, which is all that it takes
		w.lagBecomes(w.p(0), 0)
		j.closes()
	})
	w.member().getsNone(w.p(0))
}

func TestCheck133_JavaCloseFreesWhatWasNotCommitted(t *testing.T) {
	w := start(t, setup{})
	w.keepLoaded()
	w.produce(w.p(0), 3)
	leaving := w.java(false)
	leaving.gets("0-2x1")
	w.produce(w.p(0), 3)
	leaving.gets("3-5x1") // which accepts the first three
	other := w.java(true)
	type delivery struct {
		records []client.Record
		at      time.Time
		err     error
	}
	came := make(chan delivery, 1)
	go func() {
		var d delivery
		for began := time.Now(); len(d.records) == 0 && d.err == nil && time.Since(began) < 40*time.Second; {
			d.records, d.err = other.Poll(500 * time.Millisecond)
		}
		d.at = time.Now()
		came <- d
	}()
	w.assigned(3) // with the one that made the group
	leaving.closes()
	closed := time.Now()
	d := <-came
	if d.err != nil {
		t.Fatal(d.err)
	}
	w.is("polled", ranges(d.records), "3-5x2")
	if took := d.at.Sub(closed); took > time.Second {
		t.Errorf("free %v after the close", took)
	}
	other.acknowledge(client.Accept, d.records...)
	other.commits("", 3, 4, 5)
	w.lagBecomes(w.p(0), 0)
	other.closes()
}

// assigned waits until so many members of the group have partitions.
func (w *world) assigned(n int) {
	w.Helper()
	w.until("assigned members", 40*time.Second, func() error {
		req := kmsg.NewPtrShareGroupDescribeRequest()
		req.Version, req.GroupIDs = 1, []string{w.group}
		g := ask[*kmsg.ShareGroupDescribeResponse](w, w.admin, req).Groups[0]
		got := 0
		for _, m := range g.Members {
			if len(m.Assignment.TopicPartitions) > 0 {
				got++
			}
		}
		if got != n {
			return fmt.Errorf("%d of %d, want %d", got, len(g.Members), n)
		}
		return nil
	})
}

// throws tells whether a poll ended with the exception for offset 2 rather than with records.
func (j *javaConsumer) throws(records *[]client.Record) bool {
	j.w.Helper()
	got, err := j.Poll(time.Second)
	*records = append(*records, got...)
	if err != nil && (!strings.Contains(err.Error(), "RecordDeserializationException") || !strings.Contains(err.Error(), "at offset 2.")) {
		j.w.Fatal(err)
	}
	return err != nil
}

func TestCheck134_JavaRecordThatCannotBeReadComesAgain(t *testing.T) {
	const integers = "org.apache.kafka.common.serialization.IntegerDeserializer" // refuses all but four bytes
	w := start(t, setup{})
	w.keepLoaded()
	w.put(w.p(0), batch{n: 2, size: 4})
	w.put(w.p(0), batch{n: 1, size: 3})
	w.put(w.p(0), batch{n: 2, size: 4})

	j := w.java(true, "value.deserializer", integers)
	j.acknowledge(client.Accept, j.gets("0-1x1")...)
	j.commits("", 0, 1)
	var records []client.Record
	w.until("exception", 10*time.Second, func() error {
		if !j.throws(&records) {
			return fmt.Errorf("none, but %v", records)
		}
		return nil
	})
	j.closes() // before it has got the rest

	m := w.member()
	m.gathers("2-4x2", w.p(0))
	m.close()

	// Three times more, up to the delivery limit of five; and the records beyond it come.
	j = w.java(false, "value.deserializer", integers)
	thrown := 0
	records = nil
	w.until("lag 0", 60*time.Second, func() error {
		if j.throws(&records) {
			thrown++
		}
		if _, lag := w.described(w.p(0)); lag != 0 {
			return fmt.Errorf("%d, %d exceptions, %v", lag, thrown, records)
		}
		return nil
	})
	if got := ranges(records); thrown != 3 || got != "3-4x3" {
		t.Errorf("%d exceptions, polled %s", thrown, got)
	}
	j.closes()
}

func TestCheck135_JavaRecordLimitGivesOneRecordPerPoll(t *testing.T) {
	w := start(t, setup{})
	w.keepLoaded()
	w.produce(w.p(0), 8) // in one batch
	j := w.java(false, "share.acquire.mode", "record_limit", "max.poll.records", "1")
	for offset := range 4 {
		j.gets(fmt.Sprintf("%d-%dx1", offset, offset))
	}
	j.closes() // which frees the last one, and one more if its fetch was under way, but nothing else has been acquired
	m := w.member()
	var got []string
	w.until("the rest", 30*time.Second, func() error {
		got = append(got, strings.Fields(m.fetch(w.p(0)).acquired(w.p(0)))...)
		if r := joinRanges(got); r != "3-3x2 4-7x1" && r != "3-4x2 5-7x1" {
			return errors.New(r)
		}
		return nil
	})
	m.close()
	j = w.java(false, "share.acquire.mode", "record_limit", "max.poll.records", "1")
	for offset := int64(3); offset < 8; offset++ {
		if records := j.some(); len(records) != 1 || records[0].Offset != offset {
			t.Fatalf("polled %v, want offset %d alone", records, offset)
		}
	}
	j.hears("", 3, 4, 5, 6, 7)
	w.lagBecomes(w.p(0), 0)
	j.closes()
}

func TestCheck136_JavaCallbackHearsOfAnExpiredLock(t *testing.T) {
	const refused = "InvalidRecordStateException"
	w := start(t, setup{configs: map[string]string{"share.record.lock.duration.ms": fmt.Sprint(shortLock)}})
	w.keepLoaded()
	w.within("explicit", func(w *world) {
		w.produce(w.p(0), 4)
		j := w.java(true)
		records := j.gets("0-3x1")
		m := w.member()
		m.take(w.p(0)) // once the lock has expired
		m.close()
		j.acknowledge(client.Accept, records...)
		j.commits(refused, 0, 1, 2, 3)
		again := j.some()
		if r := ranges(again); r == "0-3x1" || !strings.HasPrefix(r, "0-3x") {
			w.Fatalf("polled %s after the lock of 0-3x1 had expired", r)
		}
		j.acknowledge(client.Accept, again...)
		j.commits("", 0, 1, 2, 3)
		j.closes()
	})
	w.within("implicit", func(w *world) {
		w.produce(w.p(0), 4)
		j := w.java(false)
		j.gets("4-7x1")
		m := w.member()
		m.take(w.p(0))
		j.hears(refused, 4, 5, 6, 7)
		m.close()
		j.hears("", 4, 5, 6, 7) // having got them again
		if r := ranges(j.early); r == "4-7x1" || !strings.HasPrefix(r, "4-7x") {
			w.Fatalf("polled %s after the lock of 4-7x1 had expired", r)
		}
		j.closes()
	})
	w.lagBecomes(w.p(0), 0)
}
