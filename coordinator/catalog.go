package coordinator

import (
	"context"
	"sync"
	"time"
)

// defaultGoneAfter is how long a topic must be missing upstream, in at least two answers, before a group is told that
// it is gone: one upstream broker may be a moment behind another, and forgetting a topic forgets its offsets.
const defaultGoneAfter = 2 * time.Second

// negativeAge is how long a topic that was not there need not be asked for again by a join.
const negativeAge = 500 * time.Millisecond

// entryAge is how long an answer is kept when nobody refreshes it.
const entryAge = 10 * time.Minute

// catalog is what this replica knows of upstream's topics. Heartbeats compare their group with it without asking
// upstream, and a change that is not a new partition counts only if upstream said so after the group's state
// was seen, so that replicas with answers of different age do not change a group back and forth.
type catalog struct {
	source    Topics
	goneAfter time.Duration

	mu      sync.Mutex
	entries map[string]catalogEntry
	fetches uint64
}

// catalogEntry is the last answer about one name.
type catalogEntry struct {
	topic Topic
	found bool
	// asked is when the question was put.
	asked time.Time
	// missingSince is when the first question was put of those that, one after the other, found no such topic.
	missingSince time.Time
}

func newCatalog(source Topics) *catalog {
	return &catalog{source: source, goneAfter: defaultGoneAfter, entries: make(map[string]catalogEntry)}
}

// generation changes with every answer.
func (c *catalog) generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fetches + 1
}

// fetch asks upstream.
func (c *catalog) fetch(ctx context.Context, names []string) error {
	asked := time.Now()
	found, err := c.source.TopicsByName(ctx, names, true)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetches++
	for _, name := range names {
		old, known := c.entries[name]
		if known && old.asked.After(asked) {
			continue
		}
		e := catalogEntry{asked: asked}
		e.topic, e.found = found[name]
		e.topic.Partitions = min(e.topic.Partitions, maxPartitions)
		if !e.found {
			e.missingSince = asked
			if known && !old.found {
				e.missingSince = old.missingSince
			}
		}
		c.entries[name] = e
	}
	for name, e := range c.entries {
		if asked.Sub(e.asked) > entryAge {
			delete(c.entries, name)
		}
	}
	return nil
}

// unsure lists the names that a join should ask upstream about.
func (c *catalog) unsure(names []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var unsure []string
	for _, name := range names {
		e, known := c.entries[name]
		if !known || !e.found && time.Since(e.asked) > negativeAge {
			unsure = append(unsure, name)
		}
	}
	return unsure
}

// compare finds what a group should be told of the named topics. since is when its state was first seen as it is.
func (c *catalog) compare(w *watchlist, names []string, since time.Time) TopicMetadata {
	c.mu.Lock()
	defer c.mu.Unlock()
	var news TopicMetadata
	for _, name := range names {
		e, answered := c.entries[name]
		has, known := w.topics[name]
		switch {
		case !answered:
		case !known && e.found:
			news.Topics = append(news.Topics, e.topic)
		case !known:
		case e.found && e.topic.ID == has.ID:
			if e.topic.Partitions > has.Partitions {
				news.Topics = append(news.Topics, e.topic)
			}
		case !e.asked.After(since):
		case e.found:
			news.Topics = append(news.Topics, e.topic)
		case e.asked.Sub(e.missingSince) >= c.goneAfter:
			news.Gone = append(news.Gone, has)
		}
	}
	return news
}
