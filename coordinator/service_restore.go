package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A group whose log Redis does not have may have lost it. Before anything is said about such a group its checkpoint is
// looked for, and with one the group is made again: with its configs, so that they are in force before any join is
// answered, and with its share-partitions in the lives they had, so that the checkpoints of these count. Members are not
// kept; they are told to join again.

const (
	// restorePatience bounds one look at a checkpoint.
	restorePatience = 4 * time.Second
	// absenceAge is how long a group without a checkpoint is taken to have none.
	absenceAge = time.Second
	// absences bounds what is remembered of that.
	absences = 4096
)

// restorer looks for checkpoints, for each group one at a time.
type restorer struct {
	s           *Service
	checkpoints Checkpoints // nil: there are none

	mu    sync.Mutex
	looks map[string]*restoring
	// absent are groups that had no checkpoint at that time.
	absent map[string]time.Time
}

// restoring is one restoration under way.
type restoring struct {
	done     chan struct{}
	restored bool
	err      error
}

// restore makes a group that Redis does not have from its checkpoint, and reports whether its log is there now.
func (r *restorer) restore(ctx context.Context, group string) (bool, error) {
	if r.checkpoints == nil {
		return false, nil
	}
	r.mu.Lock()
	if at, ok := r.absent[group]; ok && time.Since(at) < absenceAge {
		r.mu.Unlock()
		return false, nil
	}
	l := r.looks[group]
	if l == nil {
		l = &restoring{done: make(chan struct{})}
		if r.looks == nil {
			r.looks = make(map[string]*restoring)
		}
		r.looks[group] = l
		go r.seek(context.WithoutCancel(ctx), group, l)
	}
	r.mu.Unlock()
	select {
	case <-l.done:
		return l.restored, l.err
	case <-ctx.Done():
		return false, unavailable(fmt.Errorf("group %q: %w", group, context.Cause(ctx)))
	}
}

// seek carries one look out and tells those who wait.
func (r *restorer) seek(ctx context.Context, group string, l *restoring) {
	ctx, cancel := context.WithTimeout(ctx, restorePatience)
	defer cancel()
	l.restored, l.err = r.restoreNow(ctx, group)
	r.mu.Lock()
	delete(r.looks, group)
	if l.err == nil && !l.restored {
		r.note(group)
	}
	r.mu.Unlock()
	close(l.done)
}

// note remembers a group that has no checkpoint. r.mu is held.
func (r *restorer) note(group string) {
	if r.absent == nil || len(r.absent) >= absences {
		r.absent = make(map[string]time.Time)
	}
	r.absent[group] = time.Now()
}

func (r *restorer) restoreNow(ctx context.Context, group string) (bool, error) {
	s := r.s
	all, err := r.checkpoints.Load(ctx, group)
	if err != nil {
		return false, unavailable(fmt.Errorf("group %q: reading its checkpoint: %w", group, err))
	}
	counting := valid(all)
	if len(counting) == 0 {
		return false, nil
	}
	used, err := s.use.InUse(ctx, group)
	if err != nil {
		return false, unavailable(fmt.Errorf("group %q: asking upstream whether the id is taken: %w", group, err))
	}
	if used {
		return false, nil
	}
	topics, err := s.catalog.source.TopicsByName(ctx, topicNames(counting), true)
	if err != nil {
		return false, unavailable(fmt.Errorf("group %q: asking for the topics of its checkpoint: %w", group, err))
	}
	g := groupFrom(counting, topics)
	for _, c := range all {
		g.lastIncarnation = max(g.lastIncarnation, c.Incarnation)
	}
	created, err := s.group(group).Create(ctx, g)
	if err != nil {
		return false, s.failed(group, err)
	}
	if !created {
		return true, nil // another replica was first
	}
	s.log.Warn().Str("group", group).Int("partitions", len(g.standing().Partitions)).Int("configs", len(g.configs)).
		Msg("Redis had lost a share group; it is restored from its checkpoint")
	s.relist(ctx, group, g)
	return true, nil
}

func topicNames(checkpoints []Checkpoint) []string {
	seen := make(map[string]bool)
	var names []string
	for _, c := range checkpoints {
		if !seen[c.Topic] {
			seen[c.Topic] = true
			names = append(names, c.Topic)
		}
	}
	return names
}

// relist puts a restored group into the index. If that fails, the next heartbeat does it.
func (s *Service) relist(ctx context.Context, group string, g *Group) {
	names := []string{indexGroup + group}
	if g.Configured() {
		names = append(names, indexConfig+group)
	}
	var failed error
	for _, name := range names {
		failed = errors.Join(failed, s.list(ctx, name))
	}
	if failed != nil {
		s.log.Warn().Err(failed).Str("group", group).Msg("cannot list a restored share group")
	}
}

// remove forgets the checkpoint of a group that was deleted.
func (r *restorer) remove(ctx context.Context, group string) {
	if r.checkpoints != nil {
		r.checkpoints.Remove(ctx, group)
	}
}

// touch has a change of the group's configs written to its checkpoint.
func (r *restorer) touch(group string) {
	if r.checkpoints != nil {
		r.checkpoints.Touch(group)
	}
}
