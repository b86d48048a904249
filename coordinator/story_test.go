package coordinator

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestStories plays the files of testdata/stories: ops on one group, at the log time that `at` and `later` set.
// Every op goes through its encoding, and after every op the group is rebuilt from its own snapshot.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := newStory(t)
		datadriven.RunTest(t, path, s.run)
	})
}

// story is a group with a clock.
type story struct {
	t        testing.TB
	g        *Group
	now      int64 // µs
	settings Settings
}

func newStory(t testing.TB) *story {
	return &story{t: t, g: NewGroup(), now: 1_000_000_000, settings: shippedSettings}
}

func (s *story) apply(op Op) []byte {
	s.t.Helper()
	result, _, err := s.g.Apply(nil, EncodeOp(nil, op), s.now)
	if err != nil {
		s.t.Fatalf("%#v: %v", op, err)
	}
	checkInvariants(s.t, s.g)
	snapshot := s.g.AppendSnapshot(nil)
	restored := NewGroup()
	if err := restored.Restore(snapshot); err != nil {
		s.t.Fatalf("own snapshot after %#v: %v", op, err)
	}
	if again := restored.AppendSnapshot(nil); !bytes.Equal(snapshot, again) {
		s.t.Fatalf("snapshot after %#v is not kept by a round trip", op)
	}
	s.g = restored
	return result
}

func (s *story) code(op Op) Code {
	s.t.Helper()
	code, err := DecodeCodeResult(s.apply(op))
	if err != nil {
		s.t.Fatal(err)
	}
	return code
}

func (s *story) heartbeat(op Heartbeat) HeartbeatResult {
	s.t.Helper()
	op.Settings = s.settings
	result, err := DecodeHeartbeatResult(s.apply(op))
	if err != nil {
		s.t.Fatal(err)
	}
	return result
}

// join, beat and leave are heartbeats in short.
func (s *story) join(member string, topics ...string) HeartbeatResult {
	s.t.Helper()
	return s.heartbeat(Heartbeat{Member: member, Topics: topics})
}

func (s *story) beat(member string, epoch int32) HeartbeatResult {
	s.t.Helper()
	return s.heartbeat(Heartbeat{Member: member, Epoch: epoch})
}

func (s *story) leave(member string) HeartbeatResult {
	s.t.Helper()
	return s.heartbeat(Heartbeat{Member: member, Epoch: epochLeave})
}

func (s *story) later(d time.Duration) { s.now += d.Microseconds() }

// topics tells the group of topics "name:partitions".
func (s *story) topics(topics ...Topic) { s.t.Helper(); s.code(TopicMetadata{Topics: topics}) }

func testTopic(name string, partitions int32) Topic {
	return Topic{ID: testID(name), Name: name, Partitions: partitions}
}

func testID(text string) (id [16]byte) { copy(id[:], text); return id }

var codeNames = map[Code]string{
	CodeOK: "ok", CodeGroupMissing: "group missing", CodeNonEmpty: "non-empty", CodeGroupFull: "full",
	CodeUnknownMember: "unknown member", CodeFencedEpoch: "fenced", CodeInvalid: "invalid",
}

func (s *story) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	switch d.Cmd {
	case "later":
		var by string
		d.ScanArgs(t, "by", &by)
		dur, err := time.ParseDuration(by)
		if err != nil {
			t.Fatal(err)
		}
		s.later(dur)
		return ""
	case "max-size":
		d.ScanArgs(t, "n", &s.settings.MaxSize)
		return ""
	case "create":
		return codeNames[s.code(Create{})]
	case "delete":
		return codeNames[s.code(Delete{})]
	case "expire":
		return codeNames[s.code(Expire{})]
	case "resume":
		return codeNames[s.code(Resume{Settings: s.settings})]
	case "topics":
		return codeNames[s.code(parseMetadata(t, d.Input))]
	case "offsets":
		return codeNames[s.code(parseOffsets(t, d.Input))]
	case "delete-offsets":
		return codeNames[s.code(DeleteOffsets{IDs: [][16]byte{testID(strings.TrimSpace(d.Input))}})]
	case "config":
		return codeNames[s.code(parseConfig(d.Input))]
	case "heartbeat":
		return formatResult(s.heartbeat(parseHeartbeat(t, d)))
	case "show":
		return formatGroup(s.g, s.now)
	}
	t.Fatalf("unknown command %q", d.Cmd)
	return ""
}

func parseHeartbeat(t *testing.T, d *datadriven.TestData) Heartbeat {
	var op Heartbeat
	d.ScanArgs(t, "member", &op.Member)
	if d.HasArg("epoch") {
		var epoch int
		d.ScanArgs(t, "epoch", &epoch)
		op.Epoch = int32(epoch)
	}
	if arg, ok := d.Arg("topics"); ok {
		op.Topics = append([]string{}, arg.Vals...)
	}
	if d.HasArg("rack") {
		var rack string
		d.ScanArgs(t, "rack", &rack)
		op.Rack = &rack
	}
	if d.HasArg("client") {
		var client string
		d.ScanArgs(t, "client", &client)
		op.Client = &Client{ID: client, Host: "/10.0.0.1"}
	}
	return op
}

// parseMetadata reads lines "name partitions [id]" and "gone name [id]"; the id is the name unless given.
func parseMetadata(t *testing.T, input string) TopicMetadata {
	var op TopicMetadata
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		if f[0] == "gone" {
			op.Gone = append(op.Gone, Topic{Name: f[1], ID: testID(f[len(f)-1])})
			continue
		}
		news := testTopic(f[0], 0)
		if _, err := fmt.Sscan(f[1], &news.Partitions); err != nil {
			t.Fatal(err)
		}
		if len(f) > 2 {
			news.ID = testID(f[2])
		}
		op.Topics = append(op.Topics, news)
	}
	return op
}

// parseOffsets reads lines "name partitions partition offset".
func parseOffsets(t *testing.T, input string) SetOffsets {
	var op SetOffsets
	for line := range strings.Lines(input) {
		var name string
		var n, p int32
		var offset int64
		if _, err := fmt.Sscan(line, &name, &n, &p, &offset); err != nil {
			t.Fatal(err)
		}
		op.Topics = append(op.Topics, TopicOffsets{Topic: testTopic(name, n), Offsets: []PartitionOffset{{p, offset}}})
	}
	return op
}

// parseConfig reads lines "key=value", "-key" and "replace".
func parseConfig(input string) SetConfig {
	var op SetConfig
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, "=")
		switch {
		case line == "replace":
			op.Replace = true
		case strings.HasPrefix(line, "-"):
			op.Delete = append(op.Delete, line[1:])
		default:
			op.Set = append(op.Set, Setting{Key: key, Value: value})
		}
	}
	return op
}

func formatResult(r HeartbeatResult) string {
	if r.Code == CodeFencedEpoch {
		return fmt.Sprintf("fenced, epoch is %d", r.Epoch)
	}
	if r.Code != CodeOK {
		return codeNames[r.Code]
	}
	if !r.HasAssignment {
		return fmt.Sprintf("epoch %d, unchanged", r.Epoch)
	}
	return fmt.Sprintf("epoch %d, %s", r.Epoch, formatAssignment(r.Assignment))
}

func formatAssignment(assignment []TopicPartitions) string {
	if len(assignment) == 0 {
		return "nothing"
	}
	var parts []string
	for _, t := range assignment {
		parts = append(parts, fmt.Sprintf("%s%v", t.Name, t.Partitions))
	}
	return strings.Join(parts, " ")
}

func formatGroup(g *Group, now int64) string {
	var b strings.Builder
	d := g.Describe("", now)
	fmt.Fprintf(&b, "%s group epoch %d, assignment epoch %d\n", d.State, d.GroupEpoch, d.AssignmentEpoch)
	for _, m := range d.Members {
		fmt.Fprintf(&b, "member %s epoch %d", m.Member, m.Epoch)
		if m.Rack != nil {
			fmt.Fprintf(&b, " rack %s", *m.Rack)
		}
		if m.ClientID != "" {
			fmt.Fprintf(&b, " client %s%s", m.ClientID, m.ClientHost)
		}
		fmt.Fprintf(&b, " %v has %s\n", m.Topics, formatAssignment(m.Assignment))
	}
	for _, t := range g.topics {
		fmt.Fprintf(&b, "topic %s %d:", t.name, t.partitions)
		for _, r := range t.runs {
			fmt.Fprintf(&b, " %d-%d from %d (%d)", r.first, r.last, r.StartOffset, r.Incarnation)
		}
		b.WriteString("\n")
	}
	for _, c := range g.configs {
		fmt.Fprintf(&b, "config %s=%s\n", c.Key, c.Value)
	}
	return b.String()
}

// failer is what tests and rapid's checks have in common.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// checkInvariants fails when the state is one that no op may lead to.
func checkInvariants(t failer, g *Group) {
	t.Helper()
	if g.assignmentEpoch > g.epoch {
		t.Fatalf("assignment epoch %d is above group epoch %d", g.assignmentEpoch, g.epoch)
	}
	if !g.exists && (len(g.members) > 0 || len(g.topics) > 0 || g.epoch != 0) {
		t.Fatal("a group that does not exist has members, topics or an epoch")
	}
	for i, m := range g.members {
		if i > 0 && g.members[i-1].id >= m.id {
			t.Fatal("members are not in order")
		}
		if m.epoch > g.assignmentEpoch || m.previous >= m.epoch && m.epoch > 0 {
			t.Fatalf("member %s has epoch %d after %d, assignment epoch %d", m.id, m.epoch, m.previous, g.assignmentEpoch)
		}
		if m.deadline < g.earliest {
			t.Fatalf("member %s ends at %d, before %d", m.id, m.deadline, g.earliest)
		}
	}
	for _, topic := range g.topics {
		next := int32(0)
		for _, r := range topic.runs {
			if r.first < next || r.last < r.first || r.last >= topic.partitions || r.Incarnation > g.lastIncarnation || r.Incarnation <= 0 {
				t.Fatalf("topic %s of %d partitions has runs %v, last incarnation %d", topic.name, topic.partitions, topic.runs, g.lastIncarnation)
			}
			next = r.last + 1
		}
		if g.subscribed(topic.name) && !covers(topic.runs, topic.partitions) {
			t.Fatalf("subscribed topic %s is not initialized throughout: %v", topic.name, topic.runs)
		}
	}
	if g.assignmentEpoch == g.epoch {
		checkTarget(t, g)
	}
}

// checkTarget fails unless the current target shares out exactly what is subscribed.
func checkTarget(t failer, g *Group) {
	t.Helper()
	for _, topic := range g.topics {
		subscribers, holders := 0, make(map[int32]int)
		for _, m := range g.members {
			wanted := false
			for _, name := range m.topics {
				wanted = wanted || name == topic.name
			}
			if wanted {
				subscribers++
			}
			for _, tp := range m.target {
				if tp.ID != topic.id {
					continue
				}
				if !wanted {
					t.Fatalf("member %s is to get %s, which it does not want", m.id, topic.name)
				}
				for _, p := range tp.Partitions {
					holders[p]++
				}
			}
		}
		for _, p := range topic.initialized() {
			if subscribers > 0 && holders[p] == 0 {
				t.Fatalf("partition %d of %s has no member", p, topic.name)
			}
		}
	}
}
