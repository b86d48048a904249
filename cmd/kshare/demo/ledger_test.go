package demo

import (
	"strings"
	"testing"
)

// good writes the ledger of a small demo that went as it should: record 0 accepted, 1 released and accepted, 2 rejected, 3 lost with a
// consumer that died, 4 held beyond its lock.
func good() *ledger {
	l := newLedger()
	for range 5 {
		l.produced()
	}
	l.delivered("a", 0, 1)
	l.confirmed("a", 0, 1, accept)
	l.delivered("a", 1, 1)
	l.confirmed("a", 1, 1, release)
	l.delivered("a", 1, 2)
	l.confirmed("a", 1, 2, accept)
	l.delivered("a", 2, 1)
	l.confirmed("a", 2, 1, reject)
	l.delivered("dead", 3, 1)
	l.holds("dead", []delivery{{id: 3, count: 1}}, "died")
	l.delivered("a", 3, 2)
	l.confirmed("a", 3, 2, accept)
	l.delivered("late", 4, 1)
	l.holds("late", []delivery{{id: 4, count: 1}}, "overslept")
	l.delivered("a", 4, 2)
	l.refused("late", 4)
	l.confirmed("a", 4, 2, accept)
	return l
}

func TestAuditPassesWhatAddsUp(t *testing.T) {
	l := good()
	if err := l.audit([]string{"a"}); err != nil {
		t.Error(err)
	}
	if !l.done(5) {
		t.Errorf("not done: %v", l.counts())
	}
}

// TestAuditFindsEachThingThatMustNotHappen spoils the good ledger in one way at a time.
func TestAuditFindsEachThingThatMustNotHappen(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*ledger)
		want  string
	}{
		"a record is lost":                   {func(l *ledger) { l.produced() }, "produced 6 is not accepted 4 + rejected 1; record 5 was never delivered"},
		"a record has no end":                {func(l *ledger) { l.produced(); l.delivered("a", 5, 1) }, "record 5 has no end"},
		"a record is accepted twice":         {func(l *ledger) { l.confirmed("a", 0, 1, accept) }, "record 0 has 2 accepts"},
		"a rejected record is accepted":      {func(l *ledger) { l.confirmed("a", 2, 1, accept) }, "record 2 has 1 accepts and 1 rejects"},
		"an accepted record comes back":      {func(l *ledger) { l.delivered("a", 0, 2) }, "record 0 came back"},
		"a delivery count does not rise":     {func(l *ledger) { l.produced(); l.delivered("a", 5, 1); l.delivered("b", 5, 1) }, "record 5 delivery counts [1] are followed by 1"},
		"a first delivery has count 0":       {func(l *ledger) { l.produced(); l.delivered("a", 5, 0) }, "record 5 delivery counts [] are followed by 0"},
		"a release does not come back":       {func(l *ledger) { l.confirmed("a", 1, 2, release) }, "released 2 is not delivered again 1"},
		"a release comes back with count 3":  {func(l *ledger) { l.records[1].deliveries[1] = 3 }, "of 1 released records 0 came back"},
		"a dead consumer's record is stuck":  {func(l *ledger) { l.records[3].deliveries = []int32{1} }, "lost consumers held 2 but 1 came back"},
		"a late acknowledgement is accepted": {func(l *ledger) { l.consumers["late"].refused = 0 }, "only 0 late acknowledgements were refused"},
		"an acknowledgement fails":           {func(l *ledger) { l.failed("a", 0) }, "1 acknowledgements failed"},
		"nobody died":                        {func(l *ledger) { l.consumers["dead"].died = 0 }, "no consumer died"},
		"a consumer got nothing":             {func(l *ledger) { l.consumers["b"] = &tally{} }, "consumer b got no share"},
	} {
		t.Run(name, func(t *testing.T) {
			l := good()
			steady := []string{"a"}
			c.spoil(l)
			if l.consumers["b"] != nil && l.consumers["b"].received == 0 {
				steady = append(steady, "b")
			}
			err := l.audit(steady)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a word of %q", err, c.want)
			}
		})
	}
}
