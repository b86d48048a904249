package serve

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
	"kshare/sharestate"
)

const deadTopic = "errors.deadletterqueue.topic.name"

// deadLettersOn is groupOn with a dead letter topic.
func deadLettersOn(t *testing.T, w *world, n int, configs ...string) (topic upstream.Topic, a, b *member) {
	t.Helper()
	w.alter("g", append([]string{deadTopic, "dlq.t"}, configs...)...)
	_, topic, a, b = groupOn(t, w, n)
	return topic, a, b
}

// dead is how many dead letters partition 0 of dlq.t holds.
func (w *world) dead() int64 {
	w.Helper()
	r := w.reps[len(w.reps)-1]
	found, err := r.up.TopicsByName(w.ctx, []string{"dlq.t"}, true)
	w.must(err)
	if _, ok := found["dlq.t"]; !ok {
		return 0
	}
	n, _, err := r.up.ListOffset(w.ctx, tpOf(found["dlq.t"].ID, 0), upstream.AtEnd)
	w.must(err)
	return n
}

// deadLetters reads n dead letters, in the order of partition and offset.
func (w *world) deadLetters(n int) []*kgo.Record {
	w.Helper()
	reader, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.DisableClientMetrics(), kgo.ConsumeTopics("dlq.t"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	w.must(err)
	defer reader.Close()
	var all []*kgo.Record
	for len(all) < n {
		all = append(all, reader.PollFetches(w.ctx).Records()...)
		if w.ctx.Err() != nil {
			w.Fatalf("%d of %d dead letters", len(all), n)
		}
	}
	slices.SortFunc(all, func(a, b *kgo.Record) int { return int(a.Partition-b.Partition)*1000 + int(a.Offset-b.Offset) })
	return all
}

// passed waits until the SPSO of t-0 on the replica is there: what was Archiving is Archived.
func (w *world) passed(r *rep, topic upstream.Topic, spso int64) {
	w.Helper()
	w.eventually(fmt.Sprintf("SPSO %d", spso), func() bool { return r.spso("g", topic.ID) == spso })
}

func tells(r *kgo.Record, topic string, partition, offset, count int, message string) bool {
	want := []kgo.RecordHeader{
		{Key: "__dlq.errors.topic", Value: []byte(topic)},
		{Key: "__dlq.errors.partition", Value: []byte(strconv.Itoa(partition))},
		{Key: "__dlq.errors.offset", Value: []byte(strconv.Itoa(offset))},
		{Key: "__dlq.errors.group", Value: []byte("g")},
		{Key: "__dlq.errors.delivery.count", Value: []byte(strconv.Itoa(count))},
		{Key: "__dlq.errors.message", Value: []byte(message)},
	}
	return slices.EqualFunc(r.Headers, want, func(a, b kgo.RecordHeader) bool { return a.Key == b.Key && string(a.Value) == string(b.Value) })
}

const (
	rejectedText = "Offset rejected by client."
	limitText    = "Offset delivery count exceeded the threshold."
)

func count(c prometheus.Counter) float64 {
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, _ := reg.Gather()
	return families[0].Metric[0].GetCounter().GetValue()
}

func TestCheck139_RejectedRecordHasOneDeadLetterAndSPSOPasses(t *testing.T) {
	w := newWorld(t, 2)
	w.topic("dlq.t", 1)
	began := time.Now().Add(-time.Second)
	topic, a, b := deadLettersOn(t, w, 3)
	b.open(topic, maxRecords(0))
	w.gets(a.open(topic), topic, entry{0, 2, 1})
	if code := a.ackCode(topic, 0, reject(0, 0), accept(1, 1), ack{2, 2, []int8{0}}); code != 0 {
		t.Fatalf("acknowledgement: code %d", code)
	}
	for _, r := range w.reps {
		w.passed(r, topic, 3)
	}
	if n := w.dead(); n != 1 { // the accepted one and the gap have none
		t.Fatalf("%d dead letters", n)
	}
	r := w.deadLetters(1)[0]
	if !tells(r, "t", 0, 0, 1, rejectedText) || r.Key != nil || r.Value != nil || r.Timestamp.Before(began) {
		t.Errorf("dead letter %+v", r)
	}
	w.checkpointed(3)
	if d := w.reps[0].dead; count(d.written) != 1 || count(d.requests) != 1 || count(d.failures)+count(d.lost) != 0 {
		t.Errorf("written %v, requests %v, failures %v, lost %v", count(d.written), count(d.requests), count(d.failures), count(d.lost))
	}
}

func TestCheck139_RecordsOverTheLimitHaveDeadLetters(t *testing.T) {
	w := newWorld(t, 2)
	w.topic("dlq.t", 1)
	topic, a, _ := deadLettersOn(t, w, 3, "share.delivery.count.limit", "2")
	w.gets(a.open(topic, recordLimit(3)), topic, entry{0, 2, 1})
	w.gets(a.fetch(with(topic, 0, release(0, 2)), recordLimit(1)), topic, entry{0, 0, 2})
	a.ackCode(topic, 0, release(0, 0)) // by release
	w.passed(w.reps[1], topic, 1)
	w.gets(a.fetch(recordLimit(1)), topic, entry{1, 1, 2})
	w.advance(31 * time.Second) // by time
	w.gets(a.fetch(recordLimit(1), maxWait(5*time.Second)), topic, entry{2, 2, 2})
	w.passed(w.reps[1], topic, 2)
	a.r.srv.ConnClosed(a.c) // by the session's close
	w.passed(w.reps[1], topic, 3)
	for i, r := range w.deadLetters(3) {
		if !tells(r, "t", 0, i, 2, limitText) {
			t.Errorf("dead letter %d: %v", i, r.Headers)
		}
	}
	if n := w.dead(); n != 3 {
		t.Errorf("%d dead letters", n)
	}
}

func TestDeadLettersThatCannotBeWrittenAreCountedAndTheirRecordsArchived(t *testing.T) {
	for name, broken := range map[string]*kerr.Error{
		"no topic":                     nil,
		"no permission":                kerr.TopicAuthorizationFailed,
		"upstream in trouble for long": kerr.NotEnoughReplicas,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			if broken != nil {
				w.topic("dlq.t", 1)
				w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "dlq.t", Err: broken, Count: -1})
			}
			topic, a, _ := deadLettersOn(t, w, 3)
			w.gets(a.open(topic), topic, entry{0, 2, 1})
			a.ackCode(topic, 0, reject(0, 2))
			w.passed(w.reps[1], topic, 3)
			d, tries := w.reps[0].dead, map[*kerr.Error]float64{nil: 0, kerr.TopicAuthorizationFailed: 1, kerr.NotEnoughReplicas: 5}[broken]
			if count(d.lost) != 3 || count(d.written) != 0 || count(d.failures) != tries {
				t.Errorf("lost %v, written %v, failures %v", count(d.lost), count(d.written), count(d.failures))
			}
			if n := w.dead(); n != 0 {
				t.Errorf("%d dead letters", n)
			}
		})
	}
}

func TestDeadLetterTopicIsCheckedAgainWhenUsed(t *testing.T) {
	w := newWorld(t, 1)
	w.topic("dlq.t", 1)
	topic, a, _ := deadLettersOn(t, w, 1)
	w.reps[0].srv.o.Broker.DeadLetterPrefix = "dead." // as after a restart with another setting
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	a.ackCode(topic, 0, reject(0, 0))
	w.passed(w.reps[0], topic, 1)
	if n := count(w.reps[0].dead.lost); n != 1 || w.dead() != 0 {
		t.Errorf("%v lost, %d dead letters", n, w.dead())
	}
}

func TestDeadLetterTopicIsMadeWhereTheBrokerSays(t *testing.T) {
	w := newWorld(t, 0)
	w.broker = []string{"errors.deadletterqueue.auto.create.topics.enable", "true"}
	w.reps = append(w.reps, w.startReplica(), w.startReplica())
	topic, a, _ := deadLettersOn(t, w, 2)
	w.gets(a.open(topic), topic, entry{0, 1, 1})
	a.ackCode(topic, 0, reject(0, 1))
	w.passed(w.reps[1], topic, 2)
	if n := len(w.deadLetters(2)); n != 2 {
		t.Errorf("%d dead letters", n)
	}
}

func TestTooLargeBatchesOfDeadLettersAreHalved(t *testing.T) {
	w := newWorld(t, 1)
	w.topic("dlq.t", 1)
	topic, a, _ := deadLettersOn(t, w, 7)
	w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "dlq.t", Err: kerr.MessageTooLarge, Count: 2})
	w.gets(a.open(topic, maxRecords(7)), topic, entry{0, 6, 1})
	a.ackCode(topic, 0, reject(0, 6))
	w.passed(w.reps[0], topic, 7)
	if n := w.dead(); n != 7 || count(w.reps[0].dead.lost) != 0 {
		t.Errorf("%d dead letters, %v lost", n, count(w.reps[0].dead.lost))
	}
}

// stuck lets the replica claim a dead letter and never write it: its first try fails, and the next is far off.
func (w *world) stuck(r *rep, topic upstream.Topic, a *member) {
	w.Helper()
	r.up.WriteBackoff(time.Hour)
	fault := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "dlq.t", Err: kerr.NotEnoughReplicas, Count: 1})
	w.gets(a.open(topic, recordLimit(1)), topic, entry{0, 0, 1})
	a.ackCode(topic, 0, reject(0, 0))
	w.eventually("the claim, and the first try", func() bool { return fault.Hits() == 1 })
}

func TestDeadLetterOfADeadClaimantIsWrittenByAnother(t *testing.T) {
	for name, c := range map[string]struct{ lease, claim time.Duration }{
		"when it is found dead":   {time.Second, time.Hour},
		"when its claim runs out": {time.Hour, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0)
			w.options.Lease = c.lease
			w.letters = func(d *DeadLetters) { d.claim, d.others = c.claim, 20*time.Millisecond }
			w.reps = append(w.reps, w.startReplica(), w.startReplica())
			w.topic("dlq.t", 1)
			topic, a, b := deadLettersOn(t, w, 2)
			b.open(topic, maxRecords(0))
			w.stuck(w.reps[0], topic, a)
			if spso := w.reps[1].spso("g", topic.ID); spso != 0 {
				t.Fatalf("SPSO %d passed a record without its dead letter", spso)
			}
			w.reps[0].cut()
			w.passed(w.reps[1], topic, 1)
			if r := w.deadLetters(1)[0]; !tells(r, "t", 0, 0, 1, rejectedText) {
				t.Errorf("dead letter %v", r.Headers)
			}
			if d := w.reps[1].dead; count(d.written) != 1 || count(d.lost) != 0 {
				t.Errorf("written %v, lost %v", count(d.written), count(d.lost))
			}
		})
	}
}

func TestDeadLettersGoOnAfterARestartThoughNobodyConsumes(t *testing.T) {
	for name, farewell := range map[string]bool{"after a crash": false, "after a clean end": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0)
			w.letters = func(d *DeadLetters) {
				d.others, d.firstSweep, d.sweepEvery = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
			}
			if !farewell {
				w.letters = func(d *DeadLetters) {
					d.claim, d.others, d.firstSweep, d.sweepEvery = time.Second, 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
				}
			}
			w.reps = append(w.reps, w.startReplica())
			w.topic("dlq.t", 1)
			topic, a, _ := deadLettersOn(t, w, 2)
			first := w.reps[0]
			w.stuck(first, topic, a)
			if farewell {
				first.srv.Drain()
				first.dead.Close(w.ctx)
			} else {
				first.cut()
			}
			first.kill()
			w.reps = []*rep{w.startReplica()}
			w.eventually("the dead letter", func() bool { return w.dead() == 1 })
			w.passed(w.reps[0], topic, 1)
		})
	}
}

func TestWithoutDeadLetterTopicNothingIsArchiving(t *testing.T) {
	w := newWorld(t, 2)
	w.topic("dlq.t", 1)
	w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "dlq.t", Count: -1})
	_, topic, a, _ := groupOn(t, w, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	a.ackCode(topic, 0, reject(0, 0))
	if spso := w.reps[0].spso("g", topic.ID); spso != 1 {
		t.Errorf("SPSO %d right after the rejection", spso)
	}
	for _, r := range w.reps {
		r.dead.mu.Lock()
		if len(r.dead.due)+len(r.dead.busy) > 0 {
			t.Error("a dead letter is looked for")
		}
		r.dead.mu.Unlock()
	}
}

func TestTurningDeadLettersOffArchivesWhatWaitsForOne(t *testing.T) {
	w := newWorld(t, 0)
	w.letters = func(d *DeadLetters) {
		d.claim, d.others, d.retry = time.Second, 20*time.Millisecond, 20*time.Millisecond
	}
	w.reps = append(w.reps, w.startReplica())
	w.topic("dlq.t", 1)
	topic, a, _ := deadLettersOn(t, w, 1)
	w.stuck(w.reps[0], topic, a)
	w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "dlq.t", Err: kerr.NotEnoughReplicas, Count: -1})
	w.alter("g", deadTopic, "")
	w.passed(w.reps[0], topic, 1)
	if n := count(w.reps[0].dead.lost); n != 1 {
		t.Errorf("%v lost", n)
	}
}

func TestRejectedRecordsStayArchivingInTheView(t *testing.T) {
	w := newWorld(t, 1)
	w.topic("dlq.t", 1)
	topic, a, _ := deadLettersOn(t, w, 3)
	w.stuck(w.reps[0], topic, a)
	w.gets(a.fetch(), topic, entry{1, 2, 1}) // the others go on
	a.ackCode(topic, 0, accept(1, 2))
	var states []sharestate.State
	w.must(w.reps[0].srv.logs.Get(logName("g", tpOf(topic.ID, 0))).View(w.ctx, 0, func(p *sharestate.Partition) {
		for _, r := range p.Ranges() {
			states = append(states, r.State)
		}
	}))
	if !slices.Equal(states, []sharestate.State{sharestate.StateArchiving, sharestate.StateAcknowledged}) {
		t.Errorf("states %v", states)
	}
}
