package coordinator

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A checkpoint is what is kept of a group outside of Redis, for the day on which all of Redis is lost: for each
// share-partition the SPSO of some seconds ago, and beside it, as text, what is needed to make the group again. Every one
// carries the group's configs, so that any of them is enough.

// Checkpoint is the checkpoint of one share-partition.
type Checkpoint struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	CheckpointNote
}

// CheckpointNote is what stands beside the offset.
type CheckpointNote struct {
	// ID is the topic's id; under another id the topic is not the same any more.
	ID [16]byte
	// Incarnation is the life of the share-partition that the offset belongs to.
	Incarnation int64
	// At is the Redis time (µs) of the commit: the configs of the youngest one count.
	At int64
	// Known is the partition count at which the group initialized the topic last.
	Known int32
	// Deleted makes this a delete mark: nothing of incarnations up to Incarnation counts any more.
	Deleted bool
	Configs []Setting
	// Bare: the group has configs that found no room here.
	Bare bool
}

// Checkpoints is where checkpoints are kept.
type Checkpoints interface {
	// Load returns the checkpoint of a group, delete marks included; nothing where there is none or kshare may not read
	// it. An error means that it cannot be read at present.
	Load(ctx context.Context, group string) ([]Checkpoint, error)
	// Remove forgets the checkpoint of a deleted group, as soon as possible.
	Remove(ctx context.Context, group string)
	// Touch has the group's checkpoint brought up to date, in the background.
	Touch(group string)
}

// NoteBytes is the most that Kafka takes beside a committed offset by default (offset.metadata.max.bytes).
const NoteBytes = 4096

// noteVersion is the version of a note's form.
const noteVersion = 1

// note is a CheckpointNote as text.
type note struct {
	Version     int               `json:"kshare"`
	ID          string            `json:"id"`
	Incarnation int64             `json:"inc"`
	At          int64             `json:"at"`
	Known       int32             `json:"known,omitempty"`
	Deleted     bool              `json:"deleted,omitempty"`
	Configs     map[string]string `json:"configs,omitempty"`
	Bare        bool              `json:"bare,omitempty"`
}

// Encode gives the note as text.
func (n *CheckpointNote) Encode() string {
	out := note{noteVersion, base64.RawURLEncoding.EncodeToString(n.ID[:]), n.Incarnation, n.At, n.Known, n.Deleted, nil, n.Bare}
	if len(n.Configs) > 0 {
		out.Configs = make(map[string]string, len(n.Configs))
		for _, s := range n.Configs {
			out.Configs[s.Key] = s.Value
		}
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // there is nothing in it that has no JSON
	}
	return string(text)
}

// DecodeNote is the inverse of Encode.
func DecodeNote(text string) (CheckpointNote, error) {
	var in note
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return CheckpointNote{}, fmt.Errorf("checkpoint note: %w", err)
	}
	if in.Version != noteVersion {
		return CheckpointNote{}, fmt.Errorf("checkpoint note of version %d, this replica knows %d", in.Version, noteVersion)
	}
	n := CheckpointNote{Incarnation: in.Incarnation, At: in.At, Known: in.Known, Deleted: in.Deleted, Bare: in.Bare}
	id, err := base64.RawURLEncoding.DecodeString(in.ID)
	if err != nil || len(id) != len(n.ID) {
		return CheckpointNote{}, fmt.Errorf("checkpoint note: topic id %q", in.ID)
	}
	copy(n.ID[:], id)
	for key, value := range in.Configs {
		n.Configs = append(n.Configs, Setting{key, value})
	}
	slices.SortFunc(n.Configs, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) })
	return n, nil
}

// valid drops what is void: delete marks, and what they stand for.
func valid(checkpoints []Checkpoint) []Checkpoint {
	void := int64(-1)
	for _, c := range checkpoints {
		if c.Deleted {
			void = max(void, c.Incarnation)
		}
	}
	return slices.DeleteFunc(slices.Clone(checkpoints), func(c Checkpoint) bool { return c.Deleted || c.Incarnation <= void })
}

// groupFrom makes a group of its valid checkpoints, without members. Those of topics that do not exist under that id any
// more only tell the configs.
func groupFrom(checkpoints []Checkpoint, topics map[string]Topic) *Group {
	g := NewGroup()
	g.exists = true
	checkpoints = slices.Clone(checkpoints)
	slices.SortFunc(checkpoints, func(a, b Checkpoint) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	youngest := int64(-1)
	for _, c := range checkpoints {
		g.lastIncarnation = max(g.lastIncarnation, c.Incarnation)
		if c.At > youngest {
			youngest, g.configs = c.At, knownSettings(c.Configs)
		}
		now, exists := topics[c.Topic]
		if !exists || now.ID != c.ID || c.Partition < 0 || c.Partition >= now.Partitions || c.Offset < 0 {
			continue
		}
		t, _ := g.put(now)
		t.known = max(t.known, min(c.Known, now.Partitions))
		t.set(c.Partition, Initialized{Incarnation: c.Incarnation, StartOffset: c.Offset})
	}
	g.watch = g.watchlist()
	return g
}

// knownSettings drops what this version of kshare has no such config for.
func knownSettings(settings []Setting) []Setting {
	return slices.DeleteFunc(slices.Clone(settings), func(s Setting) bool { return !OwnsConfig(s.Key) })
}

// Standing is what a group says of itself where checkpoints are made.
type Standing struct {
	// Exists is false for a group that was deleted; one whose log Redis does not have is no Known either.
	Known, Exists bool
	// LastIncarnation is the highest one given out, deletion included.
	LastIncarnation int64
	Configs         []Setting
	Partitions      []PartitionStanding
}

// PartitionStanding is one initialized share-partition.
type PartitionStanding struct {
	ID        [16]byte
	Topic     string
	Known     int32
	Partition int32
	Initialized
}

// Standing tells where the group stands now.
func (s *Service) Standing(ctx context.Context, group string) (st Standing, err error) {
	st.Known, err = s.view(ctx, group, 0, func(g *Group) { st = g.standing() })
	return st, err
}

func (g *Group) standing() Standing {
	st := Standing{Exists: g.exists, LastIncarnation: g.lastIncarnation, Configs: slices.Clone(g.configs)}
	for _, t := range g.topics {
		for _, r := range t.runs {
			for p := r.first; p <= r.last; p++ {
				st.Partitions = append(st.Partitions, PartitionStanding{t.id, t.name, t.known, p, r.Initialized})
			}
		}
	}
	return st
}
