package coordinator

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// The tests here are the points of the conformance checklist that the pure core decides; those that need
// a Service are in service_checks_test.go.

func newGroupStory(t *testing.T, topics ...Topic) *story {
	s := newStory(t)
	s.apply(Create{})
	s.topics(topics...)
	return s
}

func wantCode(t *testing.T, r HeartbeatResult, code Code) {
	t.Helper()
	if r.Code != code {
		t.Fatalf("answer %+v, want %s", r, codeNames[code])
	}
}

// settle lets every member heartbeat twice, an assignment interval apart, and returns what each has.
func (s *story) settle() map[string][]TopicPartitions {
	for range 2 {
		s.later(time.Second)
		for _, m := range slices.Clone(s.g.members) {
			s.beat(m.id, m.epoch)
		}
	}
	has := make(map[string][]TopicPartitions)
	for _, m := range s.g.members {
		has[m.id] = m.assigned
	}
	return has
}

func total(has map[string][]TopicPartitions) (n int) {
	for _, assignment := range has {
		n += load(assignment)
	}
	return n
}

func TestCheck010_FirstHeartbeatIsAnsweredWithAssignment(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 3))
	r := s.join("m", "t")
	if r.Epoch < 1 || !r.HasAssignment || load(r.Assignment) != 3 {
		t.Fatalf("answer %+v", r)
	}
}

func TestCheck016_UnknownGroup(t *testing.T) {
	wantCode(t, newStory(t).beat("m", 5), CodeGroupMissing)
}

func TestCheck017_UnknownMemberOfKnownGroup(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 1))
	s.join("m", "t")
	wantCode(t, s.beat("n", 1), CodeUnknownMember)
}

func TestCheck018_CurrentAndPreviousEpochAreAccepted(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	s.join("m", "t")
	s.join("n", "t")
	s.later(time.Second)
	r := s.beat("m", 1)
	if r.Epoch != 2 {
		t.Fatalf("answer %+v", r)
	}
	wantCode(t, s.beat("m", 2), CodeOK)
	wantCode(t, s.beat("m", 1), CodeOK)
	wantCode(t, s.beat("m", 3), CodeFencedEpoch)
	s.leave("n")
	s.later(time.Second)
	wantCode(t, s.beat("m", 2), CodeOK)
	wantCode(t, s.beat("m", 1), CodeFencedEpoch)
}

func TestCheck019_NothingChangedIsNoAssignment(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	s.join("m", "t")
	if r := s.beat("m", 1); r.HasAssignment || r.Epoch != 1 {
		t.Fatalf("answer %+v", r)
	}
}

func TestCheck020_UnchangedTopicsAreAnsweredInFull(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	first := s.join("m", "t")
	r := s.heartbeat(Heartbeat{Member: "m", Epoch: 1, Topics: []string{"t"}})
	if !r.HasAssignment || !equalAssignment(r.Assignment, first.Assignment) || r.Epoch != 1 {
		t.Fatalf("answer %+v", r)
	}
}

func TestCheck021_LiveMemberJoinsAgain(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	first := s.join("m", "t")
	r := s.join("m", "t")
	if r.Epoch != first.Epoch || !equalAssignment(r.Assignment, first.Assignment) || len(s.g.members) != 1 {
		t.Fatalf("answer %+v, %d members", r, len(s.g.members))
	}
}

func TestCheck022_Leave(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	s.join("m", "t")
	if r := s.leave("m"); r.Code != CodeOK || r.Epoch != -1 || r.HasAssignment {
		t.Fatalf("answer %+v", r)
	}
	if d := s.g.Describe("g", s.now); len(d.Members) != 0 || d.State != StateEmpty {
		t.Fatalf("description %+v", d)
	}
}

func TestCheck023_LeaveOfUnknownMember(t *testing.T) {
	s := newGroupStory(t)
	wantCode(t, s.leave("m"), CodeUnknownMember)
}

func TestCheck024_SilentMemberIsReplaced(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 4))
	s.join("m", "t")
	s.join("n", "t")
	s.settle()
	s.later(40 * time.Second)
	s.beat("n", s.g.assignmentEpoch)
	s.later(5 * time.Second)
	if r := s.beat("n", s.g.assignmentEpoch); load(r.Assignment) != 4 {
		t.Fatalf("answer %+v", r)
	}
	wantCode(t, s.beat("m", 2), CodeUnknownMember)
}

func TestCheck025_FullGroup(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 1))
	for i := range 200 {
		wantCode(t, s.join(fmt.Sprintf("m%03d", i), "t"), CodeOK)
	}
	wantCode(t, s.join("one more", "t"), CodeGroupFull)
	wantCode(t, s.beat("m007", s.g.members[7].epoch), CodeOK)
	wantCode(t, s.join("m007", "t"), CodeOK)
}

func TestCheck028_MissingTopicIsPickedUpOnceCreated(t *testing.T) {
	s := newGroupStory(t)
	if r := s.join("m", "later"); r.Code != CodeOK || len(r.Assignment) != 0 {
		t.Fatalf("answer %+v", r)
	}
	s.later(time.Second)
	s.topics(testTopic("later", 2))
	if r := s.beat("m", 1); load(r.Assignment) != 2 {
		t.Fatalf("answer %+v", r)
	}
}

func TestCheck029_AddedPartitionsStartAtZero(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 1))
	s.join("m", "t")
	s.later(time.Second)
	s.topics(testTopic("t", 3))
	if r := s.beat("m", 1); load(r.Assignment) != 3 {
		t.Fatalf("answer %+v", r)
	}
	for p, want := range []int64{-1, 0, 0} {
		if start, ok := s.g.Initialized(testID("t"), int32(p)); !ok || start.StartOffset != want {
			t.Fatalf("partition %d starts at %+v, want %d", p, start, want)
		}
	}
}

func TestCheck030_DeletedTopicLeaves(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2), testTopic("u", 1))
	s.join("m", "t", "u")
	s.later(time.Second)
	s.code(TopicMetadata{Gone: []Topic{testTopic("t", 2)}})
	if r := s.beat("m", 1); !r.HasAssignment || formatAssignment(r.Assignment) != "u[0]" {
		t.Fatalf("answer %+v", r)
	}
	if all := s.g.InitializedPartitions(); formatAssignment(all) != "u[0]" {
		t.Fatalf("initialized %v", all)
	}
}

func TestCheck031_ChangedSubscription(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	s.join("m", "t")
	before := s.g.epoch
	s.later(time.Second)
	s.topics(testTopic("u", 1))
	r := s.heartbeat(Heartbeat{Member: "m", Epoch: 1, Topics: []string{"u"}})
	if s.g.epoch <= before || formatAssignment(r.Assignment) != "u[0]" {
		t.Fatalf("epoch %d after %d, answer %+v", s.g.epoch, before, r)
	}
}

func TestCheck032_EmptySubscriptionKeepsMember(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	s.join("m", "t")
	s.later(time.Second)
	if r := s.heartbeat(Heartbeat{Member: "m", Epoch: 1, Topics: []string{}}); !r.HasAssignment || len(r.Assignment) != 0 {
		t.Fatalf("answer %+v", r)
	}
	if d := s.g.Describe("g", s.now); len(d.Members) != 1 {
		t.Fatalf("description %+v", d)
	}
}

func TestCheck033_PartitionsAreShared(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 4))
	s.join("m", "t")
	s.join("n", "t")
	if has := s.settle(); load(has["m"]) != 2 || load(has["n"]) != 2 || total(has) != 4 {
		t.Fatalf("members have %v", has)
	}
	s = newGroupStory(t, testTopic("t", 2))
	for _, m := range []string{"m", "n", "o"} {
		s.join(m, "t")
	}
	has := s.settle()
	for _, m := range []string{"m", "n", "o"} {
		if n := load(has[m]); n < 1 || n > 2 {
			t.Fatalf("members have %v", has)
		}
	}
	if total(has) != 4 {
		t.Fatalf("members have %v", has)
	}
}

func TestCheck034_FifthMemberSharesFourPartitions(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 4))
	for _, m := range []string{"m", "n", "o", "p"} {
		s.join(m, "t")
	}
	for m, assignment := range s.settle() {
		if load(assignment) != 1 {
			t.Fatalf("member %s has %v", m, assignment)
		}
	}
	s.join("q", "t")
	has := s.settle()
	if total(has) != 8 {
		t.Fatalf("members have %v", has)
	}
	for m, assignment := range has {
		if n := load(assignment); n < 1 || n > 2 {
			t.Fatalf("member %s has %v", m, assignment)
		}
	}
}

func TestCheck035_JoiningMemberMovesNoMoreThanNeeded(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 12))
	for _, m := range []string{"m", "n", "o"} {
		s.join(m, "t")
	}
	before := s.settle()
	s.join("a", "t")
	after := s.settle()
	for _, m := range []string{"m", "n", "o"} {
		if kept([][]TopicPartitions{before[m]}, [][]TopicPartitions{after[m]}) != 3 || load(after[m]) != 3 {
			t.Fatalf("member %s had %v, has %v", m, before[m], after[m])
		}
	}
}

func TestCheck036_OnlySubscribedTopics(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2), testTopic("u", 2))
	s.join("m", "t", "u")
	s.topics(testTopic("u", 2))
	s.join("n", "u")
	for _, tp := range s.settle()["n"] {
		if tp.Name != "u" {
			t.Fatalf("member n has %v", tp)
		}
	}
}

func TestCheck037_GroupSurvivesItsMembers(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	s.join("m", "t")
	before, _ := s.g.Initialized(testID("t"), 1)
	s.leave("m")
	s.later(30 * 24 * time.Hour)
	if state := s.g.State(s.now); state != StateEmpty {
		t.Fatalf("state %s", state)
	}
	s.join("n", "t")
	if after, ok := s.g.Initialized(testID("t"), 1); !ok || after != before {
		t.Fatalf("start %+v, then %+v", before, after)
	}
}

func TestCheck117_DescriptionOfAssignment(t *testing.T) {
	s := newGroupStory(t, testTopic("t", 2))
	rack := "r1"
	s.heartbeat(Heartbeat{Member: "m", Topics: []string{"t"}, Rack: &rack, Client: &Client{"app", "/10.0.0.1"}})
	d := s.g.Describe("g", s.now)
	m := d.Members[0]
	if d.State != StateStable || d.GroupEpoch != 1 || d.AssignmentEpoch != 1 || d.Assignor != "simple" ||
		m.Member != "m" || *m.Rack != rack || m.Epoch != 1 || m.ClientID != "app" || m.ClientHost != "/10.0.0.1" ||
		!slices.Equal(m.Topics, []string{"t"}) || m.Assignment[0].ID != testID("t") || formatAssignment(m.Assignment) != "t[0 1]" {
		t.Fatalf("description %+v", d)
	}
}
