package serve

import (
	"context"
	"time"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// ShareFetch (78), KIP-932.
//
//	v1: MaxRecords, BatchSize, AcquisitionLockTimeoutMs (Kafka 4.1; v0 is gone and incompatible)
//	v2: ShareAcquireMode (KIP-1206), IsRenewAck (KIP-1222)
//
// Behaviours: checks in the broker's order; no group membership is asked for; the response lists
// what answer says. A connection of a node's own port gets NOT_LEADER_OR_FOLLOWER with the leader for partitions that another node
// leads, as from a broker; the bootstrap port serves any partition. Where Redis or upstream is away, partitions answer
// KAFKA_STORAGE_ERROR when MaxWait is over, never a COORDINATOR_* code: Java clients throw on those.

func (s *Server) shareFetch(ctx context.Context, r *Request) (kmsg.Response, error) {
	req := r.Body.(*kmsg.ShareFetchRequest)
	resp := req.ResponseKind().(*kmsg.ShareFetchResponse)
	cs, end := s.begin(r.Conn)
	defer end()
	arrived := time.Now()
	code := s.checkShare(ctx, r.Conn, req.GroupID, req.MemberID)
	if code == codeNone && req.Version >= 2 && req.IsRenewAck &&
		(req.MaxBytes != 0 || req.MinBytes != 0 || req.MaxRecords != 0 || req.MaxWaitMillis != 0) {
		code = codeInvalidRequest
	}
	if code != codeNone {
		resp.ErrorCode = code
		return resp, nil
	}
	wait := time.Duration(max(req.MaxWaitMillis, 0)) * time.Millisecond
	ctx, cancel := answerWithin(ctx, wait)
	defer cancel()
	f := s.newFetch(r.Conn, cs, req)
	code = f.admit(ctx, *req.GroupID, func() (int16, error) { return f.enter(ctx, req) })
	if code == codeStorage || code == codeSessionLimit {
		// Redis is away, or the limit is reached: both are answered when MaxWait is over, so that clients do not spin.
		s.pause(ctx, cs, wait-time.Since(arrived))
	}
	if code != codeNone {
		resp.ErrorCode = code
		return resp, nil
	}
	f.resolve(ctx)
	defer f.use()()
	present := f.run(ctx, wait-time.Since(arrived))
	if f.refused != codeNone {
		f.giveBack(ctx)
		resp.ErrorCode = f.refused
		return resp, nil
	}
	if !present && !cs.owns(f.visit.ss.key, f.visit.nonce.Opened, s) {
		f.giveBack(ctx)
	}
	if !knownMode(f.mode) { // told only after the session and the acknowledgements were served, as by a broker
		resp.ErrorCode = codeUnknown
		return resp, nil
	}
	f.answer(resp)
	return resp, nil
}

func knownMode(m sharestate.AcquireMode) bool {
	return m == sharestate.BatchOptimized || m == sharestate.RecordLimit
}

// checkShare applies the checks that ShareFetch and ShareAcknowledge share: group id, permission, member id.
func (s *Server) checkShare(ctx context.Context, c *Conn, group, member *string) int16 {
	if group == nil {
		return codeInvalidRequest
	}
	if ok, err := s.mayGroup(ctx, c, opRead, *group); err != nil {
		return codeStorage
	} else if !ok {
		return codeGroupDenied
	}
	if member == nil || *member == "" || tooLong(*member) {
		return codeInvalidRequest
	}
	return codeNone
}

// maxMemberID is the longest member id that Kafka takes, in Java's characters, which are those of UTF-16.
const maxMemberID = 36

func tooLong(member string) bool {
	n := 0
	for _, r := range member {
		n += utf16.RuneLen(r)
	}
	return n > maxMemberID
}

func (s *Server) newFetch(c *Conn, cs *connState, req *kmsg.ShareFetchRequest) *fetch {
	f := &fetch{s: s, conn: c, cs: cs,
		maxBytes:  min(int(req.MaxBytes), fetchMaxBytes),
		records:   int64(req.MaxRecords),
		batchSize: req.BatchSize,
		mode:      sharestate.AcquireMode(req.ShareAcquireMode),
	}
	f.minBytes = min(int(req.MinBytes), f.maxBytes)
	f.take = req.ShareSessionEpoch != -1 && !req.IsRenewAck && f.maxBytes > 0 && f.records > 0 && knownMode(f.mode)
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			f.acks.add(upstream.TP{ID: t.TopicID, Partition: p.Partition}, fetchAcks(p.AcknowledgementBatches))
		}
	}
	f.acks.validate(req.IsRenewAck)
	return f
}

// enter opens the session or takes it a step on.
func (f *fetch) enter(ctx context.Context, req *kmsg.ShareFetchRequest) (int16, error) {
	key := statelog.SessionKey{Group: *req.GroupID, Member: *req.MemberID, Node: f.conn.Node}
	add := make(sessionParts, len(f.acks.parts))
	for i, a := range f.acks.parts {
		_, known, err := f.s.o.Upstream.TopicByID(ctx, a.ID)
		add[i] = sessionPart{TP: a.TP, resolved: known && err == nil, owed: true}
	}
	if req.ShareSessionEpoch == 0 {
		if f.acks.any {
			return codeInvalidRequest, nil
		}
		return f.open(ctx, key, add)
	}
	forget := map[upstream.TP]bool{}
	for _, t := range req.ForgottenTopicsData {
		for _, p := range t.Partitions {
			forget[upstream.TP{ID: t.TopicID, Partition: p}] = true
		}
	}
	v, code, err := f.s.enter(ctx, key, req.ShareSessionEpoch, func(ps sessionParts) sessionParts { return ps.update(add, forget) })
	f.visit = v
	return code, err
}

// open makes a new session in place of any that the member has on this node; what that one holds stays locked.
func (f *fetch) open(ctx context.Context, key statelog.SessionKey, parts sessionParts) (int16, error) {
	s := f.s
	if s.full(key) {
		return codeSessionLimit, nil
	}
	ctx, cancel := storeContext(ctx)
	defer cancel()
	p := s.o.Store.OpenSession(key, f.conn.Nonce, parts.settled().encode())
	s.o.Store.Kick()
	head, _, err := p.Wait(ctx)
	if err != nil {
		s.claim(f.cs, key, 0) // it may exist all the same
		return 0, err
	}
	s.claim(f.cs, key, head.Opened)
	ss := s.sessions.put(newShareSession(key, head, parts))
	f.visit = &visit{ss: ss, seen: head, next: head.Epoch, nonce: ss.nonce(), parts: parts}
	f.moved = true
	return codeNone, nil
}

// pause waits, but no longer than the client or the server stays.
func (s *Server) pause(ctx context.Context, cs *connState, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-cs.gone:
	case <-s.drain:
	}
}

// owns tells whether the connection opened that very session.
func (cs *connState) owns(key statelog.SessionKey, opened int64, s *Server) bool {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	o, ok := cs.opened[key]
	return ok && o == opened
}
