package serve

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// transactional is a producer with transactions.
func (w *world) transactional() *kgo.Client {
	w.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.DisableClientMetrics(), kgo.TransactionalID("tx"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ManualFlushing())
	w.must(err)
	w.Cleanup(c.Close)
	return c
}

// writeIn produces n records in one batch of the open transaction.
func (w *world) writeIn(c *kgo.Client, topic string, n int) {
	w.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Value: []byte("in a transaction")}
	}
	w.write(c, records...)
}

func (w *world) endTransaction(c *kgo.Client, how kgo.TransactionEndTry) {
	w.Helper()
	w.must(c.EndTransaction(w.ctx, how))
}

// collect fetches until it has n offsets of partition 0, accepting all it gets.
func (m *member) collect(t upstream.Topic, n int) (offsets []int64) {
	m.w.Helper()
	deadline := time.Now().Add(10 * time.Second)
	var acks []ack
	for len(offsets) < n && time.Now().Before(deadline) {
		resp := m.fetch(with(t, 0, acks...), maxWait(200*time.Millisecond))
		acks = nil
		for _, e := range got(resp, t, 0) {
			acks = append(acks, accept(e.first, e.last))
			for o := e.first; o <= e.last; o++ {
				offsets = append(offsets, o)
			}
		}
	}
	if len(acks) > 0 {
		m.ackCode(t, 0, acks...)
	}
	return offsets
}

func TestCheck092_ReadCommittedLeavesAbortedRecordsOut(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.alter("committed", "share.auto.offset.reset", "earliest", "share.isolation.level", "read_committed")
	w.alter("all", "share.auto.offset.reset", "earliest")
	committed := w.reps[0].member("committed", "m").join("t")
	all := w.reps[0].member("all", "m").join("t")
	tx := w.transactional()
	w.must(tx.BeginTransaction())
	w.writeIn(tx, "t", 3) // 0-2, aborted; 3 is the marker
	w.endTransaction(tx, kgo.TryAbort)
	w.must(tx.BeginTransaction())
	w.writeIn(tx, "t", 2) // 4-5, committed; 6 is the marker
	w.endTransaction(tx, kgo.TryCommit)
	w.must(tx.BeginTransaction())
	w.writeIn(tx, "t", 1) // 7, open
	w.produce("t", 0, 1, 1)

	committed.open(topic, maxRecords(0))
	for _, o := range committed.collect(topic, 4) {
		if o < 3 || o > 6 {
			t.Errorf("offset %d was delivered under read_committed", o)
		}
	}
	w.gets(committed.fetch(maxWait(100*time.Millisecond)), topic) // held back by the open transaction
	all.open(topic, maxRecords(0))
	if n := len(all.collect(topic, 9)); n != 9 {
		t.Errorf("read_uncommitted got %d offsets, want 9", n)
	}
	w.endTransaction(tx, kgo.TryCommit)
	if have := committed.collect(topic, 3); len(have) != 3 || have[0] != 7 {
		t.Errorf("after the commit: %v", have)
	}
	// Check 91: markers and aborted records do not stall the start offset.
	if spso := w.reps[0].spso("committed", topic.ID); spso != 10 {
		t.Errorf("SPSO %d", spso)
	}
}

func TestCheck074_ByDurationStartsAtTheFirstYoungRecord(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	for _, age := range []time.Duration{3 * time.Hour, 2 * time.Hour, 30 * time.Minute, time.Minute} {
		w.write(w.admin, &kgo.Record{Topic: "t", Timestamp: time.Now().Add(-age)})
	}
	w.alter("g", "share.auto.offset.reset", "by_duration:PT1H")
	m := w.reps[0].member("g", "m").join("t")
	w.gets(m.open(topic), topic, entry{2, 3, 1})
}

func TestCheck089_DeliveriesShrinkNearTheLimit(t *testing.T) {
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.produce("t", 0, 1, 500)
	w.alter("g", "share.auto.offset.reset", "earliest")
	m := w.reps[0].member("g", "m").join("t")
	w.gets(m.open(topic), topic, entry{0, 499, 1})
	w.gets(m.fetch(with(topic, 0, release(0, 499))), topic, entry{0, 499, 2})
	w.gets(m.fetch(with(topic, 0, release(0, 499))), topic, entry{0, 499, 3})
	w.gets(m.fetch(with(topic, 0, release(0, 499))), topic, entry{0, 249, 4})
	w.gets(m.fetch(with(topic, 0, release(0, 249))), topic, entry{0, 0, 5}) // the last attempt goes alone
}

func TestWaitingMembersDoNotAllAcquireForOneRecord(t *testing.T) {
	const members = 20
	w := newWorld(t, 1)
	topic := w.topic("t", 1)
	w.produce("t", 0, 1, 1)
	var waiting []*member
	for i := range members {
		m := w.reps[0].member("g", string(rune('a'+i))).join("t")
		m.open(topic)
		waiting = append(waiting, m)
	}
	before := w.reps[0].store.Stats()
	answers := make(chan *kmsg.ShareFetchResponse, members)
	for _, m := range waiting {
		go func() { answers <- m.fetch(maxWait(3 * time.Second)) }()
	}
	w.eventually("all to wait", func() bool { return w.reps[0].waiters() == members })
	w.produce("t", 0, 1, 1)
	delivered := 0
	for range members {
		delivered += len(got(<-answers, topic, 0))
	}
	if delivered != 1 {
		t.Errorf("one record was delivered %d times", delivered)
	}
	if n := w.reps[0].store.Stats().Appends - before.Appends; n > members/2 {
		t.Errorf("%d appends for one record", n)
	}
}

// waiters counts the fetches that wait on the replica.
func (r *rep) waiters() (n int) {
	r.srv.shareMu.Lock()
	defer r.srv.shareMu.Unlock()
	for _, sh := range r.srv.shares {
		sh.mu.Lock()
		n += len(sh.waiters)
		sh.mu.Unlock()
	}
	return n
}
