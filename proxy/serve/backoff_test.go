package serve

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// Release backoff, kshare's own: see sharestate's backoff.go for the rules.

// backoffGroup is a group of two members whose released records rest, with n single-record batches in its topic.
func backoffGroup(t *testing.T, w *world, n int, backoff, most string) (topic upstream.Topic, a, b *member) {
	t.Helper()
	w.alter("g", "share.release.backoff.ms", backoff, "share.release.backoff.max.ms", most)
	_, topic, a, b = groupOn(t, w, n)
	return topic, a, b
}

func TestReleasedRecordRestsWhileOthersFlow(t *testing.T) {
	w := newWorld(t, 1)
	topic, a, b := backoffGroup(t, w, 4, "10000", "60000")
	w.gets(a.open(topic, maxRecords(2)), topic, entry{0, 1, 1})
	// The release rides on the fetch: what lies behind goes at once, the released record does not, nor does it use up the
	// bytes.
	oneBatch := func(r *kmsg.ShareFetchRequest) { r.MaxBytes = 10 }
	w.gets(a.fetch(with(topic, 0, release(0, 0)), oneBatch), topic, entry{2, 2, 1})
	w.gets(b.open(topic), topic, entry{3, 3, 1})
	w.produce("t", 0, 1, 1)
	w.gets(b.fetch(maxWait(5*time.Second)), topic, entry{4, 4, 1})
	w.advance(8 * time.Second)
	w.gets(b.fetch(maxWait(50*time.Millisecond)), topic)
	w.advance(10 * time.Second)
	w.comes(b, topic, entry{0, 0, 2})
}

func TestRestDoublesUpToItsMaximum(t *testing.T) {
	w := newWorld(t, 1)
	topic, a, _ := backoffGroup(t, w, 1, "10000", "30000")
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	for i, rest := range []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 30 * time.Second} {
		w.gets(a.fetch(with(topic, 0, release(0, 0))), topic)
		w.advance(rest - 3*time.Second)
		w.gets(a.fetch(maxWait(50*time.Millisecond)), topic)
		w.advance(rest)
		w.comes(a, topic, entry{0, 0, int16(i + 2)})
	}
	// The fifth delivery was the last: given up as ever.
	w.gets(a.fetch(with(topic, 0, release(0, 0))), topic)
	if spso := w.reps[0].spso("g", topic.ID); spso != 1 {
		t.Errorf("SPSO %d", spso)
	}
}

func TestEndOfRestWakesFetchOnOtherReplica(t *testing.T) {
	w := newWorldOn(t, 2, messagesOnly)
	topic, a, b := backoffGroup(t, w, 1, "1000", "60000")
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	b.open(topic)
	done := w.fetchWaits(b, 1)
	began := time.Now()
	if code := a.ackCode(topic, 0, release(0, 0)); code != 0 {
		t.Fatalf("release: code %d", code)
	}
	w.gets(<-done, topic, entry{0, 0, 2})
	if took := time.Since(began); took < 900*time.Millisecond || took > 15*time.Second {
		t.Errorf("delivered after %v", took)
	}
}

// TestTimedOutRecordRestsFromTheEndOfItsLock: nobody writes an op when the lock runs out, as there is nothing to take.
func TestTimedOutRecordRestsFromTheEndOfItsLock(t *testing.T) {
	w := newWorld(t, 1)
	w.alter("g", "share.record.lock.duration.ms", "15000")
	topic, a, b := backoffGroup(t, w, 1, "5000", "60000")
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	b.open(topic)
	w.advance(14 * time.Second)
	done := w.fetchWaits(b, 0)
	sh := w.reps[0].srv.use("g", tpOf(topic.ID, 0))
	defer sh.done()
	end, _ := sh.nextDeadline()
	w.eventually("the fetch to have looked when the lock ran out", func() bool { return sh.until(end) < -200*time.Millisecond })
	select {
	case resp := <-done:
		t.Fatalf("answered at the end of the lock: %v", got(resp, topic, 0))
	default:
	}
	w.advance(3 * time.Second)
	began := time.Now()
	w.gets(<-done, topic, entry{0, 0, 2})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("woken after %v", took)
	}
}

func TestClosedSessionsRecordsRest(t *testing.T) {
	w := newWorld(t, 1)
	topic, a, b := backoffGroup(t, w, 2, "10000", "60000")
	w.gets(a.open(topic, maxRecords(1)), topic, entry{0, 0, 1})
	a.send(w.ctx, -1)
	w.gets(b.open(topic), topic, entry{1, 1, 1})
	w.gets(b.fetch(maxWait(50*time.Millisecond)), topic)
	w.advance(20 * time.Second)
	w.comes(b, topic, entry{0, 0, 2})
}

func TestTurningTheBackoffOffEndsAllRests(t *testing.T) {
	w := newWorld(t, 1)
	topic, a, _ := backoffGroup(t, w, 1, "3600000", "3600000")
	w.gets(a.open(topic), topic, entry{0, 0, 1})
	w.gets(a.fetch(with(topic, 0, release(0, 0))), topic)
	w.alter("g", "share.release.backoff.ms", "0")
	w.gets(a.fetch(maxWait(5*time.Second)), topic, entry{0, 0, 2})
}

// fetchWaits starts a fetch and returns when it waits on the replica.
func (w *world) fetchWaits(m *member, replica int) <-chan *kmsg.ShareFetchResponse {
	w.Helper()
	done := make(chan *kmsg.ShareFetchResponse, 1)
	go func() { done <- m.fetch(maxWait(20 * time.Second)) }()
	w.eventually("the fetch to wait", w.reps[replica].waiting)
	return done
}

// comes fetches until something is acquired, for a replica takes a while to learn that Redis' clock has moved.
func (w *world) comes(m *member, topic upstream.Topic, want entry) {
	w.Helper()
	var have []entry
	w.eventually("a record that has rested", func() bool {
		have = got(m.fetch(maxWait(100*time.Millisecond)), topic, 0)
		return len(have) > 0
	})
	if !slices.Equal(have, []entry{want}) {
		w.Errorf("acquired %v, want %v", have, want)
	}
}
