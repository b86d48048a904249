package upstream

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// roundGap is the least time between two metadata rounds: what is asked for meanwhile goes into the next one.
const roundGap = 100 * time.Millisecond

// byIDVersion is the first version of Metadata that can be asked by topic id (Kafka 3.0, KIP-516).
const byIDVersion = 12

// round is one look at the metadata for everybody who asked before it began.
type round struct {
	names map[string]struct{}
	ids   map[[16]byte]struct{}
	done  chan struct{}
	err   error
}

// join puts names and ids on the next round.
func (t *topics) join(names []string, ids [][16]byte) *round {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next == nil {
		t.next = &round{names: make(map[string]struct{}), ids: make(map[[16]byte]struct{}), done: make(chan struct{})}
	}
	for _, name := range names {
		t.next.names[name] = struct{}{}
	}
	for _, id := range ids {
		t.next.ids[id] = struct{}{}
	}
	select {
	case t.kick <- struct{}{}:
	default:
	}
	return t.next
}

// ask joins the next round and waits for it.
func (t *topics) ask(ctx context.Context, names []string, ids [][16]byte) (*round, error) {
	r := t.join(names, ids)
	select {
	case <-r.done:
		return r, r.err
	case <-t.c.ended:
		return r, ErrClosed
	case <-ctx.Done():
		return r, ctx.Err()
	}
}

// run makes the rounds: one at once, then whenever somebody asks, and each MetadataMaxAge for what is in use. While
// upstream is away it keeps trying.
func (t *topics) run(ctx context.Context) {
	tick := time.NewTicker(t.c.cfg.MetadataMaxAge)
	defer tick.Stop()
	t.join(nil, nil)
	for fails := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.join(nil, t.inUse())
		case <-t.kick:
		}
		t.mu.Lock()
		r := t.next
		t.next = nil
		t.mu.Unlock()
		if r == nil {
			continue
		}
		r.err = t.do(ctx, r)
		close(r.done)
		gap := roundGap
		if r.err != nil {
			if ctx.Err() != nil {
				return
			}
			fails++
			t.c.nodes.failed(r.err)
			t.join(nil, nil)
			gap = min(time.Duration(fails)*100*time.Millisecond, time.Second)
		} else {
			fails = 0
		}
		if !pause(ctx, gap) {
			return
		}
	}
}

// do makes one round: by name for all whose name is known, then by id for the rest. Kafka ignores the names of a request
// that has ids, hence two requests. Brokers before 3.0 cannot be asked by id: there all topics are listed.
func (t *topics) do(ctx context.Context, r *round) error {
	unnamed := t.name(r)
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // not null, which asks for all
	for name := range r.names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := t.metadata(ctx, req)
	if err != nil {
		return err
	}
	if err := t.c.nodes.update(resp); err != nil {
		return err
	}
	t.update(resp, r.names, nil)
	if len(unnamed) == 0 {
		return nil
	}
	if resp.Version >= byIDVersion {
		req.Topics = nil
		for id := range unnamed {
			topic := kmsg.NewMetadataRequestTopic()
			topic.TopicID = id
			req.Topics = append(req.Topics, topic)
		}
	} else {
		req.Topics = nil
	}
	resp, err = t.metadata(ctx, req)
	if err != nil {
		return err
	}
	t.update(resp, nil, unnamed)
	return nil
}

// name turns the round's ids into names where these are known, and returns the others.
func (t *topics) name(r *round) map[[16]byte]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	unnamed := make(map[[16]byte]struct{})
	for id := range r.ids {
		if e := t.byID[id]; e != nil {
			r.names[e.Name] = struct{}{}
		} else {
			unnamed[id] = struct{}{}
		}
	}
	return unnamed
}

func (t *topics) metadata(ctx context.Context, req *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error) {
	resp, err := t.c.kgo.Request(ctx, req)
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	return resp.(*kmsg.MetadataResponse), nil
}

// update takes the topics of an answer; of what was asked for, the absent is gone.
func (t *topics) update(resp *kmsg.MetadataResponse, names map[string]struct{}, ids map[[16]byte]struct{}) {
	now := time.Now()
	var changed []*topicEntry
	var gone [][16]byte
	t.mu.Lock()
	kept := make(map[any]struct{}) // present, or not to be judged by this answer
	for i := range resp.Topics {
		topic := &resp.Topics[i]
		code := kerr.ErrorForCode(topic.ErrorCode)
		if code == kerr.UnknownTopicOrPartition || code == kerr.UnknownTopicID || code == kerr.InvalidTopicException {
			continue
		}
		if topic.Topic != nil {
			kept[*topic.Topic] = struct{}{}
		}
		kept[topic.TopicID] = struct{}{}
		if code != nil || topic.Topic == nil || topic.TopicID == [16]byte{} || len(topic.Partitions) == 0 {
			t.warn(topic, code)
			continue
		}
		e := t.merge(topic, now)
		if old := t.byName[e.Name]; old != nil && old.ID != e.ID { // deleted and made again
			delete(t.byID, old.ID)
			gone = append(gone, old.ID)
		}
		t.byID[e.ID], t.byName[e.Name] = e, e
		t.missed.Remove(e.ID)
		t.missed.Remove(e.Name)
		changed = append(changed, e)
	}
	for name := range names {
		if _, ok := kept[name]; ok {
			continue
		}
		t.missed.Add(name, now)
		if e := t.byName[name]; e != nil {
			delete(t.byName, name)
			delete(t.byID, e.ID)
			gone = append(gone, e.ID)
		}
	}
	for id := range ids {
		if _, ok := kept[id]; !ok {
			gone = append(gone, id)
		}
	}
	for _, id := range gone {
		t.missed.Add(id, now)
	}
	t.mu.Unlock()
	for _, e := range changed {
		t.c.reader.topicChanged(e)
	}
	for _, id := range gone {
		t.c.reader.topicGone(id)
	}
}

// merge makes an entry of an answer. Brokers learn of changes at different times, so of one topic the partition count
// never falls and a partition's leader epoch neither.
func (t *topics) merge(topic *kmsg.MetadataResponseTopic, now time.Time) *topicEntry {
	e := &topicEntry{Topic: Topic{ID: topic.TopicID, Name: *topic.Topic, Internal: topic.IsInternal}, at: now}
	var size int
	old := t.byID[e.ID]
	if old != nil {
		size, e.used = len(old.leaders), old.used
	} else {
		e.used = new(atomic.Int64)
		e.used.Store(now.UnixNano())
	}
	for i := range topic.Partitions {
		size = max(size, int(topic.Partitions[i].Partition)+1)
	}
	e.leaders = make([]partitionLeader, size)
	e.Partitions = int32(size)
	for p := range e.leaders {
		e.leaders[p] = partitionLeader{-1, -1}
		if old != nil && p < len(old.leaders) {
			e.leaders[p] = old.leaders[p]
		}
	}
	for i := range topic.Partitions {
		p := &topic.Partitions[i]
		if l := (partitionLeader{p.Leader, p.LeaderEpoch}); p.Partition >= 0 && l.epoch >= e.leaders[p.Partition].epoch {
			e.leaders[p.Partition] = l
		}
	}
	return e
}

// warn logs, at most once a second, a topic that upstream has and kshare cannot use.
func (t *topics) warn(topic *kmsg.MetadataResponseTopic, code error) {
	if code == kerr.LeaderNotAvailable || time.Since(t.warned) < time.Second {
		return
	}
	t.warned = time.Now()
	name := ""
	if topic.Topic != nil {
		name = *topic.Topic
	}
	line := t.c.log.Warn().Str("topic", name)
	if code == nil && topic.TopicID == [16]byte{} {
		line.Msg("the topic has no id: kshare needs an upstream of Kafka 2.8 or later, with an inter-broker protocol version of 2.8 or later")
		return
	}
	text := "metadata of the topic cannot be had"
	if code == kerr.TopicAuthorizationFailed {
		text += ": the service account needs READ on it where share groups consume it, or WRITE where dead letters go"
	}
	line.Err(code).Msg(text)
}
