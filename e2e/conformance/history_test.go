//go:build e2e

package conformance

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Histories are random requests of three members on one partition, with the answers of Kafka 4.4.0. A request depends on
// the answers before it only through what each member holds, so the same seed asks the same on every target as long as
// the answers are the same. Nothing in them depends on time.

var record = flag.Bool("record", false, "write the histories anew from this target's answers")

var histories = flag.Int("histories", 60, "how many; those beyond the recorded ones need -record on native first")

func TestHistoriesAreAnsweredAsRecorded(t *testing.T) {
	for seed := range *histories {
		t.Run(fmt.Sprintf("%02d", seed), func(t *testing.T) {
			file := filepath.Join("testdata", "histories", fmt.Sprintf("%02d.txt", seed))
			h := newHistory(t, uint64(seed), false)
			isAsRecorded(t, file, h.play())
		})
	}
}

// The same with a dead letter topic: which letters there are at the end is part of what is recorded.
func TestHistoriesWithDeadLettersAreAnsweredAsRecorded(t *testing.T) {
	for seed := range 12 {
		t.Run(fmt.Sprintf("%02d", seed), func(t *testing.T) {
			h := newHistory(t, uint64(seed), true)
			h.play()
			h.w.until("dead letters", 60*time.Second, func() error {
				if got := len(h.w.letters(h.dead, 1)); got < h.died {
					return fmt.Errorf("%d of %d", got, h.died)
				}
				return nil
			})
			for _, l := range h.w.letters(h.dead, 1) {
				fmt.Fprintln(&h.out, l)
			}
			isAsRecorded(t, filepath.Join("testdata", "histories", fmt.Sprintf("dead-letters-%02d.txt", seed)), h.out.Bytes())
		})
	}
}

// isAsRecorded compares with a file, or writes it.
func isAsRecorded(t *testing.T, file string, got []byte) {
	t.Helper()
	if *record {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	compareLines(t, got, want)
}

// compareLines shows the first difference with the lines before it.
func compareLines(t *testing.T, got, want []byte) {
	t.Helper()
	g, w := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(g), len(w)) {
		if !bytes.Equal(g[i], w[i]) {
			t.Fatalf("after\n%s\ngot  %s\nwant %s", bytes.Join(g[max(0, i-12):i], []byte("\n")), g[i], w[i])
		}
	}
	if len(g) != len(w) {
		t.Fatalf("%d lines, want %d", len(g), len(w))
	}
}

// history is one run.
type history struct {
	w       *world
	r       *rand.Rand
	members []*member
	held    []map[int64]bool
	end     int64
	out     bytes.Buffer

	// With dead letters nothing may depend on whether a letter is written yet: the window is never full, and only what is
	// held is acknowledged.
	letters bool
	dead    topic
	limit   int
	counts  map[int64]int // deliveries
	died    int           // how many dead letters there must be
}

func newHistory(t *testing.T, seed uint64, letters bool) *history {
	r := rand.New(rand.NewPCG(seed, 44))
	limit := 2 + r.IntN(6)
	locks := 100
	if letters {
		locks = 4000
	}
	w := enter(t, setup{configs: map[string]string{
		"share.delivery.count.limit": fmt.Sprint(limit), "share.partition.max.record.locks": fmt.Sprint(locks),
		"share.record.lock.duration.ms": "60000"}})
	h := &history{w: w, r: r, letters: letters, limit: limit, counts: map[int64]int{}}
	if letters {
		h.dead = w.deadTopic(1)
		w.set(w.group, deadLetterCopy, fmt.Sprint(seed%2 == 0))
		w.set(w.group, deadLetterTopic, h.dead.name)
	}
	w.member().getsNone(w.p(0)) // the first fetch of a partition may be answered before its state is loaded
	w.keepLoaded()
	fmt.Fprintf(&h.out, "delivery limit %d, locks %d\nbatches", limit, locks)
	for range 15 + r.IntN(25) {
		n := 1 + r.IntN(3)
		if r.IntN(3) == 0 {
			n = 1 + r.IntN(30)
		}
		h.produce(n)
		fmt.Fprintf(&h.out, " %d", n)
		h.end += int64(n)
	}
	h.out.WriteByte('\n')
	for range 3 {
		// All by one replica: another one plans by what it has heard of, and may get less, or later records first.
		h.members = append(h.members, w.memberAt(0))
		h.held = append(h.held, map[int64]bool{})
	}
	return h
}

func (h *history) produce(n int) {
	h.w.Helper()
	var records []kmsg.Record
	for i := range int64(n) {
		records = append(records, kmsg.Record{Key: fmt.Appendf(nil, "k%d", h.end+i), Value: fmt.Appendf(nil, "v%d", h.end+i)})
	}
	h.w.put(h.w.p(0), batch{records: records})
}

func (h *history) play() []byte {
	for range 120 {
		i := h.r.IntN(len(h.members))
		switch n := h.r.IntN(20); {
		case n < 9 || h.members[i].epoch == 0:
			h.fetch(i, nil)
		case n < 16:
			h.acknowledge(i, h.acks(i))
		case n < 19:
			h.fetch(i, h.acks(i))
		default: // open anew; what it holds stays
			h.members[i].epoch = 0
			h.fetch(i, nil)
		}
	}
	if h.letters {
		return h.out.Bytes() // the lag is that of records whose letters may not be written yet
	}
	start, lag := h.w.described(h.w.p(0))
	if start >= 0 {
		fmt.Fprintf(&h.out, "lag %d\n", lag)
	}
	return h.out.Bytes()
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// fetch is a ShareFetch, with acknowledgements if there are any.
func (h *history) fetch(i int, acks []ack) {
	h.w.Helper()
	m, p := h.members[i], h.w.p(0)
	req := m.fetching()
	req.MaxWaitMillis = 100
	req.MaxRecords = pick(h.r, int32(1), 3, 7, 10, 20, 50, 500)
	req.BatchSize = pick(h.r, int32(1), 4, 10, 500)
	req.ShareAcquireMode = pick(h.r, int8(0), 0, 1)
	if h.letters && acks == nil {
		carry(req, p) // without, only acknowledgements bring the partition into the session
	}
	if acks != nil {
		// A broker fetches beside the acknowledgements, kshare after them, so what such a fetch gets is not asked.
		carry(req, p, acks...)
		req.MaxRecords = 0
	}
	f := m.do(req)
	fmt.Fprintf(&h.out, "m%d fetch max %d size %d mode %d", i, req.MaxRecords, req.BatchSize, req.ShareAcquireMode)
	if acks != nil {
		code := f.ackFailure(p)
		fmt.Fprintf(&h.out, " %s: %d", printAcks(acks), code)
		h.settle(i, acks, code)
	}
	got := f.acquired(p)
	fmt.Fprintf(&h.out, ": %s\n", got)
	for _, o := range offsets(got) {
		h.held[i][o] = true
		h.counts[o]++
	}
}

func (h *history) acknowledge(i int, acks []ack) {
	h.w.Helper()
	m := h.members[i]
	req := m.acknowledging()
	if acks == nil {
		return
	}
	req.IsRenewAck = h.r.IntN(4) > 0
	carry(req, h.w.p(0), acks...)
	code := m.doAck(req).result(h.w.p(0))
	fmt.Fprintf(&h.out, "m%d ack renew %v %s: %d\n", i, req.IsRenewAck, printAcks(acks), code)
	h.settle(i, acks, code)
}

// settle drops what a member no longer holds.
func (h *history) settle(i int, acks []ack, code int16) {
	if code != 0 {
		return
	}
	for _, a := range acks {
		for o := a.first; o <= a.last; o++ {
			t := a.types[0]
			if len(a.types) > 1 {
				t = a.types[o-a.first]
			}
			if h.held[i][o] && (t == typeReject || t == typeRelease && h.counts[o] >= h.limit) {
				h.died++
			}
			if t != typeRenew {
				delete(h.held[i], o)
			}
		}
	}
}

// acks makes up to three batches, mostly of what the member holds.
func (h *history) acks(i int) (acks []ack) {
	for _, run := range h.runs(i) {
		if len(acks) == 3 {
			break
		}
		if h.r.IntN(3) == 0 {
			continue
		}
		first := run.first + h.r.Int64N(run.last-run.first+1)
		if h.r.IntN(2) == 0 {
			first = run.first
		}
		last := first + h.r.Int64N(run.last-first+1)
		if h.r.IntN(2) == 0 {
			last = run.last
		}
		acks = append(acks, ack{first, last, h.types(last - first + 1)})
	}
	if h.letters {
		return acks
	}
	if len(acks) == 0 || h.r.IntN(8) == 0 {
		// Whatever: gone, another's, never handed out. One offset, for Kafka 4.4.0 fails with a null pointer where a range
		// begins below all that it tracks and ends inside.
		first := h.r.Int64N(h.end)
		a := ack{first, first, h.types(1)}
		at, _ := slices.BinarySearchFunc(acks, a, func(x, y ack) int { return cmp.Compare(x.first, y.first) })
		acks = slices.Insert(acks, at, a)
	}
	return acks
}

func (h *history) types(n int64) []int8 {
	if h.r.IntN(3) > 0 {
		return []int8{pick(h.r, typeAccept, typeAccept, typeRelease, typeRelease, typeRelease, typeReject, typeGap, typeRenew)}
	}
	types := make([]int8, n)
	for i := range types {
		types[i] = pick(h.r, typeAccept, typeRelease, typeRelease, typeReject, typeGap)
	}
	return types
}

// runs are the ranges that a member holds.
func (h *history) runs(i int) (runs []span) {
	all := make([]int64, 0, len(h.held[i]))
	for o := range h.held[i] {
		all = append(all, o)
	}
	slices.Sort(all)
	for _, o := range all {
		if n := len(runs); n > 0 && runs[n-1].last+1 == o {
			runs[n-1].last = o
			continue
		}
		runs = append(runs, span{o, o})
	}
	return runs
}

func printAcks(acks []ack) string {
	const names = "garjn" // gap, accept, release, reject, renew
	var b strings.Builder
	for i, a := range acks {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d-%d", a.first, a.last)
		for _, t := range a.types {
			b.WriteByte(names[t])
		}
	}
	return b.String()
}
