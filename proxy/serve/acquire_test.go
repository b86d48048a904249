package serve

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

func TestCheck071_AcquiredRecordIsNobodyElses(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	w.gets(b.open(topic, maxWait(50*time.Millisecond)), topic)
	if code := a.ackCode(topic, 0, release(0, 0)); code != 0 {
		t.Fatalf("release: code %d", code)
	}
	w.gets(b.fetch(maxWait(5*time.Second)), topic, entry{0, 0, 2}) // check 72
}

func TestCheck073_LatestDeliversWhatComesAfterTheFirstFetch(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.produce("t", 0, 3, 1)
	m := w.reps[0].member("g", "m").join("t")
	w.gets(m.open(topic), topic)
	w.produce("t", 0, 1, 1)
	w.gets(m.fetch(maxWait(5*time.Second)), topic, entry{3, 3, 1})
}

func TestCheck075_ByDurationWaitsForAYoungRecord(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.alter("g", "share.auto.offset.reset", "by_duration:PT1H")
	m := w.reps[0].member("g", "m").join("t")
	if p, _ := part(m.open(topic), topic.ID, 0); p.ErrorCode != codeOffsetNotAvail {
		t.Fatalf("code %d without any record", p.ErrorCode)
	}
	w.produce("t", 0, 1, 1)
	w.gets(m.fetch(maxWait(5*time.Second)), topic, entry{0, 0, 1})
}

func TestCheck076_WholeBatchesInBatchOptimizedMode(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.produce("t", 0, 3, 25)
	w.alter("g", "share.auto.offset.reset", "earliest")
	m := w.reps[0].member("g", "m").join("t")
	w.gets(m.open(topic, maxRecords(10)), topic, entry{0, 24, 1})
}

func TestCheck077_RecordLimitIsStrict(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.produce("t", 0, 3, 25)
	w.alter("g", "share.auto.offset.reset", "earliest")
	m := w.reps[0].member("g", "m").join("t")
	w.gets(m.open(topic, recordLimit(10)), topic, entry{0, 9, 1})
	w.gets(m.fetch(recordLimit(10)), topic, entry{10, 19, 1})
	w.gets(m.fetch(recordLimit(10)), topic, entry{20, 24, 1}, entry{25, 29, 1})
}

func TestRecordLimitIsOneBudgetForAllPartitions(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 3)
	for p := range int32(3) {
		w.produce("t", p, 2, 4)
	}
	w.alter("g", "share.auto.offset.reset", "earliest")
	m := w.reps[0].member("g", "m").join("t")
	resp := m.open(topic, recordLimit(10))
	total := int64(0)
	for p := range int32(3) {
		for _, e := range got(resp, topic, p) {
			total += e.last - e.first + 1
		}
	}
	if total != 10 {
		t.Errorf("acquired %d offsets, want 10", total)
	}
}

func TestCheck078_BatchSizeCutsEntries(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 100)
	have := got(a.open(topic, func(r *kmsg.ShareFetchRequest) { r.BatchSize = 10 }), topic, 0)
	if len(have) != 10 || have[0] != (entry{0, 9, 1}) || have[9] != (entry{90, 99, 1}) {
		t.Errorf("entries %v", have)
	}
	_ = w
}

func TestCheck080_FullWindowMakesRoomByAcks(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.produce("t", 0, 30, 10)
	w.alter("g", "share.auto.offset.reset", "earliest", "share.partition.max.record.locks", "100")
	m := w.reps[0].member("g", "m").join("t")
	w.gets(m.open(topic), topic, entry{0, 99, 1})
	resp := m.fetch(maxWait(50 * time.Millisecond))
	if _, ok := part(resp, topic.ID, 0); ok {
		t.Error("a partition with a full window is listed")
	}
	w.gets(m.fetch(with(topic, 0, accept(0, 49)), maxWait(5*time.Second)), topic, entry{100, 149, 1})
	// Check 81: the window is full behind one old record.
	w.gets(m.fetch(with(topic, 0, accept(51, 149)), maxWait(50*time.Millisecond)), topic)
	w.gets(m.fetch(with(topic, 0, accept(50, 50)), maxWait(5*time.Second)), topic, entry{150, 249, 1})
}

func TestCheck082_ReleasedRecordsGoBeforeNewOnes(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 4)
	w.gets(a.open(topic, maxRecords(2)), topic, entry{0, 1, 1})
	w.gets(a.fetch(with(topic, 0, release(1, 1)), maxRecords(1)), topic, entry{1, 1, 2})
	w.gets(a.fetch(maxRecords(1)), topic, entry{2, 2, 1})
}

func TestCheck083_MaxWaitIsHonouredAndRecordsEndIt(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	began := time.Now()
	w.gets(a.fetch(maxWait(200*time.Millisecond)), topic)
	if waited := time.Since(began); waited < 200*time.Millisecond || waited > 2*time.Second {
		t.Errorf("waited %v", waited)
	}
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- a.fetch(maxWait(20 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[0].waiting)
	w.produce("t", 0, 1, 1)
	w.gets(<-done, topic, entry{1, 1, 1})
}

// waiting tells whether a fetch waits on the replica.
func (r *rep) waiting() bool { return r.waiters() > 0 }

// messagesOnly are store options with which a replica learns of another's ops in time only by its messages.
var messagesOnly = statelog.Options{CatchUp: time.Minute}

func TestReleaseWakesFetchOnOtherReplica(t *testing.T) {
	w, topic, a, b := groupOn(t, newWorldOn(t, 2, messagesOnly), 3)
	w.gets(a.open(topic), topic, entry{0, 2, 1})
	b.open(topic)
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- b.fetch(maxWait(20 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[1].waiting)
	began := time.Now()
	if code := a.ackCode(topic, 0, release(0, 2)); code != 0 {
		t.Fatalf("release: code %d", code)
	}
	w.gets(<-done, topic, entry{0, 2, 2})
	if time.Since(began) > 15*time.Second {
		t.Error("only the end of its wait woke the fetch")
	}
}

func TestRoomInFullWindowWakesFetchOnOtherReplica(t *testing.T) {
	w := newWorldOn(t, 2, messagesOnly)
	topic := w.topic("t", 1)
	w.produce("t", 0, 20, 10)
	w.alter("g", "share.auto.offset.reset", "earliest", "share.partition.max.record.locks", "100")
	a := w.reps[0].member("g", "a").join("t")
	b := w.reps[1].member("g", "b").join("t")
	w.gets(a.open(topic), topic, entry{0, 99, 1})
	b.open(topic)
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- b.fetch(maxWait(20 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[1].waiting)
	began := time.Now()
	if code := a.ackCode(topic, 0, accept(0, 99)); code != 0 {
		t.Fatalf("accept: code %d", code)
	}
	w.gets(<-done, topic, entry{100, 199, 1})
	if time.Since(began) > 15*time.Second {
		t.Error("only the end of its wait woke the fetch")
	}
}

func TestCheck084_MinBytesWaitsThenTakesWhatThereIs(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 1)
	began := time.Now()
	resp := a.open(topic, maxWait(150*time.Millisecond), func(r *kmsg.ShareFetchRequest) { r.MinBytes = 1 << 20 })
	w.gets(resp, topic, entry{0, 0, 1})
	if waited := time.Since(began); waited < 150*time.Millisecond {
		t.Errorf("answered after %v", waited)
	}
}

func TestCheck085_FirstBatchComesEvenIfLargerThanMaxBytes(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.produce("t", 0, 3, 50)
	w.alter("g", "share.auto.offset.reset", "earliest")
	m := w.reps[0].member("g", "m").join("t")
	w.gets(m.open(topic, func(r *kmsg.ShareFetchRequest) { r.MaxBytes = 10 }), topic, entry{0, 49, 1})
}

func TestCheck086_FirstPartitionRotates(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 2)
	w.produce("t", 0, 10, 1)
	w.produce("t", 1, 10, 1)
	w.alter("g", "share.auto.offset.reset", "earliest")
	m := w.reps[0].member("g", "m").join("t")
	var first []int32
	for i := range 3 {
		var resp *kmsg.ShareFetchResponse
		if i == 0 {
			resp = m.open(topic, maxRecords(1))
		} else {
			resp = m.fetch(maxRecords(1))
		}
		for p := range int32(2) {
			if len(got(resp, topic, p)) > 0 {
				first = append(first, p)
			}
		}
	}
	if !slices.Equal(first, []int32{0, 1, 0}) {
		t.Errorf("partitions in turn: %v", first)
	}
}

func TestCheck087_LockExpiryFreesTheRecordForAWaitingFetch(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 2, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	b.open(topic)
	w.advance(29 * time.Second)
	w.gets(b.fetch(), topic)
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- b.fetch(maxWait(20 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[1].waiting)
	w.advance(2 * time.Second)
	w.gets(<-done, topic, entry{0, 0, 2})
	if code := a.ackCode(topic, 0, accept(0, 0)); code != codeInvalidState { // check 101
		t.Errorf("ack after the lock's end: code %d", code)
	}
}

func TestCheck088_DeliveryLimitArchives(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 2)
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	for count := int16(2); count <= 5; count++ {
		w.gets(a.fetch(with(topic, 0, release(0, 0)), maxRecords(1)), topic, entry{0, 0, count})
	}
	w.gets(a.fetch(with(topic, 0, release(0, 0)), maxRecords(1)), topic, entry{1, 1, 1})
	if spso := w.reps[0].spso("g", topic.ID); spso != 1 {
		t.Errorf("SPSO %d", spso)
	}
}

// spso is the share-partition's start offset as this replica knows it.
func (r *rep) spso(group string, id [16]byte) (spso int64) {
	r.w.Helper()
	sh := r.srv.use(group, tpOf(id, 0))
	defer sh.done()
	r.w.must(sh.log.View(r.w.ctx, 0, func(p *sharestate.Partition) { spso = p.SPSO() }))
	return spso
}

func TestCheck090_GroupSettingsTakeEffectAtOnce(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	w.alter("g", "share.delivery.count.limit", "2", "share.record.lock.duration.ms", "15000")
	resp := a.fetch(with(topic, 0, release(0, 0)))
	w.gets(resp, topic, entry{0, 0, 2})
	if resp.AcquisitionLockTimeoutMillis != 15000 {
		t.Errorf("lock timeout %d", resp.AcquisitionLockTimeoutMillis)
	}
	w.advance(16 * time.Second)
	w.gets(b.open(topic), topic) // archived: two deliveries were allowed
	if spso := w.reps[0].spso("g", topic.ID); spso != 1 && spso != 0 {
		t.Errorf("SPSO %d", spso)
	}
}

func TestCheck093_DeletedRecordsAreSkippedWithoutError(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 10)
	w.gets(a.open(topic, maxRecords(2)), topic, entry{0, 1, 1})
	w.deleteRecords("t", 0, 6)
	w.eventually("delivery at the new log start", func() bool {
		resp := a.fetch(maxWait(100 * time.Millisecond))
		p, _ := part(resp, topic.ID, 0)
		if p.ErrorCode != 0 {
			t.Fatalf("code %d", p.ErrorCode)
		}
		have := got(resp, topic, 0)
		return len(have) > 0 && have[0].first >= 2 && have[len(have)-1].last == 9
	})
	if code := a.ackCode(topic, 0, accept(0, 1)); code != 0 {
		t.Errorf("ack below the log start: code %d", code)
	}
}

// A member holds the records that the log loses, and nothing else is free: their lag and their place in the window go
// with the next fetch, not with the end of the lock.
func TestLogStartPassesRecordsThatAreHeld(t *testing.T) {
	w, topic, a, b := groupFromStart(t, 1, 10)
	w.gets(a.open(topic), topic, entry{0, 9, 1})
	b.open(topic)
	w.deleteRecords("t", 0, 6)
	w.eventually("the start offset at the log's start", func() bool {
		w.gets(b.fetch(maxWait(100*time.Millisecond)), topic)
		return w.reps[0].spso("g", topic.ID) == 6
	})
	if code := a.ackCode(topic, 0, accept(0, 9)); code != 0 {
		t.Errorf("ack across the log start: code %d", code)
	}
}

func (w *world) deleteRecords(topic string, partition int32, before int64) {
	w.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Partition, rp.Offset = partition, before
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(w.ctx, w.admin)
	w.must(err)
	if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
		w.Fatalf("delete records: code %d", code)
	}
}

func TestCheck095_GroupsDoNotShareRecords(t *testing.T) {
	w, topic, a, _ := groupFromStart(t, 1, 3)
	w.alter("h", "share.auto.offset.reset", "earliest")
	other := w.reps[0].member("h", "a").join("t")
	w.gets(a.open(topic), topic, entry{0, 2, 1})
	w.gets(other.open(topic), topic, entry{0, 2, 1})
}

// Two replicas resolve `latest` at once. The second learns its offset when the first's is in the log already and records
// have come between.
func TestLatestResolvedByTwoReplicasAtOnceLosesNothing(t *testing.T) {
	w := newWorld(t, 2)
	topic := w.topic("t", 1)
	w.produce("t", 0, 5, 1)
	a := w.reps[0].member("g", "a").join("t")
	b := w.reps[1].member("g", "b").join("t")
	asked, answer := make(chan struct{}), make(chan struct{})
	first := true
	w.kafka.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		if first {
			first = false
			w.kafka.SleepControl(func() {
				close(asked)
				<-answer
			})
		}
		return nil, nil, false
	})
	opened := make(chan *kmsg.ShareFetchResponse)
	go func() { opened <- b.open(topic) }()
	<-asked
	a.open(topic)
	w.produce("t", 0, 10, 1)
	close(answer)
	seen := map[int64]int{}
	count := func(resp *kmsg.ShareFetchResponse) {
		for _, e := range got(resp, topic, 0) {
			for o := e.first; o <= e.last; o++ {
				seen[o]++
			}
		}
	}
	count(<-opened)
	w.eventually("all records", func() bool {
		for _, m := range []*member{a, b} {
			count(m.fetch(maxWait(100 * time.Millisecond)))
		}
		return len(seen) == 10
	})
	for o := int64(5); o < 15; o++ {
		if seen[o] != 1 {
			t.Errorf("offset %d was delivered %d times", o, seen[o])
		}
	}
}

func TestUninitializedPartitionIsAnError(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	m := w.reps[0].member("nobody", "m")
	began := time.Now()
	if p, _ := part(m.open(topic, maxWait(10*time.Second)), topic.ID, 0); p.ErrorCode != codeUnknown {
		t.Errorf("code %d", p.ErrorCode)
	}
	if time.Since(began) > 5*time.Second {
		t.Error("a fetch with nothing but errors waited")
	}
}

func TestLockExpiryWakesThoughTheClockTurnsOutToBeBehind(t *testing.T) {
	w := newWorld(t, 1)
	w.alter("g", "share.record.lock.duration.ms", "15000")
	_, topic, a, b := groupOn(t, w, 1)
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	b.open(topic)
	sh := w.reps[0].srv.use("g", tpOf(topic.ID, 0))
	defer sh.done()
	at, ok := sh.nextDeadline()
	if !ok {
		t.Fatal("no deadline known")
	}
	w.advance(5 * time.Second)
	w.eventually("the replica to know the time", func() bool {
		return w.reps[0].store.Now() > time.Now().UnixMicro()+w.skew.Load()/1000-100_000
	})
	done := make(chan *kmsg.ShareFetchResponse)
	go func() { done <- b.fetch(maxWait(25 * time.Second)) }()
	w.eventually("the end of the lock to be near", func() bool { return w.reps[0].waiting() && sh.until(at) < 2*time.Second })
	w.advance(-2 * time.Second)
	began := time.Now()
	w.gets(<-done, topic, entry{0, 0, 2})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("woken after %v", took)
	}
}
