package statelog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

var sk = SessionKey{Group: "g{1}/x", Member: "m:1", Node: 3}

func open(t testing.TB, s *Store, conn uint64, body string) Session {
	t.Helper()
	x, ok, err := s.OpenSession(sk, conn, []byte(body)).Wait(bg)
	if err != nil || !ok {
		t.Fatalf("open: %v %v", ok, err)
	}
	return x
}

func same(a, b Session) bool {
	return a.Opened == b.Opened && a.Replica == b.Replica && a.Conn == b.Conn && a.Epoch == b.Epoch && string(a.Body) == string(b.Body)
}

func load(t testing.TB, s *Store) (Session, bool) {
	t.Helper()
	x, ok, err := s.LoadSession(bg, sk)
	if err != nil {
		t.Fatal(err)
	}
	return x, ok
}

func TestSessionMovesOnlyFromTheHeaderThatWasSeen(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		a, b := newStore(t, srv.addr()), newStore(t, srv.addr())
		if _, ok := load(t, a); ok {
			t.Fatal("a session before any was opened")
		}
		if x, ok, err := a.MoveSession(sk, Session{Opened: 1}, 2, nil).Wait(bg); err != nil || ok || !same(x, Session{}) {
			t.Fatalf("moved a session that is not there: %+v %v %v", x, ok, err)
		}
		first := open(t, a, 11, "parts")
		if first.Epoch != 1 || first.Replica != a.Nonce() || first.Conn != 11 || first.Opened == 0 {
			t.Fatalf("%+v", first)
		}
		if x, ok := load(t, b); !ok || !same(x, first) {
			t.Fatalf("loaded %+v", x)
		}
		second, ok, err := b.MoveSession(sk, first, 2, nil).Wait(bg) // by another replica
		if err != nil || !ok || second.Epoch != 2 || string(second.Body) != "parts" || second.Replica != a.Nonce() {
			t.Fatalf("%+v %v %v", second, ok, err)
		}
		if x, ok, err := a.MoveSession(sk, first, 2, nil).Wait(bg); err != nil || ok || !same(x, second) {
			t.Fatalf("moved twice from one epoch: %+v %v %v", x, ok, err)
		}
		third, ok, err := a.MoveSession(sk, second, 3, []byte("others")).Wait(bg)
		if err != nil || !ok || string(third.Body) != "others" {
			t.Fatalf("%+v %v %v", third, ok, err)
		}
		if x, _ := load(t, b); !same(x, third) {
			t.Fatalf("loaded %+v", x)
		}
		fourth, ok, err := a.MoveSession(sk, third, 4, []byte{}).Wait(bg)
		if err != nil || !ok || len(fourth.Body) != 0 {
			t.Fatalf("%+v %v %v", fourth, ok, err)
		}
		if x, _ := load(t, b); !same(x, fourth) {
			t.Fatalf("loaded %+v", x)
		}
	})
}

func TestOfRacingMovesFromOneEpochExactlyOneWins(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		var stores []*Store
		for range 4 {
			stores = append(stores, newStore(t, srv.addr()))
		}
		x := open(t, stores[0], 1, "")
		for round := range 20 {
			var won atomic.Int32
			var wg sync.WaitGroup
			for _, s := range stores {
				wg.Go(func() {
					_, ok, err := s.MoveSession(sk, x, x.Epoch+1, nil).Wait(bg)
					if err != nil {
						t.Error(err)
					}
					if ok {
						won.Add(1)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Fatalf("round %d: %d winners", round, won.Load())
			}
			x.Epoch++
		}
	})
}

func TestOldConnectionDoesNotCloseTheSessionThatReplacedItsOwn(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		a, b := newStore(t, srv.addr()), newStore(t, srv.addr())
		old := open(t, a, 1, "old")
		now := open(t, b, 2, "new")
		if now.Opened <= old.Opened {
			t.Fatalf("opened %d, then %d", old.Opened, now.Opened)
		}
		if x, ok, err := a.CloseSession(sk, old.Opened, old.Replica).Wait(bg); err != nil || ok || !same(x, now) {
			t.Fatalf("%+v %v %v", x, ok, err)
		}
		if _, ok := load(t, a); !ok {
			t.Fatal("the new session is gone")
		}
		moved, _, err := a.MoveSession(sk, now, 7, nil).Wait(bg)
		if err != nil {
			t.Fatal(err)
		}
		if x, ok, err := b.CloseSession(sk, moved.Opened, moved.Replica).Wait(bg); err != nil || !ok || !same(x, moved) {
			t.Fatalf("%+v %v %v", x, ok, err)
		}
		if _, ok := load(t, a); ok {
			t.Fatal("still there")
		}
		if x, ok, err := b.CloseSession(sk, moved.Opened, moved.Replica).Wait(bg); err != nil || ok || !same(x, Session{}) {
			t.Fatalf("%+v %v %v", x, ok, err)
		}
	})
}

func TestOpenedRisesEvenWhenTheClockDoesNot(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		s := newStore(t, srv.addr())
		open(t, s, 1, "")
		// The stored time is far ahead of the clock, and its last digits carry over.
		ahead := Session{Opened: 8_999_999_999_999_999, Replica: 5, Conn: 6, Epoch: 7}
		if err := s.client.Set(bg, s.sessionKey(sk), string(ahead.head()), 0).Err(); err != nil {
			t.Fatal(err)
		}
		for i := range int64(5) {
			if x := open(t, s, 1, "body"); x.Opened != ahead.Opened+1+i {
				t.Fatalf("opened %d, want %d", x.Opened, ahead.Opened+1+i)
			}
		}
	})
}

// countSessions returns how many sessions this replica has opened and not closed.
func (s *Store) countSessions(ctx context.Context) (int, error) {
	values, err := s.roundTrip(ctx, []any{"SCARD", s.sessionsKey(s.Nonce())})
	if err != nil {
		return 0, fmt.Errorf("sessions: %w", err)
	}
	n, _ := values[0].(int64)
	return int(n), nil
}

func TestAReplicaCountsTheSessionsThatItOpened(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		a, b := newStore(t, srv.addr()), newStore(t, srv.addr())
		for i := range 5 {
			if _, _, err := a.OpenSession(SessionKey{"g", fmt.Sprint(i), 0}, 1, nil).Wait(bg); err != nil {
				t.Fatal(err)
			}
		}
		counts := func(na, nb int) func() bool {
			return func() bool {
				x, err1 := a.countSessions(bg)
				y, err2 := b.countSessions(bg)
				return err1 == nil && err2 == nil && x == na && y == nb
			}
		}
		eventually(t, "5 and 0", counts(5, 0))
		x, _, err := b.OpenSession(SessionKey{"g", "2", 0}, 1, nil).Wait(bg) // taken over
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "4 and 1", counts(4, 1))
		if _, _, err := a.CloseSession(SessionKey{"g", "2", 0}, x.Opened, x.Replica).Wait(bg); err != nil {
			t.Fatal(err)
		}
		eventually(t, "4 and 0", counts(4, 0))
	})
}
