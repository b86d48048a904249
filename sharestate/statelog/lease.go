package statelog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A live replica has a lease (a key that lapses unless it is renewed) and is in the registry. A replica in the registry
// without a lease is dead. Any other replica then releases what its sessions held, removes the sessions, and leaves a
// tombstone, in this order, so that a survivor that dies half way is followed by another. A replica that was declared
// dead although it lives (paused, cut off) finds the tombstone and goes on under a new nonce.

// lease is this replica's own standing.
type lease struct {
	nonce atomic.Uint64

	mu        sync.Mutex
	known     uint64 // the nonce that was registered
	onDead    func(ctx context.Context, replica uint64) error
	onOwnTomb func()
}

// Nonce returns what this replica's lease and new sessions go by. It changes if the replica was declared dead.
func (s *Store) Nonce() uint64 { return s.lease.nonce.Load() }

// OnReplicaDead sets what is done about a dead replica before its sessions are removed. It is called by one of the
// survivors, again (perhaps by another) if it fails, and must be idempotent. Set it before [Store.Run].
func (s *Store) OnReplicaDead(f func(ctx context.Context, replica uint64) error) {
	s.lease.mu.Lock()
	defer s.lease.mu.Unlock()
	s.lease.onDead = f
}

// OnOwnTombstone sets what is done when this replica finds that it was declared dead. It has taken a new nonce by then:
// what its clients' sessions held is released. Set it before [Store.Run].
func (s *Store) OnOwnTombstone(f func()) {
	s.lease.mu.Lock()
	defer s.lease.mu.Unlock()
	s.lease.onOwnTomb = f
}

func (l *lease) registered(nonce uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known == nonce
}

func (s *Store) leaseKey(nonce uint64) string { return s.prefix + "lease:" + nonceName(nonce) }
func (s *Store) tombKey(nonce uint64) string  { return s.prefix + "dead:" + nonceName(nonce) }
func (s *Store) claimKey(nonce uint64) string { return s.prefix + "claim:" + nonceName(nonce) }
func (s *Store) registryKey() string          { return s.prefix + "replicas" }

// nonceName is how a nonce is written in keys, messages and the log.
func nonceName(nonce uint64) string { return fmt.Sprintf("%016x", nonce) }

// register returns the commands that make or renew a lease: the lease first, so that no replica is ever in the registry
// before it has one.
func (s *Store) register(nonce uint64) [][]any {
	return [][]any{
		{"SET", s.leaseKey(nonce), "1", "PX", s.opt.Lease.Milliseconds()},
		{"SADD", s.registryKey(), nonceName(nonce)},
	}
}

// keepLease renews this replica's lease until ctx ends.
func (s *Store) keepLease(ctx context.Context) {
	for every(ctx, s.opt.Lease/3, func() { s.renew(ctx) }) {
	}
}

// every calls f, then waits for about d; false if ctx has ended.
func every(ctx context.Context, d time.Duration, f func()) bool {
	f()
	timer := time.NewTimer(d - rand.N(d/10+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// renew keeps the lease, or takes a new nonce if a tombstone says that this replica counts as dead.
func (s *Store) renew(ctx context.Context) {
	nonce := s.Nonce()
	sent := time.Now()
	commands := append([][]any{{"EXISTS", s.tombKey(nonce)}, {"TIME"}, {"EXISTS", s.leaseKey(nonce)}}, s.register(nonce)...)
	values, err := s.roundTrip(ctx, commands...)
	if err != nil {
		return // the outage is told elsewhere
	}
	s.learnTime(values[1], sent)
	s.doubtLeases(nonce, values[2])
	s.lease.mu.Lock()
	s.lease.known = nonce
	s.lease.mu.Unlock()
	if values[0] != int64(0) {
		s.rise(ctx, nonce)
	}
}

func (s *Store) learnTime(v any, sent time.Time) {
	list, _ := v.([]any)
	if len(list) != 2 {
		return
	}
	var t [2]int64
	for i := range t {
		digits, _ := list[i].(string)
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return
		}
		t[i] = n
	}
	s.clock.learn(t[0]*1_000_000+t[1], sent)
}

// rise goes on under a new nonce after this replica was declared dead.
func (s *Store) rise(ctx context.Context, old uint64) {
	s.lease.nonce.Store(randomNonce())
	s.log.Warn().Str("replica", nonceName(old)).Str("now", nonceName(s.Nonce())).
		Msg("this replica was declared dead; what its clients held was released, it goes on under a new name")
	s.lease.mu.Lock()
	f := s.lease.onOwnTomb
	s.lease.mu.Unlock()
	// The old lease and registration are ours to take back: nobody else will renew them.
	_, _ = s.roundTrip(ctx, []any{"DEL", s.leaseKey(old)}, []any{"SREM", s.registryKey(), nonceName(old)})
	s.renew(ctx)
	if f != nil {
		f()
	}
}

// dropLease is the clean end of this replica.
func (s *Store) dropLease(ctx context.Context) {
	nonce := s.Nonce()
	values, err := s.roundTrip(ctx, []any{"SCARD", s.sessionsKey(nonce)})
	if err != nil {
		return
	}
	commands := [][]any{{"DEL", s.leaseKey(nonce)}}
	if values[0] == int64(0) {
		commands = append(commands, []any{"SREM", s.registryKey(), nonceName(nonce)})
	}
	_, _ = s.roundTrip(ctx, commands...)
}

// watchReplicas looks for dead replicas about each second until ctx ends.
func (s *Store) watchReplicas(ctx context.Context) {
	for every(ctx, min(time.Second, s.opt.Lease/3), func() { s.findDead(ctx) }) {
	}
}

// findDead buries the replicas without a lease. Leases say nothing while Redis was away, or has lost its memory, within
// the last lease time: the others may not have been able to renew theirs.
func (s *Store) findDead(ctx context.Context) {
	self := s.Nonce()
	values, err := s.roundTrip(ctx, []any{"EXISTS", s.leaseKey(self)}, []any{"SMEMBERS", s.registryKey()})
	if err != nil {
		return
	}
	s.doubtLeases(self, values[0])
	if s.outage.answeredFor() < s.opt.Lease {
		return
	}
	var others []uint64
	var commands [][]any
	for _, name := range stringsOf(values[1]) {
		nonce, err := strconv.ParseUint(name, 16, 64)
		if err != nil || nonce == self {
			continue
		}
		others = append(others, nonce)
		commands = append(commands, []any{"EXISTS", s.leaseKey(nonce)})
	}
	if len(others) == 0 {
		return
	}
	if values, err = s.roundTrip(ctx, commands...); err != nil {
		return
	}
	for i, nonce := range others {
		if values[i] == int64(0) {
			s.bury(ctx, nonce)
		}
	}
}

// doubtLeases takes whether our own lease is there. If Redis has forgotten it, perhaps it has the others' too, who must
// have time to renew them.
func (s *Store) doubtLeases(nonce uint64, exists any) {
	if exists == int64(0) && s.lease.registered(nonce) {
		s.outage.restart()
	}
}

var errAlive = errors.New("the replica has a lease again")

// bury handles one dead replica, if no other survivor is at it.
func (s *Store) bury(ctx context.Context, dead uint64) {
	claim := []any{"SET", s.claimKey(dead), nonceName(s.Nonce()), "NX", "PX", 2 * s.opt.Lease.Milliseconds()}
	values, err := s.roundTrip(ctx, claim)
	if err != nil || values[0] == nil {
		return
	}
	log := s.log.With().Str("replica", nonceName(dead)).Logger()
	log.Warn().Msg("a replica is dead; releasing what its sessions held")
	if err := s.release(ctx, dead); err != nil {
		log.Error().Err(err).Msg("could not release what a dead replica held; trying again")
		_, _ = s.roundTrip(ctx, []any{"DEL", s.claimKey(dead)})
		return
	}
	n, err := s.burySessions(ctx, dead)
	switch {
	case errors.Is(err, errAlive):
		log.Warn().Msg("the replica has come back; it keeps its sessions")
	case err != nil:
		log.Error().Err(err).Msg("could not remove a dead replica's sessions; trying again")
		_, _ = s.roundTrip(ctx, []any{"DEL", s.claimKey(dead)})
	default:
		log.Warn().Int("sessions", n).Msg("a dead replica's sessions are removed")
	}
}

// release lets the owner of the state machines free what the replica held.
func (s *Store) release(ctx context.Context, dead uint64) error {
	s.lease.mu.Lock()
	f := s.lease.onDead
	s.lease.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx, dead)
}

// burySessions removes the replica's sessions and leaves the tombstone. What names the replica goes last.
func (s *Store) burySessions(ctx context.Context, dead uint64) (int, error) {
	values, err := s.roundTrip(ctx, []any{"SMEMBERS", s.sessionsKey(dead)}, []any{"EXISTS", s.leaseKey(dead)})
	if err != nil {
		return 0, err
	}
	if values[1] != int64(0) {
		return 0, errAlive
	}
	names := stringsOf(values[0])
	id := binary.BigEndian.AppendUint64(nil, dead)
	for len(names) > 0 {
		n := min(len(names), pipelineCalls)
		commands := make([][]any, 0, n)
		for _, name := range names[:n] {
			commands = append(commands, []any{"EVAL", buryScript.body, 1, s.prefix + sessionPrefix + "{" + name + "}", id})
		}
		if _, err := s.roundTrip(ctx, commands...); err != nil {
			return 0, err
		}
		names = names[n:]
	}
	_, err = s.roundTrip(ctx,
		[]any{"SET", s.tombKey(dead), "1", "PX", s.opt.TombstoneTTL.Milliseconds()},
		[]any{"DEL", s.sessionsKey(dead)},
		[]any{"SREM", s.registryKey(), nonceName(dead)},
		[]any{"DEL", s.claimKey(dead)})
	return len(stringsOf(values[0])), err
}
