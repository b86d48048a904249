package statelog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestRedisStoppedAndStartedAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		s := newStore(t, srv.addr(), func(o *Options) { o.Timeout = 400 * time.Millisecond })
		run(t, s)
		logs := NewLogs(s, "book", newBook)
		l := logs.Get("g")
		eventually(t, "health", func() bool { return s.Healthy() == nil })
		mustCreate(t, l)
		add(t, l, "before")
		w := l.Watch()
		defer w.Close()

		srv.stop()
		eventually(t, "the loss to be noticed", func() bool { return s.Healthy() != nil })
		if !errors.Is(s.Healthy(), ErrUnavailable) {
			t.Fatal(s.Healthy())
		}
		// Nobody waits for these: they must neither pile up nor be applied later.
		for range 200 {
			l.Submit([]byte("forgotten"))
		}
		for range 3 {
			start := time.Now()
			if _, err := l.Submit([]byte("away")).Wait(bg); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("submit: %v", err)
			}
			if err := l.View(bg, 0, func(*book) {}); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("view: %v", err)
			}
			if _, _, err := s.LoadSession(bg, SessionKey{"g", "m", 1}); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("session: %v", err)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Fatalf("three calls took %v", took)
			}
		}
		start := time.Now() // once the outage is older than the time-out, nobody waits for it
		if _, err := l.Submit([]byte("away")).Wait(bg); !errors.Is(err, ErrUnavailable) || time.Since(start) > 200*time.Millisecond {
			t.Fatalf("%v after %v", err, time.Since(start))
		}

		srv.start()
		eventually(t, "health", func() bool { return s.Healthy() == nil })
		eventually(t, "service", func() bool {
			_, err := l.Submit([]byte("after")).Wait(bg)
			return err == nil
		})
		list := entries(t, l)
		if list[0] != "before" || count(list, "away") > 0 || count(list, "forgotten") > 0 {
			t.Fatalf("book %q", list)
		}
	})
}

// Not beside other tests: it counts goroutines.
func TestAnOutageCostsOneGoroutineHoweverManyKeysWait(t *testing.T) {
	srv := startFake(t)
	s := newStore(t, srv.addr(), func(o *Options) { o.CatchUp = 50 * time.Millisecond; o.Timeout = time.Minute })
	logs := NewLogs(s, "book", newBook)
	const keys = 300
	for i := range keys {
		l := logs.Get(fmt.Sprint(i))
		mustCreate(t, l)
		w := l.Watch()
		defer w.Close()
		add(t, l, "first")
	}
	srv.stop()
	eventually(t, "the loss to be noticed", func() bool { return s.Healthy() != nil })
	before := runtime.NumGoroutine()
	var ps []*Pending
	for i := range keys {
		ps = append(ps, logs.Get(fmt.Sprint(i)).Submit([]byte("second")))
	}
	least := math.MaxInt // timers that fire come and go, on a busy machine many at once
	for range 100 {      // while catch-ups fall due again and again
		least = min(least, runtime.NumGoroutine())
		pause(2 * time.Millisecond)
	}
	if least > before+keys/4 {
		t.Fatalf("%d goroutines, then never less than %d", before, least)
	}
	srv.start()
	for _, p := range ps {
		results, err := p.Wait(bg)
		if err != nil {
			t.Fatal(err)
		}
		if place(t, results[0]) != 1 {
			t.Fatal("not at its place")
		}
	}
}

func TestAWatchedLogCatchesUpAfterAnOutageByItself(t *testing.T) {
	for _, period := range []time.Duration{50 * time.Millisecond, time.Hour} { // by its timer, by the new subscription
		t.Run(period.String(), func(t *testing.T) { catchUpAfterAnOutage(t, period) })
	}
}

func catchUpAfterAnOutage(t *testing.T, period time.Duration) {
	onBoth(t, func(t *testing.T, srv server) {
		f := newFaultyNet(t, srv.addr())
		s := newStore(t, f.addr(), func(o *Options) { o.CatchUp = period })
		run(t, s)
		l := NewLogs(s, "book", newBook).Get("g")
		mustCreate(t, l)
		subscribed(t, s)
		w := l.Watch()
		defer w.Close()
		eventually(t, "the first catch-up", func() bool { return known(l) == 0 })
		f.judge(func([]byte) verdict { return cutBefore })
		f.cutAll()
		eventually(t, "the loss to be noticed", func() bool { return s.Healthy() != nil })
		direct := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		add(t, direct, "meanwhile")
		f.judge(nil)
		eventually(t, "the op to be known", func() bool {
			n := 0
			l.Cached(func(b *book) { n = len(b.entries) })
			return n == 1
		})
		add(t, direct, "wake-me") // the subscription is back too
		eventually(t, "the wake-up", func() bool {
			n := 0
			l.Cached(func(b *book) { n = len(b.entries) })
			return n == 2
		})
	})
}

func TestAWipedLogIsPutBackByAReplicaThatKnowsIt(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		live := Reseed(func(b *book) bool { return len(b.entries) > 0 })
		var logs []*Log[*book]
		for range 4 {
			logs = append(logs, NewLogs(newStore(t, srv.addr()), "book", newBook, live).Get("g"))
		}
		mustCreate(t, logs[0])
		add(t, logs[0], "settled")
		for _, l := range logs[1:] {
			entries(t, l)
		}
		add(t, logs[0], "newest") // the others do not know it yet
		if err := admin(t, srv).FlushAll(bg).Err(); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i, l := range logs {
			wg.Go(func() {
				if _, err := l.Submit(fmt.Appendf(nil, "after-%d", i)).Wait(bg); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		list := entries(t, logs[0])
		if list[0] != "settled" {
			t.Fatalf("book %q", list)
		}
		var reseeds int64
		for i, l := range logs {
			if n := count(entries(t, l), fmt.Sprintf("after-%d", i)); n != 1 {
				t.Fatalf("op of %d is there %d times", i, n)
			}
			if content(l) != content(logs[0]) {
				t.Fatal("copies differ")
			}
			reseeds += l.core.store.Stats().Reseeds
			if n := l.core.store.Stats().Divergences; n > 0 {
				t.Fatalf("%d divergences", n)
			}
		}
		if reseeds != 1 {
			t.Fatalf("put back %d times", reseeds)
		}
	})
}

func TestAWipedLogThatIsNotLiveStaysMissing(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		l := NewLogs(newStore(t, srv.addr()), "book", newBook, Reseed(func(*book) bool { return false })).Get("g")
		mustCreate(t, l)
		add(t, l, "a")
		w := l.Watch()
		defer w.Close()
		if err := admin(t, srv).FlushAll(bg).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Submit([]byte("b")).Wait(bg); !errors.Is(err, ErrMissing) {
			t.Fatalf("got %v", err)
		}
		told(t, w)
	})
}

// A frame that is on its way while Redis is wiped must not count in the log that is put back.
func TestLateFrameDoesNotCountInALogThatWasPutBack(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		f := newFaultyNet(t, srv.addr())
		l := NewLogs(newStore(t, f.addr()), "book", newBook, Reseed(func(*book) bool { return true })).Get("g")
		mustCreate(t, l)
		add(t, l, "first")
		direct := admin(t, srv)
		held := f.once(hold, []byte("late"))
		plan := *f.plan.Load()
		f.judge(func(request []byte) verdict {
			v := plan(request)
			if v == hold {
				if err := direct.FlushAll(bg).Err(); err != nil {
					t.Error(err)
				}
			}
			return v
		})
		if got := add(t, l, "late"); got != 1 || !held() {
			t.Fatalf("place %d", got)
		}
		f.release()
		fresh := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		if got := entries(t, fresh); !slices.Equal(got, []string{"first", "late"}) {
			t.Fatalf("book %q", got)
		}
	})
}

func TestARolledBackTailOfEqualLengthIsNoticed(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		a := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		b := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		mustCreate(t, a)
		add(t, a, "kept")
		entries(t, b)
		client, key := a.core.store.client, a.core.key
		before, err := client.Get(bg, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		add(t, a, "lost")
		// Redis fails over to a copy without the last op, and another replica appends one of the same size.
		if err := client.Set(bg, key, before, 0).Err(); err != nil {
			t.Fatal(err)
		}
		add(t, b, "othr")
		if got := entries(t, a); !slices.Equal(got, []string{"kept", "othr"}) {
			t.Fatalf("after a read: book %q", got)
		}
		// The same, noticed by an append.
		if err := client.Set(bg, key, before, 0).Err(); err != nil {
			t.Fatal(err)
		}
		add(t, b, "mine")
		if got := add(t, a, "next"); got != 2 {
			t.Fatalf("place %d, want 2", got)
		}
		if content(a) == content(b) {
			t.Fatal("b cannot know the last op yet")
		}
		entries(t, b)
		if content(a) != content(b) {
			t.Fatal("copies differ")
		}
	})
}

func TestEndOfContextIsNotAnAnswerOfRedis(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		f := newFaultyNet(t, srv.addr())
		l := NewLogs(newStore(t, f.addr()), "book", newBook).Get("g")
		mustCreate(t, l)
		add(t, l, "first")
		reached := make(chan struct{})
		var once sync.Once
		f.judge(func([]byte) verdict { once.Do(func() { close(reached) }); return stall })
		ctx, cancel := context.WithCancel(bg)
		p := l.Submit([]byte("op"))
		go func() { <-reached; cancel() }()
		if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		f.judge(nil)
		f.cutAll()
		if _, err := p.Wait(bg); err != nil { // it went on its way all the same
			t.Fatal(err)
		}
	})
}
