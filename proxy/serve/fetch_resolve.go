package serve

import (
	"context"

	"kshare/proxy/upstream"
)

// admit takes the group's settings and lets the request enter its session. Trouble with Redis is KAFKA_STORAGE_ERROR, which
// enter itself never answers.
func (f *fetch) admit(ctx context.Context, group string, enter func() (int16, error)) int16 {
	cfg, err := f.s.config(ctx, group)
	code := codeNone
	if err == nil {
		f.cfg, f.set = cfg, f.s.settingsOf(cfg)
		if cfg.ReadCommitted {
			f.iso = upstream.ReadCommitted
		}
		code, err = enter()
	}
	if err != nil {
		f.s.o.Log.Debug().Err(err).Str("group", group).Msg("share session cannot be judged")
		return codeStorage
	}
	return code
}

// resolve makes the items of the request: the session's partitions in the order of their turn, then those that are
// named for their acknowledgements only; with topic, permission and leader of each.
func (f *fetch) resolve(ctx context.Context) {
	inSession := map[upstream.TP]bool{}
	for _, p := range f.visit.parts.rotated(f.visit.epoch) {
		inSession[p.TP] = true
		f.items = append(f.items, &fetchItem{part: p, inSession: true, acks: f.acks.by[p.TP]})
	}
	for _, a := range f.acks.parts {
		if !inSession[a.TP] {
			f.items = append(f.items, &fetchItem{part: sessionPart{TP: a.TP}, acks: a})
		}
	}
	f.judgeAll(ctx)
}

// judgeAll asks upstream for the topics, and what the client may read of them.
func (f *fetch) judgeAll(ctx context.Context) {
	topics, names := f.topics(ctx)
	f.checkLeaders(ctx)
	allowed, authErr := f.s.mayTopics(ctx, f.conn, opRead, names)
	for _, it := range f.items {
		f.judge(it, topics[it.part.ID], allowed, authErr)
	}
}

// topicAnswer is what upstream says of a topic id.
type topicAnswer struct {
	upstream.Topic
	known bool
	err   error
}

func (f *fetch) topics(ctx context.Context) (map[[16]byte]topicAnswer, []string) {
	ctx, cancel := context.WithTimeout(ctx, planWait)
	defer cancel()
	highest := map[[16]byte]upstream.TP{} // a topic that has this partition has the others
	for _, it := range f.items {
		if tp, named := highest[it.part.ID]; !named || tp.Partition < it.part.Partition {
			highest[it.part.ID] = it.part.TP
		}
	}
	out := map[[16]byte]topicAnswer{}
	var names []string
	for _, it := range f.items {
		if _, asked := out[it.part.ID]; asked {
			continue
		}
		t, known, err := f.s.o.Upstream.TopicOf(ctx, highest[it.part.ID])
		out[it.part.ID] = topicAnswer{t, known && err == nil, err}
		if known && err == nil {
			names = append(names, t.Name)
		}
	}
	return out, names
}

// judge settles what stands against fetching from the partition, and against its acknowledgements.
func (f *fetch) judge(it *fetchItem, t topicAnswer, allowed map[string]bool, authErr error) {
	switch {
	case t.err != nil:
		it.refuse(codeStorage, codeStorage)
	case !t.known && it.part.resolved:
		it.refuse(codeUnknownTopic, codeUnknownTopicID)
	case !t.known:
		it.refuse(codeUnknownTopicID, codeUnknownTopicID)
	case authErr != nil:
		it.refuse(codeStorage, codeStorage)
	case !allowed[t.Name]:
		it.refuse(codeTopicDenied, codeTopicDenied)
	case it.part.Partition < 0 || it.part.Partition >= t.Partitions:
		it.refuse(codeUnknownTopic, codeUnknownTopic)
	}
	it.topic = t.Topic
	it.part.resolved = it.part.resolved || t.known
	if it.code == codeNone && it.inSession {
		f.checkLeader(it)
	}
}

// refuse answers the partition with an error. Acknowledgements that failed their own checks keep that code, except for
// an unknown topic id, which is looked at first.
func (it *fetchItem) refuse(fetch, ack int16) {
	it.code = fetch
	if it.acks == nil || len(it.acks.batches) == 0 {
		return
	}
	if ack == codeUnknownTopicID || !it.acks.done {
		it.acks.refuse(ack)
	}
}

// checkLeaders makes sure that no partition is refused by an old word on who leads it.
func (f *fetch) checkLeaders(ctx context.Context) {
	if f.conn.Node < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, planWait)
	defer cancel()
	tps := make([]upstream.TP, 0, len(f.items))
	for _, it := range f.items {
		if it.inSession {
			tps = append(tps, it.part.TP)
		}
	}
	f.s.o.Upstream.CheckLeaders(ctx, f.conn.Node, tps)
}

// checkLeader refuses a partition on the port of a node that does not lead it. While upstream's leader is not known the
// partition is served; acknowledgements are taken everywhere, because their state is not the node's.
func (f *fetch) checkLeader(it *fetchItem) {
	if f.conn.Node < 0 {
		return
	}
	node, epoch, ok := f.s.o.Upstream.Leader(it.part.TP)
	if ok && node != f.conn.Node {
		it.code = codeNotLeader
		it.hint = &leaderHint{node, epoch}
	}
}
