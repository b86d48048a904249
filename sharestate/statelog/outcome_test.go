package statelog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// faulty returns a log whose store talks through a faulty network, and one that talks directly.
func faulty(t testing.TB, srv server) (*faultyNet, *Log[*book], *Log[*book]) {
	f := newFaultyNet(t, srv.addr())
	l := NewLogs(newStore(t, f.addr()), "book", newBook).Get("g")
	direct := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
	mustCreate(t, direct)
	add(t, direct, "zero")
	add(t, l, "one") // loaded, scripts too
	return f, l, direct
}

func compactNow(t testing.TB, l *Log[*book]) {
	t.Helper()
	entries(t, l)
	compactHere(t, l)
}

// compactHere compacts up to what l knows.
func compactHere(t testing.TB, l *Log[*book]) {
	t.Helper()
	before := l.core.store.Stats().Compactions
	l.core.mu.Lock()
	l.core.compact = true
	l.core.pump()
	l.core.mu.Unlock()
	eventually(t, "compaction", func() bool { return l.core.store.Stats().Compactions == before+1 })
}

func TestFrameWhoseReplyWasLostIsReportedAppliedOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		f, l, direct := faulty(t, srv)
		f.once(cutReply, []byte("lost-reply"))
		if got := add(t, l, "lost-reply"); got != 2 {
			t.Fatalf("place %d, want 2", got)
		}
		st := l.core.store.Stats()
		if st.Fences != 1 {
			t.Fatalf("%d fences", st.Fences)
		}
		if got := entries(t, direct); !slices.Equal(got, []string{"zero", "one", "lost-reply"}) {
			t.Fatalf("got %q", got)
		}
	})
}

func TestFrameThatNeverArrivedIsSentAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		f, l, direct := faulty(t, srv)
		f.once(cutBefore, []byte("lost-request"))
		if got := add(t, l, "lost-request"); got != 2 {
			t.Fatalf("place %d, want 2", got)
		}
		if got := entries(t, direct); !slices.Equal(got, []string{"zero", "one", "lost-request"}) {
			t.Fatalf("got %q", got)
		}
	})
}

func TestLateCopyOfAFrameIsIgnoredByEveryFold(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprintf("compacted=%v", compacted), func(t *testing.T) {
			onBoth(t, func(t *testing.T, srv server) {
				f, l, direct := faulty(t, srv)
				f.once(hold, []byte("held-back"))
				if got := add(t, l, "held-back"); got != 2 { // voided by the fence, then sent again
					t.Fatalf("place %d, want 2", got)
				}
				if compacted {
					compactNow(t, direct)
				}
				f.release()
				fresh := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
				entries(t, direct)
				for _, x := range []*Log[*book]{l, direct, fresh} {
					if n := count(entries(t, x), "held-back"); n != 1 {
						t.Fatalf("op is in the book %d times", n)
					}
					if content(x) != content(direct) {
						t.Fatal("copies differ")
					}
				}
			})
		})
	}
}

// The reply is lost, and before the writer can ask, another replica compacts: the frame is gone from the tail, its
// outcome is in the snapshot's table. So is it when the first fences' replies are lost as well.
func TestLostReplyIsSettledAfterACompaction(t *testing.T) {
	for lostFences := range 3 {
		t.Run(fmt.Sprintf("lostFences=%d", lostFences), func(t *testing.T) {
			onBoth(t, func(t *testing.T, srv server) {
				f, l, direct := faulty(t, srv)
				var mu sync.Mutex
				cuts, arrived := 0, make(chan struct{})
				gate := make(chan struct{})
				f.judge(func(request []byte) verdict {
					mu.Lock()
					defer mu.Unlock()
					if !bytes.Contains(bytes.ToUpper(request), []byte("EVAL")) {
						return pass
					}
					if cuts <= lostFences {
						cuts++
						return cutReply
					}
					if cuts == lostFences+1 {
						cuts++
						close(arrived)
					}
					mu.Unlock()
					<-gate // the fence that gets through waits for the compaction
					mu.Lock()
					return pass
				})
				p := l.Submit([]byte("swallowed"))
				results := make(chan error, 1)
				var placed int
				go func() {
					r, err := p.Wait(bg)
					if err == nil {
						placed = place(t, r[0])
					}
					results <- err
				}()
				<-arrived
				compactNow(t, direct)
				close(gate)
				if err := <-results; err != nil {
					t.Fatal(err)
				}
				if placed != 2 {
					t.Fatalf("place %d, want 2", placed)
				}
				if n := count(entries(t, l), "swallowed"); n != 1 {
					t.Fatalf("op is in the book %d times", n)
				}
			})
		})
	}
}

func TestFenceThatCarriesNothingKeepsTheOutcomeOfTheFrameBeforeIt(t *testing.T) {
	st := &state{m: newBook(), writers: map[uint64]*writer{}}
	ops := func(c uint64, ops ...string) frame {
		var list [][]byte
		for _, o := range ops {
			list = append(list, []byte(o))
		}
		return frame{kind: kindOps, payload: appendOps(nil, list), time: int64(c), token: token{7, c}}
	}
	for _, f := range []frame{ops(3, "a"), ops(4), ops(6)} {
		if _, err := st.apply(f); err != nil {
			t.Fatal(err)
		}
	}
	w := st.writer(7, st.time)
	if w.ops != 3 || w.counter != 6 || len(w.results) != 1 {
		t.Fatalf("writer %+v", w)
	}
	for _, late := range []uint64{3, 4, 5, 6} {
		if out, err := st.apply(ops(late, "again")); err != nil || !out.void {
			t.Fatalf("frame %d: %+v %v", late, out, err)
		}
	}
}

// Cuts, losses and late copies between all steps, while several writers go on and compaction runs: every op that was
// answered is in the book once at its place, no op is there twice, and all copies are equal.
func TestNothingIsLostOrDoubledOnAFaultyNetwork(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		const writers, each = 4, 80
		direct := NewLogs(newStore(t, srv.addr()), "book", newBook).Get("g")
		mustCreate(t, direct)
		type answered struct {
			op    string
			place int
		}
		var mu sync.Mutex
		var done []answered
		var nets []*faultyNet
		var logs []*Log[*book]
		for range writers {
			f := newFaultyNet(t, srv.addr())
			f.judge(func(request []byte) verdict {
				if !bytes.Contains(bytes.ToUpper(request), []byte("EVAL")) {
					return pass
				}
				switch rand.N(12) {
				case 0:
					return cutBefore
				case 1, 2:
					return cutReply
				case 3:
					return hold
				}
				return pass
			})
			nets = append(nets, f)
			logs = append(logs, NewLogs(newStore(t, f.addr(), func(o *Options) { o.Timeout = 10 * time.Second }), "book", newBook).Get("g"))
		}
		var wg sync.WaitGroup
		for w, l := range logs {
			for half := range 2 {
				wg.Go(func() {
					for i := range each / 2 {
						op := fmt.Sprintf("%d-%d-%d", w, half, i)
						results, err := l.Submit([]byte(op)).Wait(bg)
						if err != nil {
							t.Errorf("%s: %v", op, err)
							return
						}
						mu.Lock()
						done = append(done, answered{op, place(t, results[0])})
						n := len(done)
						mu.Unlock()
						if n%50 == 0 {
							nets[w].release()
						}
						if n%40 == 0 {
							direct.core.mu.Lock()
							direct.core.compact = direct.core.st != nil
							direct.core.pump()
							direct.core.mu.Unlock()
							entries(t, direct)
						}
					}
				})
			}
		}
		wg.Wait()
		for _, f := range nets {
			f.judge(nil)
			f.release()
		}
		list := entries(t, direct)
		if len(list) != writers*each {
			t.Errorf("%d entries for %d ops", len(list), writers*each)
		}
		for _, a := range done {
			if a.place >= len(list) || list[a.place] != a.op {
				t.Fatalf("op %q was told place %d but is not there", a.op, a.place)
			}
		}
		var fences, compactions int64
		for _, l := range append(logs, direct) {
			entries(t, l)
			if content(l) != content(direct) {
				t.Fatal("copies differ")
			}
			st := l.core.store.Stats()
			fences, compactions = fences+st.Fences, compactions+st.Compactions
			if st.Divergences+st.Stops > 0 {
				t.Fatalf("%+v", st)
			}
		}
		if fences == 0 || compactions == 0 {
			t.Fatalf("%d fences and %d compactions: the test has tested nothing", fences, compactions)
		}
	})
}

func TestWhatQueuedBehindAHangingServerIsNotSentAfterItsCallersWereAnswered(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		f := newFaultyNet(t, srv.addr())
		s := newStore(t, f.addr(), func(o *Options) { o.Timeout = 300 * time.Millisecond })
		logs := NewLogs(s, "book", newBook)
		const keys = 50
		for i := range keys {
			mustCreate(t, logs.Get(fmt.Sprint(i)))
			add(t, logs.Get(fmt.Sprint(i)), "first")
		}
		var sent, late atomic.Int64
		f.judge(func(request []byte) verdict {
			n := int64(bytes.Count(request, []byte("marked")))
			sent.Add(n)
			if n > 0 {
				return stall
			}
			return pass
		})
		var wg sync.WaitGroup
		for i := range keys {
			p := logs.Get(fmt.Sprint(i)).Submit([]byte("marked"))
			s.Kick()
			wg.Go(func() {
				if _, err := p.Wait(bg); !errors.Is(err, ErrUnavailable) {
					t.Errorf("got %v", err)
				}
			})
			if i < lanes {
				eventually(t, "a lane to hang", func() bool { return sent.Load() == int64(i)+1 })
			}
		}
		wg.Wait()
		if n := sent.Load(); n == 0 || n == keys {
			t.Fatalf("%d of %d sent: the test tests nothing", n, keys)
		}
		f.judge(func(request []byte) verdict {
			late.Add(int64(bytes.Count(request, []byte("marked"))))
			return pass
		})
		f.cutAll()
		eventually(t, "service again", func() bool {
			_, err := logs.Get("0").Submit([]byte("after")).Wait(bg)
			return err == nil
		})
		for i := range keys {
			entries(t, logs.Get(fmt.Sprint(i)))
		}
		if late.Load() > 0 {
			t.Fatalf("%d ops sent late", late.Load())
		}
	})
}

func TestNoAnswerIsUnavailableWithinTheTimeAndTheOpIsNotDoubledLater(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		f := newFaultyNet(t, srv.addr())
		l := NewLogs(newStore(t, f.addr(), func(o *Options) { o.Timeout = 300 * time.Millisecond }), "book", newBook).Get("g")
		mustCreate(t, l)
		add(t, l, "first")
		f.judge(func([]byte) verdict { return stall })
		start := time.Now()
		_, err := l.Submit([]byte("stalled")).Wait(bg)
		if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrMissing) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Fatalf("took %v", took)
		}
		f.judge(nil)
		f.cutAll()
		eventually(t, "service again", func() bool {
			_, err := l.Submit([]byte("after")).Wait(bg)
			return err == nil
		})
		if n := count(entries(t, l), "stalled"); n != 1 {
			t.Fatalf("the op that reached Redis is there %d times", n)
		}
	})
}

func TestOutcomeOfAnOpIsLearnedAfterItsCallerWasAnswered(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		f := newFaultyNet(t, srv.addr())
		l := NewLogs(newStore(t, f.addr(), func(o *Options) { o.Timeout = 300 * time.Millisecond }), "book", newBook).Get("g")
		mustCreate(t, l)
		add(t, l, "first")
		f.judge(func([]byte) verdict { return stall })
		p := l.Submit([]byte("stalled"))
		if _, err := p.Wait(bg); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		type outcome struct {
			results [][]byte
			ok      bool
		}
		learned := make(chan outcome, 1)
		go func() {
			results, ok := p.Outcome(bg)
			learned <- outcome{results, ok}
		}()
		eventually(t, "somebody to ask", p.wanted.Load)
		f.judge(nil)
		f.cutAll()
		select {
		case o := <-learned:
			if !o.ok || place(t, o.results[0]) != 1 {
				t.Fatalf("%+v", o)
			}
		case <-time.After(15 * time.Second):
			t.Fatal("nothing is learned")
		}
		if n := count(entries(t, l), "stalled"); n != 1 {
			t.Fatalf("the op is there %d times", n)
		}
	})
}
