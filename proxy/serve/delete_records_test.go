package serve

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// deleteRecords has a replica relay an answer that says so. Upstream's log stays as it is: what replicas read does not
// tell of a new log start.
func (r *rep) deleteRecords(topic string, partition int32, code int16, low int64) *kmsg.DeleteRecordsResponse {
	r.w.Helper()
	p := kmsg.NewDeleteRecordsResponseTopicPartition()
	p.Partition, p.ErrorCode, p.LowWatermark = partition, code, low
	t := kmsg.NewDeleteRecordsResponseTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, p)
	theirs := kmsg.NewPtrDeleteRecordsResponse()
	theirs.Version, theirs.Topics = 2, append(theirs.Topics, t)

	api := r.apis[21]
	body := kmsg.NewPtrDeleteRecordsRequest()
	body.Version = 2
	own, rest := api.Split(r.srv, body)
	if own == nil || rest == nil {
		r.w.Fatalf("split: own %v, upstream's %v", own, rest)
	}
	got, err := api.Serve(r.w.ctx, &Request{Body: own, Conn: r.conn(-1), Theirs: theirs})
	r.w.must(err)
	return api.Merge(got, theirs).(*kmsg.DeleteRecordsResponse)
}

func TestCheck093_DeletedRecordsAreSkippedByAllReplicasAtOnce(t *testing.T) {
	w := newWorld(t, 2)
	topic := w.topic("t", 2)
	for _, group := range []string{"g", "h"} {
		w.alter(group, "share.auto.offset.reset", "earliest")
	}
	w.produce("t", 0, 8, 5)
	w.produce("t", 1, 1, 5)
	a := w.reps[1].member("g", "a").join("t")
	other := w.reps[1].member("h", "b").join("t")
	w.gets(a.open(topic, maxRecords(10)), topic, entry{0, 9, 1})
	w.gets(other.open(topic, maxRecords(10)), topic, entry{0, 9, 1})
	a.ackCode(topic, 0, accept(0, 2), release(5, 9))
	w.eventually("both groups on the other replica", func() bool { return len(w.reps[0].groups.Groups()) == 2 })

	got := w.reps[0].deleteRecords("t", 0, 0, 20)
	if p := got.Topics[0].Partitions[0]; p.LowWatermark != 20 || p.ErrorCode != 0 {
		t.Errorf("the client is told %+v", p)
	}
	w.gets(a.fetch(), topic, entry{20, 39, 1})
	w.gets(other.fetch(), topic, entry{20, 39, 1})
	if code := a.ackCode(topic, 0, accept(3, 4), accept(20, 39)); code != 0 {
		t.Errorf("acknowledgement: code %d", code)
	}
	if code := a.ackCode(topic, 1, accept(0, 4)); code != 0 { // the other partition is as it was
		t.Errorf("acknowledgement on partition 1: code %d", code)
	}
}

// oneOfTen is a member that has the first of ten records, which stand in two batches.
func oneOfTen(t *testing.T) (w *world, topic upstream.Topic, a *member) {
	t.Helper()
	w = newWorld(t, 1)
	w.alter("g", "share.auto.offset.reset", "earliest")
	topic = w.topic("t", 1)
	w.produce("t", 0, 2, 5)
	a = w.reps[0].member("g", "a").join("t")
	w.gets(a.open(topic, recordLimit(1)), topic, entry{0, 0, 1})
	return w, topic, a
}

func TestRecordsThatAreNotDeletedAreDelivered(t *testing.T) {
	w, topic, a := oneOfTen(t)
	w.reps[0].deleteRecords("t", 0, codeNotLeader, 7)
	w.reps[0].deleteRecords("t", 0, 0, -1)
	w.reps[0].deleteRecords("t", 1, 0, 7)
	w.reps[0].deleteRecords("other", 0, 0, 7)
	w.gets(a.fetch(), topic, entry{1, 4, 1}, entry{5, 9, 1})
}

func TestDeleteRecordsIsAnsweredWhileRedisIsAway(t *testing.T) {
	w, _, _ := oneOfTen(t)
	w.redis.SetError("LOADING")
	defer w.redis.SetError("")
	started := time.Now()
	if p := w.reps[0].deleteRecords("t", 0, 0, 5).Topics[0].Partitions[0]; p.LowWatermark != 5 {
		t.Errorf("the client is told %+v", p)
	}
	if took := time.Since(started); took > opWait+2*time.Second {
		t.Errorf("answered after %v", took)
	}
}

func TestDeleteRecordsWithoutShareGroupsIsRelayed(t *testing.T) {
	w := newWorld(t, 1)
	if own, theirs := w.reps[0].apis[21].Split(w.reps[0].srv, kmsg.NewPtrDeleteRecordsRequest()); own != nil || theirs != nil {
		t.Errorf("own %v, upstream's %v", own, theirs)
	}
}
