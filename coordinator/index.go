package coordinator

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Names in Redis' index begin with what they stand for.
const (
	indexGroup  = "g/" // a share group
	indexConfig = "c/" // a group id with configs of its own
)

// listPatience is how long List waits for Redis before it shows what is known here.
const listPatience = time.Second

// listWorkers bounds the states that List reads at a time; they share pipelines.
const listWorkers = 64

// index is this replica's copy of the index, so that routing a request never waits for Redis.
type index struct {
	mu    sync.RWMutex
	names map[string]struct{}
	// changes counts what was put or dropped here, to find out whether an answer from Redis is older.
	changes uint64
	ready   bool
}

func newIndex() *index { return &index{names: make(map[string]struct{})} }

func (x *index) has(group string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	_, ok := x.names[indexGroup+group]
	return ok
}

func (x *index) put(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.names[name] = struct{}{}
	x.changes++
}

func (x *index) drop(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.names, name)
	x.changes++
}

// under lists the names behind a prefix, sorted.
func (x *index) under(prefix string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var names []string
	for name := range x.names {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			names = append(names, rest)
		}
	}
	slices.Sort(names)
	return names
}

// followIndex reads the index at the start, on every notice of a change, and now and then.
func (s *Service) followIndex(ctx context.Context) {
	watch := s.store.WatchIndex()
	defer watch.Close()
	said := false
	for {
		wait := s.pace.index
		err := s.readIndex(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			if !said {
				s.log.Warn().Err(err).Msg("cannot read the index of share groups; trying on")
			}
			wait = time.Second
		}
		said = err != nil
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-watch.C:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// readIndex takes over Redis' index. Names that are missing there although their group exists are put back: Redis may
// have lost them.
func (s *Service) readIndex(ctx context.Context) error {
	s.index.mu.RLock()
	before := s.index.changes
	s.index.mu.RUnlock()
	listed, err := s.store.Index(ctx)
	if err != nil {
		return err
	}
	names := make(map[string]struct{}, len(listed))
	for _, name := range listed {
		names[name] = struct{}{}
	}
	s.index.mu.Lock()
	var missing []string
	for name := range s.index.names {
		if _, ok := names[name]; !ok {
			missing = append(missing, name)
		}
	}
	if s.index.changes == before {
		for _, name := range missing {
			names[name] = struct{}{}
		}
		s.index.names = names
	} else {
		missing = nil // The answer may be older than the change; there will be another.
		maps.Copy(s.index.names, names)
	}
	s.index.ready = true
	s.index.mu.Unlock()
	for _, name := range missing {
		s.verify(ctx, name)
	}
	return nil
}

// list puts a name on the index, here and in Redis. If that fails there, readIndex does it later.
func (s *Service) list(ctx context.Context, name string) error {
	s.index.put(name)
	return s.store.AddToIndex(ctx, name)
}

// unlist takes a name off the index, here and in Redis.
func (s *Service) unlist(ctx context.Context, name string) error {
	s.index.drop(name)
	return s.store.RemoveFromIndex(ctx, name)
}

// unlistLate takes off a name that has nothing behind it any more. If Redis does not do it, whoever lists next does.
func (s *Service) unlistLate(ctx context.Context, name string) {
	if err := s.unlist(ctx, name); err != nil {
		s.log.Warn().Err(err).Str("name", name).Msg("cannot take a group off the list")
	}
}

// verify settles whether a name that is not in Redis' index should be.
func (s *Service) verify(ctx context.Context, name string) {
	keep := false
	group := name[len(indexGroup):]
	_, err := s.view(ctx, group, 0, func(g *Group) {
		keep = g.exists
		if strings.HasPrefix(name, indexConfig) {
			keep = g.Configured()
		}
	})
	switch {
	case err != nil:
	case !keep:
		s.index.drop(name)
	default:
		if err := s.store.AddToIndex(ctx, name); err != nil {
			s.log.Warn().Err(err).Str("group", group).Msg("cannot list share group")
		}
	}
}

// Ready returns nil once the index of groups was read, so that IsShareGroup and List can be relied on.
func (s *Service) Ready() error {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	if !s.index.ready {
		return unavailable(nil)
	}
	return nil
}

// IsShareGroup reports whether a share group of that id exists, as far as this replica has heard. It never
// waits.
func (s *Service) IsShareGroup(group string) bool { return s.index.has(group) }

// Groups lists the ids of the share groups, as far as this replica has heard. It never waits.
func (s *Service) Groups() []string { return s.index.under(indexGroup) }

// ConfiguredGroups lists the group ids with configs of their own, whether a group exists or not, as far as this replica
// has heard. It never waits.
func (s *Service) ConfiguredGroups() []string { return s.index.under(indexConfig) }

// List lists the share groups with their states, session timeouts evaluated. Names and states are read from Redis, for a
// broker's list is of this moment too, and the group may just have been made, or its last heartbeat have come, on another
// replica; if Redis does not answer within a second, older ones are shown, or Unknown.
func (s *Service) List(ctx context.Context) []Listing {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	groups := s.names(ctx, indexGroup)
	states := make([]string, len(groups))
	forEach(len(groups), func(i int) { states[i] = s.state(ctx, groups[i]) })
	list := make([]Listing, 0, len(groups))
	for i, group := range groups {
		if states[i] != StateDead {
			list = append(list, Listing{Group: group, State: states[i]})
		}
	}
	return list
}

// ListConfigured lists the group ids with configs of their own, whether a group exists or not (ListConfigResources), as
// Redis has them now; if it does not answer within a second, those that are known here.
func (s *Service) ListConfigured(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	groups := s.names(ctx, indexConfig)
	configured := make([]bool, len(groups))
	forEach(len(groups), func(i int) { configured[i] = s.configured(ctx, groups[i]) })
	list := make([]string, 0, len(groups))
	for i, group := range groups {
		if configured[i] {
			list = append(list, group)
		}
	}
	return list
}

// names lists the names behind a prefix that are in Redis' index now, or where it does not answer those known here.
func (s *Service) names(ctx context.Context, prefix string) []string {
	_ = s.readIndex(ctx) // An outage is told by who follows the index.
	return s.index.under(prefix)
}

// forEach calls f for each of n, listWorkers at a time.
func forEach(n int, f func(i int)) {
	work := make(chan int)
	var wg sync.WaitGroup
	for range min(listWorkers, n) {
		wg.Go(func() {
			for i := range work {
				f(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
}

func (s *Service) state(ctx context.Context, group string) string {
	state := StateDead
	read := func(g *Group) { state = g.State(int64(s.asOf())) }
	_, err := s.view(ctx, group, 0, read)
	switch {
	case err != nil:
		state = StateUnknown
		s.group(group).Cached(read)
	case state == StateDead:
		// Whoever deleted it died before it was off the list. If it is made again meanwhile, verify puts it back.
		s.unlistLate(ctx, indexGroup+group)
	}
	return state
}

// configured reports whether a group that is listed for its configs has any, and unlists it if not.
func (s *Service) configured(ctx context.Context, group string) bool {
	has := false
	if _, err := s.view(ctx, group, 0, func(g *Group) { has = g.Configured() }); err != nil {
		return true
	}
	if !has { // Redis was away when the last was deleted, or two replicas have listed and unlisted it at once.
		s.unlistLate(ctx, indexConfig+group)
	}
	return has
}
