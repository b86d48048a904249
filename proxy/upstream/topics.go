package upstream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// blockAge is the age from which a cached topic is not used without asking again, if upstream answers.
	blockAge = 30 * time.Second
	// missAge is how long a topic that was not there is not asked for again, unless fresh is wanted.
	missAge = time.Second
	// idleAge is how long after its last use a topic is still refreshed by itself.
	idleAge = 5 * time.Minute
	// leaderAge is the age from which the word on who leads a partition is not held against a client that went elsewhere.
	leaderAge = time.Second
	// misses bounds the memory of topics and partitions that were not there.
	misses = 10_000
)

// partitionLeader is who leads a partition, and since which epoch; node -1 is nobody.
type partitionLeader struct{ node, epoch int32 }

// topicEntry is one topic as last seen. Entries are never changed, only replaced.
type topicEntry struct {
	Topic
	leaders []partitionLeader
	at      time.Time
	used    *atomic.Int64 // Unix ns; shared with the entries that replace this one
}

// topics caches topics by id and by name. What it lacks is asked for in rounds (metadata.go).
type topics struct {
	c    *Client
	kick chan struct{} // cap 1: there is a next round

	mu     sync.Mutex
	byID   map[[16]byte]*topicEntry
	byName map[string]*topicEntry
	missed *simplelru.LRU[any, time.Time] // by name (string), id ([16]byte) or partition (TP)
	next   *round
	warned time.Time
}

func newTopics(c *Client) *topics {
	missed, err := simplelru.NewLRU[any, time.Time](misses, nil)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &topics{
		c: c, kick: make(chan struct{}, 1), missed: missed,
		byID: make(map[[16]byte]*topicEntry), byName: make(map[string]*topicEntry),
	}
}

// TopicByID returns the topic of that id, and whether there is one. An unknown id is asked for, at most once a second.
func (c *Client) TopicByID(ctx context.Context, id [16]byte) (Topic, bool, error) {
	e, err := c.topics.entry(ctx, id)
	if err != nil || e == nil {
		return Topic{}, false, err
	}
	return e.Topic, true, nil
}

// TopicOf is TopicByID for who wants a certain partition: where the topic is not known to have it, it may have been added
// since, and upstream is asked, at most once a second.
func (c *Client) TopicOf(ctx context.Context, tp TP) (Topic, bool, error) {
	t := c.topics
	e, err := t.entry(ctx, tp.ID)
	if err == nil && e != nil && tp.Partition >= e.Partitions && !t.missedLately(tp) {
		if now, err := t.entryAnew(ctx, e, tp); err == nil {
			e = now
		} // else what is known is the best there is
	}
	if err != nil || e == nil {
		return Topic{}, false, err
	}
	return e.Topic, true, nil
}

// entryAnew asks for a topic again that is not known to have the partition.
func (t *topics) entryAnew(ctx context.Context, e *topicEntry, tp TP) (*topicEntry, error) {
	if _, err := t.ask(ctx, []string{e.Name}, nil); err != nil {
		return nil, fmt.Errorf("topic %s: %w", e.Name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e = t.byID[tp.ID]; e != nil && tp.Partition >= e.Partitions {
		t.missed.Add(tp, time.Now())
	}
	return e, nil
}

func (t *topics) missedLately(key any) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.recentMiss(key)
}

// entry returns the topic of that id; nil if there is none.
func (t *topics) entry(ctx context.Context, id [16]byte) (*topicEntry, error) {
	t.mu.Lock()
	e := t.byID[id]
	missed := e == nil && t.recentMiss(id)
	t.mu.Unlock()
	if missed {
		return nil, nil
	}
	if e != nil {
		e.used.Store(time.Now().UnixNano())
		age := time.Since(e.at)
		if age < blockAge {
			if age > t.c.cfg.MetadataMaxAge {
				t.join(nil, [][16]byte{id})
			}
			return e, nil
		}
	}
	if _, err := t.ask(ctx, nil, [][16]byte{id}); err != nil {
		if e != nil && ctx.Err() == nil {
			return e, nil // old, and the best there is
		}
		return nil, fmt.Errorf("topic %x: %w", id, err)
	}
	return t.cachedID(id), nil
}

// TopicsByName returns those of the named topics that exist. With fresh the answer is one that upstream gave after the
// call, and only then does a missing topic surely not exist; without, it may be 30 s old, or as old as upstream is away.
func (c *Client) TopicsByName(ctx context.Context, names []string, fresh bool) (map[string]Topic, error) {
	t := c.topics
	ask, stale := names, []string(nil)
	if !fresh {
		ask, stale = t.unknown(names)
	}
	if len(stale) > 0 {
		t.join(stale, nil)
	}
	if len(ask) > 0 {
		if _, err := t.ask(ctx, ask, nil); err != nil {
			if fresh || !t.cached(names) || ctx.Err() != nil {
				return nil, fmt.Errorf("topics %q: %w", names, err)
			}
		}
	}
	found := make(map[string]Topic, len(names))
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if e := t.byName[name]; e != nil {
			e.used.Store(time.Now().UnixNano())
			found[name] = e.Topic
		}
	}
	return found, nil
}

// unknown sorts out which names must be asked for before an answer, and which may be after it.
func (t *topics) unknown(names []string) (ask, stale []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		e := t.byName[name]
		switch {
		case e == nil && !t.recentMiss(name), e != nil && time.Since(e.at) > blockAge:
			ask = append(ask, name)
		case e != nil && time.Since(e.at) > t.c.cfg.MetadataMaxAge:
			stale = append(stale, name)
		}
	}
	return ask, stale
}

func (t *topics) recentMiss(key any) bool {
	at, ok := t.missed.Get(key)
	return ok && time.Since(at) < missAge
}

// cached says whether all names are known, however long ago.
func (t *topics) cached(names []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool { return t.byName[name] == nil })
}

func (t *topics) cachedID(id [16]byte) *topicEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// Leader returns the node that leads a partition and its leader epoch, as last heard; ok is false if neither is known.
func (c *Client) Leader(tp TP) (node, epoch int32, ok bool) {
	l, ok := c.topics.leader(tp)
	return l.node, l.epoch, ok
}

// CheckLeaders asks upstream again about the topics of those partitions that, as last heard a second ago or longer,
// another node leads. It is for requests that have come to a node: clients hear of a new leader from any broker, and may be
// there before this client has heard. Where upstream does not answer, Leader says what it said before.
func (c *Client) CheckLeaders(ctx context.Context, node int32, tps []TP) {
	var old [][16]byte
	for _, tp := range tps {
		e := c.topics.cachedID(tp.ID)
		if e == nil || time.Since(e.at) < leaderAge || len(old) > 0 && old[len(old)-1] == tp.ID {
			continue
		}
		if l, ok := e.leader(tp.Partition); ok && l.node >= 0 && l.node != node {
			old = append(old, tp.ID)
		}
	}
	if len(old) > 0 {
		_, _ = c.topics.ask(ctx, nil, old)
	}
}

// Recheck asks upstream soon about a topic, for who has heard elsewhere that a leader has changed.
func (c *Client) Recheck(id [16]byte) { c.topics.join(nil, [][16]byte{id}) }

// leader is who leads a partition of the topic; ok is false if there is no such partition.
func (e *topicEntry) leader(partition int32) (l partitionLeader, ok bool) {
	if partition < 0 || int(partition) >= len(e.leaders) {
		return partitionLeader{-1, -1}, false
	}
	return e.leaders[partition], true
}

func (t *topics) leader(tp TP) (partitionLeader, bool) {
	e := t.cachedID(tp.ID)
	if e == nil {
		return partitionLeader{-1, -1}, false
	}
	l, _ := e.leader(tp.Partition)
	return l, l.node >= 0
}

// hint takes a leader that a node named in place of itself, if it is newer than what is known.
func (t *topics) hint(tp TP, l partitionLeader) {
	t.mu.Lock()
	e := t.byID[tp.ID]
	if e == nil {
		t.mu.Unlock()
		return
	}
	if old, ok := e.leader(tp.Partition); !ok || l.node < 0 || old.epoch >= l.epoch {
		t.mu.Unlock()
		return
	}
	changed := *e
	changed.leaders = slices.Clone(e.leaders)
	changed.leaders[tp.Partition] = l
	t.byID[tp.ID], t.byName[e.Name] = &changed, &changed
	t.mu.Unlock()
	t.c.reader.topicChanged(&changed)
}

// inUse are the ids of the topics that are read, or were used lately.
func (t *topics) inUse() [][16]byte {
	ids := t.c.reader.topics()
	t.mu.Lock()
	defer t.mu.Unlock()
	since := time.Now().Add(-idleAge).UnixNano()
	for id, e := range t.byID { // twice is no matter
		if e.used.Load() > since {
			ids = append(ids, id)
		}
	}
	return ids
}
