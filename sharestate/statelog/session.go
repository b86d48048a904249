package statelog

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// SessionKey names a share session: one per group, member and node.
type SessionKey struct {
	Group, Member string
	Node          int32
}

// Session is a share session as it is stored. Its header, everything but Body, has a fixed size and is what a move
// compares.
type Session struct {
	Opened  int64  // µs; rises with each opening of the same key
	Replica uint64 // nonce of the replica that opened it
	Conn    uint64 // nonce of the connection that opened it
	Epoch   int32  // the epoch expected next
	Body    []byte // opaque
}

const (
	openedLen     = timeLen
	sessionRest   = 8 + 8 + 4 // replica, connection, epoch
	sessionHead   = openedLen + sessionRest
	firstEpoch    = 1
	sessionPrefix = "s:"
)

func (x Session) head() []byte { return x.appendRest(appendTime(nil, x.Opened)) }

func (x Session) appendRest(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, x.Replica)
	dst = binary.BigEndian.AppendUint64(dst, x.Conn)
	return binary.BigEndian.AppendUint32(dst, uint32(x.Epoch))
}

func parseSession(s string) (Session, error) {
	b := []byte(s)
	if len(b) < sessionHead {
		return Session{}, fmt.Errorf("session of %d bytes", len(b))
	}
	opened, ok := parseTime(b[:openedLen])
	if !ok {
		return Session{}, fmt.Errorf("session opened at %q", b[:openedLen])
	}
	rest := b[openedLen:]
	return Session{
		Opened:  opened,
		Replica: binary.BigEndian.Uint64(rest),
		Conn:    binary.BigEndian.Uint64(rest[8:]),
		Epoch:   int32(binary.BigEndian.Uint32(rest[16:])),
		Body:    b[sessionHead:],
	}, nil
}

func (s *Store) sessionKey(k SessionKey) string {
	return s.prefix + sessionPrefix + "{" + k.name() + "}"
}

// name is what stands for the key in a replica's list of sessions.
func (k SessionKey) name() string {
	return fmt.Sprintf("%s/%s/%d", Escape(k.Group), Escape(k.Member), k.Node)
}

func (s *Store) sessionsKey(replica uint64) string {
	return s.prefix + "sessions:" + nonceName(replica)
}

// PendingSession is a session call on its way.
type PendingSession struct {
	store    *Store
	key      SessionKey
	deadline time.Time
	done     chan struct{}
	session  Session
	ok       bool
	err      error
}

// OpenSession replaces whatever session is stored under key by a new one of this replica: Opened above the old one's,
// Epoch 1.
func (s *Store) OpenSession(key SessionKey, conn uint64, body []byte) *PendingSession {
	p := s.pendingSession(key)
	replica := s.Nonce()
	session := Session{Replica: replica, Conn: conn, Epoch: firstEpoch, Body: body}
	if !s.lease.registered(replica) {
		// A crash before the first renewal must not leave a session that nobody looks after.
		s.queue(s.register(replica)...)
	}
	// First the list, then the session: what is in the list without being there does no harm.
	s.queue([]any{"SADD", s.sessionsKey(replica), key.name()})
	value := append(session.appendRest(nil), body...)
	p.send(openScript, []any{s.sessionKey(key), value}, func(v any) error {
		list, _ := v.([]any)
		if len(list) != 2 {
			return fmt.Errorf("unexpected reply %v", v)
		}
		stamp, _ := list[0].(string)
		var ok bool
		if session.Opened, ok = parseTime([]byte(stamp)); !ok {
			return fmt.Errorf("unexpected reply %v", v)
		}
		p.session, p.ok = session, true
		if head, _ := list[1].(string); head != "" {
			if old, err := parseSession(head); err == nil && old.Replica != replica {
				s.queue([]any{"SREM", s.sessionsKey(old.Replica), key.name()})
			}
		}
		return nil
	})
	return p
}

// MoveSession makes nextEpoch the epoch that is expected next, and replaces the body unless it is nil, if the stored
// header still is that of seen. The session stays its opener's.
func (s *Store) MoveSession(key SessionKey, seen Session, nextEpoch int32, body []byte) *PendingSession {
	p := s.pendingSession(key)
	next := seen
	next.Epoch = nextEpoch
	replace := "0"
	if body != nil {
		replace, next.Body = "1", body
	}
	args := []any{s.sessionKey(key), seen.head(), next.head(), replace, body}
	p.send(moveScript, args, func(v any) error { return p.compared(v, next) })
	return p
}

// CloseSession removes the session if it still is the one that replica opened at opened.
func (s *Store) CloseSession(key SessionKey, opened int64, replica uint64) *PendingSession {
	p := s.pendingSession(key)
	id := binary.BigEndian.AppendUint64(appendTime(nil, opened), replica)
	p.send(closeScript, []any{s.sessionKey(key), id}, func(v any) error {
		removed, ok := v.(string)
		if !ok {
			return p.compared(v, Session{})
		}
		p.ok = true
		s.queue([]any{"SREM", s.sessionsKey(replica), key.name()})
		var err error
		p.session, err = parseSession(removed)
		return err
	})
	return p
}

// compared reads the reply of a script that changes a session if it is the expected one.
func (p *PendingSession) compared(v any, next Session) error {
	list, other := v.([]any)
	if !other {
		p.session, p.ok = next, true
		return nil
	}
	if len(list) == 0 || list[0] == nil {
		return nil
	}
	stored, _ := list[0].(string)
	var err error
	p.session, err = parseSession(stored)
	return err
}

// LoadSession returns the stored session; false if there is none.
func (s *Store) LoadSession(ctx context.Context, key SessionKey) (Session, bool, error) {
	values, err := s.roundTrip(ctx, []any{"GET", s.sessionKey(key)})
	if err != nil {
		return Session{}, false, key.fail(err)
	}
	stored, ok := values[0].(string)
	if !ok {
		return Session{}, false, nil
	}
	session, err := parseSession(stored)
	if err != nil {
		return Session{}, false, key.fail(err)
	}
	return session, true, nil
}

// Wait returns the session as it is in Redis now, or, after a Close, as it was. ok is false if the call changed nothing:
// session is then the one that is stored, zero if there is none (after a Move or Close whose session was replaced or
// removed meanwhile). An error wraps [ErrUnavailable]: whether the call took effect is not known.
func (p *PendingSession) Wait(ctx context.Context) (session Session, ok bool, err error) {
	p.store.pipe.kick()
	timer := time.NewTimer(time.Until(p.deadline))
	defer timer.Stop()
	select {
	case <-p.done:
	case <-ctx.Done():
		return Session{}, false, p.key.fail(context.Cause(ctx))
	case <-timer.C:
		return Session{}, false, p.key.fail(p.store.unavailable(p.store.outage.cause()))
	}
	return p.session, p.ok, p.err
}

func (s *Store) pendingSession(key SessionKey) *PendingSession {
	return &PendingSession{store: s, key: key, deadline: time.Now().Add(s.opt.Timeout), done: make(chan struct{})}
}

// send queues the script; read takes its reply.
func (p *PendingSession) send(sc *script, args []any, read func(any) error) {
	finish := func(v any, err error) {
		if err == nil {
			err = read(v)
		} else {
			err = p.store.unavailable(err)
		}
		if err != nil {
			p.err = p.key.fail(err)
		}
		close(p.done)
	}
	if !p.store.pipe.add(&call{script: sc, args: args, unsent: p.deadline, done: finish}) {
		finish(nil, p.store.outage.cause())
	}
}

// queue sends plain commands with the next pipeline, without waiting for their replies.
func (s *Store) queue(commands ...[]any) {
	for _, args := range commands {
		s.pipe.add(&call{args: args, unsent: time.Now().Add(s.opt.Timeout), done: func(any, error) {}})
	}
}

func (k SessionKey) fail(err error) error {
	return fmt.Errorf("share session of group %q, member %q, node %d: %w", k.Group, k.Member, k.Node, err)
}
