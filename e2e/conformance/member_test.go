//go:build e2e

package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// member is a member of a share group towards the broker that leads its partitions: a member id, a connection and the
// epoch that its share session stands at.
type member struct {
	w     *world
	group string
	id    string
	c     *conn
	epoch int32
}

// member makes one with a connection of its own. Nothing is sent yet.
func (w *world) member() *member {
	w.Helper()
	return &member{w: w, group: w.group, id: w.unique(), c: w.dial(w.node)}
}

// memberAt is served by the given replica; on native there is but one.
func (w *world) memberAt(replica int) *member {
	w.Helper()
	return &member{w: w, group: w.group, id: w.unique(), c: w.dial(w.tg.at(replica, w.node))}
}

// keepLoaded holds an empty session of the group open for the length of the test. A broker drops what it knows of a group,
// acquisitions that it has not written down included, with the last session.
func (w *world) keepLoaded() {
	w.Helper()
	m := w.member()
	req := m.fetching()
	req.MaxWaitMillis = 0
	m.do(req)
}

// over is the same member with its session, on another connection.
func (m *member) over(c *conn) *member {
	return &member{w: m.w, group: m.group, id: m.id, c: c, epoch: m.epoch}
}

// ack is one acknowledgement batch.
type ack struct {
	first, last int64
	types       []int8
}

const (
	typeGap int8 = iota
	typeAccept
	typeRelease
	typeReject
	typeRenew
)

func gap(first, last int64) ack     { return ack{first, last, []int8{typeGap}} }
func accept(first, last int64) ack  { return ack{first, last, []int8{typeAccept}} }
func release(first, last int64) ack { return ack{first, last, []int8{typeRelease}} }
func reject(first, last int64) ack  { return ack{first, last, []int8{typeReject}} }
func renew(first, last int64) ack   { return ack{first, last, []int8{typeRenew}} }

// fetching is a ShareFetch for the session as it stands, with the partitions in Topics.
func (m *member) fetching(parts ...tp) *kmsg.ShareFetchRequest {
	req := kmsg.NewPtrShareFetchRequest()
	req.Version, req.GroupID, req.MemberID, req.ShareSessionEpoch = 2, &m.group, &m.id, m.epoch
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.MaxRecords, req.BatchSize = 500, 1, 50<<20, 500, 500
	for _, p := range parts {
		carry(req, p)
	}
	return req
}

// acknowledging is a ShareAcknowledge for the session as it stands.
func (m *member) acknowledging() *kmsg.ShareAcknowledgeRequest {
	req := kmsg.NewPtrShareAcknowledgeRequest()
	req.Version, req.GroupID, req.MemberID, req.ShareSessionEpoch = 2, &m.group, &m.id, m.epoch
	return req
}

// carry adds a partition with acknowledgements, if any, as a topic entry of its own unless the last one is of that topic.
func carry(req kmsg.Request, p tp, acks ...ack) {
	switch req := req.(type) {
	case *kmsg.ShareFetchRequest:
		part := kmsg.NewShareFetchRequestTopicPartition()
		part.Partition = p.p
		for _, a := range acks {
			b := kmsg.NewShareFetchRequestTopicPartitionAcknowledgementBatch()
			b.FirstOffset, b.LastOffset, b.AcknowledgeTypes = a.first, a.last, a.types
			part.AcknowledgementBatches = append(part.AcknowledgementBatches, b)
		}
		if n := len(req.Topics); n == 0 || req.Topics[n-1].TopicID != p.id {
			t := kmsg.NewShareFetchRequestTopic()
			t.TopicID = p.id
			req.Topics = append(req.Topics, t)
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, part)
	case *kmsg.ShareAcknowledgeRequest:
		part := kmsg.NewShareAcknowledgeRequestTopicPartition()
		part.Partition = p.p
		for _, a := range acks {
			b := kmsg.NewShareAcknowledgeRequestTopicPartitionAcknowledgementBatch()
			b.FirstOffset, b.LastOffset, b.AcknowledgeTypes = a.first, a.last, a.types
			part.AcknowledgementBatches = append(part.AcknowledgementBatches, b)
		}
		if n := len(req.Topics); n == 0 || req.Topics[n-1].TopicID != p.id {
			t := kmsg.NewShareAcknowledgeRequestTopic()
			t.TopicID = p.id
			req.Topics = append(req.Topics, t)
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, part)
	}
}

func forget(req *kmsg.ShareFetchRequest, parts ...tp) {
	for _, p := range parts {
		f := kmsg.NewShareFetchRequestForgottenTopicsData()
		f.TopicID, f.Partitions = p.id, []int32{p.p}
		req.ForgottenTopicsData = append(req.ForgottenTopicsData, f)
	}
}

// advance counts the session's epoch on after a request that passed.
func (m *member) advance(sent int32) {
	if sent == -1 {
		m.epoch = 0
	} else {
		m.epoch = sent + 1
	}
}

// fetched is the response to a ShareFetch.
type fetched struct {
	w *world
	*kmsg.ShareFetchResponse
	took time.Duration
}

// do sends a ShareFetch that must pass the session's checks.
func (m *member) do(req *kmsg.ShareFetchRequest) fetched {
	m.w.Helper()
	began := time.Now()
	f := fetched{m.w, ask[*kmsg.ShareFetchResponse](m.w, m.c, req), time.Since(began)}
	m.w.code("ShareFetch", f.ErrorCode, nil)
	m.advance(req.ShareSessionEpoch)
	return f
}

// fetch is one ShareFetch that waits up to half a second.
func (m *member) fetch(parts ...tp) fetched {
	m.w.Helper()
	return m.do(m.fetching(parts...))
}

// refused sends a request that must fail as a whole.
func (m *member) refused(req kmsg.Request, want *kerr.Error) {
	m.w.Helper()
	switch resp := ask[kmsg.Response](m.w, m.c, req).(type) {
	case *kmsg.ShareFetchResponse:
		m.w.code("ShareFetch", resp.ErrorCode, want)
		if len(resp.Topics) != 0 || resp.AcquisitionLockTimeoutMillis != 0 || resp.ErrorMessage != nil {
			m.w.Fatalf("a refused ShareFetch has content: %+v", resp)
		}
	case *kmsg.ShareAcknowledgeResponse:
		m.w.code("ShareAcknowledge", resp.ErrorCode, want)
		if len(resp.Topics) != 0 || resp.AcquisitionLockTimeoutMillis != 0 || resp.ErrorMessage != nil {
			m.w.Fatalf("a refused ShareAcknowledge has content: %+v", resp)
		}
	}
}

// part is the entry of a partition, nil if there is none. Two entries for one partition fail the test.
func (f fetched) part(p tp) (found *kmsg.ShareFetchResponseTopicPartition) {
	f.w.Helper()
	for _, t := range f.Topics {
		for i := range t.Partitions {
			if t.TopicID == p.id && t.Partitions[i].Partition == p.p {
				if found != nil {
					f.w.Fatalf("partition %d is listed twice", p.p)
				}
				found = &t.Partitions[i]
			}
		}
	}
	return found
}

// listed names the partitions with an entry, topics by their number in the list.
func (f fetched) listed(topics ...topic) string {
	f.w.Helper()
	var names []string
	for i, t := range topics {
		for p := range int32(100) {
			if f.part(t.at(p)) != nil {
				names = append(names, fmt.Sprintf("%d/%d", i, p))
			}
		}
	}
	return strings.Join(names, " ")
}

// failure is the fetch error of a partition that must have an entry.
func (f fetched) failure(p tp) int16 {
	f.w.Helper()
	part := f.part(p)
	if part == nil {
		f.w.Fatalf("partition %d has no entry", p.p)
	}
	return part.ErrorCode
}

// ackFailure is the acknowledgement error of a partition that must have an entry.
func (f fetched) ackFailure(p tp) int16 {
	f.w.Helper()
	part := f.part(p)
	if part == nil {
		f.w.Fatalf("partition %d has no entry", p.p)
	}
	return part.AcknowledgeErrorCode
}

// acquired is what the member got of a partition: "0-9x1 10-11x2", empty if nothing. Every acquired offset must be
// inside a record batch of the response or between two, and the ranges must ascend.
func (f fetched) acquired(p tp) string {
	f.w.Helper()
	part := f.part(p)
	if part == nil {
		return ""
	}
	f.w.code("fetch", part.ErrorCode, nil)
	if part.Records == nil {
		f.w.Fatal("Records is null")
	}
	var b strings.Builder
	batches := f.w.batches(part.Records)
	next := int64(0)
	for i, a := range part.AcquiredRecords {
		if a.FirstOffset < next || a.LastOffset < a.FirstOffset {
			f.w.Fatalf("acquired ranges do not ascend: %+v", part.AcquiredRecords)
		}
		next = a.LastOffset + 1
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d-%dx%d", a.FirstOffset, a.LastOffset, a.DeliveryCount)
	}
	if n := len(part.AcquiredRecords); n > 0 {
		first, last := part.AcquiredRecords[0].FirstOffset, part.AcquiredRecords[n-1].LastOffset
		if len(batches) == 0 || batches[0].first > first || batches[len(batches)-1].last < last {
			f.w.Fatalf("acquired %s, but the records are %v", b.String(), batches)
		}
	}
	return b.String()
}

// take fetches until something of the first partition is acquired, by default of partition 0 of the test's topic.
func (m *member) take(parts ...tp) string {
	m.w.Helper()
	return m.takeBy(func(*kmsg.ShareFetchRequest) {}, parts...)
}

// takeBy is take with a request that is not the usual one.
func (m *member) takeBy(change func(*kmsg.ShareFetchRequest), parts ...tp) string {
	m.w.Helper()
	of := m.w.p(0)
	if len(parts) > 0 {
		of = parts[0]
	}
	var got string
	m.w.until("records", 30*time.Second, func() error {
		req := m.fetching(parts...)
		req.MaxWaitMillis = 5000
		change(req)
		if got = m.do(req).acquired(of); got == "" {
			return fmt.Errorf("none of partition %d", of.p)
		}
		return nil
	})
	return got
}

// takes is take with an expectation.
func (m *member) takes(want string, parts ...tp) {
	m.w.Helper()
	m.w.is("acquired", m.take(parts...), want)
}

// gathers fetches, with short waits, until the acquired ranges of all fetches together are the wanted ones, in the order
// of their offsets. It is for records that become free one by one or at some moment.
func (m *member) gathers(want string, p tp) {
	m.w.Helper()
	m.gathersOver(want, p)
}

// gathersOver is gathers where fetches may meet errors that pass.
func (m *member) gathersOver(want string, p tp, passing ...*kerr.Error) {
	m.w.Helper()
	var got []string
	m.w.until(want, 30*time.Second, func() error {
		req := m.fetching(p)
		req.MaxWaitMillis = 100
		f := m.do(req)
		for _, e := range passing {
			if part := f.part(p); part != nil && part.ErrorCode == e.Code {
				return e
			}
		}
		if a := f.acquired(p); a != "" {
			got = append(got, strings.Fields(a)...)
		}
		if g := joinRanges(got); g != joinRanges(strings.Fields(want)) {
			return fmt.Errorf("acquired %q", g)
		}
		return nil
	})
}

// joinRanges orders ranges and joins neighbours of the same delivery count.
func joinRanges(ranges []string) string {
	type entry struct{ first, last, count int64 }
	entries := make([]entry, len(ranges))
	for i, r := range ranges {
		fmt.Sscanf(r, "%d-%dx%d", &entries[i].first, &entries[i].last, &entries[i].count)
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.first, b.first) })
	var out []entry
	for _, e := range entries {
		if n := len(out) - 1; n >= 0 && out[n].last+1 == e.first && out[n].count == e.count {
			out[n].last = e.last
			continue
		}
		out = append(out, e)
	}
	var b strings.Builder
	for i, e := range out {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d-%dx%d", e.first, e.last, e.count)
	}
	return b.String()
}

// getsNone fails the test if half a second's fetch brings anything.
func (m *member) getsNone(parts ...tp) {
	m.w.Helper()
	f := m.fetch(parts...)
	for _, t := range f.Topics {
		for _, p := range t.Partitions {
			m.w.code("fetch", p.ErrorCode, nil)
			m.w.is("acquired", f.acquired(tp{topic{id: t.TopicID}, p.Partition}), "")
		}
	}
}

// acked is the response to a ShareAcknowledge.
type acked struct {
	w *world
	*kmsg.ShareAcknowledgeResponse
}

// doAck sends a ShareAcknowledge that must pass the session's checks.
func (m *member) doAck(req *kmsg.ShareAcknowledgeRequest) acked {
	m.w.Helper()
	a := acked{m.w, ask[*kmsg.ShareAcknowledgeResponse](m.w, m.c, req)}
	m.w.code("ShareAcknowledge", a.ErrorCode, nil)
	m.advance(req.ShareSessionEpoch)
	return a
}

// result is the error of a partition that must have an entry.
func (a acked) result(p tp) int16 {
	a.w.Helper()
	for _, t := range a.Topics {
		for _, part := range t.Partitions {
			if t.TopicID == p.id && part.Partition == p.p {
				return part.ErrorCode
			}
		}
	}
	a.w.Fatalf("partition %d has no entry", p.p)
	return 0
}

// ack acknowledges batches of one partition and expects the given outcome.
func (m *member) ack(want *kerr.Error, p tp, acks ...ack) {
	m.w.Helper()
	req := m.acknowledging()
	for _, a := range acks {
		for _, t := range a.types {
			req.IsRenewAck = req.IsRenewAck || t == typeRenew
		}
	}
	carry(req, p, acks...)
	m.w.code(fmt.Sprintf("acknowledge %v", acks), m.doAck(req).result(p), want)
}

// close ends the session; the records that the member holds become free.
func (m *member) close() {
	m.w.Helper()
	req := m.acknowledging()
	req.ShareSessionEpoch = -1
	m.doAck(req)
}
