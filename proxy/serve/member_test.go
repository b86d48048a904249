package serve

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// member is a share consumer as it appears on the wire, on one connection.
type member struct {
	w     *world
	r     *rep
	c     *Conn
	group string
	id    string
	epoch int32 // of the share session: the next to send
}

// member makes a member on a connection of its own to the bootstrap port.
func (r *rep) member(group, id string) *member {
	return &member{w: r.w, r: r, c: r.conn(-1), group: group, id: id}
}

// on is the same member, with the same session, on a new connection to another replica.
func (m *member) on(r *rep) *member {
	other := *m
	other.r, other.c = r, r.conn(-1)
	return &other
}

// join subscribes the group to the topics; it returns when this replica serves the assignment.
func (m *member) join(topics ...string) *member {
	m.w.Helper()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.SubscribedTopicNames = 1, m.group, m.id, topics
	resp := m.r.ask(m.w.ctx, m.c, req).(*kmsg.ShareGroupHeartbeatResponse)
	if resp.ErrorCode != 0 {
		m.w.Fatalf("join: code %d", resp.ErrorCode)
	}
	return m
}

// ack is an acknowledgement of a range.
type ack struct {
	first, last int64
	types       []int8
}

func accept(first, last int64) ack  { return ack{first, last, []int8{1}} }
func release(first, last int64) ack { return ack{first, last, []int8{2}} }
func reject(first, last int64) ack  { return ack{first, last, []int8{3}} }

// fetchRequest is a ShareFetch with Java's defaults but without waiting.
func (m *member) fetchRequest(epoch int32) *kmsg.ShareFetchRequest {
	req := kmsg.NewPtrShareFetchRequest()
	req.Version, req.GroupID, req.MemberID, req.ShareSessionEpoch = 2, &m.group, &m.id, epoch
	req.MinBytes, req.MaxRecords, req.BatchSize, req.MaxBytes = 1, 500, 500, 50<<20
	return req
}

// mod changes a request before it is sent.
type mod func(*kmsg.ShareFetchRequest)

func maxWait(d time.Duration) mod {
	return func(r *kmsg.ShareFetchRequest) { r.MaxWaitMillis = int32(d.Milliseconds()) }
}
func maxRecords(n int32) mod { return func(r *kmsg.ShareFetchRequest) { r.MaxRecords = n } }
func recordLimit(n int32) mod {
	return func(r *kmsg.ShareFetchRequest) { r.MaxRecords, r.ShareAcquireMode = n, 1 }
}

// with names a partition, with acknowledgements if any.
func with(t upstream.Topic, partition int32, acks ...ack) mod {
	return func(r *kmsg.ShareFetchRequest) {
		topic := kmsg.NewShareFetchRequestTopic()
		topic.TopicID = t.ID
		p := kmsg.NewShareFetchRequestTopicPartition()
		p.Partition = partition
		for _, a := range acks {
			b := kmsg.NewShareFetchRequestTopicPartitionAcknowledgementBatch()
			b.FirstOffset, b.LastOffset, b.AcknowledgeTypes = a.first, a.last, a.types
			p.AcknowledgementBatches = append(p.AcknowledgementBatches, b)
		}
		topic.Partitions = append(topic.Partitions, p)
		r.Topics = append(r.Topics, topic)
	}
}

func forget(t upstream.Topic, partitions ...int32) mod {
	return func(r *kmsg.ShareFetchRequest) {
		f := kmsg.NewShareFetchRequestForgottenTopicsData()
		f.TopicID, f.Partitions = t.ID, partitions
		r.ForgottenTopicsData = append(r.ForgottenTopicsData, f)
	}
}

// send sends a ShareFetch at the epoch, whatever comes back.
func (m *member) send(ctx context.Context, epoch int32, mods ...mod) *kmsg.ShareFetchResponse {
	m.w.Helper()
	req := m.fetchRequest(epoch)
	for _, f := range mods {
		f(req)
	}
	resp := m.r.ask(ctx, m.c, req).(*kmsg.ShareFetchResponse)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.Records == nil {
				m.w.Errorf("partition %d: Records is null", p.Partition)
			}
		}
	}
	return resp
}

// fetch sends the session's next ShareFetch, which must succeed.
func (m *member) fetch(mods ...mod) *kmsg.ShareFetchResponse {
	m.w.Helper()
	resp := m.send(m.w.ctx, m.epoch, mods...)
	if resp.ErrorCode != 0 {
		m.w.Fatalf("ShareFetch of %s at epoch %d: code %d", m.id, m.epoch, resp.ErrorCode)
	}
	m.epoch++
	return resp
}

// open opens a session on the partitions of the topic.
func (m *member) open(t upstream.Topic, mods ...mod) *kmsg.ShareFetchResponse {
	m.w.Helper()
	m.epoch = 0
	for p := range t.Partitions {
		mods = append(mods, with(t, p))
	}
	return m.fetch(mods...)
}

// acknowledge sends a ShareAcknowledge at the epoch, whatever comes back.
func (m *member) acknowledge(epoch int32, t upstream.Topic, partition int32, acks ...ack) *kmsg.ShareAcknowledgeResponse {
	m.w.Helper()
	req := kmsg.NewPtrShareAcknowledgeRequest()
	req.Version, req.GroupID, req.MemberID, req.ShareSessionEpoch = 2, &m.group, &m.id, epoch
	topic := kmsg.NewShareAcknowledgeRequestTopic()
	topic.TopicID = t.ID
	p := kmsg.NewShareAcknowledgeRequestTopicPartition()
	p.Partition = partition
	for _, a := range acks {
		b := kmsg.NewShareAcknowledgeRequestTopicPartitionAcknowledgementBatch()
		b.FirstOffset, b.LastOffset, b.AcknowledgeTypes = a.first, a.last, a.types
		p.AcknowledgementBatches = append(p.AcknowledgementBatches, b)
		req.IsRenewAck = req.IsRenewAck || slices.Contains(a.types, 4)
	}
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return m.r.ask(m.w.ctx, m.c, req).(*kmsg.ShareAcknowledgeResponse)
}

// ackCode acknowledges at the session's next epoch and gives the partition's code.
func (m *member) ackCode(t upstream.Topic, partition int32, acks ...ack) int16 {
	m.w.Helper()
	resp := m.acknowledge(m.epoch, t, partition, acks...)
	if resp.ErrorCode != 0 {
		m.w.Fatalf("ShareAcknowledge of %s at epoch %d: code %d", m.id, m.epoch, resp.ErrorCode)
	}
	m.epoch++
	return resp.Topics[0].Partitions[0].ErrorCode
}

// entry is one AcquiredRecords entry.
type entry struct {
	first, last int64
	count       int16
}

// part finds a partition in a response; ok is false if it is not listed.
func part(resp *kmsg.ShareFetchResponse, id [16]byte, partition int32) (p kmsg.ShareFetchResponseTopicPartition, ok bool) {
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if t.TopicID == id && p.Partition == partition {
				return p, true
			}
		}
	}
	return p, false
}

// got gives what a response acquired on a partition.
func got(resp *kmsg.ShareFetchResponse, t upstream.Topic, partition int32) []entry {
	p, _ := part(resp, t.ID, partition)
	var out []entry
	for _, a := range p.AcquiredRecords {
		out = append(out, entry{a.FirstOffset, a.LastOffset, a.DeliveryCount})
	}
	return out
}

// gets checks what a response acquired on partition 0.
func (w *world) gets(resp *kmsg.ShareFetchResponse, t upstream.Topic, want ...entry) {
	w.Helper()
	if have := got(resp, t, 0); !slices.Equal(have, want) {
		w.Fatalf("acquired %v, want %v", have, want)
	}
	p, _ := part(resp, t.ID, 0)
	if len(want) > 0 && !covers(p.Records, want) {
		w.Fatalf("records of %d bytes do not cover %v", len(p.Records), want)
	}
}

// covers tells whether the record batches reach from the first entry to the last.
func covers(records []byte, entries []entry) bool {
	first, last := int64(-1), int64(-1)
	for len(records) > 0 {
		var b kmsg.RecordBatch
		if b.ReadFrom(records) != nil {
			return false
		}
		if first < 0 {
			first = b.FirstOffset
		}
		last = b.FirstOffset + int64(b.LastOffsetDelta)
		records = records[12+b.Length:]
	}
	return first <= entries[0].first && last >= entries[len(entries)-1].last
}

func tpOf(id [16]byte, partition int32) upstream.TP { return upstream.TP{ID: id, Partition: partition} }
