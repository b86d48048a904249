//go:build e2e

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kshare/e2e/client"
)

// What applications see of a share group through Kafka's own consumer, the Java KafkaShareConsumer of KAFKA_NEW.

// javaConsumer is one in a process of its own, subscribed to the test's topic.
type javaConsumer struct {
	w *world
	*client.Driver
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
	return &javaConsumer{w, d}
}

// gets polls until records come, which must be the wanted ones: "0-4x1 5-5x2".
func (j *javaConsumer) gets(want string) []client.Record {
	j.w.Helper()
	var records []client.Record
	j.w.until(want, 40*time.Second, func() (err error) {
		if records = j.poll(time.Second); len(records) == 0 {
			return fmt.Errorf("nothing comes")
		}
		return nil
	})
	j.w.is("polled", ranges(records), want)
	return records
}

// getsNone polls once.
func (j *javaConsumer) getsNone() {
	j.w.Helper()
	j.w.is("polled", ranges(j.poll(time.Second)), "")
}

// poll is one poll, which must not throw.
func (j *javaConsumer) poll(timeout time.Duration) []client.Record {
	j.w.Helper()
	records, err := j.Poll(timeout)
	if err != nil {
		j.w.Fatal(err)
	}
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
// have been told the same of the wanted offsets.
func (j *javaConsumer) commits(exception string, offsets ...int64) {
	j.w.Helper()
	partitions, failed, err := j.CommitSync()
	if err != nil {
		j.w.Fatal(err)
	}
	if !slices.Equal(partitions, []int32{0}) {
		j.w.Fatalf("commitSync has results for the partitions %v", partitions)
	}
	name, _, _ := strings.Cut(failed[0], ":")
	j.w.is("exception in the map", name, exception)
	j.told(exception, offsets...)
}

// told waits until the callback, which runs inside polls, has been told of the wanted offsets, of all with that exception.
func (j *javaConsumer) told(exception string, offsets ...int64) {
	j.w.Helper()
	var got []int64
	j.w.until("callback", 20*time.Second, func() error {
		for _, a := range j.Told() {
			name, _, _ := strings.Cut(a.Error, ":")
			j.w.is(fmt.Sprintf("exception for offset %d", a.Offset), name, exception)
			got = append(got, a.Offset)
		}
		slices.Sort(got)
		if slices.Equal(got, offsets) {
			return nil
		}
		if records := j.poll(200 * time.Millisecond); len(records) > 0 {
			j.w.Fatalf("records while the callback is waited for: %v", records)
		}
		return fmt.Errorf("told of the offsets %v, want %v", got, offsets)
	})
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
		j.told("", 7, 8, 9) // polls, which is all that it takes
		w.lagBecomes(w.p(0), 0)
		j.closes()
	})
	w.member().getsNone(w.p(0))
}

func TestCheck133_JavaCloseFreesWhatWasNotCommitted(t *testing.T) {
	w := start(t, setup{})
	w.keepLoaded()
	w.produce(w.p(0), 1)
	other := w.java(true)
	other.acknowledge(client.Accept, other.gets("0-0x1")...) // it is at work before the other one closes
	other.commits("", 0)
	leaving := w.java(false)
	w.produce(w.p(0), 3)
	leaving.gets("1-3x1")
	w.produce(w.p(0), 3)
	leaving.gets("4-6x1") // which accepts the first three
	leaving.closes()
	closed := time.Now()
	records := other.gets("4-6x2")
	if took := time.Since(closed); took > time.Second {
		t.Errorf("free %v after the close", took)
	}
	other.acknowledge(client.Accept, records...)
	other.commits("", 4, 5, 6)
	w.lagBecomes(w.p(0), 0)
	other.closes()
}

// pollThrows is a poll that must end with an exception; it gives its text.
func (j *javaConsumer) pollThrows() (exception string) {
	j.w.Helper()
	j.w.until("exception", 40*time.Second, func() error {
		records, err := j.Poll(time.Second)
		if len(records) > 0 {
			j.w.Fatalf("records instead of an exception: %v", records)
		}
		if err == nil {
			return fmt.Errorf("none")
		}
		exception = err.Error()
		return nil
	})
	return exception
}

func TestCheck134_JavaRecordThatCannotBeReadComesAgain(t *testing.T) {
	const integers = "org.apache.kafka.common.serialization.IntegerDeserializer" // refuses all but four bytes
	w := start(t, setup{})
	w.keepLoaded()
	w.put(w.p(0), batch{n: 2, size: 4})
	w.put(w.p(0), batch{n: 1, size: 3})
	w.put(w.p(0), batch{n: 2, size: 4})
	bad := func(j *javaConsumer) {
		w.Helper()
		if e := j.pollThrows(); !strings.Contains(e, "RecordDeserializationException") || !strings.Contains(e, "at offset 2.") {
			t.Fatalf("the exception is %q", e)
		}
	}
	j := w.java(true, "value.deserializer", integers)
	j.acknowledge(client.Accept, j.gets("0-1x1")...)
	j.commits("", 0, 1)
	bad(j)
	j.acknowledge(client.Accept, j.gets("3-4x1")...)
	j.commits("", 2, 3, 4) // the bad one has been released
	j.closes()
	reader := w.java(true)
	reader.acknowledge(client.Release, reader.gets("2-2x2")...)
	reader.commits("", 2)
	reader.closes()
	j = w.java(false, "value.deserializer", integers)
	for range 3 { // up to the delivery limit of five
		bad(j)
	}
	w.put(w.p(0), batch{n: 1, size: 4})
	j.gets("5-5x1")
	j.told("", 2, 2, 2, 5)
	w.lagBecomes(w.p(0), 0)
	j.closes()
}

func TestCheck135_JavaRecordLimitGivesOneRecordPerPoll(t *testing.T) {
	w := start(t, setup{})
	w.keepLoaded()
	w.produce(w.p(0), 8)
	j := w.java(false, "share.acquire.mode", "record_limit", "max.poll.records", "1")
	for offset := range 4 {
		j.gets(fmt.Sprintf("%d-%dx1", offset, offset))
	}
	// No more than what the polls gave has been acquired.
	m := w.member()
	m.takes("4-7x1", w.p(0))
	m.close()
	for offset := 4; offset < 8; offset++ {
		j.gets(fmt.Sprintf("%d-%dx2", offset, offset))
	}
	j.getsNone()
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
		m.takes("0-3x2", w.p(0)) // once the lock has expired
		m.close()
		j.acknowledge(client.Accept, records...)
		j.commits(refused, 0, 1, 2, 3)
		j.acknowledge(client.Accept, j.gets("0-3x3")...)
		j.commits("", 0, 1, 2, 3)
		j.closes()
	})
	w.within("implicit", func(w *world) {
		w.produce(w.p(0), 4)
		j := w.java(false)
		j.gets("4-7x1")
		m := w.member()
		m.takes("4-7x2", w.p(0))
		j.told(refused, 4, 5, 6, 7)
		m.close()
		j.gets("4-7x3")
		j.told("", 4, 5, 6, 7)
		j.closes()
	})
	w.lagBecomes(w.p(0), 0)
}
