package statelog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// deaths records what a store is told of dead replicas.
type deaths struct {
	mu   sync.Mutex
	list []uint64
	err  error // to be returned
}

func (d *deaths) of(s *Store) *deaths {
	s.OnReplicaDead(func(_ context.Context, replica uint64) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.list = append(d.list, replica)
		return d.err
	})
	return d
}

func (d *deaths) fail(err error) { d.mu.Lock(); d.err = err; d.mu.Unlock() }

func (d *deaths) count(replica uint64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, r := range d.list {
		if r == replica {
			n++
		}
	}
	return n
}

func registered(t testing.TB, s *Store) {
	t.Helper()
	eventually(t, "registration", func() bool { return s.lease.registered(s.Nonce()) })
}

func exists(t testing.TB, s *Store, key string) bool {
	n, err := s.client.Exists(bg, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

func openAs(t testing.TB, s *Store, member string) {
	t.Helper()
	if _, ok, err := s.OpenSession(SessionKey{"g", member, 1}, 1, nil).Wait(bg); err != nil || !ok {
		t.Fatal(ok, err)
	}
}

func hasSession(t testing.TB, s *Store, member string) bool {
	t.Helper()
	_, ok, err := s.LoadSession(bg, SessionKey{"g", member, 1})
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestDeadReplicasSessionsGoAfterTheReleaseSucceeded(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		dead, alive, third := newStore(t, srv.addr()), newStore(t, srv.addr()), newStore(t, srv.addr())
		var told deaths
		told.of(alive)
		told.of(third)
		told.fail(errors.New("not yet"))
		kill := run(t, dead)
		run(t, alive)
		run(t, third)
		registered(t, dead)
		registered(t, alive)
		openAs(t, dead, "m1")
		openAs(t, dead, "m2")
		openAs(t, alive, "m3")
		openAs(t, alive, "m2") // taken over: no longer the dead one's
		kill()
		nonce := dead.Nonce()
		// The taken-over session may still be in the dead one's list.
		if err := alive.client.SAdd(bg, alive.sessionsKey(nonce), SessionKey{"g", "m2", 1}.name()).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "two tries", func() bool { return told.count(nonce) >= 2 })
		if !hasSession(t, alive, "m1") || exists(t, alive, alive.tombKey(nonce)) {
			t.Fatal("cleaned up although the release failed")
		}
		told.fail(nil)
		eventually(t, "the tombstone", func() bool { return exists(t, alive, alive.tombKey(nonce)) })
		if hasSession(t, alive, "m1") {
			t.Fatal("a dead replica's session is still there")
		}
		if !hasSession(t, alive, "m2") || !hasSession(t, alive, "m3") {
			t.Fatal("a live replica's session is gone")
		}
		eventually(t, "its list of sessions to go", func() bool { return !exists(t, alive, alive.sessionsKey(nonce)) })
		n := told.count(nonce)
		pause(3 * alive.opt.Lease / 3)
		if told.count(nonce) != n {
			t.Fatal("buried again")
		}
		if told.count(alive.Nonce())+told.count(third.Nonce()) > 0 {
			t.Fatal("a live replica was declared dead")
		}
	})
}

func TestAReplicaJustStartedFindsWhoDiedBeforeIt(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		dead := newStore(t, srv.addr())
		openAs(t, dead, "m") // before its first renewal
		fresh := newStore(t, srv.addr())
		told := (&deaths{}).of(fresh)
		run(t, fresh)
		eventually(t, "the death", func() bool { return told.count(dead.Nonce()) == 1 && !hasSession(t, fresh, "m") })
	})
}

func TestReplicaThatFindsItsOwnTombstoneGoesOnUnderANewNonce(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		s := newStore(t, srv.addr())
		other := newStore(t, srv.addr())
		told := (&deaths{}).of(other)
		var risen atomic.Int32
		s.OnOwnTombstone(func() { risen.Add(1) })
		stop := run(t, s)
		run(t, other)
		registered(t, s)
		old := s.Nonce()
		openAs(t, s, "m")
		stop() // paused
		eventually(t, "its burial", func() bool { return exists(t, other, other.tombKey(old)) })
		run(t, s) // goes on
		eventually(t, "its rise", func() bool { return risen.Load() == 1 })
		if s.Nonce() == old {
			t.Fatal("same nonce")
		}
		registered(t, s)
		openAs(t, s, "m")
		x, _, _ := s.LoadSession(bg, SessionKey{"g", "m", 1})
		if x.Replica != s.Nonce() {
			t.Fatalf("opened as %x", x.Replica)
		}
		pause(2 * s.opt.Lease)
		if !hasSession(t, s, "m") || told.count(s.Nonce()) > 0 || told.count(old) != 1 {
			t.Fatal("declared dead again")
		}
	})
}

func TestNobodyIsDeclaredDeadForAnOutageOrALossOfRedis(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		a, b := newStore(t, srv.addr()), newStore(t, srv.addr())
		told := (&deaths{}).of(a)
		told.of(b)
		run(t, a)
		run(t, b)
		registered(t, a)
		registered(t, b)
		openAs(t, a, "m1")
		openAs(t, b, "m2")
		pause(2 * a.opt.Lease) // both would be declared dead on any other evidence than leases
		srv.stop()
		eventually(t, "the loss", func() bool { return a.Healthy() != nil && b.Healthy() != nil })
		pause(2 * a.opt.Lease) // all leases lapse
		srv.start()
		eventually(t, "health", func() bool { return a.Healthy() == nil && b.Healthy() == nil })
		pause(2 * a.opt.Lease)
		// Leases gone but not the registry: what a restart from an old copy looks like.
		if err := a.client.Del(bg, a.leaseKey(a.Nonce()), a.leaseKey(b.Nonce())).Err(); err != nil {
			t.Fatal(err)
		}
		pause(2 * a.opt.Lease)
		if n := told.count(a.Nonce()) + told.count(b.Nonce()); n > 0 {
			t.Fatalf("%d deaths of live replicas", n)
		}
		if err := admin(t, srv).FlushAll(bg).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "registration after a wipe", func() bool {
			return exists(t, a, a.leaseKey(a.Nonce())) && exists(t, a, a.leaseKey(b.Nonce())) && exists(t, a, a.registryKey())
		})
		if n := len(told.list); n > 0 {
			t.Fatalf("%d deaths", n)
		}
	})
}

func TestCleanEndIsNotADeathUnlessSessionsAreLeft(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		alive := newStore(t, srv.addr())
		told := (&deaths{}).of(alive)
		run(t, alive)
		clean, messy := newStore(t, srv.addr()), newStore(t, srv.addr())
		for i, s := range []*Store{clean, messy} {
			stop := run(t, s)
			registered(t, s)
			member := fmt.Sprint(i)
			openAs(t, s, member)
			if s == clean {
				x, _, _ := s.LoadSession(bg, SessionKey{"g", member, 1})
				if _, _, err := s.CloseSession(SessionKey{"g", member, 1}, x.Opened, x.Replica).Wait(bg); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the list to be empty", func() bool { n, err := s.countSessions(bg); return err == nil && n == 0 })
			}
			stop()
			s.Close(bg)
		}
		eventually(t, "the sessions that were left to go", func() bool { return !hasSession(t, alive, "1") })
		if told.count(clean.Nonce()) != 0 {
			t.Fatal("a clean end was taken for a death")
		}
	})
}

func TestNowFollowsRedisClock(t *testing.T) {
	srv := startFake(t)
	ahead := time.Now().Add(time.Hour)
	srv.m.SetTime(ahead)
	s := newStore(t, srv.addr())
	run(t, s)
	eventually(t, "Redis' time", func() bool {
		d := time.Duration(s.Now()-ahead.UnixMicro()) * time.Microsecond
		return d > -time.Minute && d < time.Minute
	})
}
