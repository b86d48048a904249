package serve

import (
	"context"
	"errors"
	"slices"
	"time"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// fetch is one ShareFetch (or ShareAcknowledge: a fetch that takes nothing) under way.
type fetch struct {
	s     *Server
	conn  *Conn
	cs    *connState
	visit *visit
	cfg   coordinator.Config
	set   sharestate.Settings
	iso   upstream.Isolation

	// What is asked for. take is false where nothing is to be fetched: final, renewals only, or a budget of zero.
	take      bool
	maxBytes  int
	minBytes  int
	records   int64
	batchSize int32
	mode      sharestate.AcquireMode

	items []*fetchItem // session partitions in the order in which they are tried, then those with acks only
	acks  ackList

	// moved: the session's move went through; before that nothing may be answered as success.
	moved bool
	// refused is the session error that the move turned up.
	refused int16
	// retry: something was found stale; plan again at once. denied: a partition was left out of the last plan because
	// the budget was promised to others.
	retry, denied bool
}

// fetchItem is one partition of a fetch.
type fetchItem struct {
	part sessionPart
	// inSession: the partition is fetched from; else it is here for its acks only.
	inSession bool
	topic     upstream.Topic
	acks      *ackPart
	sh        *share

	// code is the fetch error to be answered. trouble is one that may pass while the fetch waits.
	code    int16
	trouble error
	// broken: the error came from a read that failed, which ends the wait.
	broken bool
	// hint: the leader to go to, with NOT_LEADER_OR_FOLLOWER.
	hint *leaderHint
	// tried: there was something that could have been acquired from.
	tried bool

	view     view
	plan     *plan
	acquired []sharestate.Acquired
	records  []byte
	// empties counts acquisitions in a row that took nothing although the view showed something; hold is until when
	// the partition is left alone therefore.
	empties int
	hold    time.Time
}

// leaderHint is a partition's leader as upstream's metadata tells it.
type leaderHint struct{ node, epoch int32 }

// fetchable tells whether the item can still be acquired from.
func (it *fetchItem) fetchable() bool {
	return it.inSession && it.code == codeNone && it.sh != nil
}

// use takes the shares of all items that are not refused already; the caller calls release.
func (f *fetch) use() (release func()) {
	group := f.visit.ss.key.Group
	for _, it := range f.items {
		if it.inSession && it.code == codeNone || it.acks.pending() || f.visit.final {
			it.sh = f.s.use(group, it.part.TP)
		}
	}
	return func() {
		for _, it := range f.items {
			if it.sh != nil {
				it.sh.done()
			}
		}
	}
}

// allFailed tells whether no partition of the session is left to fetch from. Such a fetch is answered without waiting,
// unless what failed may pass.
func (f *fetch) allFailed() bool {
	for _, it := range f.items {
		if it.inSession && it.code == codeNone {
			return false
		}
	}
	return true
}

// outage tells whether no partition can be fetched from because upstream could not be asked about it.
func (f *fetch) outage() bool {
	return len(f.items) > 0 && f.allFailed() && slices.ContainsFunc(f.items, func(it *fetchItem) bool { return it.code == codeStorage })
}

// took tells whether the fetch has acquired anything.
func (f *fetch) took() bool {
	for _, it := range f.items {
		if len(it.acquired) > 0 {
			return true
		}
	}
	return false
}

// prepare makes items ready and plans their acquisitions, as far as they are not on hold.
func (f *fetch) prepare(ctx context.Context, items []*fetchItem) {
	now := time.Now()
	todo := make([]*fetchItem, 0, len(items))
	for _, it := range items {
		it.plan = nil
		if it.fetchable() && !it.hold.After(now) {
			todo = append(todo, it)
		}
	}
	inParallel(len(todo), func(i int) { f.lookAt(ctx, todo[i]) })
	open := todo[:0]
	for _, it := range todo {
		if it.fetchable() && it.view.ok {
			it.tried = true
			open = append(open, it)
		}
	}
	if len(open) == 0 {
		return
	}
	b := bounds{bytes: f.maxBytes / len(open), records: min(f.records, int64(f.set.MaxRecordLocks))}
	inParallel(len(open), func(i int) {
		it := open[i]
		p, err := it.sh.read(ctx, it.view, f.iso, b)
		it.plan = p
		f.note(it, err)
	})
	f.share(open, b)
}

// lookAt brings one item's view.
func (f *fetch) lookAt(ctx context.Context, it *fetchItem) {
	it.view = view{}
	if err := it.sh.ready(ctx, f.cfg); err != nil {
		f.note(it, err)
		return
	}
	v, err := it.sh.see(ctx, f.set)
	if first, ok := it.acks.releases(); ok && err == nil && first >= v.spso && f.set.ReleaseBackoffMs == 0 {
		// The acknowledgements come before the acquisition in the same frame: what they release goes first, unless it has
		// to rest.
		if !v.ok {
			v.Fetchable = sharestate.Fetchable{Position: first, Last: v.speo}
		}
		v.Position, v.ok = min(v.Position, first), true
	}
	it.view = v
	f.note(it, err)
}

// note books trouble with one item: for good, or to be answered if it is still there when the wait ends.
func (f *fetch) note(it *fetchItem, err error) {
	it.trouble = nil
	code, passing := partitionTrouble(err)
	switch {
	case passing:
		it.trouble = err
		it.view.ok = false
		it.hold = time.Now().Add(troubleHold)
	case code != codeNone:
		it.code = code
		it.broken = !errors.Is(err, errUninitialized) && !errors.Is(err, errNoStart)
	}
}

// troubleHold is how long a partition in trouble is left alone, however often it is woken.
const troubleHold = 100 * time.Millisecond

// broken tells whether reading a partition failed for good: such a fetch is answered at once.
func (f *fetch) broken() bool {
	return slices.ContainsFunc(f.items, func(it *fetchItem) bool { return it.broken })
}

// share splits the record budget over the plans, in the order of the items: what the first may take the others may not.
// A partition that is reached with nothing left is answered empty. Only the first batch of all may exceed its
// part of the byte budget.
func (f *fetch) share(items []*fetchItem, b bounds) {
	left, first := f.records, true
	f.denied = false
	for _, it := range items {
		p := it.plan
		if !p.takes() {
			continue
		}
		if left <= 0 || !first && p.bytes > b.bytes {
			it.plan, f.denied = nil, true
			continue
		}
		first = false
		p.max = min(left, p.avail)
		if len(items) == 1 {
			p.max = left
		}
		left -= p.max
	}
}

// worth tells whether the plans are worth an op now: they bring MinBytes, or one is of what must come before.
func (f *fetch) worth() bool {
	bytes, planned := 0, false
	for _, it := range f.items {
		if it.plan != nil {
			planned = true
			bytes += it.plan.bytes
			if !it.plan.takes() {
				return true
			}
		}
	}
	return planned && bytes >= f.minBytes
}

// drop forgets all plans.
func (f *fetch) drop() {
	for _, it := range f.items {
		it.plan = nil
	}
}
