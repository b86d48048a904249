//go:build e2e

package client

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Audit follows every record of a topic through the cycles of all consumers of one
// group. After an acknowledgement has returned ok for a delivery with count n, no
// delivery with a higher count may come: each acquisition raises the count, so that
// would be a new acquisition of a finished record. A stale delivery out of a client's
// buffer has a lower count and is no breach; nor is an ok for a stale acknowledgement
// below the start offset, which has no effect and comes after the later delivery.
type Audit struct {
	mu         sync.Mutex
	partitions [][]fate
	accepted   []int64 // by partition, when the newest delivery that was accepted came, ms
	settled    int
	uncertain  int
	firstCycle time.Time
	lastCycle  time.Time
	problems   []string
	errors     map[string]int
	byClient   map[string]int
}

type fate struct {
	deliveries []event
	accepts    []event // returned ok
	rejects    []event // returned ok
	uncertain  bool    // an acknowledgement has an unknown outcome
}

// event is a delivery, or the return of an acknowledgement, at a delivery count.
type event struct {
	count int
	at    int64 // ms
}

// NewAudit expects the offsets 0 to perPartition-1 of each partition.
func NewAudit(partitions, perPartition int) *Audit {
	a := &Audit{partitions: make([][]fate, partitions), accepted: make([]int64, partitions), errors: map[string]int{}, byClient: map[string]int{}, lastCycle: time.Now()}
	for p := range a.partitions {
		a.partitions[p] = make([]fate, perPartition)
	}
	return a
}

// Sink takes the cycles of one consumer.
func (a *Audit) Sink(client string) func(Cycle) {
	return func(c Cycle) { a.add(client, c) }
}

func (a *Audit) add(client string, c Cycle) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastCycle = time.Now()
	if a.firstCycle.IsZero() {
		a.firstCycle = a.lastCycle
	}
	if c.PollError != "" {
		a.errors["poll: "+c.PollError]++
		return
	}
	counts := map[[2]int64]int{}
	for _, r := range c.Delivered {
		for o := r.First; o <= r.Last; o++ {
			if f := a.fate(r.Partition, o); f != nil {
				f.deliveries = append(f.deliveries, event{r.Value, c.PolledAt})
				counts[[2]int64{int64(r.Partition), o}] = r.Value
				a.byClient[client]++
			}
		}
	}
	for _, e := range c.Errors {
		a.errors["commit: "+e]++
	}
	for _, r := range c.Acked {
		a.ack(r, c, counts)
	}
}

func (a *Audit) ack(r Run, c Cycle, counts map[[2]int64]int) {
	reason, bad := c.Errors[fmt.Sprint(r.Partition)]
	if !bad {
		reason, bad = c.Errors["*"]
	}
	for o := r.First; o <= r.Last; o++ {
		f := a.fate(r.Partition, o)
		if f == nil {
			continue
		}
		e := event{counts[[2]int64{int64(r.Partition), o}], c.AckedAt}
		wasSettled := f.settled()
		switch {
		case bad:
			// Refused = surely not applied; the record must come again.
			if !refused(reason) && !f.uncertain {
				f.uncertain = true
				a.uncertain++
			}
		case r.Value == ackTypeIDs[Accept]:
			f.accepts = append(f.accepts, e)
			a.accepted[r.Partition] = max(a.accepted[r.Partition], c.PolledAt)
		case r.Value == ackTypeIDs[Reject]:
			f.rejects = append(f.rejects, e)
		}
		if !wasSettled && f.settled() {
			a.settled++
		}
	}
}

func (f *fate) settled() bool { return len(f.accepts) > 0 || len(f.rejects) > 0 }

func refused(reason string) bool {
	return strings.Contains(reason, "InvalidRecordState") || strings.Contains(reason, "INVALID_RECORD_STATE")
}

func (a *Audit) fate(p int32, o int64) *fate {
	if int(p) >= len(a.partitions) || o < 0 || o >= int64(len(a.partitions[p])) {
		a.problem("delivered %d-%d, which was never produced", p, o)
		return nil
	}
	return &a.partitions[p][o]
}

func (a *Audit) problem(format string, args ...any) {
	if len(a.problems) < 30 {
		a.problems = append(a.problems, fmt.Sprintf(format, args...))
	}
}

// Settled returns an error until every record is accepted or rejected. Once nothing
// came for quiet, which must exceed the lock duration, records whose acknowledgements
// have unknown outcomes count too.
func (a *Audit) Settled(quiet time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	total := a.total()
	if a.settled == total {
		return nil
	}
	if a.settled+a.uncertain >= total && time.Since(a.lastCycle) > quiet {
		return nil
	}
	return fmt.Errorf("%d of %d records settled, %d with an uncertain ack, last cycle %v ago, errors %v",
		a.settled, total, a.uncertain, time.Since(a.lastCycle).Round(time.Second), a.errors)
}

func (a *Audit) total() int {
	n := 0
	for _, p := range a.partitions {
		n += len(p)
	}
	return n
}

// Span is the time from the first poll that brought records to the last one.
func (a *Audit) Span() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lastCycle.Sub(a.firstCycle)
}

// SettledCount is how many records have been accepted or rejected so far.
func (a *Audit) SettledCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.settled
}

// AcceptedSince returns an error until, on every partition, a record has been accepted
// that was delivered after that time.
func (a *Audit) AcceptedSince(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var silent []string
	for p, at := range a.accepted {
		if at <= t.UnixMilli() {
			silent = append(silent, fmt.Sprintf("%d (for %v)", p, time.Since(time.UnixMilli(at)).Round(time.Millisecond)))
		}
	}
	if len(silent) > 0 {
		return fmt.Errorf("nothing new accepted of partitions %s; errors %v", strings.Join(silent, ", "), a.errors)
	}
	return nil
}

// Verdict is the sum of an audit.
type Verdict struct {
	Produced, Accepted, Archived int
	Unknown                      int // settled by an acknowledgement whose answer was lost
	Redelivered                  int // records that came more than once
	HighestCount                 int
	Problems                     []string
	Errors                       map[string]int
	ByClient                     map[string]int
}

func (v Verdict) String() string {
	return fmt.Sprintf("produced %d = accepted %d + archived %d + answer lost %d; %d came more than once; deliveries by client %v; errors %v",
		v.Produced, v.Accepted, v.Archived, v.Unknown, v.Redelivered, v.ByClient, v.Errors)
}

// Verdict judges. Problems: a record lost, never settled, or acquired anew after its
// acknowledgement had returned ok.
func (a *Audit) Verdict() Verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := Verdict{Produced: a.total(), Errors: a.errors, ByClient: a.byClient}
	for p := range a.partitions {
		for o := range a.partitions[p] {
			a.judge(&v, p, o)
		}
	}
	v.Problems = a.problems
	return v
}

func (a *Audit) judge(v *Verdict, p, o int) {
	f := &a.partitions[p][o]
	if len(f.deliveries) > 1 {
		v.Redelivered++
	}
	for _, d := range f.deliveries {
		v.HighestCount = max(v.HighestCount, d.count)
	}
	switch {
	case len(f.accepts) > 0:
		v.Accepted++
	case len(f.rejects) > 0:
		v.Archived++
	case f.uncertain:
		v.Unknown++
	case len(f.deliveries) == 0:
		a.problem("%d-%d lost: never delivered", p, o)
	default:
		a.problem("%d-%d lost: never settled; deliveries %v", p, o, f.deliveries)
	}
	for _, ack := range append(f.accepts, f.rejects...) {
		for _, d := range f.deliveries {
			if d.count > ack.count && d.at > ack.at {
				a.problem("%d-%d acquired again after its ack returned ok: deliveries (count, ms) %v, accepts %v, rejects %v",
					p, o, f.deliveries, f.accepts, f.rejects)
				return
			}
		}
	}
}

// CleanRun adds what must hold in a run without faults, releases and rejects: every
// record once, at delivery count 1, no errors.
func (v Verdict) CleanRun() []string {
	problems := slices.Clone(v.Problems)
	if v.Accepted != v.Produced {
		problems = append(problems, fmt.Sprintf("accepted %d of %d", v.Accepted, v.Produced))
	}
	if v.Redelivered > 0 {
		problems = append(problems, fmt.Sprintf("%d records came more than once", v.Redelivered))
	}
	if v.HighestCount > 1 {
		problems = append(problems, fmt.Sprintf("delivery count %d", v.HighestCount))
	}
	if len(v.Errors) > 0 {
		problems = append(problems, fmt.Sprintf("errors: %v", v.Errors))
	}
	return problems
}
