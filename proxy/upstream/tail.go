package upstream

import (
	"context"
	"time"
)

// Tail is one interest in a partition at one isolation level. While it is open and wants a position, the partition is
// read ahead of that position, and followed at the log's end.
type Tail struct {
	r    *reader
	line *line
	// want is the position that is read ahead of, -1 for none; ready and ahead are how far that has come: the offset
	// where it ends, and the bytes.
	want, ready, ahead int64
	// window is how far may be read ahead: it begins small where the position jumps, and doubles when the position moves
	// on through what was read and more was fetched since the last time.
	window  int64
	fetched bool
	closed  bool
	watches map[*Watch]struct{}
}

// Watch tells of changes of a partition: C gets a token when there may be more to see than before.
type Watch struct {
	C    <-chan struct{}
	c    chan struct{}
	tail *Tail
}

// demand is a Read that waits.
type demand struct {
	tail     *Tail
	from     int64
	maxBytes int
	after    *flight // has been let go first, in the hope that it covers from
	view     View
	err      error
	done     chan struct{}
}

// Open begins an interest. Nothing is read until a position is wanted. Every Tail must be closed.
func (c *Client) Open(tp TP, iso Isolation) *Tail {
	r := c.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &Tail{r: r, line: r.line(lineKey{tp, iso}), want: -1, watches: make(map[*Watch]struct{})}
	t.line.tails[t] = struct{}{}
	return t
}

// Want says which position comes next, -1 for none: reading ahead starts there, and goes on as Peek and Read move
// forward. It may lie behind an earlier one, where Peek and Read of earlier offsets leave the position alone.
func (t *Tail) Want(from int64) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if t.closed {
		return
	}
	if from = max(from, -1); t.want != from {
		t.setWant(from)
		t.r.schedule(t.line)
	}
}

func (t *Tail) setWant(from int64) {
	if end, _ := t.line.frontier(t.want); t.want < 0 || from < t.want || from > end {
		t.window, t.fetched = int64(t.r.c.cfg.FetchPartitionBytes), false
	} else if t.fetched {
		t.window, t.fetched = min(2*t.window, t.r.c.cfg.PrefetchBytes), false
	}
	t.want = from
	if from < 0 {
		t.setAhead(0)
	}
}

// setAhead keeps the reader's count of Tails that hold something read ahead.
func (t *Tail) setAhead(n int64) {
	if (t.ahead > 0) != (n > 0) {
		if n > 0 {
			t.r.busy++
		} else {
			t.r.busy--
		}
	}
	t.ahead = n
}

// Peek looks at what is in memory; ok is false if that tells nothing of from. An empty View with ok is the log's end (or
// trouble, see Err). Batches are at most maxBytes together, except for a larger first one.
func (t *Tail) Peek(from int64, maxBytes int) (View, bool) {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	v, ok := t.line.view(t.r.cache, from, maxBytes, time.Now())
	t.advance(from)
	if ok {
		t.r.stats.Hits++
	}
	return v, ok
}

// advance moves the wanted position forward to from.
func (t *Tail) advance(from int64) {
	if from > t.want && !t.closed {
		t.setWant(from)
		t.r.schedule(t.line)
	}
}

// Read is Peek that asks upstream if memory does not tell: at once, on the connection for catch-up reads, and once for
// all who ask for the same. It waits out short trouble (a leader that moves); lasting trouble is the View's Err. The
// error is ctx's, or ErrClosed.
func (t *Tail) Read(ctx context.Context, from int64, maxBytes int) (View, error) {
	t.r.mu.Lock()
	v, ok := t.line.view(t.r.cache, from, maxBytes, time.Now())
	if ok || t.closed || t.r.ended {
		t.advance(from)
		t.r.stats.Hits++
		t.r.mu.Unlock()
		if !ok {
			return unread, ErrClosed
		}
		return v, nil
	}
	d := &demand{tail: t, from: from, maxBytes: maxBytes, done: make(chan struct{})}
	t.line.demands[d] = struct{}{}
	t.r.stats.Misses++
	if from > t.want {
		t.setWant(from)
	}
	t.r.schedule(t.line)
	t.r.mu.Unlock()

	select {
	case <-d.done:
		return d.view, d.err
	case <-ctx.Done():
		t.r.mu.Lock()
		delete(t.line.demands, d)
		t.r.drop(t.line)
		t.r.mu.Unlock()
		return unread, ctx.Err()
	}
}

// Watch begins to tell of changes: of high watermark, last stable offset, log start and Err, and of records that come at
// the wanted position.
func (t *Tail) Watch() *Watch {
	c := make(chan struct{}, 1)
	w := &Watch{C: c, c: c, tail: t}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if !t.closed {
		t.watches[w] = struct{}{}
		t.line.watches[w] = struct{}{}
	}
	return w
}

// Close ends the Watch; C is not closed.
func (w *Watch) Close() {
	w.tail.r.mu.Lock()
	defer w.tail.r.mu.Unlock()
	delete(w.tail.watches, w)
	delete(w.tail.line.watches, w)
}

// Close ends the interest and its Watches. What was read stays in the cache until it is pushed out.
func (t *Tail) Close() {
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if t.closed {
		return
	}
	t.setWant(-1)
	t.closed = true
	for w := range t.watches {
		delete(t.line.watches, w)
	}
	delete(t.line.tails, t)
	t.r.schedule(t.line)
	t.r.drop(t.line)
}

// notify tells all watchers of a line, and answers who waits in Read where it can now.
func (r *reader) notify(l *line) { r.notifyRun(l, run{}, true) }

// notifyRun is notify for records that came. Unless the log's ends moved too, only those are told who want a position
// among them: one group's backlog need not wake all others.
func (r *reader) notifyRun(l *line, came run, all bool) {
	now := time.Now()
	for d := range l.demands {
		if v, ok := l.view(r.cache, d.from, d.maxBytes, now); ok {
			l.satisfy(d, v)
		}
	}
	for w := range l.watches {
		if want := w.tail.want; !all && want >= 0 && (want < came.from || want >= came.next()) {
			continue
		}
		select {
		case w.c <- struct{}{}:
		default:
		}
	}
}

func (l *line) satisfy(d *demand, v View) {
	delete(l.demands, d)
	d.view = v
	close(d.done)
}
