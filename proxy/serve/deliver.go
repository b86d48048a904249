package serve

import (
	"context"
	"time"

	"kshare/sharestate"
)

// What happens to records that were acquired for a client that does not get to know of it.
//
// The client is gone (its connection closed while the fetch was served, or the response could not be written):
//   - on the connection that opened the session, the session ends with the connection, and its Release frees what this
//     request took along with the rest. It comes after the request's own ops, because ConnClosed waits for the request
//     and a log takes ops of one replica in the order of Submit. Nothing is given back here: a Release op frees all that
//     the session holds, and giving back the single ranges could hit a newer session of the same member (acknowledgements
//     compare the member only).
//   - on another connection the session lives on, so giveBack releases exactly the ranges that this request took. A newer
//     session of the member can only stand there if the old one was closed or replaced in the same moment; at worst a
//     record is then delivered again. A response that is lost after it was written stays locked until the lock runs out,
//     as with a broker.
//
// The request's epoch turns out to be wrong after its ops went out with it: giveBack, then INVALID_SHARE_SESSION_EPOCH.
// Its acknowledgements stay applied: the member held the records, and a client only sends the same epoch again when it
// repeats a request.
//
// The answer was due before Redis told the outcome, above all because Redis was away: reclaim waits for it in the
// background and gives back what was taken. Left locked, such records would fill the window and stop the partition. Where
// the outcome cannot be learned they come back with the session's end or when their locks run out.

// giveBack releases what the request took, range by range, so that one that is no longer held does not keep the others.
func (f *fetch) giveBack(ctx context.Context) {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	for _, it := range f.items {
		f.giveBackItem(ctx, it)
	}
}

func (f *fetch) giveBackItem(ctx context.Context, it *fetchItem) {
	if len(it.acquired) > 0 {
		releaseRanges(ctx, it.sh, f.visit.ss.key.Member, it.acquired, f.set)
		it.acquired, it.records = nil, nil
	}
}

func releaseRanges(ctx context.Context, sh *share, member string, acquired []sharestate.Acquired, set sharestate.Settings) {
	ops := make([][]byte, len(acquired))
	for i, a := range acquired {
		ops[i] = sharestate.EncodeOp(nil, sharestate.Acknowledge{
			Member: member, LeaderEpoch: -1, Settings: set,
			Batches: []sharestate.AckBatch{{First: a.First, Last: a.Last, Types: []sharestate.AckType{sharestate.AckRelease}}},
		})
	}
	p := sh.log.Submit(ops...)
	sh.s.o.Store.Kick()
	if _, err := p.Wait(ctx); err != nil {
		sh.s.o.Log.Warn().Err(err).Str("partition", sh.log.Name()).Str("member", member).
			Msg("acquired records could not be given back; they come back when their locks run out")
	}
	sh.s.o.DeadLetters.made(sh.key, sh.log)
}

// reclaimWait is how long the outcome of an acquisition is worth knowing: by then its locks have run out by themselves.
const reclaimWait = 30 * time.Second

// reclaim gives back, once its outcome is known, what an acquisition took whose request has been answered.
func (s *Server) reclaim(v *visit, sh *share, o sent, set sharestate.Settings) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), reclaimWait)
		defer cancel()
		go func() {
			select {
			case <-s.drain:
				cancel()
			case <-ctx.Done():
			}
		}()
		res, ok := o.pending.Outcome(ctx)
		if !ok {
			return
		}
		r, err := sharestate.DecodeAcquireResult(res[o.take])
		if err != nil || len(r.Acquired) == 0 || v.ss.over() {
			return
		}
		releaseRanges(ctx, sh, v.ss.key.Member, r.Acquired, set)
	}()
}
