//go:build e2e

package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// killServer ends what serves m, hard, and starts it again. A single broker is not killed: there the connection is cut,
// and with the group's last session the broker drops what it has not written down and must load the rest again.
func killServer(w *world, m *member) {
	w.Helper()
	if w.tg.replicas == nil {
		m.c.Close()
		return
	}
	w.tg.replicas.Process(0).Kill()
	if err := w.tg.replicas.Start(0); err != nil {
		w.Fatal(err)
	}
}

// serverBack waits until the killed replica serves again.
func serverBack(w *world) {
	w.Helper()
	if w.tg.replicas == nil {
		return
	}
	if err := w.tg.replicas.WaitReady(0, 60*time.Second); err != nil {
		w.Fatal(err)
	}
}

func TestCheck107_AcknowledgementSurvivesKill(t *testing.T) {
	w := start(t, setup{alone: true})
	w.admin = w.dial(w.tg.at(1, w.node)) // not by way of the replica that dies
	w.produceEach(w.p(0), 2, 5)
	m := w.memberAt(0)
	m.takes("0-9x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 2), reject(6, 6))
	killServer(w, m)
	serverBack(w)
	for replica := range 2 {
		other := w.memberAt(replica)
		got := map[int64]bool{}
		w.until("the records that were held", 40*time.Second, func() error {
			for _, o := range offsets(other.fetch(w.p(0)).acquired(w.p(0))) {
				got[o] = true
			}
			if len(got) != 6 {
				return fmt.Errorf("offsets %v", got)
			}
			return nil
		})
		for _, o := range []int64{0, 1, 2, 6} {
			if got[o] {
				t.Fatalf("offset %d was acknowledged, but came again", o)
			}
		}
		other.close()
	}
	w.lagBecomes(w.p(0), 6)
}

// What sessions hold that were opened by way of a replica comes free when the replica dies, long before the locks end,
// wherever the session went on; the session is over. A session that the member has opened anew elsewhere stays.
func TestDeadReplicasSessionsAreClosedByASurvivor(t *testing.T) {
	if native() {
		t.Skip("needs two replicas")
	}
	w := enter(t, setup{alone: true})
	w.admin = w.dial(w.tg.at(1, w.node))
	survivor := w.tg.at(1, w.node)
	produced := func() { w.produce(w.p(0), 5) }
	produced()
	m := w.memberAt(0)
	m.takes("0-4x1", w.p(0))
	produced()
	continued := m.over(w.dial(survivor))
	continued.takes("5-9x1")
	produced()
	r := w.memberAt(0)
	r.takes("10-14x1", w.p(0))
	produced()
	reopened := r.over(w.dial(survivor))
	reopened.epoch = 0
	reopened.takes("15-19x1", w.p(0))
	other := w.memberAt(1)
	other.getsNone(w.p(0))

	killServer(w, m)
	killed := time.Now()
	other.gathers("0-14x2", w.p(0))
	if took := time.Since(killed); took > 10*time.Second {
		t.Errorf("free after %v", took)
	}
	w.until("the end of the session", 10*time.Second, func() error { // it comes after that of the locks
		code, _ := continued.open(continued.fetching())
		if code == 0 {
			return fmt.Errorf("served at epoch %d", continued.epoch-1)
		}
		w.code("ShareFetch", code, kerr.ShareSessionNotFound)
		return nil
	})
	continued.refused(continued.acknowledging(), kerr.ShareSessionNotFound)
	reopened.ack(nil, w.p(0), accept(15, 19))
	other.ack(nil, w.p(0), accept(0, 14))
	w.lagBecomes(w.p(0), 0)
	serverBack(w)
}

// offsets are all of "0-1x1 5-5x2".
func offsets(acquired string) (all []int64) {
	for _, r := range strings.Fields(acquired) {
		var first, last, count int64
		fmt.Sscanf(r, "%d-%dx%d", &first, &last, &count)
		for o := first; o <= last; o++ {
			all = append(all, o)
		}
	}
	return all
}

func TestCheck108_AcknowledgementInFlightAtKillIsNeverHalf(t *testing.T) {
	w := start(t, setup{alone: true})
	w.admin = w.dial(w.tg.at(1, w.node))
	other := w.memberAt(1)
	for round, wait := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond} {
		base := w.produce(w.p(0), 10)
		m := w.memberAt(0)
		w.until("the round's records", 40*time.Second, func() error {
			got := m.fetch(w.p(0)).acquired(w.p(0))
			if got == "" {
				return fmt.Errorf("none")
			}
			w.is("acquired", got, fmt.Sprintf("%d-%dx1", base, base+9))
			return nil
		})
		req := m.acknowledging()
		carry(req, w.p(0), accept(base, base+4))
		if err := m.c.send(req); err != nil {
			t.Fatal(err)
		}
		<-time.After(wait) // the kill is to meet the request at different points of its way
		killServer(w, m)
		again := map[int64]bool{}
		w.until("what is not applied", 40*time.Second, func() error {
			for _, o := range offsets(other.fetch(w.p(0)).acquired(w.p(0))) {
				other.ack(nil, w.p(0), accept(o, o))
				again[o] = true
			}
			if _, lag := w.described(w.p(0)); lag != 0 {
				return fmt.Errorf("lag %d, came again %v", lag, again)
			}
			return nil
		})
		n := 0
		for o := base; o <= base+4; o++ {
			if again[o] {
				n++
			}
		}
		if n != 0 && n != 5 {
			t.Errorf("round %d: %d of the 5 offsets of one acknowledgement came again", round, n)
		}
		for o := base + 5; o <= base+9; o++ {
			if !again[o] {
				t.Errorf("round %d: offset %d was held at the kill and is lost", round, o)
			}
		}
		t.Logf("round %d: the acknowledgement was %s", round, map[int]string{0: "applied", 5: "not applied"}[n])
		serverBack(w)
	}
}
