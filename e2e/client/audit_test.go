//go:build e2e

package client

import (
	"strings"
	"testing"
	"time"
)

// The audit is the judge of the fault tests, so it must see each kind of breach.
func TestAuditSeesEveryBreach(t *testing.T) {
	run := func(o int64, value int) []Run { return []Run{{Partition: 0, First: o, Last: o, Value: value}} }
	accept, reject := ackTypeIDs[Accept], ackTypeIDs[Reject]
	ok := Cycle{PolledAt: 10, AckedAt: 20, Delivered: run(0, 1), Acked: run(0, accept)}
	rejected := Cycle{PolledAt: 10, AckedAt: 20, Delivered: run(0, 1), Acked: run(0, reject)}
	failed := func(reason string) Cycle {
		return Cycle{PolledAt: 10, AckedAt: 40, Delivered: run(0, 1), Acked: run(0, accept), Errors: map[string]string{"0": reason}}
	}
	again := Cycle{PolledAt: 30, AckedAt: 35, Delivered: run(0, 2), Acked: run(0, accept)}
	late := Cycle{PolledAt: 10, AckedAt: 40, Delivered: run(0, 1), Acked: run(0, accept)}
	for _, c := range []struct {
		name   string
		cycles []Cycle
		want   string // part of a problem; "" = none
	}{
		{"good", []Cycle{ok}, ""},
		{"rejected", []Cycle{rejected}, ""},
		{"never delivered", nil, "never delivered"},
		{"ack refused and not redelivered", []Cycle{failed("InvalidRecordStateException: x")}, "never settled"},
		{"ack answer lost", []Cycle{failed("DisconnectException")}, ""},
		{"acquired after accept", []Cycle{ok, again}, "acquired again"},
		{"acquired after reject", []Cycle{rejected, again}, "acquired again"},
		{"reported in the other order", []Cycle{again, ok}, "acquired again"},
		{"stale ack below the start offset", []Cycle{again, late}, ""},
		{"stale ack refused", []Cycle{again, failed("INVALID_RECORD_STATE")}, ""},
		{"offset from nowhere", []Cycle{ok, {Delivered: run(7, 1)}}, "never produced"},
	} {
		a := NewAudit(1, 1)
		for _, cycle := range c.cycles {
			a.Sink("x")(cycle)
		}
		got := strings.Join(a.Verdict().Problems, "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: problems %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAcceptedSinceAsksForANewRecordOfEveryPartition(t *testing.T) {
	a := NewAudit(2, 4)
	cycle := func(p int32, o, polledAt int64, how AckType, errors map[string]string) {
		a.Sink("x")(Cycle{PolledAt: polledAt, AckedAt: polledAt + 100, Errors: errors,
			Delivered: []Run{{p, o, o, 1}}, Acked: []Run{{p, o, o, ackTypeIDs[how]}}})
	}
	cycle(0, 0, 51, Accept, nil)
	cycle(1, 0, 40, Accept, nil) // acknowledged after 50, but delivered before
	cycle(1, 1, 60, Reject, nil)
	cycle(1, 2, 60, Accept, map[string]string{"1": "DisconnectException"})
	if a.AcceptedSince(time.UnixMilli(50)) == nil {
		t.Error("partition 1 has none")
	}
	cycle(1, 3, 60, Accept, nil)
	if err := a.AcceptedSince(time.UnixMilli(50)); err != nil {
		t.Error(err)
	}
}
