package coordinator

import (
	"slices"
	"strings"
)

// topic is what the group knows of one topic.
type topic struct {
	id         [16]byte
	name       string
	partitions int32
	// known is the partition count at which the topic's share-partitions were initialized last; 0 if never.
	// Partitions from there on were added later.
	known int32
	runs  []run // initialized partitions, ascending, disjoint
}

// run is a range of initialized partitions with one starting point.
type run struct {
	first, last int32 // inclusive
	Initialized
}

func (g *Group) topic(name string) (int, *topic) {
	i, found := slices.BinarySearchFunc(g.topics, name, func(t *topic, name string) int {
		return strings.Compare(t.name, name)
	})
	if !found {
		return i, nil
	}
	return i, g.topics[i]
}

func (g *Group) topicByID(id [16]byte) *topic {
	for _, t := range g.topics {
		if t.id == id {
			return t
		}
	}
	return nil
}

// put makes the group know a topic and reports whether that is news. A count only grows; another id
// under a known name means that the topic was deleted and created again.
func (g *Group) put(news Topic) (t *topic, changed bool) {
	i, t := g.topic(news.Name)
	switch {
	case t == nil:
		t = &topic{id: news.ID, name: news.Name, partitions: news.Partitions}
		g.topics = slices.Insert(g.topics, i, t)
	case t.id != news.ID:
		t = &topic{id: news.ID, name: news.Name, partitions: news.Partitions}
		g.topics[i] = t
	case t.partitions < news.Partitions:
		t.partitions = news.Partitions
	default:
		return t, false
	}
	return t, true
}

// topicMetadata takes over what upstream says. Topics that nobody subscribes to yet are kept, because the
// join that needs them may come right behind.
func (g *Group) topicMetadata(o TopicMetadata, now int64) {
	if !g.exists {
		return
	}
	g.expire(o.AsOf, now)
	changed, subscribed := false, false
	note := func(name string) {
		changed = true
		subscribed = subscribed || g.subscribed(name)
	}
	for _, gone := range o.Gone {
		if i, t := g.topic(gone.Name); t != nil && t.id == gone.ID {
			g.topics = slices.Delete(g.topics, i, i+1)
			note(gone.Name)
		}
	}
	for _, news := range o.Topics {
		// An id belongs to one topic for good. Should it come under another name, the name that it had is gone.
		if t := g.topicByID(news.ID); t != nil && t.name != news.Name {
			i, _ := g.topic(t.name)
			g.topics = slices.Delete(g.topics, i, i+1)
			note(t.name)
		}
		if _, fresh := g.put(news); fresh {
			note(news.Name)
		}
	}
	if !changed {
		return
	}
	g.watch = g.watchlist()
	if subscribed {
		g.initialize(now)
		g.epoch++
	}
}

// initialize gives every partition of subscribed topics a starting point that has none. As in Kafka 4.4
// partitions that were added to a topic the group knew start at 0, so that none of their records is
// missed; all others start by share.auto.offset.reset.
func (g *Group) initialize(now int64) {
	var incarnation int64
	for _, t := range g.topics {
		if t.known >= t.partitions && covers(t.runs, t.partitions) || !g.subscribed(t.name) {
			continue
		}
		if incarnation == 0 {
			incarnation = g.nextIncarnation(now)
		}
		t.fill(0, min(t.known, t.partitions), Initialized{Incarnation: incarnation, StartOffset: -1})
		added := Initialized{Incarnation: incarnation, StartOffset: -1}
		if t.known > 0 {
			added.StartOffset = 0
		}
		t.fill(t.known, t.partitions, added)
		t.known = t.partitions
	}
}

// covers reports whether the runs leave none of the first n partitions out.
func covers(runs []run, n int32) bool {
	next := int32(0)
	for _, r := range runs {
		if r.first > next {
			break
		}
		next = r.last + 1
	}
	return next >= n
}

// fill initializes the partitions of [from, to) that are not.
func (t *topic) fill(from, to int32, start Initialized) {
	for p := from; p < to; {
		i, inside := t.search(p)
		if inside {
			p = t.runs[i].last + 1
			continue
		}
		last := to - 1
		if i < len(t.runs) {
			last = min(last, t.runs[i].first-1)
		}
		t.runs = slices.Insert(t.runs, i, run{first: p, last: last, Initialized: start})
		t.join()
		p = last + 1
	}
}

// set initializes one partition anew.
func (t *topic) set(p int32, start Initialized) {
	i, inside := t.search(p)
	if !inside {
		t.runs = slices.Insert(t.runs, i, run{first: p, last: p, Initialized: start})
		t.join()
		return
	}
	old := t.runs[i]
	parts := []run{{first: p, last: p, Initialized: start}}
	if old.first < p {
		parts = slices.Insert(parts, 0, run{first: old.first, last: p - 1, Initialized: old.Initialized})
	}
	if p < old.last {
		parts = append(parts, run{first: p + 1, last: old.last, Initialized: old.Initialized})
	}
	t.runs = slices.Replace(t.runs, i, i+1, parts...)
	t.join()
}

// join merges neighbours that start alike, so that equal states have one form.
func (t *topic) join() {
	out := t.runs[:1]
	for _, r := range t.runs[1:] {
		if last := &out[len(out)-1]; last.last+1 == r.first && last.Initialized == r.Initialized {
			last.last = r.last
		} else {
			out = append(out, r)
		}
	}
	t.runs = out
}

// search returns the run that holds p, or the place where it would go.
func (t *topic) search(p int32) (i int, inside bool) {
	return slices.BinarySearchFunc(t.runs, p, func(r run, p int32) int {
		switch {
		case r.last < p:
			return -1
		case r.first > p:
			return 1
		}
		return 0
	})
}

// initialized lists the initialized partitions.
func (t *topic) initialized() []int32 {
	var partitions []int32
	for _, r := range t.runs {
		for p := r.first; p <= r.last; p++ {
			partitions = append(partitions, p)
		}
	}
	return partitions
}

func (g *Group) setOffsets(o SetOffsets, now int64) Code {
	if code := g.empty(o.AsOf, now); code != CodeOK {
		return code
	}
	if g.epoch == 0 { // as a broker leaves a group that was made for its offsets
		g.epoch, g.assignmentEpoch = 1, 1
	}
	incarnation := g.nextIncarnation(now)
	for _, news := range o.Topics {
		t, _ := g.put(news.Topic)
		for _, p := range news.Offsets {
			if p.Partition < t.partitions {
				t.set(p.Partition, Initialized{Incarnation: incarnation, StartOffset: p.Offset})
			}
		}
	}
	g.rewatch()
	return CodeOK
}

func (g *Group) deleteOffsets(o DeleteOffsets, now int64) Code {
	if code := g.empty(o.AsOf, now); code != CodeOK {
		return code
	}
	g.nextIncarnation(now)
	g.topics = slices.DeleteFunc(g.topics, func(t *topic) bool { return slices.Contains(o.IDs, t.id) })
	g.rewatch()
	return CodeOK
}

// rewatch follows a change of members or subscriptions: topics that nobody subscribes to and that have no
// initialized partitions are forgotten, and the watch list is made again.
func (g *Group) rewatch() {
	g.watch = g.watchlist()
	before := len(g.topics)
	g.topics = slices.DeleteFunc(g.topics, func(t *topic) bool { return len(t.runs) == 0 && !g.subscribed(t.name) })
	if len(g.topics) < before {
		g.watch = g.watchlist()
	}
}

func (g *Group) watchlist() *watchlist {
	w := &watchlist{topics: make(map[string]Topic, len(g.topics)), subscribed: make(map[string]bool)}
	for _, m := range g.members {
		for _, name := range m.topics {
			if !w.subscribed[name] {
				w.subscribed[name] = true
				w.names = append(w.names, name)
			}
		}
	}
	for _, t := range g.topics {
		w.topics[t.name] = Topic{ID: t.id, Name: t.name, Partitions: t.partitions}
		if !w.subscribed[t.name] {
			w.names = append(w.names, t.name)
		}
	}
	slices.Sort(w.names)
	return w
}

// subscribed reports whether any member subscribes to the topic.
func (g *Group) subscribed(name string) bool { return g.watch.subscribed[name] }
