package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
	"kshare/sharestate/statelog"
)

// ShareAcknowledge (79), KIP-932.
//
//	v1: Kafka 4.1
//	v2: IsRenewAck, AcquisitionLockTimeoutMs (KIP-1222)
//
// Behaviours: epoch 0 is INVALID_SHARE_SESSION_EPOCH; -1 applies the acknowledgements, then closes the session and frees
// what it holds; the session's partitions never change; every partition named with batches is answered. Acknowledgements are taken on
// any node's port, for their state is not the node's.

func (s *Server) shareAcknowledge(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ShareAcknowledgeRequest)
	resp := req.ResponseKind().(*kmsg.ShareAcknowledgeResponse)
	cs, end := s.begin(r.Conn)
	defer end()
	ctx, cancel := answerWithin(ctx, 0)
	defer cancel()
	code := s.checkShare(ctx, r.Conn, req.GroupID, req.MemberID)
	if code == codeNone && req.ShareSessionEpoch == 0 {
		code = codeSessionEpoch
	}
	if code != codeNone {
		resp.ErrorCode = code
		return resp, nil
	}
	f := &fetch{s: s, conn: r.Conn, cs: cs}
	f.takeAcks(req)
	code = f.admit(ctx, *req.GroupID, func() (code int16, err error) {
		key := statelog.SessionKey{Group: *req.GroupID, Member: *req.MemberID, Node: r.Conn.Node}
		f.visit, code, err = s.enter(ctx, key, req.ShareSessionEpoch, nil)
		return code, err
	})
	if code != codeNone {
		resp.ErrorCode = code
		return resp, nil
	}
	f.resolveAcks(ctx)
	defer f.use()()
	f.round(ctx)
	if f.refused != codeNone {
		resp.ErrorCode = f.refused
		return resp, nil
	}
	f.answerAcks(resp)
	return resp, nil
}

// takeAcks reads and validates the request's batches.
func (f *fetch) takeAcks(req *kmsg.ShareAcknowledgeRequest) {
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			f.acks.add(upstream.TP{ID: t.TopicID, Partition: p.Partition}, plainAcks(p.AcknowledgementBatches))
		}
	}
	f.acks.validate(req.IsRenewAck)
}

// resolveAcks makes the items: the partitions named, and when the session closes its own, to be released.
func (f *fetch) resolveAcks(ctx context.Context) {
	if f.visit.final {
		f.resolve(ctx)
		return
	}
	for _, a := range f.acks.parts {
		f.items = append(f.items, &fetchItem{part: sessionPart{TP: a.TP}, acks: a})
	}
	f.judgeAll(ctx)
}

// answerAcks lists every partition that the request names with batches, or that is unknown or denied.
func (f *fetch) answerAcks(resp *kmsg.ShareAcknowledgeResponse) {
	resp.AcquisitionLockTimeoutMillis = f.cfg.LockDurationMs
	topics := map[[16]byte]int{}
	for _, it := range f.items {
		if it.acks == nil {
			continue
		}
		p := kmsg.NewShareAcknowledgeResponseTopicPartition()
		p.Partition = it.part.Partition
		p.ErrorCode, p.ErrorMessage = it.acks.code, it.acks.message
		if len(it.acks.batches) == 0 {
			if it.code == codeNone || it.code == codeNotLeader {
				continue
			}
			p.ErrorCode = it.code // that it is unknown or denied is told even without batches
		}
		if p.ErrorCode != codeNone {
			p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = -1, -1
		}
		i, ok := topics[it.part.ID]
		if !ok {
			i = len(resp.Topics)
			topics[it.part.ID] = i
			t := kmsg.NewShareAcknowledgeResponseTopic()
			t.TopicID = it.part.ID
			resp.Topics = append(resp.Topics, t)
		}
		resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, p)
	}
}
