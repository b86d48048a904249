package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// What is committed for a group: the work on its checkpoint when that is due.

// bringUp brings a group's checkpoint up to date, and returns what is to be looked at again.
func (c *Checkpoints) bringUp(ctx context.Context, group string, t *todo, final bool) (left *todo, err error) {
	st, err := c.s.o.Groups.Standing(ctx, group)
	switch {
	case err != nil:
		return t, err
	case !st.Known:
		return nil, nil
	case !st.Exists:
		if t.all || t.committed {
			if err := c.remove(ctx, group, st.LastIncarnation); err != nil {
				return t, err
			}
		}
		return nil, nil
	}
	f := &flush{c: c, group: group, st: &st, t: t, final: final, now: c.s.o.Store.Now()}
	f.room()
	if err := f.look(ctx); err != nil {
		return t, err
	}
	f.plan(ctx)
	if t.all {
		f.clear()
	}
	if len(f.out) > 0 {
		_, err = c.commit(ctx, group, f.out)
	}
	if len(f.left) == 0 && (err == nil || !t.all) {
		return nil, err
	}
	return &todo{parts: f.left, all: t.all && err != nil, committed: t.committed || len(f.out) > 0}, err
}

// flush is the work on one group.
type flush struct {
	c     *Checkpoints
	group string
	st    *coordinator.Standing
	t     *todo
	final bool
	now   int64
	bare  bool // configs find no room

	wanted []coordinator.PartitionStanding
	have   map[place]coordinator.Checkpoint
	out    []coordinator.Checkpoint
	left   map[upstream.TP]struct{}
}

// place is where a checkpoint is committed.
type place struct {
	topic     string
	partition int32
}

// room finds out whether the configs fit beside an offset; if not they are left out of all.
func (f *flush) room() {
	if len(f.st.Configs) == 0 {
		return
	}
	longest := coordinator.CheckpointNote{Incarnation: f.now, At: f.now, Known: 1 << 30, Configs: f.st.Configs}
	size := len(longest.Encode())
	f.c.mu.Lock()
	f.bare = size > f.c.room
	f.c.mu.Unlock()
	if f.bare {
		f.c.warn("configs", func(e *zerolog.Event) {
			e.Str("group", f.group).Int("bytes", size).
				Msg("configs of a share group are too large for its checkpoint: they would be lost with Redis; offsets are kept all the same")
		})
	}
}

// look chooses the share-partitions and reads what is committed for them.
func (f *flush) look(ctx context.Context) error {
	var of []upstream.GroupOffset
	for _, p := range f.st.Partitions {
		if _, noted := f.t.parts[tpOfStanding(p)]; noted || f.t.all {
			f.wanted = append(f.wanted, p)
			of = append(of, upstream.GroupOffset{Topic: upstream.Topic{ID: p.ID, Name: p.Topic}, Partition: p.Partition})
		}
	}
	if f.t.all {
		of = nil
	} else if len(of) == 0 {
		return nil
	}
	all, err := f.c.fetch(ctx, f.group, of)
	if err != nil {
		return err
	}
	f.have = make(map[place]coordinator.Checkpoint, len(all))
	for _, p := range all {
		f.have[place{p.Topic, p.Partition}] = p
	}
	return nil
}

func tpOfStanding(p coordinator.PartitionStanding) upstream.TP {
	return upstream.TP{ID: p.ID, Partition: p.Partition}
}

// plan decides for each share-partition whether to commit now, to look again later, or neither.
func (f *flush) plan(ctx context.Context) {
	f.left = map[upstream.TP]struct{}{}
	verdicts := make([]verdict, len(f.wanted))
	inParallel(len(f.wanted), func(i int) { verdicts[i] = f.judge(ctx, f.wanted[i]) })
	for i, v := range verdicts {
		if v.commit {
			f.out = append(f.out, v.Checkpoint)
		}
		if v.commit || v.again {
			f.left[tpOfStanding(f.wanted[i])] = struct{}{}
		}
	}
}

// verdict is what plan decides for one share-partition.
type verdict struct {
	commit, again bool
	coordinator.Checkpoint
}

func (f *flush) judge(ctx context.Context, p coordinator.PartitionStanding) (v verdict) {
	tp := tpOfStanding(p)
	have, found := f.have[place{p.Topic, p.Partition}]
	same := found && !have.Deleted && have.ID == p.ID && have.Incarnation == p.Incarnation
	settled := same && f.tellsConfigs(&have) && f.age(&have) < f.c.recommit
	if _, noted := f.t.parts[tp]; !noted && settled {
		return verdict{}
	}
	offset, epoch, err := f.c.position(ctx, f.group, p)
	// An unclean leader election has cut the log, and SPSO went back with it.
	cut := same && have.Offset > offset && have.LeaderEpoch >= 0 && have.LeaderEpoch < epoch
	switch {
	case err != nil:
		return verdict{again: true}
	case offset < 0:
		return verdict{}
	case settled && have.Offset >= offset && !cut:
		return verdict{}
	case settled && !f.final && f.age(&have) >= 0 && f.age(&have) < f.c.interval:
		return verdict{again: true} // another replica was here just now
	}
	if same && !cut && have.Offset > offset { // Redis may have fallen back behind it; then this is the truth
		offset, epoch = have.Offset, max(epoch, have.LeaderEpoch)
	}
	note := coordinator.CheckpointNote{ID: p.ID, Incarnation: p.Incarnation, At: f.now, Known: p.Known, Bare: f.bare}
	if !f.bare {
		note.Configs = f.st.Configs
	}
	return verdict{commit: true, Checkpoint: coordinator.Checkpoint{
		Topic: p.Topic, Partition: p.Partition, Offset: offset, LeaderEpoch: epoch, CheckpointNote: note}}
}

// tellsConfigs: the checkpoint carries the configs that the group has.
func (f *flush) tellsConfigs(have *coordinator.Checkpoint) bool {
	if f.bare {
		return have.Bare
	}
	return !have.Bare && slices.Equal(have.Configs, f.st.Configs)
}

// age is how long ago by Redis' clock a checkpoint was committed; negative if that clock was set back.
func (f *flush) age(p *coordinator.Checkpoint) time.Duration {
	return time.Duration(f.now-p.At) * time.Microsecond
}

// position is the SPSO that Redis has confirmed in the life that the group knows, -1 if there is none yet, and the leader
// epoch of what was read up to there.
func (c *Checkpoints) position(ctx context.Context, group string, p coordinator.PartitionStanding) (offset int64, epoch int32, err error) {
	offset, epoch, incarnation := int64(-1), int32(-1), int64(-1)
	err = c.s.logs.Get(logName(group, tpOfStanding(p))).View(ctx, viewAge, func(sp *sharestate.Partition) {
		offset, incarnation = sp.SPSO(), sp.Incarnation()
		if epoch = sp.LogEpoch(); epoch < 0 {
			if e := sp.Summary().LeaderEpoch; e > 0 {
				epoch = e
			}
		}
	})
	switch {
	case err != nil && !errors.Is(err, statelog.ErrMissing):
		return -1, -1, fmt.Errorf("position of %s: %w", logName(group, tpOfStanding(p)), err)
	case incarnation < p.Incarnation:
		return p.StartOffset, -1, nil // nothing was fetched in this life yet
	case incarnation > p.Incarnation:
		return -1, -1, nil
	}
	return offset, epoch, nil
}

// clear puts delete marks over what is committed for lives that are over.
func (f *flush) clear() {
	current := map[place]coordinator.PartitionStanding{}
	for _, p := range f.st.Partitions {
		current[place{p.Topic, p.Partition}] = p
	}
	for at, have := range f.have {
		p, lives := current[at]
		if have.Deleted || lives && p.ID == have.ID && p.Incarnation == have.Incarnation {
			continue
		}
		if lives && (p.StartOffset >= 0 || f.planned(at)) {
			continue // is written over
		}
		have.CheckpointNote = coordinator.CheckpointNote{ID: have.ID, At: f.now, Deleted: true}
		f.out = append(f.out, have)
	}
}

func (f *flush) planned(at place) bool {
	return slices.ContainsFunc(f.out, func(c coordinator.Checkpoint) bool { return place{c.Topic, c.Partition} == at })
}
