package statelog

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// Logs is all logs of one kind of machine. A name may only be used in one Logs of a store.
type Logs[M Machine] struct{ family *family }

// LogOption is an option of [NewLogs].
type LogOption[M Machine] func(*family)

// Reseed tells which machines may be put back, from this replica's copy, when Redis has lost their key. That copy is a
// true earlier state of the log, so that what was settled since may come again but nothing is skipped.
func Reseed[M Machine](may func(M) bool) LogOption[M] {
	return func(f *family) { f.mayReseed = func(m Machine) bool { return may(m.(M)) } }
}

// Semantics sets the version of the machine's rules, 1 by default. A replica that meets a log of newer semantics stops
// its key.
func Semantics[M Machine](version uint64) LogOption[M] {
	return func(f *family) { f.semantics = version }
}

// NewLogs makes the logs of one kind; fresh makes an empty machine. kind appears in no key, only in what is logged.
func NewLogs[M Machine](s *Store, kind string, fresh func() M, opts ...LogOption[M]) *Logs[M] {
	f := &family{store: s, kind: kind, fresh: func() Machine { return fresh() }, semantics: 1, cores: make(map[string]*core)}
	for _, o := range opts {
		o(f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.families = append(s.families, f)
	return &Logs[M]{family: f}
}

// Get returns the log of that name, which goes between braces into the key: an escaped group (see [Escape]), or escaped
// group, topic id and partition with slashes between. Nothing is asked of Redis.
func (l *Logs[M]) Get(name string) *Log[M] { return &Log[M]{core: l.family.get(name)} }

// family is a Logs without its type parameter. It keeps the logs that were used last and drops the copies of others.
type family struct {
	store     *Store
	kind      string
	fresh     func() Machine
	mayReseed func(Machine) bool
	semantics uint64

	clock atomic.Int64 // counts uses
	mu    sync.Mutex
	cores map[string]*core
}

func (f *family) get(name string) *core {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.cores[name]; c != nil {
		return c
	}
	c := &core{store: f.store, family: f, name: name, key: f.store.prefix + "{" + name + "}"}
	f.keep(c)
	return c
}

// lookup returns the log if it is kept.
func (f *family) lookup(name string) *core {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cores[name]
}

// touch notes a use of c, and takes it back if it was dropped while its user still held it.
func (f *family) touch(c *core) {
	c.touched.Store(f.clock.Add(1))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cores[c.name] == nil {
		f.keep(c)
	}
}

// keep adds c and makes room. f.mu is held.
func (f *family) keep(c *core) {
	c.touched.Store(f.clock.Add(1))
	if len(f.cores) >= f.store.opt.CacheKeys {
		f.evict()
	}
	f.cores[c.name] = c
}

// evict drops the least recently used eighth of the logs, or as much of it as is idle. Finding it costs a pass over all
// keys, once for that many new ones; a use costs an atomic store. f.mu is held.
func (f *family) evict() {
	n := max(1, f.store.opt.CacheKeys/8)
	for _, c := range byAge(f.cores) {
		if n == 0 {
			return
		}
		if c.drop() {
			delete(f.cores, c.name)
			n--
		}
	}
}

// drop frees the copy unless something is under way or somebody watches.
func (c *core) drop() bool {
	if !c.mu.TryLock() {
		return false
	}
	defer c.mu.Unlock()
	if c.flight != nil || c.unsettled != nil || c.parked || c.reseed || len(c.waiting)+len(c.readers)+len(c.watches) > 0 {
		return false
	}
	c.st, c.compact, c.reload = nil, false, false
	return true
}

// all returns the logs that are kept.
func (f *family) all() []*core {
	f.mu.Lock()
	defer f.mu.Unlock()
	cores := make([]*core, 0, len(f.cores))
	for _, c := range f.cores {
		cores = append(cores, c)
	}
	return cores
}

// byAge returns the cores, the one that was used longest ago first.
func byAge(cores map[string]*core) []*core {
	list := make([]*core, 0, len(cores))
	for _, c := range cores {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *core) int { return cmp.Compare(a.touched.Load(), b.touched.Load()) })
	return list
}
