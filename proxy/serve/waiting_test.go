package serve

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// withOnePlace is a group of two members whose records are all acquired, on a replica where one fetch may wait at a time.
func withOnePlace(t *testing.T) (w *world, topic upstream.Topic, a, b *member) {
	w, topic, a, b = groupFromStart(t, 1, 4)
	w.reps[0].srv.places = newWaitingPlaces(1)
	w.gets(a.open(topic, recordLimit(2)), topic, entry{0, 1, 1})
	w.gets(b.open(topic, recordLimit(2)), topic, entry{2, 3, 1})
	return w, topic, a, b
}

// later sends the member's next fetch in the background.
func (m *member) later(mods ...mod) <-chan *kmsg.ShareFetchResponse {
	answer := make(chan *kmsg.ShareFetchResponse, 1)
	go func() { answer <- m.fetch(mods...) }()
	return answer
}

func TestFetchWithoutAPlaceIsAnsweredInItsTime(t *testing.T) {
	w, topic, a, b := withOnePlace(t)
	first := a.later(maxWait(20 * time.Second))
	w.eventually("a fetch to wait", w.reps[0].waiting)
	// It is unknown to the share-partition meanwhile, answered empty, and its acknowledgements are done.
	began := time.Now()
	resp := b.fetch(maxWait(300*time.Millisecond), with(topic, 0, accept(2, 3)))
	if d := time.Since(began); d < 300*time.Millisecond || d > 3*time.Second {
		t.Errorf("answered after %v", d)
	}
	w.gets(resp, topic)
	if p, ok := part(resp, topic.ID, 0); !ok || p.AcknowledgeErrorCode != 0 {
		t.Errorf("acknowledgement: %v, code %d", ok, p.AcknowledgeErrorCode)
	}
	if n := w.reps[0].waiters(); n != 1 {
		t.Errorf("%d fetches wait", n)
	}
	w.produce("t", 0, 1, 1) // goes to the one that waits
	w.gets(<-first, topic, entry{4, 4, 1})
}

func TestFetchWithoutAPlaceGetsWhatIsThere(t *testing.T) {
	w, topic, a, b := withOnePlace(t)
	w.reps[0].srv.places <- struct{}{} // somebody of another group waits
	if code := a.ackCode(topic, 0, release(0, 0)); code != 0 {
		t.Fatalf("release: code %d", code)
	}
	began := time.Now()
	w.gets(b.fetch(maxWait(20*time.Second)), topic, entry{0, 0, 2}) // at once
	late := b.later(maxWait(500 * time.Millisecond))
	w.eventually("the fetch to be held", func() bool { return w.reps[0].held() == 1 })
	if code := a.ackCode(topic, 0, release(1, 1)); code != 0 {
		t.Fatalf("release: code %d", code)
	}
	w.gets(<-late, topic, entry{1, 1, 2}) // at the end
	if d := time.Since(began); d < 500*time.Millisecond || d > 5*time.Second {
		t.Errorf("answered after %v", d)
	}
}

func TestPlaceThatGetsFreeGoesToAFetchThatHasNone(t *testing.T) {
	w, topic, a, b := withOnePlace(t)
	places := w.reps[0].srv.places
	places <- struct{}{}
	held := b.later(maxWait(20 * time.Second))
	w.eventually("the fetch to be held", func() bool { return w.reps[0].held() == 1 })
	if code := a.ackCode(topic, 0, release(0, 0)); code != 0 { // what it was not told of, it sees with its place
		t.Fatalf("release: code %d", code)
	}
	places.free()
	w.gets(<-held, topic, entry{0, 0, 2})
	waits := b.later(maxWait(20 * time.Second))
	w.eventually("the fetch to wait", w.reps[0].waiting)
	w.produce("t", 0, 1, 1)
	w.gets(<-waits, topic, entry{4, 4, 1})
	if n := len(places); n != 0 || w.reps[0].held() != 0 {
		t.Errorf("%d places are taken, %v fetches held", n, w.reps[0].held())
	}
}

func TestFetchWithoutAPlaceEndsWithItsConnection(t *testing.T) {
	w, _, _, b := withOnePlace(t)
	w.reps[0].srv.places <- struct{}{}
	held := b.later(maxWait(20 * time.Second))
	w.eventually("the fetch to be held", func() bool { return w.reps[0].held() == 1 })
	b.r.srv.ConnClosed(b.c)
	<-held
	held = w.reps[0].member("g", "c").join("t").later(maxWait(20*time.Second), func(r *kmsg.ShareFetchRequest) { r.ShareSessionEpoch = 0 })
	w.reps[0].srv.Drain()
	<-held
}

// held is how many fetches have no place.
func (r *rep) held() float64 {
	reg := prometheus.NewRegistry()
	reg.MustRegister(r.srv.m.held)
	families, err := reg.Gather()
	r.w.must(err)
	return families[0].GetMetric()[0].GetGauge().GetValue()
}
