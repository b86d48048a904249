package statelog

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// appendRaw puts bytes behind the log as another program would.
func appendRaw(t testing.TB, l *Log[*book], b []byte) {
	t.Helper()
	if err := l.core.store.client.Append(bg, l.core.key, string(b)).Err(); err != nil {
		t.Fatal(err)
	}
}

func opsFrame(tok token, ops ...string) []byte {
	var list [][]byte
	for _, op := range ops {
		list = append(list, []byte(op))
	}
	return appendFrame(nil, kindOps, appendOps(nil, list), time.Now().UnixMicro(), tok)
}

func TestWhatIsNotUnderstoodStopsTheKeyAndNothingElse(t *testing.T) {
	broken := opsFrame(token{9, 1}, "fine")
	broken[7] ^= 1
	for name, bad := range map[string][]byte{
		"unknown op":   opsFrame(token{9, 1}, "fine", "?"),
		"checksum":     broken,
		"panic":        opsFrame(token{9, 1}, "!"),
		"unknown kind": appendFrame(nil, 77, []byte("x"), 1, token{9, 1}),
		"cut":          opsFrame(token{9, 1}, "fine")[:20],
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, srv server) {
				s := newStore(t, srv.addr())
				logs := NewLogs(s, "book", newBook)
				bystander, l := logs.Get("other"), logs.Get("g")
				mustCreate(t, bystander)
				mustCreate(t, l)
				add(t, l, "a")
				appendRaw(t, l, bad)
				w := l.Watch()
				defer w.Close()
				err := l.View(bg, 0, func(*book) {})
				if !errors.Is(err, ErrStopped) {
					t.Fatalf("view: %v", err)
				}
				told(t, w)
				if _, err := l.Submit([]byte("b")).Wait(bg); !errors.Is(err, ErrStopped) || errors.Is(err, ErrUnavailable) {
					t.Fatalf("submit: %v", err)
				}
				if s.Stats().Stops != 1 {
					t.Fatalf("%d stops", s.Stats().Stops)
				}
				add(t, bystander, "fine")
				// A replica that comes new to the key does not append to it either.
				fresh := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
				all := admin(t, srv)
				before, err := all.StrLen(bg, l.core.key).Result()
				if err != nil || before == 0 {
					t.Fatalf("a log of %d bytes, %v", before, err)
				}
				if _, err := fresh.Submit([]byte("c")).Wait(bg); !errors.Is(err, ErrStopped) {
					t.Fatalf("fresh: %v", err)
				}
				if after, err := all.StrLen(bg, l.core.key).Result(); err != nil || after != before {
					t.Fatalf("appended to a log that it does not understand: %d bytes after %d, %v", after, before, err)
				}
			})
		})
	}
}

func TestAFrameSentIntoAStoppedLogHasNoKnownOutcome(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		l := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		mustCreate(t, l)
		appendRaw(t, l, opsFrame(token{9, 1}, "?"))
		_, err := l.Submit([]byte("b")).Wait(bg)
		if !errors.Is(err, ErrStopped) || !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestNewerSnapshotsAreRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		newer := NewLogs(newStore(t, srv.addr()), "book", newBook, Semantics[*book](2)).Get("g")
		mustCreate(t, newer)
		add(t, newer, "a")
		old := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		if err := old.View(bg, 0, func(*book) {}); !errors.Is(err, ErrStopped) || !errors.Is(err, errVersion) {
			t.Fatalf("got %v", err)
		}
		payload := append([]byte{formatVersion + 1, 1}, make([]byte, 40)...)
		key := old.core.family.get("h").key
		if err := newer.core.store.client.Set(bg, key, string(appendFrame(nil, kindSnapshot, payload, 0, token{1, 1})), 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := (&Log[*book]{old.core.family.get("h")}).View(bg, 0, func(*book) {}); !errors.Is(err, errVersion) {
			t.Fatalf("got %v", err)
		}
		add(t, newer, "b") // it goes on
	})
}

func TestAStoppedKeyIsLookedAtAgainLater(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		l := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		mustCreate(t, l)
		good, _ := l.core.store.client.Get(bg, l.core.key).Result()
		appendRaw(t, l, []byte("rubbish"))
		if err := l.View(bg, 0, func(*book) {}); !errors.Is(err, ErrStopped) {
			t.Fatalf("got %v", err)
		}
		if err := l.core.store.client.Set(bg, l.core.key, good, 0).Err(); err != nil {
			t.Fatal(err)
		}
		l.core.mu.Lock()
		l.core.stoppedAt = l.core.stoppedAt.Add(-2 * stopRetry)
		l.core.mu.Unlock()
		add(t, l, "mended")
	})
}

func TestDivergenceIsCountedAndTheSnapshotWins(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		for _, ahead := range []bool{false, true} {
			t.Run(fmt.Sprintf("ahead=%v", ahead), func(t *testing.T) {
				name := fmt.Sprintf("g%v", ahead)
				good := NewLogs(newStore(t, srv.addr()), "book", newBook).Get(name)
				bad := NewLogs(newStore(t, srv.addr()), "book", func() *book { return &book{salt: 1} }).Get(name)
				mustCreate(t, good)
				entries(t, bad)
				add(t, good, "a")
				entries(t, bad) // folds "a" wrongly
				if ahead {
					// bad is past the snapshot's place when it meets it: compared where it stands.
					third := NewLogs(newStore(t, srv.addr()), "book", newBook).Get(name)
					add(t, third, "b")
					entries(t, bad)
				}
				compactHere(t, good)
				got := entries(t, bad)
				if !slices.Contains(got, "a") || slices.Contains(got, "ax") {
					t.Fatalf("the snapshot did not win: %q", got)
				}
				if n := bad.core.store.Stats().Divergences; n != 1 {
					t.Fatalf("%d divergences", n)
				}
				entries(t, good)
				if n := good.core.store.Stats().Divergences; n != 0 {
					t.Fatalf("the good replica saw %d divergences", n)
				}
			})
		}
	})
}

func TestALogAtItsCapIsCompactedAndElseRefusesOps(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		small := func(o *Options) { o.MaxLog = 2000 }
		tl := NewLogs(newStore(t, srv.addr(), small), "tally", func() *tally { return &tally{} }).Get("t")
		if _, err := tl.Create(bg, &tally{}); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if _, err := tl.Submit(make([]byte, 100)).Wait(bg); err != nil {
				t.Fatal(err)
			}
		}
		if n := tl.core.store.Stats().Compactions; n < 4 {
			t.Fatalf("%d compactions", n)
		}
		l := NewLogs(newStore(t, srv.addr(), small), "book", newBook).Get("g")
		mustCreate(t, l)
		var err error
		for i := 0; i < 100 && err == nil; i++ {
			_, err = l.Submit(make([]byte, 100)).Wait(bg)
		}
		if !errors.Is(err, ErrFull) {
			t.Fatalf("got %v", err)
		}
		entries(t, l) // reading goes on
	})
}
