package demo

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ledger writes down what the cast saw of each record, and says in the end whether it adds up.
type ledger struct {
	mu        sync.Mutex
	made      int
	records   map[int]*history
	consumers map[string]*tally
}

// history is the life of one record.
type history struct {
	deliveries []int32 // delivery counts, in order of arrival
	accepted   int
	rejected   int
	releasedAt []int32 // delivery count at each confirmed release
	heldAt     []int32 // delivery count when a consumer died or overslept with it
	problem    string  // the first thing that must not happen
}

// tally is what one consumer did.
type tally struct{ received, accepted, rejected, released, refused, failed, died, overslept int }

func newLedger() *ledger { return &ledger{records: map[int]*history{}, consumers: map[string]*tally{}} }

// entry locks; the caller unlocks.
func (l *ledger) entry(name string, id int) (*history, *tally) {
	l.mu.Lock()
	h, known := l.records[id]
	if !known {
		h = &history{}
		l.records[id] = h
	}
	return h, l.of(name)
}

func (l *ledger) of(name string) *tally {
	t, known := l.consumers[name]
	if !known {
		t = &tally{}
		l.consumers[name] = t
	}
	return t
}

func (h *history) blame(format string, args ...any) {
	if h.problem == "" {
		h.problem = fmt.Sprintf(format, args...)
	}
}

func (l *ledger) produced() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
}

func (l *ledger) delivered(name string, id int, count int32) {
	h, t := l.entry(name, id)
	defer l.mu.Unlock()
	t.received++
	if h.accepted+h.rejected > 0 {
		h.blame("came back after it was acknowledged")
	}
	if n := len(h.deliveries); n == 0 && count < 1 || n > 0 && count <= h.deliveries[n-1] {
		h.blame("delivery counts %v are followed by %d", h.deliveries, count)
	}
	h.deliveries = append(h.deliveries, count)
}

func (l *ledger) confirmed(name string, id int, count int32, f fate) {
	h, t := l.entry(name, id)
	defer l.mu.Unlock()
	switch f {
	case accept:
		t.accepted++
		h.accepted++
	case reject:
		t.rejected++
		h.rejected++
	case release:
		t.released++
		h.releasedAt = append(h.releasedAt, count)
	}
	if h.accepted+h.rejected > 1 {
		h.blame("has %d accepts and %d rejects", h.accepted, h.rejected)
	}
}

func (l *ledger) refused(name string, id int) {
	_, t := l.entry(name, id)
	defer l.mu.Unlock()
	t.refused++
}

func (l *ledger) failed(name string, id int) {
	_, t := l.entry(name, id)
	defer l.mu.Unlock()
	t.failed++
}

func (l *ledger) holds(name string, taken []delivery, why string) {
	for _, d := range taken {
		h, t := l.entry(name, d.id)
		h.heldAt = append(h.heldAt, d.count)
		if why == "died" {
			t.died++
		} else {
			t.overslept++
		}
		l.mu.Unlock()
	}
}

// again says whether some delivery has a higher count.
func (h *history) again(count int32) bool {
	return slices.ContainsFunc(h.deliveries, func(c int32) bool { return c > count })
}

func (l *ledger) deliveredAgain(id int, count int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.records[id]
	return h != nil && h.again(count)
}

func (l *ledger) wasReleased(id int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.records[id]
	return h != nil && len(h.releasedAt) > 0
}

// done says whether all records were produced and found their end, and every release and every loss was made good.
func (l *ledger) done(records int) bool {
	t := l.counts()
	return t.produced == records && t.accepted+t.rejected >= t.produced && t.redelivered == t.released && t.recovered == t.held &&
		t.died > 0 && t.overslept > 0 && t.refused >= t.overslept
}

// totals are the sums that the summary shows.
type totals struct {
	produced, accepted, rejected      int
	released, redelivered, exactlyTwo int // exactlyTwo: released at count 1 and next seen with 2
	held, recovered                   int
	died, overslept, refused, failed  int
}

func (t totals) String() string {
	return fmt.Sprintf("produced %d, accepted %d, rejected %d, released %d, delivered again %d, held by lost consumers %d, recovered %d",
		t.produced, t.accepted, t.rejected, t.released, t.redelivered, t.held, t.recovered)
}

func (l *ledger) counts() totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := totals{produced: l.made}
	for _, h := range l.records {
		t.accepted += h.accepted
		t.rejected += h.rejected
		for _, count := range h.releasedAt {
			t.released++
			if h.again(count) {
				t.redelivered++
			}
			if slices.Contains(h.deliveries, count+1) {
				t.exactlyTwo++
			}
		}
		for _, count := range h.heldAt {
			t.held++
			if h.again(count) {
				t.recovered++
			}
		}
	}
	for _, c := range l.consumers {
		t.died += c.died
		t.overslept += c.overslept
		t.refused += c.refused
		t.failed += c.failed
	}
	return t
}

func (l *ledger) tallyOf(name string) tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.of(name)
}

// audit says what does not add up, or nil. steady are the consumers that must have done some of the work.
func (l *ledger) audit(steady []string) error {
	t := l.counts()
	var problems []string
	expect := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	expect(t.produced > 0, "nothing was produced")
	expect(t.produced == t.accepted+t.rejected, "produced %d is not accepted %d + rejected %d", t.produced, t.accepted, t.rejected)
	expect(t.rejected > 0, "nothing was rejected")
	expect(t.released > 0, "nothing was released")
	expect(t.released == t.redelivered, "released %d is not delivered again %d", t.released, t.redelivered)
	expect(t.released == t.exactlyTwo, "of %d released records %d came back with a delivery count one higher", t.released, t.exactlyTwo)
	expect(t.died > 0 && t.overslept > 0, "no consumer died (%d records) or let its lock expire (%d)", t.died, t.overslept)
	expect(t.held == t.recovered, "lost consumers held %d but %d came back", t.held, t.recovered)
	expect(t.refused >= t.overslept, "%d records were held beyond the lock but only %d late acknowledgements were refused", t.overslept, t.refused)
	expect(t.failed == 0, "%d acknowledgements failed", t.failed)
	for _, name := range steady {
		expect(l.tallyOf(name).accepted > 0, "consumer %s got no share of the work", name)
	}
	problems = append(problems, l.recordProblems(t.produced)...)
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("the counts do not add up: %s", strings.Join(problems, "; "))
}

// recordProblems names the first few records that went wrong.
func (l *ledger) recordProblems(produced int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var problems []string
	for id := range produced {
		h := l.records[id]
		switch {
		case len(problems) == 5:
			return append(problems, "and more")
		case h == nil:
			problems = append(problems, fmt.Sprintf("record %d was never delivered", id))
		case h.problem != "":
			problems = append(problems, fmt.Sprintf("record %d %s", id, h.problem))
		case h.accepted+h.rejected == 0:
			problems = append(problems, fmt.Sprintf("record %d has no end (deliveries %v)", id, h.deliveries))
		}
	}
	return problems
}
