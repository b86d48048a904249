package serve

import (
	"context"
	"math/rand/v2"
	"time"

	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// A share session belongs to the connection that opened it: when that closes, the session ends and what the member
// holds under it on the session's partitions is free at once. This file keeps that bond.

// connState is what this replica knows of a client connection that has used a share session.
type connState struct {
	// inflight counts served share requests; the sessions of a closed connection end after the last of them, so that
	// nothing is acquired behind the release.
	inflight int
	closed   bool
	gone     chan struct{}
	nonce    uint64
	// opened are the sessions that the connection opened and that were not seen to end, with their Opened; 0 where the
	// outcome of the opening was not learned.
	opened map[statelog.SessionKey]int64
}

// begin notes that a share request of the connection is being served. The caller calls the returned end.
func (s *Server) begin(c *Conn) (cs *connState, end func()) {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	cs = s.conns[c.Nonce]
	if cs == nil {
		cs = &connState{nonce: c.Nonce, gone: make(chan struct{}), opened: map[statelog.SessionKey]int64{}}
		s.conns[c.Nonce] = cs
	}
	cs.inflight++
	return cs, func() { s.endRequest(c.Nonce, cs) }
}

func (s *Server) endRequest(nonce uint64, cs *connState) {
	s.connMu.Lock()
	cs.inflight--
	idle, closed := cs.inflight == 0, cs.closed
	if idle && (closed || len(cs.opened) == 0) {
		delete(s.conns, nonce)
	}
	s.connMu.Unlock()
	if idle && closed {
		s.endSessionsOf(cs)
	}
}

// ConnClosed ends the share sessions that the connection opened and frees what they held, at once unless Redis is away.
// It comes when the connection is closed; requests of it that are still being served end now.
func (s *Server) ConnClosed(c *Conn) {
	s.connMu.Lock()
	cs := s.conns[c.Nonce]
	if cs == nil || cs.closed {
		s.connMu.Unlock()
		return
	}
	cs.closed = true
	close(cs.gone)
	idle := cs.inflight == 0
	if idle {
		delete(s.conns, c.Nonce)
	}
	s.connMu.Unlock()
	if idle {
		s.endSessionsOf(cs)
	}
}

// claim binds a session that was just opened to its connection; an older one under the same key is bound no more.
func (s *Server) claim(cs *connState, key statelog.SessionKey, opened int64) {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	if old := s.claims[key]; old != nil {
		s.dropClaim(old, key)
	}
	s.claims[key] = cs
	cs.opened[key] = opened
	s.openSessions[key.Node]++
	s.m.sessions.Inc()
}

// unclaim forgets a session that ended by a request, on whatever connection it was opened.
func (s *Server) unclaim(key statelog.SessionKey, opened int64) {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	if cs := s.claims[key]; cs != nil && cs.opened[key] == opened {
		s.dropClaim(cs, key)
	}
}

// dropClaim takes one session off its connection; connMu is held.
func (s *Server) dropClaim(cs *connState, key statelog.SessionKey) {
	delete(cs.opened, key)
	delete(s.claims, key)
	s.openSessions[key.Node]--
	s.m.sessions.Dec()
}

// full tells whether a new session would exceed group.share.max.share.sessions. As with a broker the limit guards the
// process that holds the connections: it counts per node and replica.
func (s *Server) full(key statelog.SessionKey) bool {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	if s.claims[key] != nil {
		return false // it will be replaced
	}
	return s.openSessions[key.Node] >= int(s.o.Broker.MaxShareSessions)
}

const (
	// closeTries bounds how often the end of a session is tried while Redis is away, closePause how far the tries stand
	// apart (doubled each time). After that only the acquisition locks free its records.
	closeTries    = 10
	closePause    = 250 * time.Millisecond
	closeDeadline = 3 * time.Second
)

// ending is one session on its way out, with how far that has come.
type ending struct {
	key    statelog.SessionKey
	opened int64
	conn   uint64
	// closed: Redis holds the session no more, and only the releases are left.
	closed  bool
	replica uint64
	// parts are the session's, as known here until Redis tells.
	parts sessionParts
}

// endSessionsOf ends the sessions of a closed connection. What Redis does not take at once is tried again in the
// background.
func (s *Server) endSessionsOf(cs *connState) {
	var todo []*ending
	s.connMu.Lock()
	for key, opened := range cs.opened {
		todo = append(todo, &ending{key: key, opened: opened, conn: cs.nonce})
		s.dropClaim(cs, key)
	}
	s.connMu.Unlock()
	for _, e := range todo {
		if ss := s.sessions.get(e.key); ss != nil && ss.nonce().Opened == e.opened {
			e.parts, e.replica = ss.list(), ss.nonce().Replica
			s.sessions.drop(ss)
		}
	}
	if todo = s.tryEnd(todo); len(todo) > 0 {
		go s.keepEnding(todo)
	}
}

func (s *Server) keepEnding(todo []*ending) {
	pause := closePause
	for try, draining := 0, false; try < closeTries && !draining; try++ {
		select {
		case <-time.After(pause + rand.N(pause)):
		case <-s.drain: // no time for patience, but for one more try
			draining = true
		}
		if todo = s.tryEnd(todo); len(todo) == 0 {
			return
		}
		pause = min(2*pause, 30*time.Second)
	}
	s.o.Log.Warn().Int("sessions", len(todo)).Msg("share sessions of a closed connection could not be ended, Redis is away; their records come back when their locks run out")
}

// tryEnd returns those that are not settled.
func (s *Server) tryEnd(todo []*ending) (left []*ending) {
	ctx, cancel := context.WithTimeout(context.Background(), closeDeadline)
	defer cancel()
	for _, e := range todo {
		if err := s.endSession(ctx, e); err != nil {
			s.o.Log.Debug().Err(err).Str("group", e.key.Group).Str("member", e.key.Member).Msg("share session not ended yet")
			left = append(left, e)
		}
	}
	return left
}

// endSession closes the session and releases what it held. A session that was opened since, here or on another replica,
// keeps its records, and the replaced one's stay locked, as with a broker.
func (s *Server) endSession(ctx context.Context, e *ending) error {
	if !e.closed {
		got, ok, err := s.o.Store.LoadSession(ctx, e.key)
		if err != nil {
			return err
		}
		// Gone already: an earlier try closed it without learning so, Redis lost it, or it was removed when this replica
		// was taken for dead, and its fetches have acquired since.
		if !ok && e.parts != nil {
			e.closed = true
			return s.endSession(ctx, e)
		}
		if !ok || got.Opened != e.opened && (e.opened != 0 || got.Conn != e.conn || got.Replica != s.o.Store.Nonce()) {
			return nil
		}
		e.opened = got.Opened
		if e.parts, err = decodeSessionParts(got.Body); err != nil {
			return err
		}
		e.replica = got.Replica
		// The close goes first, the releases after it: a request of this session on another replica acquires before it
		// moves the session, so it either finds the session closed and gives back, or has acquired before the release.
		p := s.o.Store.CloseSession(e.key, e.opened, e.replica)
		s.o.Store.Kick()
		if _, ok, err = p.Wait(ctx); err != nil || !ok {
			return err
		}
		e.closed = true
	}
	nonce := sharestate.SessionNonce{Opened: e.opened, Replica: e.replica}
	return s.releaseParts(ctx, e.key.Group, e.key.Member, nonce, e.parts)
}

// releaseParts frees what the member holds on the partitions under session nonces up to this one.
func (s *Server) releaseParts(ctx context.Context, group, member string, nonce sharestate.SessionNonce, parts sessionParts) error {
	set, err := s.settings(ctx, group)
	if err != nil {
		return err
	}
	release := sharestate.Release{Member: member, Session: nonce, Settings: set}
	held := make([]upstream.TP, len(parts))
	for i, p := range parts {
		held[i] = p.TP
	}
	_, err = s.submitEach(ctx, group, held, func(upstream.TP) sharestate.Op { return release })
	return err
}
