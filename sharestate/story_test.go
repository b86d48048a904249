package sharestate

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestStories runs testdata/*.txt: each file is about one rule or a few, and tells
// what happens to one share-partition. Times are in ms.
//
//	new [start=N]                 a new share-partition; default: not started
//	settings [limit=] [lock=] [window=] [renew=on|off] [dead-letters=on|off] [backoff=] [backoff-max=]
//	log A-B C-D ...               upstream's record batches from now on
//	acquire member= [session=] [replica=] [from=] [max=] [batch-size=] [mode=record-limit] [aborted=A-B,...] [under=]
//	                              reads the log at from (default: the position) and acquires
//	ack member= [epoch=]          input: lines "A-B type[,type...]"
//	release member= session=, release-replica replica=, expire, start offset=, log-start offset= [under=],
//	leader-change [from=] epoch= [end=], reset offset= incarnation=, claim replica= [max=] [for=], done A-B..., fence
//	fetchable, summary, held member=, deadline, next-change, restore
//
// at=T sets the time of any of them. Every op prints its result, "wake" if waiting
// fetches should look again, and the window.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := &story{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(d)
		})
	})
}

type story struct {
	t    *testing.T
	p    *Partition
	set  Settings
	log  []OffsetRange
	now  int64 // µs
	data *datadriven.TestData
}

func (s *story) run(d *datadriven.TestData) string {
	s.data = d
	s.now = s.int("at", s.now/1000) * 1000
	switch d.Cmd {
	case "new":
		s.p = NewPartition(1, s.int("start", -1))
		s.now = 0
		s.set = Settings{DeliveryLimit: 5, LockDurationMs: 30_000, MaxRecordLocks: 2000, RenewEnabled: true}
		return s.window()
	case "settings":
		return s.settings()
	case "log":
		s.log = s.ranges(s.names())
		return ""
	case "restore":
		return s.restore()
	case "summary":
		return fmt.Sprintf("%+v\n", s.p.Summary())
	case "fetchable":
		f, ok := s.p.Fetchable(s.now, s.set)
		if !ok {
			return "nothing\n"
		}
		return strings.ReplaceAll(fmt.Sprintf("%+v\n", f), "9223372036854775807", "any")
	case "held":
		return fmt.Sprintln(s.p.heldBy(s.str("member", "a")))
	case "next-change":
		change, ok := s.p.NextChange(s.now, s.set)
		if !ok {
			return "none\n"
		}
		return fmt.Sprintln(change / 1000)
	case "deadline":
		deadline, ok := s.p.NextDeadline()
		return fmt.Sprintln(deadline/1000, ok)
	}
	return s.apply(s.op())
}

func (s *story) op() Op {
	session := SessionNonce{s.int("session", 1), uint64(s.int("replica", 1))}
	switch s.data.Cmd {
	case "start":
		return Start{s.int("offset", 0), int32(s.int("epoch", 0))}
	case "acquire":
		return s.acquire(session)
	case "ack":
		return Acknowledge{s.str("member", "a"), s.acks(), int32(s.int("epoch", 0)), s.set}
	case "release":
		return Release{s.str("member", "a"), session, s.set}
	case "release-replica":
		return ReleaseReplica{uint64(s.int("replica", 1)), s.set}
	case "expire":
		return Expire{s.set}
	case "log-start":
		op := AdvanceLogStart{s.int("offset", 0), s.set}
		if epoch := s.int("under", -1); epoch >= 0 {
			return LogStartUnder{int32(epoch), op}
		}
		return op
	case "leader-change":
		return LeaderChange{int32(s.int("from", int64(s.p.LogEpoch()))), int32(s.int("epoch", 0)), s.int("end", -1)}
	case "reset":
		return Reset{s.int("offset", -1), s.int("incarnation", 2)}
	case "claim":
		return ClaimArchiving{uint64(s.int("replica", 1)), s.int("incarnation", 1), int32(s.int("max", 1000)), int32(s.int("for", 10_000)), s.set}
	case "done":
		return ArchivingDone{s.int("incarnation", 1), s.ranges(s.names()), s.set}
	case "fence":
		return Fence{}
	}
	s.t.Fatalf("%s: unknown command %s", s.data.Pos, s.data.Cmd)
	return nil
}

func (s *story) acquire(session SessionNonce) Op {
	position := int64(0)
	if f, ok := s.p.Fetchable(s.now, s.set); ok {
		position = f.Position
	}
	op := Acquire{Member: s.str("member", "a"), Session: session, From: s.int("from", position), Settings: s.set,
		MaxRecords: int32(s.int("max", 500)), BatchSize: int32(s.int("batch-size", 500))}
	if s.str("mode", "") == "record-limit" {
		op.Mode = RecordLimit
	}
	for _, b := range s.log {
		if b.Last >= op.From {
			op.Batches = append(op.Batches, b)
		}
	}
	op.Aborted = s.ranges(strings.Split(s.str("aborted", ""), ","))
	if epoch := s.int("under", -1); epoch >= 0 {
		return AcquireUnder{int32(epoch), op}
	}
	return op
}

func (s *story) apply(op Op) string {
	raw, wake, err := s.p.Apply(nil, EncodeOp(nil, op), s.now)
	if err != nil {
		return fmt.Sprintln("error:", err)
	}
	if err := invariants(s.p); err != nil {
		s.t.Errorf("%s: %v", s.data.Pos, err)
	}
	res, err := decodeResult(op, raw)
	if err != nil {
		s.t.Errorf("%s: %v", s.data.Pos, err)
	}
	var b strings.Builder
	describeResult(&b, res)
	if wake {
		fmt.Fprintln(&b, "wake")
	}
	b.WriteString(s.window())
	return b.String()
}

func describeResult(b *strings.Builder, res any) {
	switch r := res.(type) {
	case AcquireResult:
		if r.Stale {
			fmt.Fprintln(b, "stale")
		}
		for _, a := range r.Acquired {
			fmt.Fprintf(b, "got %d-%d delivery %d\n", a.First, a.Last, a.DeliveryCount)
		}
		if len(r.Acquired) == 0 {
			fmt.Fprintln(b, "got nothing")
		}
	case AcknowledgeResult:
		fmt.Fprintln(b, [...]string{"ok", "invalid record state", "invalid request", "renew disabled"}[r.Code])
	case startResult:
		fmt.Fprintln(b, "start offset", r.Offset)
	case ClaimResult:
		for _, a := range r.Ranges {
			fmt.Fprintf(b, "claimed %d-%d delivery %d rejected=%v\n", a.First, a.Last, a.DeliveryCount, a.Rejected)
		}
	case int64:
		fmt.Fprintln(b, "count", r)
	}
}

func (s *story) window() string {
	var b strings.Builder
	if !s.p.Started() {
		return "not started\n"
	}
	fmt.Fprintf(&b, "SPSO %d SPEO %d\n", s.p.SPSO(), s.p.SPEO())
	for _, r := range s.p.Ranges() {
		fmt.Fprintf(&b, "  %d-%d %v", r.First, r.Last, r.State)
		if r.DeliveryCount > 0 {
			fmt.Fprintf(&b, " %d", r.DeliveryCount)
		}
		if r.State == StateAcquired {
			fmt.Fprintf(&b, " %s/%d until %d", r.Member, r.Session.Opened, r.Deadline/1000)
		} else if r.State == StateAvailable && r.Deadline > 0 {
			fmt.Fprintf(&b, " from %d", r.Deadline/1000)
		} else if r.Deadline > 0 {
			fmt.Fprintf(&b, " claimed by %d until %d", r.Session.Replica, r.Deadline/1000)
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

func (s *story) settings() string {
	s.set.DeliveryLimit = int16(s.int("limit", int64(s.set.DeliveryLimit)))
	s.set.LockDurationMs = int32(s.int("lock", int64(s.set.LockDurationMs)))
	s.set.MaxRecordLocks = int32(s.int("window", int64(s.set.MaxRecordLocks)))
	onOff := map[bool]string{true: "on", false: "off"}
	s.set.RenewEnabled = s.str("renew", onOff[s.set.RenewEnabled]) == "on"
	s.set.ReleaseBackoffMs = int32(s.int("backoff", int64(s.set.ReleaseBackoffMs)))
	s.set.ReleaseBackoffMaxMs = int32(s.int("backoff-max", int64(s.set.ReleaseBackoffMaxMs)))
	s.set.DeadLetters = s.str("dead-letters", onOff[s.set.DeadLetters]) == "on"
	return ""
}

func (s *story) restore() string {
	snapshot := s.p.AppendSnapshot(nil)
	s.p = NewPartition(9, 9)
	if err := s.p.Restore(snapshot); err != nil {
		return fmt.Sprintln("error:", err)
	}
	return s.window()
}

func (s *story) str(key, otherwise string) string {
	for _, a := range s.data.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return strings.Join(a.Vals, ",")
		}
	}
	return otherwise
}

func (s *story) int(key string, otherwise int64) int64 {
	v := s.str(key, "")
	if v == "" {
		return otherwise
	}
	return s.number(v)
}

func (s *story) number(v string) int64 {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		s.t.Fatalf("%s: %v", s.data.Pos, err)
	}
	return n
}

// names gives the arguments that are not key=value.
func (s *story) names() []string {
	var out []string
	for _, a := range s.data.CmdArgs {
		if len(a.Vals) == 0 {
			out = append(out, a.Key)
		}
	}
	return out
}

// ranges reads A-B, and A-B/N as batches of N.
func (s *story) ranges(words []string) []OffsetRange {
	var out []OffsetRange
	for _, w := range words {
		if w == "" {
			continue
		}
		w, each, cut := strings.Cut(w, "/")
		first, last, ok := strings.Cut(w, "-")
		if !ok {
			last = first
		}
		r := OffsetRange{s.number(first), s.number(last)}
		size := r.Last - r.First + 1
		if cut {
			size = s.number(each)
		}
		for ; r.First <= r.Last; r.First += size {
			out = append(out, OffsetRange{r.First, min(r.First+size-1, r.Last)})
		}
	}
	return out
}

func (s *story) acks() []AckBatch {
	types := map[string]AckType{"gap": AckGap, "accept": AckAccept, "release": AckRelease,
		"reject": AckReject, "renew": AckRenew, "five": 5, "minus": -1}
	var out []AckBatch
	for line := range strings.SplitSeq(strings.TrimSpace(s.data.Input), "\n") {
		if line == "" {
			continue
		}
		where, what, _ := strings.Cut(line, " ")
		first, last, ok := strings.Cut(where, "-")
		if !ok {
			last = first
		}
		b := AckBatch{First: s.number(first), Last: s.number(last)}
		for word := range strings.SplitSeq(what, ",") {
			if word == "" {
				continue
			}
			t, ok := types[word]
			if !ok {
				s.t.Fatalf("%s: ack type %q", s.data.Pos, word)
			}
			b.Types = append(b.Types, t)
		}
		out = append(out, b)
	}
	return out
}
