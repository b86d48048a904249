package serve

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// The rules by which a fuzzed request is judged.

// asked is what the rules look at in a request.
type asked struct {
	fetch         bool
	version       int16
	group, member *string
	epoch         int32
	renew, budget bool // budget: one of the limits is not 0
	max           int32
	mode          int8
	named         map[upstream.TP]bool  // the partitions, with or without batches
	acks          map[upstream.TP][]ack // the last entry with batches of each partition
	forgets       bool
}

func (q *asked) name(id [16]byte, partition int32, acks []ack) {
	q.named[tpOf(id, partition)] = true
	if len(acks) > 0 {
		q.acks[tpOf(id, partition)] = acks
	}
}

func readFetch(r *kmsg.ShareFetchRequest) *asked {
	q := &asked{fetch: true, version: r.Version, group: r.GroupID, member: r.MemberID, epoch: r.ShareSessionEpoch,
		renew: r.IsRenewAck, budget: r.MaxBytes != 0 || r.MinBytes != 0 || r.MaxRecords != 0 || r.MaxWaitMillis != 0,
		max: r.MaxRecords, mode: r.ShareAcquireMode, named: map[upstream.TP]bool{}, acks: map[upstream.TP][]ack{}, forgets: len(r.ForgottenTopicsData) > 0}
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			var acks []ack
			for _, b := range p.AcknowledgementBatches {
				acks = append(acks, ack{b.FirstOffset, b.LastOffset, b.AcknowledgeTypes})
			}
			q.name(t.TopicID, p.Partition, acks)
		}
	}
	return q
}

func readAcknowledge(r *kmsg.ShareAcknowledgeRequest) *asked {
	q := &asked{version: r.Version, group: r.GroupID, member: r.MemberID, epoch: r.ShareSessionEpoch, renew: r.IsRenewAck,
		named: map[upstream.TP]bool{}, acks: map[upstream.TP][]ack{}}
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			var acks []ack
			for _, b := range p.AcknowledgementBatches {
				acks = append(acks, ack{b.FirstOffset, b.LastOffset, b.AcknowledgeTypes})
			}
			q.name(t.TopicID, p.Partition, acks)
		}
	}
	return q
}

// told is one partition of an answer.
type told struct {
	upstream.TP
	ackCode  int16
	acquired []entry
}

func fetchTold(t *testing.T, resp *kmsg.ShareFetchResponse) (out []told) {
	for _, rt := range resp.Topics {
		for _, p := range rt.Partitions {
			e := told{TP: tpOf(rt.TopicID, p.Partition), ackCode: p.AcknowledgeErrorCode}
			for _, a := range p.AcquiredRecords {
				e.acquired = append(e.acquired, entry{a.FirstOffset, a.LastOffset, a.DeliveryCount})
			}
			switch {
			case p.Records == nil:
				t.Errorf("%v: Records is null", e.TP)
			case len(p.Records) > 0 != (len(e.acquired) > 0):
				t.Errorf("%v: %d bytes for %v", e.TP, len(p.Records), e.acquired)
			case len(e.acquired) > 0 && !covers(p.Records, e.acquired):
				t.Errorf("%v: the bytes do not cover %v", e.TP, e.acquired)
			case len(e.acquired) > 0 && p.ErrorCode != codeNone:
				t.Errorf("%v: records beside code %d", e.TP, p.ErrorCode)
			}
			out = append(out, e)
		}
	}
	return out
}

func acknowledgeTold(resp *kmsg.ShareAcknowledgeResponse) (out []told) {
	for _, rt := range resp.Topics {
		for _, p := range rt.Partitions {
			out = append(out, told{TP: tpOf(rt.TopicID, p.Partition), ackCode: p.ErrorCode})
		}
	}
	return out
}

// code is how the whole request must be answered.
func (c *fuzzCase) code(q *asked) int16 {
	switch {
	case q.group == nil, q.member == nil || *q.member == "" || len(*q.member) > maxMemberID,
		q.fetch && q.renew && q.budget:
		return codeInvalidRequest
	case q.epoch == 0 && !q.fetch:
		return codeSessionEpoch
	case q.epoch == 0 && len(q.acks) > 0:
		return codeInvalidRequest
	case q.epoch != 0 && !c.ours(q):
		return codeSessionNotFound
	case q.epoch < -1 || q.epoch > 1:
		return codeSessionEpoch
	case q.mode != 0 && q.mode != 1:
		return codeUnknown
	}
	return codeNone
}

// ours: the request is in the name of the case's member.
func (c *fuzzCase) ours(q *asked) bool { return *q.group == c.a.group && *q.member == c.a.id }

// ackCodes are the codes that the acknowledgement of a partition may be answered with.
func (c *fuzzCase) ackCodes(q *asked, tp upstream.TP) []int16 {
	switch {
	case tp.ID != c.topic.ID:
		return []int16{codeUnknownTopicID}
	case !q.valid(q.acks[tp]):
		return []int16{codeInvalidRequest}
	case tp.Partition < 0 || tp.Partition >= c.topic.Partitions:
		return []int16{codeUnknownTopic}
	}
	return []int16{codeNone, codeInvalidRequest, codeInvalidState}
}

// valid reads the rules for batches as they are written (checks 98 to 100).
func (q *asked) valid(acks []ack) bool {
	for i, a := range acks {
		if a.first > a.last || i > 0 && a.first < acks[i-1].last || len(a.types) == 0 {
			return false
		}
		if n := a.last - a.first + 1; len(a.types) > 1 && int64(len(a.types)) != n {
			return false
		}
		for _, t := range a.types {
			if t < 0 || t > 4 || t == 4 && (q.version < 2 || !q.renew) {
				return false
			}
		}
	}
	return true
}

// judgeAcks checks what was read of the acknowledgements, and that just the malformed ones are refused.
func judgeAcks(t *testing.T, got *ackList, q *asked) {
	if got.any != (len(q.acks) > 0) || len(got.parts) != len(q.named) {
		t.Errorf("%d partitions, some with batches: %v; want %v of which %v", len(got.parts), got.any, q.named, q.acks)
	}
	for _, p := range got.parts {
		want := q.acks[p.TP]
		if !q.named[p.TP] || got.by[p.TP] != p || !slices.EqualFunc(p.batches, want, sameAck) {
			t.Errorf("%v: %v, want %v", p.TP, p.batches, want)
		}
		valid := q.valid(want)
		if p.refused == valid || p.refused && p.code != codeInvalidRequest || p.pending() != (valid && len(want) > 0) {
			t.Errorf("%v: %v refused %v with code %d, valid: %v", p.TP, want, p.refused, p.code, valid)
		}
		first, releases := p.releases()
		lowest, some := lowestReleased(want)
		if some = some && valid; releases != some || some && first != lowest {
			t.Errorf("%v: %v releases from %d (%v), want %d (%v)", p.TP, want, first, releases, lowest, some)
		}
	}
}

func sameAck(got sharestate.AckBatch, want ack) bool {
	return got.First == want.first && got.Last == want.last &&
		slices.EqualFunc(got.Types, want.types, func(g sharestate.AckType, w int8) bool { return int8(g) == w })
}

// lowestReleased is the first offset of all that are released.
func lowestReleased(acks []ack) (lowest int64, some bool) {
	for _, a := range acks {
		for i, t := range a.types {
			if o := a.first + int64(i); t == 2 && (!some || o < lowest) {
				lowest, some = o, true
			}
		}
	}
	return lowest, some
}

// judge checks the answer, then the session, then what is left for another member.
func (c *fuzzCase) judge(q *asked, code int16, answer []told) {
	if want := c.code(q); code != want {
		c.Fatalf("code %d, want %d", code, want)
	}
	if code != codeNone && len(answer) > 0 {
		c.Errorf("code %d with partitions %v", code, answer)
	}
	if code == codeNone {
		c.judgeAnswer(q, answer)
	}
	c.judgeSession(q, code)
	if code == codeUnknown {
		return // what became of its acknowledgements is not told
	}
	c.judgeRest(q, code, answer)
}

func (c *fuzzCase) judgeAnswer(q *asked, answer []told) {
	seen := map[upstream.TP]bool{}
	taken := int64(0)
	for _, e := range answer {
		if seen[e.TP] {
			c.Errorf("%v is answered twice", e.TP)
		}
		seen[e.TP] = true
		if len(q.acks[e.TP]) > 0 && !slices.Contains(c.ackCodes(q, e.TP), e.ackCode) {
			c.Errorf("%v: ack code %d, want one of %v", e.TP, e.ackCode, c.ackCodes(q, e.TP))
		}
		next := int64(0)
		for _, a := range e.acquired {
			if a.first < next || a.last < a.first || a.last >= c.records(e.Partition) || a.count < 1 || a.count > 2 {
				c.Errorf("%v acquired %v", e.TP, e.acquired)
			}
			next = a.last + 1
			taken += a.last - a.first + 1
		}
	}
	for tp := range q.acks {
		if !seen[tp] {
			c.Errorf("%v was acknowledged and is not answered", tp)
		}
	}
	if taken > 0 && (q.epoch == -1 || q.renew || q.max <= 0) || q.mode == 1 && taken > max(int64(q.max), 0) {
		c.Errorf("took %d of %d records at epoch %d", taken, q.max, q.epoch)
	}
}

// judgeSession checks where the member's session stands now: a request that was refused has left it as it was.
func (c *fuzzCase) judgeSession(q *asked, code int16) {
	next, served := int32(1), code == codeNone || code == codeUnknown
	if served && c.ours(q) {
		next = q.epoch + 1
	}
	if next == 0 {
		if code := c.a.send(c.ctx, 1).ErrorCode; code != codeSessionNotFound {
			c.Errorf("after the close: code %d", code)
		}
		return
	}
	for _, step := range []struct {
		epoch int32
		code  int16
	}{{next + 1, codeSessionEpoch}, {next, codeNone}} {
		if code := c.a.send(c.ctx, step.epoch, maxRecords(0)).ErrorCode; code != step.code {
			c.Errorf("then epoch %d: code %d, want %d", step.epoch, code, step.code)
		}
	}
}

// judgeRest checks that another member gets, once the first has gone, what was not settled, and nothing that was.
func (c *fuzzCase) judgeRest(q *asked, code int16, answer []told) {
	c.a.r.srv.ConnClosed(c.a.c)
	b := c.a.r.member(c.a.group, "b") // to fetch, nobody needs to have joined
	resp := b.open(c.topic)
	defer b.r.srv.ConnClosed(b.c)
	// A session that was replaced, and partitions that left it, keep their records locked.
	all := !(code == codeNone && (q.epoch == 0 || q.forgets))
	for p := range c.topic.Partitions {
		final := map[int64]bool{}
		if code == codeNone && slices.ContainsFunc(answer, func(e told) bool { return e.TP == tpOf(c.topic.ID, p) && e.ackCode == codeNone }) {
			final = settled(q.acks[tpOf(c.topic.ID, p)], c.records(p))
		}
		came := map[int64]bool{}
		for _, e := range got(resp, c.topic, p) {
			for o := e.first; o <= e.last; o++ {
				came[o] = true
			}
		}
		for o := range c.records(p) {
			if came[o] && final[o] {
				c.Errorf("%d-%d was settled and came again", p, o)
			}
			if !came[o] && !final[o] && all {
				c.Errorf("%d-%d is lost: %v", p, o, got(resp, c.topic, p))
				return
			}
		}
	}
}

// settled are the offsets that the acknowledgements end, below n.
func settled(acks []ack, n int64) map[int64]bool {
	out := map[int64]bool{}
	for _, a := range acks {
		for o := max(a.first, 0); o <= min(a.last, n-1); o++ {
			t := a.types[0]
			if len(a.types) > 1 {
				t = a.types[o-a.first]
			}
			if t == 0 || t == 1 || t == 3 {
				out[o] = true
			}
		}
	}
	return out
}
