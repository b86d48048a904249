package coordinator

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestReplicasAgreeUnderRandomOps folds random ops on two replicas, one of which is rebuilt from snapshots now and
// then, and checks every heartbeat against a naive model of who is a member at which epoch.
func TestReplicasAgreeUnderRandomOps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &randomOps{t: t, one: NewGroup(), other: NewGroup(), now: 1_000_000, model: make(map[string]*modelMember)}
		w.apply(Create{})
		for range rapid.IntRange(1, 60).Draw(t, "ops") {
			w.now += rapid.SampledFrom([]int64{0, 1, 400_000, 1_000_000, 20_000_000, 46_000_000}).Draw(t, "pause")
			w.step()
		}
	})
}

type modelMember struct {
	epoch, previous int32
	deadline        int64
	topics          []string
}

type randomOps struct {
	t          *rapid.T
	one, other *Group
	now        int64
	model      map[string]*modelMember
}

func (w *randomOps) apply(op Op) []byte {
	encoded := EncodeOp(nil, op)
	result, wake, err := w.one.Apply(nil, encoded, w.now)
	if err != nil {
		w.t.Fatalf("%#v: %v", op, err)
	}
	result2, wake2, err := w.other.Apply(nil, encoded, w.now)
	if err != nil || wake != wake2 || !bytes.Equal(result, result2) {
		w.t.Fatalf("%#v: replicas answer %x and %x (%v)", op, result, result2, err)
	}
	checkInvariants(w.t, w.one)
	snapshot := w.one.AppendSnapshot(nil)
	if !bytes.Equal(snapshot, w.other.AppendSnapshot(nil)) {
		w.t.Fatalf("%#v: replicas differ", op)
	}
	if rapid.IntRange(0, 4).Draw(w.t, "rebuild") == 0 {
		w.other = NewGroup()
		if err := w.other.Restore(snapshot); err != nil {
			w.t.Fatal(err)
		}
	}
	return result
}

func (w *randomOps) step() {
	switch rapid.IntRange(0, 9).Draw(w.t, "op") {
	case 0:
		w.topics()
	case 1:
		w.apply(SetConfig{Set: []Setting{{Key: keySessionTimeout, Value: fmt.Sprint(rapid.IntRange(45000, 60000).Draw(w.t, "timeout"))}}})
	case 2:
		w.apply(Resume{Settings: shippedSettings})
		timeout := w.one.sessionTimeout(shippedSettings)
		for _, m := range w.model {
			m.deadline = max(m.deadline, w.now+timeout)
		}
	case 3:
		w.remove()
	default:
		w.heartbeat()
	}
}

func (w *randomOps) topics() {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(w.t, "topic")
	topic := Topic{Name: name, ID: testID(name + rapid.SampledFrom([]string{"1", "2"}).Draw(w.t, "id")), Partitions: rapid.Int32Range(0, 9).Draw(w.t, "partitions")}
	_, before := w.one.topic(name)
	var count int32
	forgettable := true
	if before != nil && before.id == topic.ID {
		// A topic without starting points is forgotten when its last subscriber times out.
		count, forgettable = before.partitions, len(before.runs) == 0
	}
	if rapid.IntRange(0, 3).Draw(w.t, "gone") == 0 {
		w.apply(TopicMetadata{Gone: []Topic{topic}})
		if _, after := w.one.topic(name); after != nil && after.id == topic.ID {
			w.t.Fatalf("topic %s is still known", name)
		}
	} else {
		w.apply(TopicMetadata{Topics: []Topic{topic}})
		_, after := w.one.topic(name)
		if after == nil || after.id != topic.ID {
			w.t.Fatalf("topic %s is not known", name)
		}
		if n := after.partitions; n != max(count, topic.Partitions) && !(forgettable && n == topic.Partitions) {
			w.t.Fatalf("topic %s of %d partitions has %d after news of %d", name, count, n, topic.Partitions)
		}
	}
	w.expire()
}

func (w *randomOps) remove() {
	w.expire()
	want := CodeOK
	if len(w.model) > 0 {
		want = CodeNonEmpty
	}
	incarnation := w.one.lastIncarnation
	if code := Code(w.apply(Delete{})[0]); code != want {
		w.t.Fatalf("deletion of a group with %d members: code %d", len(w.model), code)
	}
	if want == CodeOK {
		if w.one.lastIncarnation <= incarnation {
			w.t.Fatal("deletion keeps the incarnation")
		}
		w.apply(Create{})
	}
}

func (w *randomOps) expire() {
	for id, m := range w.model {
		if m.deadline <= w.now {
			delete(w.model, id)
		}
	}
}

func (w *randomOps) heartbeat() {
	id := rapid.SampledFrom([]string{"m1", "m2", "m3", "m4", "m5"}).Draw(w.t, "member")
	op := Heartbeat{Member: id, Epoch: rapid.Int32Range(-1, 6).Draw(w.t, "epoch"), Settings: shippedSettings}
	op.Settings.MaxSize = 4
	if op.Epoch == 0 || rapid.Bool().Draw(w.t, "resubscribe") {
		op.Topics = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID[string]).Draw(w.t, "topics")
	}
	w.expire()
	m, before := w.model[id], w.one.epoch
	want := w.expect(m, op)
	result, err := DecodeHeartbeatResult(w.apply(op))
	if err != nil {
		w.t.Fatal(err)
	}
	if result.Code != want {
		w.t.Fatalf("heartbeat %+v of %+v: code %d, want %d", op, m, result.Code, want)
	}
	if want == CodeOK {
		w.accepted(op, m, result, before)
	}
}

func (w *randomOps) expect(m *modelMember, op Heartbeat) Code {
	switch {
	case m == nil && op.Epoch != -1 && len(w.model) >= 4:
		return CodeGroupFull
	case m == nil && op.Epoch != 0:
		return CodeUnknownMember
	case m != nil && op.Epoch > 0 && op.Epoch != m.epoch && op.Epoch != m.previous:
		return CodeFencedEpoch
	}
	return CodeOK
}

func (w *randomOps) accepted(op Heartbeat, m *modelMember, result HeartbeatResult, before int32) {
	if op.Epoch == -1 {
		delete(w.model, op.Member)
		if result.Epoch != -1 || result.HasAssignment {
			w.t.Fatalf("leave is answered by %+v", result)
		}
		return
	}
	topics := slices.Sorted(slices.Values(op.Topics))
	changed := m == nil || op.Topics != nil && !slices.Equal(topics, m.topics)
	if m == nil {
		m = &modelMember{previous: -1}
		w.model[op.Member] = m
	}
	if op.Topics != nil {
		m.topics = topics
	}
	if changed && w.one.epoch <= before {
		w.t.Fatal("a change of subscription keeps the group epoch")
	}
	if m.epoch != result.Epoch {
		m.previous, m.epoch = m.epoch, result.Epoch
	}
	m.deadline = w.now + w.one.sessionTimeout(shippedSettings)
	if result.Epoch != w.one.assignmentEpoch {
		w.t.Fatalf("member got epoch %d, assignment epoch is %d", result.Epoch, w.one.assignmentEpoch)
	}
	_, state := w.one.find(op.Member)
	if (op.Epoch == 0 || op.Topics != nil) && (!result.HasAssignment || !equalAssignment(result.Assignment, state.assigned)) {
		w.t.Fatalf("full heartbeat is answered by %+v, member has %v", result, state.assigned)
	}
}

func TestOpThatWasHeldUpTimesNobodyOutForThat(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	s.join("m", "t")
	s.join("n", "t")
	submitted := AsOf(s.now) + 40_000_000
	s.later(80 * time.Second) // Redis was frozen
	wantCode(t, s.heartbeat(Heartbeat{Member: "n", Epoch: 1, AsOf: submitted}), CodeOK)
	if len(s.g.members) != 2 {
		t.Fatal("m is gone")
	}
	s.later(time.Second)
	wantCode(t, s.heartbeat(Heartbeat{Member: "n", Epoch: 1, AsOf: AsOf(s.now)}), CodeOK)
	if len(s.g.members) != 1 {
		t.Fatal("m is still there")
	}
}

func TestLogTimeThatStandsStillGivesDistinctIncarnations(t *testing.T) {
	s := newStory(t)
	s.apply(Create{})
	s.topics(testTopic("a", 1))
	s.join("m", "a")
	first, _ := s.g.Initialized(testID("a"), 0)
	s.topics(testTopic("b", 1)) // nobody wants it yet
	s.heartbeat(Heartbeat{Member: "m", Epoch: 1, Topics: []string{"a", "b"}})
	second, _ := s.g.Initialized(testID("b"), 0)
	if first.Incarnation >= second.Incarnation {
		t.Fatalf("incarnations %d, then %d", first.Incarnation, second.Incarnation)
	}
}

func TestKeepAliveOpIsSmall(t *testing.T) {
	op := EncodeOp(nil, Heartbeat{Member: "aaaaaaaaaaaaaaaaaaaaaa", Epoch: 77, Settings: defaultSettings(), AsOf: AsOf(time.Now().UnixMicro())})
	if len(op) > 35 {
		t.Fatalf("a keep-alive takes %d bytes", len(op))
	}
}

// defaultSettings are what a replica without settings of its own puts into ops.
func defaultSettings() Settings {
	b := DefaultBrokerConfig()
	return b.settings()
}

func TestSnapshotOfNewerVersionIsRefused(t *testing.T) {
	b := NewGroup().AppendSnapshot(nil)
	b[0]++
	g := NewGroup()
	g.exists = true
	if err := g.Restore(b); err == nil {
		t.Fatal("taken")
	}
	if !g.exists {
		t.Fatal("a refused snapshot changed the group")
	}
}

func TestUnknownOpKindStopsTheGroup(t *testing.T) {
	if _, _, err := NewGroup().Apply(nil, []byte{200}, 1); err == nil {
		t.Fatal("an op of unknown kind was folded")
	}
}

func FuzzDecodeOp(f *testing.F) {
	rack := "r"
	for _, op := range []Op{
		Create{}, Delete{}, Expire{}, Resume{Settings: shippedSettings}, Resume{},
		Heartbeat{Member: "m", Epoch: 3, Rack: &rack, Topics: []string{"a", "b"}, Client: &Client{"c", "/h"}},
		Heartbeat{Member: "m", Topics: []string{}, Settings: shippedSettings, AsOf: 1_700_000_000_000_000},
		Expire{AsOf: 5 * asOfUnit}, Delete{AsOf: 7},
		TopicMetadata{Topics: []Topic{testTopic("a", 3)}, Gone: []Topic{testTopic("b", 1)}},
		SetConfig{Replace: true, Set: []Setting{{"k", "v"}}, Delete: []string{"d"}},
		SetOffsets{Topics: []TopicOffsets{{testTopic("a", 3), []PartitionOffset{{1, 7}}}}},
		DeleteOffsets{IDs: [][16]byte{testID("a")}},
	} {
		f.Add(EncodeOp(nil, op))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		op, err := DecodeOp(b)
		if err != nil {
			return
		}
		encoded := EncodeOp(nil, op)
		again, err := DecodeOp(encoded)
		if err != nil || !bytes.Equal(encoded, EncodeOp(nil, again)) {
			t.Fatalf("%#v does not survive its encoding: %v", op, err)
		}
		s := newStory(t)
		s.apply(Create{})
		s.topics(testTopic("a", 3))
		s.join("m", "a")
		s.apply(op)
	})
}

func FuzzRestore(f *testing.F) {
	s := newStory(f)
	f.Add(s.g.AppendSnapshot(nil))
	s.apply(Create{})
	s.topics(testTopic("a", 3), testTopic("b", 5))
	s.join("m", "a", "b")
	s.join("n", "a")
	s.apply(SetConfig{Set: []Setting{{keyAutoOffsetReset, "earliest"}}})
	s.later(time.Second)
	s.beat("n", 1)
	f.Add(s.g.AppendSnapshot(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		g := NewGroup()
		if g.Restore(b) != nil {
			return
		}
		first := g.AppendSnapshot(nil)
		again := NewGroup()
		if err := again.Restore(first); err != nil || !bytes.Equal(first, again.AppendSnapshot(nil)) {
			t.Fatalf("snapshot does not survive its encoding: %v", err)
		}
		for _, op := range []Op{Heartbeat{Member: "m", Topics: []string{"a"}, Settings: shippedSettings}, TopicMetadata{Topics: []Topic{testTopic("a", 4)}}, Expire{}, Delete{}} {
			if _, _, err := g.Apply(nil, EncodeOp(nil, op), 5); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzDecodeHeartbeatResult(f *testing.F) {
	f.Add(HeartbeatResult{Epoch: 4, HasAssignment: true, Assignment: []TopicPartitions{{testID("a"), "a", []int32{0, 1, 5}}}}.append(nil))
	f.Add(HeartbeatResult{Code: CodeFencedEpoch, Epoch: 4}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeHeartbeatResult(b)
		if err != nil {
			return
		}
		again, err := DecodeHeartbeatResult(r.append(nil))
		if err != nil || again.Epoch != r.Epoch || !equalAssignment(r.Assignment, again.Assignment) {
			t.Fatalf("%+v does not survive its encoding: %+v, %v", r, again, err)
		}
	})
}

func BenchmarkKeepAlive(b *testing.B) {
	g := NewGroup()
	apply := func(op Op) {
		if _, _, err := g.Apply(nil, EncodeOp(nil, op), 1); err != nil {
			b.Fatal(err)
		}
	}
	apply(Create{})
	apply(TopicMetadata{Topics: []Topic{testTopic("t", 1000)}})
	var member string
	for i := range 200 {
		member = fmt.Sprintf("member-%03d", i)
		apply(Heartbeat{Member: member, Topics: []string{"t"}, Settings: shippedSettings})
	}
	op := EncodeOp(nil, Heartbeat{Member: member, Epoch: 1, Settings: shippedSettings})
	dst := make([]byte, 0, 64)
	for b.Loop() {
		if _, _, err := g.Apply(dst, op, 2); err != nil {
			b.Fatal(err)
		}
	}
}
