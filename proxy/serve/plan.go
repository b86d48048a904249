package serve

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// Planning an acquisition: what the cached view and the batch cache say could be taken. A plan decides nothing. It only
// keeps ops that cannot matter out of the log, and brings the batches whose bytes the response will hold.

const (
	// viewAge is how old a view may be that says "nothing to fetch". It is a little above the time between two catch-up
	// reads of a waiting fetch's log, so that it adds none.
	viewAge = 1500 * time.Millisecond
	// fetchMaxBytes is Kafka's fetch.max.bytes: no request gets more.
	fetchMaxBytes = 57671680
	// readBytes bounds what is read for one partition and pass; more would only cost memory.
	readBytes = 8 << 20
	// planBatches bounds how many record batches one Acquire names.
	planBatches = 4096
)

// plan is what one partition could give.
type plan struct {
	from    int64
	epoch   int32 // leader epoch of the share-partition that this holds under
	batches []upstream.Batch
	bytes   int
	// avail is how many offsets of the batches the view shows as free; an upper bound is fine.
	avail int64
	// max is the part of the record budget that the partition gets.
	max int64
	// logStart >= 0: upstream's log begins above the SPSO; advance to it.
	logStart int64
	// change: the leader changed; tell that first.
	change *sharestate.LeaderChange
}

// takes tells whether the plan is one of an acquisition, and not of what must come before.
func (p *plan) takes() bool { return p != nil && p.logStart < 0 && p.change == nil }

// view is what a plan needs to know of the share-partition.
type view struct {
	sharestate.Fetchable
	ok         bool
	spso, speo int64
	end        int64
	epoch      int32 // see sharestate.Partition.LogEpoch
}

// see takes the view that planning starts from. One that shows nothing to fetch must not be older than a second, else a
// stale "window full" starves this replica; one that shows something may be of any age, because the op is judged anew.
func (sh *share) see(ctx context.Context, set sharestate.Settings) (v view, err error) {
	look := func(p *sharestate.Partition) {
		v.Fetchable, v.ok = p.Fetchable(sh.s.o.Store.Now(), set)
		v.spso, v.speo, v.end, v.epoch = p.SPSO(), p.SPEO(), p.End(), p.LogEpoch()
	}
	if _, cached := sh.log.Cached(look); cached && v.ok {
		return v, nil
	}
	return v, sh.log.View(ctx, viewAge, look)
}

// bounds limit what one partition's plan may hold.
type bounds struct {
	bytes   int   // the partition's share of MaxBytes; the first batch may exceed it
	records int64 // the request's MaxRecords, or the window's size if that is less
	rivals  int64 // acquisitions under way that plan on the same view
}

// read looks what upstream has at the position of the view. nil without an error means nothing at present.
func (sh *share) read(ctx context.Context, v view, iso upstream.Isolation, b bounds) (*plan, error) {
	tail := sh.tail(iso)
	tail.Want(v.Position)
	limit := max(min(b.bytes, readBytes), 1)
	got, ok := tail.Peek(v.Position, limit)
	if !ok {
		var err error
		if got, err = tail.Read(ctx, v.Position, limit); err != nil && got.Err == nil {
			got.Err = err
		}
	}
	b.rivals = int64(sh.taking.Load())
	p, err := planFrom(v, got, iso, b)
	if err != nil {
		return p, err
	}
	return sh.underEpoch(ctx, v, got.Epoch, p)
}

// planFrom turns what upstream shows into a plan.
func planFrom(v view, got upstream.View, iso upstream.Isolation, b bounds) (*plan, error) {
	p := &plan{from: v.Position, epoch: v.epoch, logStart: -1}
	if got.LogStart > v.spso {
		p.logStart = got.LogStart
		return p, nil
	}
	if errors.Is(got.Err, upstream.ErrOffsetOutOfRange) {
		return nil, nil // above the end, as after an unclean truncation: wait until the log has grown
	}
	if got.Err != nil && len(got.Batches) == 0 {
		return nil, got.Err
	}
	end := got.HighWatermark
	if iso == upstream.ReadCommitted {
		end = got.LastStable
	}
	// Enough for this fetch and for those that have planned on the same view; the window may hold offsets that are not
	// free. More would only make the op longer: who is overtaken plans again.
	want := (1+b.rivals)*b.records + max(v.speo-v.Position+1, 0)
	for _, batch := range got.Batches {
		if len(p.batches) > 0 && (p.bytes+len(batch.Bytes) > b.bytes || len(p.batches) == planBatches || p.span(v) >= want) ||
			end >= 0 && batch.Base >= end || batch.Base > v.Last {
			break
		}
		p.batches = append(p.batches, batch)
		p.bytes += len(batch.Bytes)
	}
	if len(p.batches) == 0 {
		return nil, nil
	}
	p.avail = p.span(v)
	return p, nil
}

// span is how many offsets lie between the position and the end of the planned batches.
func (p *plan) span(v view) int64 {
	return min(p.batches[len(p.batches)-1].Last, v.Last) - v.Position + 1
}

// acquire is the op that carries the plan out.
func (p *plan) acquire(v *visit, batchSize int32, mode sharestate.AcquireMode, set sharestate.Settings) sharestate.Op {
	op := sharestate.Acquire{
		Member: v.ss.key.Member, Session: v.nonce, From: p.from,
		Batches:    make([]sharestate.OffsetRange, len(p.batches)),
		MaxRecords: int32(min(p.max, math.MaxInt32)), BatchSize: batchSize, Mode: mode, Settings: set,
	}
	for i, b := range p.batches {
		op.Batches[i] = sharestate.OffsetRange{First: b.Base, Last: b.Last}
		if b.Aborted {
			op.Aborted = append(op.Aborted, op.Batches[i])
		}
	}
	return sharestate.AcquireUnder{Epoch: p.epoch, Acquire: op}
}

// records are the stored batches from the first to the last acquired offset, unchanged. They may hold offsets that are
// not acquired; AcquiredRecords tells which are.
func (p *plan) records(acquired []sharestate.Acquired) []byte {
	first, last := acquired[0].First, acquired[len(acquired)-1].Last
	size := 0
	for _, b := range p.batches {
		if b.Last >= first && b.Base <= last {
			size += len(b.Bytes)
		}
	}
	out := make([]byte, 0, size)
	for _, b := range p.batches {
		if b.Last >= first && b.Base <= last {
			out = append(out, b.Bytes...)
		}
	}
	return out
}

// planParallel bounds how many partitions of one request read upstream or Redis at once.
const planParallel = 32

// inParallel runs f for each of n things, a bounded number at a time.
func inParallel(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, planParallel) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
