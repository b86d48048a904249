package serve

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// Share sessions (KIP-932) live in Redis, one key per (group, member, node). A replica caches those it has
// met. The cached header is what Redis will hold after the moves that this replica has sent; a move is a
// compare-and-set on it, so a request that another replica has overtaken is found out in the round trip that carries its
// ops. A cached session alone never refuses a request: refusals are judged on what Redis holds.

// cachedSessions bounds the sessions that a replica remembers; one that drops out is loaded again.
const cachedSessions = 16384

// shareSession is one share session as this replica knows it.
type shareSession struct {
	key statelog.SessionKey

	mu sync.Mutex
	// head is the header that Redis will hold once the moves under way are through; its Body is unused.
	head statelog.Session
	// doubt holds epochs that Redis may still stand at because a move's outcome was never learned. Clients count on
	// after such a request, so the session continues from whichever of them Redis turns out to hold.
	doubt []int32
	parts sessionParts
	// ended is closed when this replica learns that the session is closed or replaced; waiting fetches end then.
	ended  chan struct{}
	isOver bool
}

func newShareSession(key statelog.SessionKey, head statelog.Session, parts sessionParts) *shareSession {
	head.Body = nil
	return &shareSession{key: key, head: head, parts: parts, ended: make(chan struct{})}
}

// end marks the session as over on this replica.
func (ss *shareSession) end() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if !ss.isOver {
		ss.isOver = true
		close(ss.ended)
	}
}

func (ss *shareSession) over() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.isOver
}

// nonce is what the session's acquisitions are held under.
func (ss *shareSession) nonce() sharestate.SessionNonce {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return sharestate.SessionNonce{Opened: ss.head.Opened, Replica: ss.head.Replica}
}

// list is the session's partitions as known here.
func (ss *shareSession) list() sessionParts {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.parts
}

// sameSession tells whether two headers are of one session, whatever its epoch.
func sameSession(a, b statelog.Session) bool {
	return a.Opened == b.Opened && a.Replica == b.Replica && a.Conn == b.Conn
}

// nextEpoch is the epoch after e; after the highest comes 1, for 0 opens sessions.
func nextEpoch(e int32) int32 {
	if e == math.MaxInt32 {
		return 1
	}
	return e + 1
}

// sessionCache holds the sessions that this replica has met.
type sessionCache struct {
	mu  sync.Mutex
	lru *simplelru.LRU[statelog.SessionKey, *shareSession]
}

func newSessionCache() *sessionCache {
	l, err := simplelru.NewLRU[statelog.SessionKey, *shareSession](cachedSessions, nil)
	if err != nil {
		panic(err) // only for a size below one
	}
	return &sessionCache{lru: l}
}

func (c *sessionCache) get(key statelog.SessionKey) *shareSession {
	c.mu.Lock()
	defer c.mu.Unlock()
	ss, _ := c.lru.Get(key)
	return ss
}

// put remembers a session that was opened or loaded and ends another one under the same key. What is cached already
// stays when it is that very session and not older.
func (c *sessionCache) put(ss *shareSession) *shareSession {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.lru.Get(ss.key)
	if ok && old != ss {
		old.end()
	}
	c.lru.Add(ss.key, ss)
	return ss
}

// drop forgets a session that is over, unless another one stands there by now.
func (c *sessionCache) drop(ss *shareSession) {
	ss.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if cur, ok := c.lru.Peek(ss.key); ok && cur == ss {
		c.lru.Remove(ss.key)
	}
}

// reload takes what Redis holds under the key; nil if there is no session. If it is the very session and epoch that the
// cache has, with nothing in doubt, the cached one stays: its owed flags are fresher.
func (s *Server) reload(ctx context.Context, key statelog.SessionKey) (*shareSession, error) {
	got, ok, err := s.o.Store.LoadSession(ctx, key)
	if err != nil {
		return nil, err
	}
	if !ok {
		if old := s.sessions.get(key); old != nil {
			s.sessions.drop(old)
		}
		return nil, nil
	}
	return s.adopt(key, got)
}

// adopt brings the cache to the session that Redis was seen to hold.
func (s *Server) adopt(key statelog.SessionKey, got statelog.Session) (*shareSession, error) {
	parts, err := decodeSessionParts(got.Body)
	if err != nil {
		return nil, err
	}
	if old := s.sessions.get(key); old != nil {
		old.mu.Lock()
		same := sameSession(old.head, got) && !old.isOver
		if same {
			if old.head.Epoch != got.Epoch {
				old.parts = parts
			}
			old.head.Epoch = got.Epoch
			old.doubt = nil
		}
		old.mu.Unlock()
		if same {
			return old, nil
		}
	}
	return s.sessions.put(newShareSession(key, got, parts)), nil
}

// visit is one request's stay in a share session.
type visit struct {
	ss *shareSession
	// seen is the header that the move must find in Redis, next the epoch that it writes, body the list that it writes
	// (nil = unchanged).
	seen  statelog.Session
	next  int32
	body  []byte
	nonce sharestate.SessionNonce
	parts sessionParts
	epoch int32 // as the request says
	// change is what the request does to the partition list; nil = nothing.
	change func(sessionParts) sessionParts
	// unsure: a try of the move was sent whose outcome is not known.
	unsure bool
	// final: epoch -1, the session closes with this request.
	final bool
}

// enter judges the epoch of a request other than an opening one and takes the session a step on. change (may be nil)
// gives the partition list after the request. An epoch that the cache would refuse is judged again on what Redis holds.
// code is SHARE_SESSION_NOT_FOUND or INVALID_SHARE_SESSION_EPOCH; err means that Redis did not answer.
func (s *Server) enter(ctx context.Context, key statelog.SessionKey, epoch int32, change func(sessionParts) sessionParts) (v *visit, code int16, err error) {
	ss, loaded := s.sessions.get(key), false
	for {
		if ss == nil {
			if loaded {
				return nil, codeSessionNotFound, nil
			}
			if ss, err = s.reload(ctx, key); err != nil {
				return nil, 0, err
			}
			loaded = true
			continue
		}
		v, ok := ss.step(epoch, change)
		if ok {
			return v, codeNone, nil
		}
		if loaded {
			if ss.over() {
				return nil, codeSessionNotFound, nil
			}
			return nil, codeSessionEpoch, nil
		}
		if ss, err = s.reload(ctx, key); err != nil {
			return nil, 0, err
		}
		loaded = true
	}
}

// step takes the session one epoch on if epoch is the expected one, or -1.
func (ss *shareSession) step(epoch int32, change func(sessionParts) sessionParts) (*visit, bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.isOver || epoch != -1 && epoch != ss.head.Epoch {
		return nil, false
	}
	v := &visit{ss: ss, epoch: epoch, change: change, seen: ss.head, parts: ss.parts, final: epoch == -1,
		nonce: sharestate.SessionNonce{Opened: ss.head.Opened, Replica: ss.head.Replica}}
	if v.final {
		return v, true
	}
	if change != nil {
		if parts := change(ss.parts); len(parts) != len(ss.parts) || !slices.Equal(parts, ss.parts) {
			ss.parts, v.parts = parts, parts
			v.body = parts.settled().encode()
		}
	}
	if len(ss.doubt) > 0 && v.body == nil {
		v.body = ss.parts.settled().encode() // the write that would have brought the list may be lost
	}
	v.next = nextEpoch(epoch)
	ss.head.Epoch = v.next
	return v, true
}

// settled is the list as it will be after the response: nothing owed. It is stored so in advance, which spares a write;
// a replica that continues the session does at worst not list a partition that this response left out.
func (ps sessionParts) settled() sessionParts {
	out := slices.Clone(ps)
	for i := range out {
		out[i].owed = false
	}
	return out
}

// moved books the outcome of the visit's move. again means that Redis stood at an epoch in doubt: send the move again
// with the visit's new header.
func (v *visit) moved(got statelog.Session, ok bool, err error) (through, again bool) {
	ss := v.ss
	ss.mu.Lock()
	defer ss.mu.Unlock()
	switch {
	case err != nil:
		v.unsure = true
		if len(ss.doubt) < maxDoubt {
			ss.doubt = append(ss.doubt, v.seen.Epoch)
		}
	case ok, sameSession(got, v.seen) && got.Epoch == v.next && v.unsure:
		// The second case: an earlier try of this very move had come through.
		ss.doubt = nil
		return true, false
	case sameSession(got, v.seen) && slices.Contains(ss.doubt, got.Epoch):
		v.seen.Epoch = got.Epoch
		ss.doubt = slices.DeleteFunc(ss.doubt, func(e int32) bool { return e == got.Epoch })
		if v.body == nil {
			v.body = ss.parts.settled().encode()
		}
		return false, true
	}
	return false, false
}

// maxDoubt bounds how many requests of a session may be answered while Redis is away.
const maxDoubt = 4096

// book writes down what a response told about the session's partitions: which are resolved now, and which the next
// response still has to list.
func (ss *shareSession) book(told map[upstream.TP]sessionPart) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	changed := false
	for _, p := range ss.parts {
		if t, ok := told[p.TP]; ok && t != p {
			changed = true
			break
		}
	}
	if !changed {
		return
	}
	parts := slices.Clone(ss.parts) // visits hold the old list
	for i, p := range parts {
		if t, ok := told[p.TP]; ok {
			parts[i] = t
		}
	}
	ss.parts = parts
}
