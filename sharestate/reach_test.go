package sharestate

import (
	"fmt"
	"strings"
	"testing"
)

// TestRandomHistoriesReachTheRareCases guards the property test: a generator that
// drifts into empty windows would prove nothing.
func TestRandomHistoriesReachTheRareCases(t *testing.T) {
	seen := map[string]int{}
	count := func(what string, happened bool) {
		if happened {
			seen[what]++
		} else {
			seen[what] += 0
		}
	}
	for seed := uint64(1000); seed < 1020; seed++ {
		h := newHistory(seed)
		for range 2000 {
			op := h.next()
			before := h.p.Summary()
			position := h.m.position()
			raw, _, err := h.p.Apply(nil, EncodeOp(nil, op), h.now)
			if err != nil {
				t.Fatal(err)
			}
			h.m.apply(op, h.now)
			res, err := decodeResult(op, raw)
			if err != nil {
				t.Fatal(err)
			}
			switch r := res.(type) {
			case AcquireResult:
				count("acquired", len(r.Acquired) > 0)
				count("several entries", len(r.Acquired) > 2)
				count("stale", r.Stale)
				count("stale, yet some taken", r.Stale && len(r.Acquired) > 0)
				for _, a := range r.Acquired {
					count("fourth delivery", a.DeliveryCount >= 4)
				}
				count("window full", before.InFlight >= int64(h.set.MaxRecordLocks) && h.set.MaxRecordLocks > 0)
				for i := range h.p.spans {
					s := &h.p.spans[i]
					count("resting", s.resting())
					count("passed a resting one", s.resting() && len(r.Acquired) > 0 && s.first < r.Acquired[0].First)
					count("resting inside a batch that goes", s.resting() && len(r.Acquired) > 0 && s.batchFirst <= r.Acquired[0].First && s.batchLast >= r.Acquired[0].Last)
				}
				count("compacted", len(r.Acquired) > 0 && r.Acquired[0].First > position && !r.Stale)
			case AcknowledgeResult:
				batches := op.(Acknowledge).Batches
				count("ack ok", r.Code == AckOK && len(batches) > 0)
				count("several batches ok", r.Code == AckOK && len(batches) > 2)
				count("invalid state", r.Code == AckInvalidRecordState)
				count("invalid request", r.Code == AckInvalidRequest)
				count("renew disabled", r.Code == AckRenewDisabled)
			case ClaimResult:
				count("claimed", len(r.Ranges) > 0)
			case int64:
				name := strings.TrimPrefix(fmt.Sprintf("%T", op), "sharestate.")
				count(name, r > 0)
			}
			count("many ranges", len(h.p.spans) > 10)
			for i := range h.p.spans {
				count("untracked", h.p.spans[i].flags&untracked != 0)
			}
		}
	}
	for what, n := range seen {
		t.Logf("%6d %s", n, what)
		if n < 20 {
			t.Errorf("%s: only %d times", what, n)
		}
	}
}
