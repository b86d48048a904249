package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"kshare/sharestate/statelog"
)

// Options are the parts that a Service is built from.
type Options struct {
	Store  *statelog.Store
	Topics Topics
	Use    GroupUse
	// Broker holds the broker-level settings; it should be valid.
	Broker BrokerConfig
	// Checkpoints are where groups come back from when Redis has lost them; nil = nowhere.
	Checkpoints Checkpoints
	Log         zerolog.Logger
}

// pace holds the times that a Service goes by.
type pace struct {
	// metadata is how often the topics of active groups are asked for upstream.
	metadata time.Duration
	// active is how long after its last heartbeat here a group counts as active.
	active time.Duration
	// idle is how long after its last use what is remembered of a group is dropped.
	idle time.Duration
	// index is how often the index of groups is read when nothing is heard of a change.
	index time.Duration
	// health is how often Redis' health is looked at, which costs no command.
	health time.Duration
	// config is how old a group's configs may be, when no change was heard of, before they are read again meanwhile;
	// at configMost they are read first.
	config, configMost time.Duration
	// conflicts is how often upstream is asked whether it has a group of the same id now.
	conflicts time.Duration
}

var defaultPace = pace{
	metadata: 3 * time.Second,
	active:   30 * time.Second,
	idle:     10 * time.Minute,
	index:    10 * time.Second,
	health:   250 * time.Millisecond,
	config:   5 * time.Second, configMost: time.Minute,
	conflicts: time.Minute,
}

// Service serves share groups on one replica. Any number of replicas may serve the same groups. It is safe for
// concurrent use.
type Service struct {
	store    *statelog.Store
	logs     *statelog.Logs[*Group]
	use      GroupUse
	broker   BrokerConfig
	settings Settings
	log      zerolog.Logger
	pace     pace
	catalog  *catalog
	index    *index
	restorer *restorer

	// outages counts the times that Redis went away; down tells that it is, back (Unix ns) since when it is not.
	outages atomic.Uint64
	down    atomic.Bool
	back    atomic.Int64
	// moaned is when trouble that all groups may have at once was last logged (Unix ns).
	moaned atomic.Int64
	// stale are groups whose copy Run should refresh.
	stale chan string

	mu     sync.Mutex
	locals map[string]*local
}

// local is what one replica remembers of a group it hears heartbeats for. Losing it costs nothing but work.
type local struct {
	mu sync.Mutex
	// watch is the group's watch list as seen last, since seenAt.
	watch  *watchlist
	seenAt time.Time
	// compared is the catalog's generation that held nothing new for watch.
	compared uint64
	// resumed is the outage after which the group's sessions were restarted.
	resumed uint64
	used    time.Time
}

// New returns a Service. It serves at once; Run keeps its index of groups and its view of topics fresh.
func New(o Options) *Service {
	s := &Service{
		store: o.Store, use: o.Use, broker: o.Broker, settings: o.Broker.settings(), log: o.Log, pace: defaultPace,
		catalog: newCatalog(o.Topics), index: newIndex(), locals: make(map[string]*local),
		stale: make(chan string, 256),
	}
	s.restorer = &restorer{s: s, checkpoints: o.Checkpoints}
	// What a replica remembers of a group is put back when Redis has lost it. Deletion leaves a tombstone, so
	// a missing log never means that.
	s.logs = statelog.NewLogs(o.Store, "group", NewGroup, statelog.Reseed(func(g *Group) bool { return g.exists || g.Configured() }))
	return s
}

// Run follows the index of groups, refreshes topics and watches for outages of Redis until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.followIndex(ctx) })
	wg.Go(func() { every(ctx, s.pace.metadata, s.topicRefresher()) })
	wg.Go(func() { every(ctx, s.pace.health, s.checkHealth) })
	wg.Go(func() { every(ctx, s.pace.conflicts, s.checkConflicts) })
	wg.Go(func() { s.refreshStale(ctx) })
	wg.Wait()
	return ctx.Err()
}

func every(ctx context.Context, d time.Duration, f func(context.Context)) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f(ctx)
		}
	}
}

func (s *Service) group(name string) *statelog.Log[*Group] {
	return s.logs.Get(statelog.Escape(name))
}

// local returns what is remembered of the group, made new if need be.
func (s *Service) local(group string) *local {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locals[group]
	if l == nil {
		l = &local{}
		if !s.down.Load() && time.Since(time.Unix(0, s.back.Load())) > s.pace.idle {
			l.resumed = s.outages.Load() // The last outage is too long ago to matter.
		}
		s.locals[group] = l
	}
	l.mu.Lock()
	l.used = time.Now()
	l.mu.Unlock()
	return l
}

// topicRefresher returns what asks upstream for the topics of all active groups in one request. An outage is logged
// once.
func (s *Service) topicRefresher() func(context.Context) {
	said := false
	return func(ctx context.Context) {
		names := s.activeTopics()
		if len(names) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err := s.catalog.fetch(ctx, names)
		if err != nil && !said {
			s.log.Warn().Err(err).Int("topics", len(names)).Msg("cannot refresh the topics of share groups; trying on")
		}
		said = err != nil
	}
}

// activeTopics lists the topics of active groups and forgets groups that were idle for long.
func (s *Service) activeTopics() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(map[string]bool)
	var names []string
	for group, l := range s.locals {
		l.mu.Lock()
		idle, watch := time.Since(l.used), l.watch
		l.mu.Unlock()
		if idle > s.pace.idle {
			delete(s.locals, group)
		}
		if idle > s.pace.active || watch == nil {
			continue
		}
		for _, name := range watch.names {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}

// wentAway notes that Redis does not answer. The next op of every group then restarts its sessions first.
func (s *Service) wentAway() {
	if !s.down.Swap(true) {
		s.outages.Add(1)
	}
}

// checkHealth notices outages, and when one is over restarts the sessions of the groups that this replica
// hears heartbeats for, so that nobody is timed out for heartbeats that could not arrive.
func (s *Service) checkHealth(ctx context.Context) {
	if s.store.Healthy() != nil {
		s.wentAway()
		return
	}
	if !s.down.Load() {
		return
	}
	s.back.Store(time.Now().UnixNano())
	s.down.Store(false)
	outage := s.outages.Load()
	s.mu.Lock()
	locals := maps.Clone(s.locals)
	s.mu.Unlock()
	pending := make(map[*local]*statelog.Pending)
	for group, l := range locals {
		if l.needsResume(outage) {
			pending[l] = s.group(group).Submit(EncodeOp(nil, Resume{Settings: s.settings}))
		}
	}
	for l, p := range pending {
		if _, err := p.Wait(ctx); err == nil {
			l.hasResumed(outage)
		}
	}
}

// refreshStale reads copies that were found to be old by somebody who did not want to wait.
func (s *Service) refreshStale(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case group := <-s.stale:
			_, _ = s.view(ctx, group, s.pace.config, func(*Group) {})
		}
	}
}

// checkConflicts tells the operator of groups that were made upstream, past kshare, under the id of a share group
// here. That cannot be prevented.
func (s *Service) checkConflicts(ctx context.Context) {
	for _, group := range s.activeGroups() {
		if used, err := s.use.InUse(ctx, group); err == nil && used && s.IsShareGroup(group) {
			s.log.Warn().Str("group", group).Msg("a group of another type exists upstream under the id of a share group; clients that go past kshare see that one")
		}
	}
}

// activeGroups lists the groups that this replica heard heartbeats for lately.
func (s *Service) activeGroups() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var groups []string
	for group, l := range s.locals {
		if l.idle() <= s.pace.active {
			groups = append(groups, group)
		}
	}
	return groups
}

func (l *local) idle() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.used)
}

func (l *local) needsResume(outage uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resumed < outage
}

func (l *local) hasResumed(outage uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumed = max(l.resumed, outage)
}

// asOf is the log time now as this replica knows it, as exact as ops carry it.
func (s *Service) asOf() AsOf { return AsOf(s.store.Now() / asOfUnit * asOfUnit) }

// submit sends ops, behind a Resume where one is due, and returns the results of ops. Failures come back as
// *Error, except that a missing log is ErrMissing of statelog.
func (s *Service) submit(ctx context.Context, group string, l *local, ops ...[]byte) ([][]byte, error) {
	outage := s.outages.Load()
	resume := l.needsResume(outage)
	if resume {
		ops = append([][]byte{EncodeOp(nil, Resume{Settings: s.settings})}, ops...)
	}
	results, err := s.group(group).Submit(ops...).Wait(ctx)
	if err != nil {
		return nil, s.failed(group, err)
	}
	if len(results) != len(ops) {
		return nil, unavailable(fmt.Errorf("group %q: %d results for %d ops", group, len(results), len(ops)))
	}
	if resume {
		l.hasResumed(outage)
		results = results[1:]
	}
	return results, nil
}

// failed turns an error of the log into one for the client.
func (s *Service) failed(group string, err error) error {
	switch {
	case errors.Is(err, statelog.ErrMissing):
		return err
	case errors.Is(err, statelog.ErrUnavailable):
		s.wentAway()
	}
	return unavailable(fmt.Errorf("group %q: %w", group, err))
}

func unavailable(cause error) error {
	return &Error{Kind: ErrUnavailable, Message: "The coordinator is not available.", Cause: cause}
}

// view reads the group's state, at most maxAge old, after restoring it where Redis has lost it. A missing log reads as a
// group that does not exist and reports false.
func (s *Service) view(ctx context.Context, group string, maxAge time.Duration, f func(*Group)) (bool, error) {
	err := s.group(group).View(ctx, maxAge, f)
	if errors.Is(err, statelog.ErrMissing) {
		restored, rerr := s.restorer.restore(ctx, group)
		if !restored {
			return false, rerr
		}
		err = s.group(group).View(ctx, maxAge, f)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, statelog.ErrMissing):
		return false, nil
	}
	return false, s.failed(group, err)
}
