package coordinator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
)

// shelf keeps checkpoints for tests.
type shelf struct {
	mu      sync.Mutex
	kept    map[string][]Checkpoint
	err     error
	loads   int
	touched []string
	hold    chan struct{} // Load waits for it if set
}

func (s *shelf) Load(ctx context.Context, group string) ([]Checkpoint, error) {
	s.mu.Lock()
	hold := s.hold
	s.loads++
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[group], s.err
}

func (s *shelf) Remove(_ context.Context, group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, group)
}

func (s *shelf) Touch(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touched = append(s.touched, group)
}

// on gives a replica the checkpoints of the shelf.
func (s *shelf) on(r *replica) *replica {
	r.restorer.checkpoints = s
	return r
}

func checkpointOf(topic string, partition int32, offset, incarnation int64, configs ...Setting) Checkpoint {
	return Checkpoint{Topic: topic, Partition: partition, Offset: offset, LeaderEpoch: -1,
		CheckpointNote: CheckpointNote{ID: testID(topic), Incarnation: incarnation, At: incarnation + 10, Known: 2, Configs: configs}}
}

func TestNotesKeepTheirForm(t *testing.T) {
	for _, c := range []struct {
		note CheckpointNote
		text string
	}{
		{CheckpointNote{ID: [16]byte{1, 2}, Incarnation: 1700000000000001, At: 1700000000000009, Known: 3,
			Configs: []Setting{{"errors.deadletterqueue.topic.name", `a"<b>`}, {"share.auto.offset.reset", "earliest"}}},
			`{"kshare":1,"id":"AQIAAAAAAAAAAAAAAAAAAA","inc":1700000000000001,"at":1700000000000009,"known":3,` +
				`"configs":{"errors.deadletterqueue.topic.name":"a\"\u003cb\u003e","share.auto.offset.reset":"earliest"}}`},
		{CheckpointNote{Incarnation: 5, At: 6, Deleted: true}, `{"kshare":1,"id":"AAAAAAAAAAAAAAAAAAAAAA","inc":5,"at":6,"deleted":true}`},
		{CheckpointNote{Incarnation: 5, At: 6, Bare: true}, `{"kshare":1,"id":"AAAAAAAAAAAAAAAAAAAAAA","inc":5,"at":6,"bare":true}`},
	} {
		if text := c.note.Encode(); text != c.text {
			t.Errorf("encoded %s", text)
		}
		back, err := DecodeNote(c.text)
		if err != nil || back.Encode() != c.text || !slices.Equal(back.Configs, c.note.Configs) {
			t.Errorf("decoded %+v %v", back, err)
		}
	}
	for _, text := range []string{"", "x", "{}", `{"kshare":2,"id":"AAAAAAAAAAAAAAAAAAAAAA"}`, `{"kshare":1,"id":"AAAA"}`, `{"kshare":1,"id":"?"}`} {
		if n, err := DecodeNote(text); err == nil {
			t.Errorf("%q is read as %+v", text, n)
		}
	}
}

func TestNotesOfAllConfigsFitBesideAnOffset(t *testing.T) {
	n := CheckpointNote{Incarnation: 1 << 60, At: 1 << 60, Known: 1 << 30}
	for _, k := range groupKeys {
		n.Configs = append(n.Configs, Setting{k.name, "2147483647"})
	}
	if size := len(n.Encode()) + 249; size > NoteBytes/2 {
		t.Errorf("%d bytes", size)
	}
}

func TestGroupFromCheckpoints(t *testing.T) {
	old, young := Setting{keyAutoOffsetReset, "earliest"}, Setting{keyDeliveryLimit, "3"}
	unknown := Setting{"share.of.the.future", "1"}
	all := []Checkpoint{
		checkpointOf("t", 3, 40, 9, young, unknown), checkpointOf("t", 0, 10, 5, old), checkpointOf("t", 1, 20, 5, old),
		checkpointOf("gone", 0, 7, 4), checkpointOf("anew", 0, 7, 4), checkpointOf("t", 8, 1, 2),
	}
	all[0].Known = 4
	anew := testTopic("anew", 1)
	anew.ID[0]++
	g := groupFrom(all, map[string]Topic{"t": testTopic("t", 6), "anew": anew})
	if !g.exists || len(g.members) != 0 || g.lastIncarnation != 9 || !slices.Equal(g.configs, []Setting{young}) {
		t.Errorf("%+v", g)
	}
	want := []PartitionStanding{
		{testID("t"), "t", 4, 0, Initialized{5, 10}}, {testID("t"), "t", 4, 1, Initialized{5, 20}}, {testID("t"), "t", 4, 3, Initialized{9, 40}},
	}
	if st := g.standing(); !slices.Equal(st.Partitions, want) {
		t.Errorf("share-partitions %+v", st.Partitions)
	}
	back := NewGroup()
	if err := back.Restore(g.AppendSnapshot(nil)); err != nil || !slices.Equal(back.AppendSnapshot(nil), g.AppendSnapshot(nil)) {
		t.Errorf("as a snapshot: %v", err)
	}
}

func TestDeleteMarkVoidsWhatIsNotYounger(t *testing.T) {
	mark := Checkpoint{Topic: "t", CheckpointNote: CheckpointNote{Incarnation: 6, Deleted: true}}
	have := valid([]Checkpoint{checkpointOf("t", 1, 1, 5), mark, checkpointOf("t", 2, 1, 6), checkpointOf("t", 3, 1, 7)})
	if len(have) != 1 || have[0].Partition != 3 {
		t.Errorf("%+v", have)
	}
}

func TestLostGroupIsRestoredBeforeItIsSpokenOf(t *testing.T) {
	for name, meet := range map[string]func(t *testing.T, r *replica){
		"heartbeat of a member": func(t *testing.T, r *replica) {
			_, err := r.beat("m", 5)
			wantError(t, err, ErrUnknownMemberID, "")
		},
		"leave": func(t *testing.T, r *replica) {
			_, err := r.beat("m", -1)
			wantError(t, err, ErrUnknownMemberID, "")
		},
		"join": func(t *testing.T, r *replica) {
			if m := r.mustBeat("m", 0, "t"); m.IntervalMs != 7000 || load(m.Assignment) != 2 {
				t.Errorf("answer %+v", m)
			}
		},
		"description": func(t *testing.T, r *replica) {
			if d := r.describe(); d.State != StateEmpty {
				t.Errorf("%+v", d)
			}
		},
		"change of configs": func(t *testing.T, r *replica) {
			value := "4"
			if err := r.AlterConfigs(context.Background(), "g", []ConfigOp{{keyDeliveryLimit, ConfigSet, &value}}, false); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestbed(t, testTopic("t", 2))
			s := &shelf{kept: map[string][]Checkpoint{"g": {checkpointOf("t", 1, 77, 5, Setting{keyHeartbeatInterval, "7000"})}}}
			r := s.on(b.replica())
			meet(t, r)
			if start, ok, err := r.Initialized(context.Background(), "g", testID("t"), 1); err != nil || !ok || start != (Initialized{5, 77}) {
				t.Errorf("start %+v %v %v", start, ok, err)
			}
			if c, err := r.Config(context.Background(), "g"); err != nil || c.HeartbeatIntervalMs != 7000 {
				t.Errorf("configs %+v %v", c, err)
			}
			if !r.IsShareGroup("g") || !slices.Contains(r.ConfiguredGroups(), "g") {
				t.Error("the group is not listed")
			}
		})
	}
}

func TestGroupIsNotMadeWhileItsCheckpointCannotBeRead(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	s := &shelf{err: errors.New("coordinator away")}
	r := s.on(b.replica())
	for _, epoch := range []int32{0, 5} {
		_, err := r.beat("m", epoch, "t")
		wantError(t, err, ErrUnavailable, "")
	}
	s.mu.Lock()
	s.err, s.kept = nil, map[string][]Checkpoint{"g": {checkpointOf("t", 0, 3, 5)}}
	s.mu.Unlock()
	r.mustBeat("m", 0, "t")
	if start, ok, _ := r.Initialized(context.Background(), "g", testID("t"), 0); !ok || start.StartOffset != 3 {
		t.Errorf("start %+v %v", start, ok)
	}
}

func TestDeletedGroupIsNotRestoredWhileRedisKnowsOfTheDeletion(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	s := &shelf{}
	r := s.on(b.replica())
	r.mustBeat("m", 0, "t")
	r.mustBeat("m", -1)
	before, _, _ := r.Initialized(context.Background(), "g", testID("t"), 0)
	if err := r.Delete(context.Background(), "g"); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.kept = map[string][]Checkpoint{"g": {checkpointOf("t", 0, 3, before.Incarnation)}} // somebody's late commit
	s.mu.Unlock()
	_, err := r.beat("m", 5)
	wantError(t, err, ErrGroupIDNotFound, "")
	r.mustBeat("m", 0, "t")
	if start, ok, _ := r.Initialized(context.Background(), "g", testID("t"), 0); !ok || start.StartOffset != -1 || start.Incarnation <= before.Incarnation {
		t.Errorf("start %+v %v, before %+v", start, ok, before)
	}
}

func TestGroupOfAnotherTypeUpstreamIsNotReplacedByACheckpoint(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	b.up.inUse = func(string) (bool, error) { return true, nil }
	s := &shelf{kept: map[string][]Checkpoint{"g": {checkpointOf("t", 0, 3, 5)}}}
	r := s.on(b.replica())
	_, err := r.beat("m", 5)
	wantError(t, err, ErrGroupIDNotFound, "Group g is not a share group.")
	if r.IsShareGroup("g") {
		t.Error("it is restored")
	}
}

func TestManyWhoMissAGroupLookForItsCheckpointOnce(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	s := &shelf{kept: map[string][]Checkpoint{"g": {checkpointOf("t", 1, 77, 5)}}, hold: make(chan struct{})}
	r := s.on(b.replica())
	const n = 50
	var beats sync.WaitGroup
	for range n {
		beats.Go(func() {
			_, err := r.beat("m", 5)
			if !errors.Is(err, ErrUnknownMemberID) {
				t.Error(err)
			}
		})
	}
	eventually(t, "the look", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.loads > 0 })
	close(s.hold)
	beats.Wait()
	if s.loads > 2 {
		t.Errorf("%d looks", s.loads)
	}
}
