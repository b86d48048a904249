package sharestate

import (
	"fmt"
	"strings"
	"testing"
)

// rules are those of acquisition, each by the name under which the model tells that it has applied.
var rules = []string{
	// How much may be taken: the in-flight window.
	"window: less room than MaxRecords",
	"window: full, nothing goes",
	"window: full, what is free inside goes",
	"window: full, nothing beyond SPEO goes",
	"window: filled by finished offsets too",
	"window: beyond its limit by a record batch",

	// What an answer takes, by the acquire mode.
	"new records: behind those that came back",
	"new records: behind a hole that is passed over",
	"new records: up to a hole in which the budget ends",
	"budget: ends between tracked batches",
	"tracked batch: what is free of it goes",
	"tracked batch: an entry for each count",
	"batch_optimized: whole record batches, beyond the budget",
	"batch_optimized: an entry ends when it has BatchSize offsets",
	"batch_optimized: an entry is longer than BatchSize for the sake of a record batch",
	"batch_optimized: the last entry is shorter than BatchSize",
	"batch_optimized: a hole behind an entry belongs to it",
	"batch_optimized: a tracked batch goes beyond the budget",
	"record_limit: the budget ends inside a tracked batch",
	"record_limit: cut inside a record batch",
	"record_limit: the rest of a record batch is new still",
	"record_limit: BatchSize does not count",

	// Throttled redelivery.
	"near the limit: the pass stops before the batch",
	"near the limit: nothing new goes with it",
	"near the limit: by an offset behind others",
	"near the limit: not by what was not read",
	"near the limit: not by what rests",
	"near the limit: only a part of the batch goes",
	"near the limit: the part is a half",
	"near the limit: the part is a quarter or less",
	"near the limit: the part is one at least",
	"near the limit: the part is of the batch as it was handed out first",
	"near the limit: more than the part had gone already",
	"last attempt: the pass stops before it",
	"last attempt: nothing goes with it",
	"last attempt: not alone with a limit of 2",
	"last attempt: past it, under a limit that was lowered",

	// Moving the ends.
	"SPSO: behind what is finished, inside a tracked batch",
	"SPSO: stays at what is not finished",
	"SPSO: everything is finished and the window empty",

	// Release backoff.
	"backoff: rests longer than after the delivery before",
	"backoff: rests as long as the maximum",
	"backoff: has rested since its lock ended",
	"backoff: turned off while records rest",
}

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
	for _, rule := range rules {
		seen[rule] = 0
	}
	for seed := uint64(1000); seed < 1040; seed++ {
		h := newHistory(seed)
		h.m.rules = map[string]int{}
		for range 3000 {
			op := h.next()
			before := h.p.Summary()
			position := h.m.position()
			raw, _, err := h.p.Apply(nil, EncodeOp(nil, op), h.now)
			if err != nil {
				t.Fatal(err)
			}
			if o, ok := op.(AcquireUnder); ok {
				count("read under another leader", o.Epoch != h.m.logEpoch)
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
		for rule, n := range h.m.rules {
			if _, ok := seen[rule]; !ok {
				t.Errorf("the model has a rule that is not listed: %s", rule)
			}
			seen[rule] += n
		}
	}
	for what, n := range seen {
		t.Logf("%6d %s", n, what)
		if n < 20 {
			t.Errorf("%s: only %d times", what, n)
		}
	}
}
