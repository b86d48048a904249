package serve

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
)

// The share handlers get what the fuzzer makes of a request's body, as a member that has a session at epoch 1 and holds
// the first records of partition 0. The answer, the session afterwards and what another member gets once the first has
// left must be as the rules say; a naive reading of the request tells what that is.

// fuzzBatches are the sizes of the record batches of partition 0, those of the histories' kind.
var fuzzBatches = []int{13, 2, 3, 1, 1, 15, 1, 15, 16}

// fuzzHeld is how many records the member asks for before the request.
const fuzzHeld = 30

func FuzzShareFetch(f *testing.F) {
	z := newFuzzWorld(f)
	for _, req := range fetchSeeds(f) {
		f.Add(req.Version == 2, req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, two bool, body []byte) {
		req := kmsg.NewPtrShareFetchRequest()
		if !decoded(req, two, body) {
			return
		}
		req.MaxWaitMillis = min(req.MaxWaitMillis, 2)
		c := z.begin(t)
		c.mapNames(&req.GroupID, &req.MemberID)
		for i := range req.Topics {
			c.mapTopic(&req.Topics[i].TopicID)
		}
		for i := range req.ForgottenTopicsData {
			c.mapTopic(&req.ForgottenTopicsData[i].TopicID)
		}
		q := readFetch(req)
		resp := c.a.r.ask(z.ctx, c.a.c, req).(*kmsg.ShareFetchResponse)
		c.sameAgain(resp, kmsg.NewPtrShareFetchResponse())
		c.judge(q, resp.ErrorCode, fetchTold(t, resp))
	})
}

func FuzzShareAcknowledge(f *testing.F) {
	z := newFuzzWorld(f)
	for _, req := range acknowledgeSeeds(f) {
		f.Add(req.Version == 2, req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, two bool, body []byte) {
		req := kmsg.NewPtrShareAcknowledgeRequest()
		if !decoded(req, two, body) {
			return
		}
		c := z.begin(t)
		c.mapNames(&req.GroupID, &req.MemberID)
		for i := range req.Topics {
			c.mapTopic(&req.Topics[i].TopicID)
		}
		q := readAcknowledge(req)
		resp := c.a.r.ask(z.ctx, c.a.c, req).(*kmsg.ShareAcknowledgeResponse)
		c.sameAgain(resp, kmsg.NewPtrShareAcknowledgeResponse())
		c.judge(q, resp.ErrorCode, acknowledgeTold(resp))
	})
}

// FuzzShareRequestAcks goes only as far as the handlers read a request before they ask anybody, and so goes there often.
func FuzzShareRequestAcks(f *testing.F) {
	for _, req := range fetchSeeds(f) {
		f.Add(true, req.Version == 2, req.AppendTo(nil))
	}
	for _, req := range acknowledgeSeeds(f) {
		f.Add(false, req.Version == 2, req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, fetches, two bool, body []byte) {
		if fetches {
			req := kmsg.NewPtrShareFetchRequest()
			if !decoded(req, two, body) {
				return
			}
			got, q := (*Server)(nil).newFetch(nil, nil, req), readFetch(req)
			judgeAcks(t, &got.acks, q)
			take := q.epoch != -1 && !q.renew && req.MaxBytes > 0 && q.max > 0 && (q.mode == 0 || q.mode == 1)
			if got.take != take || got.maxBytes > fetchMaxBytes || got.minBytes > got.maxBytes {
				t.Errorf("take %v, want %v; %d to %d bytes", got.take, take, got.minBytes, got.maxBytes)
			}
			return
		}
		req := kmsg.NewPtrShareAcknowledgeRequest()
		if !decoded(req, two, body) {
			return
		}
		got := &fetch{}
		got.takeAcks(req)
		judgeAcks(t, &got.acks, readAcknowledge(req))
	})
}

// decoded reads the body; more than a few KiB would only be slow.
func decoded(req kmsg.Request, two bool, body []byte) bool {
	req.SetVersion(1)
	if two {
		req.SetVersion(2)
	}
	return len(body) <= 4096 && req.ReadFrom(body) == nil
}

// fuzzWorld is one replica and a topic; every request has a group of its own.
type fuzzWorld struct {
	*world
	topic  upstream.Topic
	groups int
}

func newFuzzWorld(f *testing.F) *fuzzWorld {
	z := &fuzzWorld{world: newWorld(f, 1)}
	z.ctx = context.Background() // fuzzing may take longer than a test
	z.topic = z.world.topic("t", 2)
	for _, n := range fuzzBatches {
		z.produce("t", 0, 1, n)
	}
	z.produce("t", 1, 1, 5)
	return z
}

// records is how many partition p holds.
func (z *fuzzWorld) records(p int32) (n int64) {
	if p == 1 {
		return 5
	}
	for _, b := range fuzzBatches {
		n += int64(b)
	}
	return n
}

// fuzzCase is one request: the member that sends it and its group.
type fuzzCase struct {
	*fuzzWorld
	*testing.T
	a *member
}

func (z *fuzzWorld) begin(t *testing.T) *fuzzCase {
	z.groups++
	group := fmt.Sprintf("fuzzed-%d", z.groups)
	outer := z.TB
	z.TB = t
	t.Cleanup(func() {
		z.remove(group)
		z.TB = outer
	})
	z.alter(group, "share.auto.offset.reset", "earliest", "share.delivery.count.limit", "10")
	c := &fuzzCase{fuzzWorld: z, T: t, a: z.reps[0].member(group, "a").join("t")}
	if c.a.open(z.topic, maxRecords(fuzzHeld)); c.a.epoch != 1 {
		t.Fatal("no session")
	}
	return c
}

// remove deletes a case's group: the fake Redis gets slow with many keys.
func (z *fuzzWorld) remove(group string) {
	leave := kmsg.NewPtrShareGroupHeartbeatRequest()
	leave.Version, leave.GroupID, leave.MemberID, leave.MemberEpoch = 1, group, "a", -1
	z.reps[0].ask(z.ctx, z.reps[0].conn(-1), leave)
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Version, req.Groups = 2, []string{group}
	resp := z.reps[0].ask(z.ctx, z.reps[0].conn(-1), req).(*kmsg.DeleteGroupsResponse)
	if code := resp.Groups[0].ErrorCode; code != codeNone {
		z.Errorf("delete group: code %d", code)
	}
	// What a deleted group leaves behind; the last ones may still be looked at.
	if z.groups%200 != 0 {
		return
	}
	for _, key := range z.redis.Keys() {
		var n int
		if _, err := fmt.Sscanf(key, "kshare:fake:{fuzzed-%d", &n); err == nil && n < z.groups-100 {
			z.redis.Del(key)
		}
	}
}

// In a fuzzed body, group "g" stands for the case's group, and a topic id that begins with 1 for its topic.
var fuzzTopic = upstream.Topic{ID: [16]byte{1}, Partitions: 2}

func (c *fuzzCase) mapNames(group, member **string) {
	if *group != nil && **group == "g" {
		*group = &c.a.group
	}
}

func (c *fuzzCase) mapTopic(id *[16]byte) {
	if id[0] == 1 {
		*id = c.topic.ID
	}
}

// sameAgain checks that the answer encodes, and is what a client reads.
func (c *fuzzCase) sameAgain(resp, again kmsg.Response) {
	again.SetVersion(resp.GetVersion())
	b := resp.AppendTo(nil)
	if err := again.ReadFrom(b); err != nil {
		c.Fatalf("the answer cannot be read: %v", err)
	}
	if !bytes.Equal(again.AppendTo(nil), b) {
		c.Errorf("the answer is read as another one: %+v", again)
	}
}
