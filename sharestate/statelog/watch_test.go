package statelog

import (
	"fmt"
	"testing"
	"time"
)

func known(l *Log[*book]) int {
	n := -1
	l.Cached(func(b *book) { n = len(b.entries) })
	return n
}

func TestWakeUpReachesAWatcherOnAnotherReplicaBeforeItsCatchUp(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		slow := func(o *Options) { o.CatchUp = time.Hour }
		here, there := newStore(t, srv.addr(), slow), newStore(t, srv.addr(), slow)
		run(t, here)
		run(t, there)
		subscribed(t, here)
		subscribed(t, there)
		a := NewLogs(here, "book", newBook).Get("g")
		b := NewLogs(there, "book", newBook).Get("g")
		mustCreate(t, a)
		entries(t, b)
		entries(t, a)
		local, remote := a.Watch(), b.Watch()
		defer local.Close()
		defer remote.Close()
		eventually(t, "first catch-ups to end", func() bool { return known(b) == 0 && drained(local) && drained(remote) })

		add(t, a, "quiet") // wakes nobody elsewhere, but is told here
		told(t, local)
		if known(b) != 0 {
			t.Fatal("an op that does not wake was heard of")
		}
		add(t, a, "wake")
		told(t, remote)
		eventually(t, "the ops", func() bool { return known(b) == 2 })
		if n := here.Stats().Published; n != 1 {
			t.Fatalf("%d messages", n)
		}
		if n := there.Stats().Published; n != 0 {
			t.Fatalf("the replica that folded another's op published %d messages", n)
		}
	})
}

// told waits for a token.
func told(t testing.TB, w *Watch) {
	t.Helper()
	select {
	case <-w.C:
	case <-time.After(20 * time.Second):
		t.Fatal("not told")
	}
}

func drained(w *Watch) bool {
	select {
	case <-w.C:
		return false
	default:
		return true
	}
}

// A view that is fresh enough by its age is not good enough when a wake-up said that there is more.
func TestWakeUpMakesAnUnwatchedCopyStale(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		here, there := newStore(t, srv.addr()), newStore(t, srv.addr())
		run(t, there)
		subscribed(t, there)
		a := NewLogs(here, "book", newBook).Get("g")
		b := NewLogs(there, "book", newBook).Get("g")
		mustCreate(t, a)
		entries(t, b)
		add(t, a, "wake")
		eventually(t, "a view of up to an hour's age to hold the op", func() bool {
			n := 0
			if err := b.View(bg, time.Hour, func(m *book) { n = len(m.entries) }); err != nil {
				t.Fatal(err)
			}
			return n == 1
		})
	})
}

func TestLostWakeUpIsCoveredByTheCatchUp(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		a := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		b := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g") // does not listen
		mustCreate(t, a)
		w := b.Watch()
		defer w.Close()
		eventually(t, "the first catch-up", func() bool { return known(b) == 0 })
		drained(w)
		add(t, a, "wake")
		told(t, w)
		if known(b) != 1 {
			t.Fatal("told, but not caught up")
		}
	})
}

// Promise: once a fetch waits, no write and at most one read a second per share-partition and replica.
func TestWatchedIdleLogsCostOneReadEachCatchUpAndNoWrite(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		const keys = 5
		s := newStore(t, srv.addr(), func(o *Options) { o.CatchUp = 100 * time.Millisecond; o.Lease = time.Hour })
		logs := NewLogs(s, "book", newBook)
		for i := range keys {
			l := logs.Get(fmt.Sprint(i))
			mustCreate(t, l)
			for range 3 { // three fetches wait for the same share-partition
				w := l.Watch()
				defer w.Close()
			}
		}
		unwatched := logs.Get("unwatched")
		mustCreate(t, unwatched)
		add(t, unwatched, "a")
		start, before := time.Now(), s.Stats()
		eventually(t, "20 catch-ups", func() bool { return s.Stats().Reads-before.Reads >= 4*keys })
		now := s.Stats()
		periods := int64(time.Since(start)/s.opt.CatchUp) + 1
		if reads := now.Reads - before.Reads; reads > keys*periods {
			t.Fatalf("%d reads of %d keys in %d periods", reads, keys, periods)
		}
		if now.Commands-before.Commands > now.Reads-before.Reads+keys || now.Appends != before.Appends {
			t.Fatalf("more than reads: %+v then %+v", before, now)
		}
	})
}

func TestWatchedLogThatAppendsKeepFreshIsNotReadBesides(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		s := newStore(t, srv.addr(), func(o *Options) { o.CatchUp = 300 * time.Millisecond })
		l := NewLogs(s, "book", newBook).Get("g")
		mustCreate(t, l)
		w := l.Watch()
		defer w.Close()
		entries(t, l)
		before, longest := s.Stats().Reads, time.Duration(0)
		for start, last := time.Now(), time.Now(); time.Since(start) < 4*s.opt.CatchUp; {
			add(t, l, "a")
			longest = max(longest, time.Since(last))
			last = time.Now()
			pause(5 * time.Millisecond)
		}
		if n := s.Stats().Reads - before; n > 0 && longest < s.opt.CatchUp/2 {
			t.Fatalf("%d reads beside the appends", n)
		}
	})
}

func TestClosedWatchCostsNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		s := newStore(t, srv.addr(), func(o *Options) { o.CatchUp = 20 * time.Millisecond })
		l := NewLogs(s, "book", newBook).Get("g")
		mustCreate(t, l)
		w := l.Watch()
		before := s.Stats().Reads
		eventually(t, "catch-ups", func() bool { return s.Stats().Reads > before+2 })
		w.Close()
		w.Close()
		entries(t, l) // whatever was under way has landed
		after := s.Stats().Reads
		pause(100 * time.Millisecond)
		if n := s.Stats().Reads; n != after {
			t.Fatalf("%d reads after the watch was closed", n-after)
		}
	})
}

func TestViewReadsOnlyWhenTheCopyIsTooOld(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		s := newStore(t, srv.addr())
		l := NewLogs(s, "book", newBook).Get("g")
		mustCreate(t, l)
		add(t, l, "a")
		before := s.Stats().Commands
		for range 10 {
			if err := l.View(bg, time.Hour, func(*book) {}); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.Stats().Commands - before; n != 0 {
			t.Fatalf("%d commands for a view that is fresh enough", n)
		}
		entries(t, l)
		if n := s.Stats().Commands - before; n != 1 {
			t.Fatalf("%d commands for a view of now", n)
		}
	})
}

func TestLeastRecentlyUsedCopiesAreDroppedButNeverWatchedOnes(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		s := newStore(t, srv.addr(), func(o *Options) { o.CacheKeys = 8; o.CatchUp = time.Hour })
		logs := NewLogs(s, "book", newBook)
		first, watched := logs.Get("first"), logs.Get("watched")
		mustCreate(t, first)
		mustCreate(t, watched)
		add(t, first, "a")
		w := watched.Watch()
		defer w.Close()
		entries(t, watched)
		for i := range 30 {
			l := logs.Get(fmt.Sprint(i))
			mustCreate(t, l)
			add(t, l, "a")
		}
		if n := len(logs.family.all()); n > 9 {
			t.Fatalf("%d logs kept", n)
		}
		if known(first) != -1 {
			t.Fatal("the oldest copy is still there")
		}
		if known(watched) != 0 {
			t.Fatal("a watched copy was dropped")
		}
		if add(t, first, "b") != 1 { // its handle goes on working
			t.Fatal("lost its place")
		}
	})
}

func TestIndexIsSharedAndItsChangesAreTold(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		a, b := newStore(t, srv.addr()), newStore(t, srv.addr())
		run(t, a)
		run(t, b)
		subscribed(t, a)
		subscribed(t, b)
		wa, wb := a.WatchIndex(), b.WatchIndex()
		defer wa.Close()
		defer wb.Close()
		for _, step := range []struct {
			do   func() error
			want int
		}{
			{func() error { return a.AddToIndex(bg, "g1") }, 1},
			{func() error { return a.AddToIndex(bg, "g2") }, 2},
			{func() error { return b.RemoveFromIndex(bg, "g1") }, 1},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			told(t, wa)
			told(t, wb)
			names, err := b.Index(bg)
			if err != nil || len(names) != step.want {
				t.Fatalf("%q %v, want %d", names, err, step.want)
			}
		}
		before := a.Stats().Published
		if err := a.AddToIndex(bg, "g2"); err != nil {
			t.Fatal(err)
		}
		if a.Stats().Published != before {
			t.Fatal("told a change that was none")
		}
	})
}
