package serve

import (
	"context"
	"fmt"
	"sync"
	"time"

	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// Unclean leader elections cut the log: offsets that were handed out, and acknowledged, then stand for other records. A
// broker's share group passes those over in silence, or takes them for redeliveries. Here the share-partition remembers the
// leader epoch that its records were read under (sharestate.LeaderChange). Where a read shows a later one, the leader is asked
// where the log of the earlier epoch ends, as consumers do (KIP-320), and what was tracked beyond is forgotten before
// anything is acquired under the later epoch. So no replica needs to have seen the election, and it does not matter how far
// the log has grown again.
//
// An acquisition that was planned on a read under the earlier epoch may come behind the change in the log. It carries its
// epoch, and takes nothing then (sharestate.AcquireUnder).
//
// What a consumer does not notice by its one epoch goes unnoticed here too (KIP-279): after two unclean elections in a row
// the second leader may have more of the epoch before the first one's than that one had, and none of the first one's own.
// What it says then is where that older epoch ends, and the first leader's records below that count as its own.

// epochs is what a share remembers of leader epochs.
type epochs struct {
	asking chan struct{}           // cap 1: who holds it may ask upstream
	last   sharestate.LeaderChange // the newest answer, guarded by asking

	mu     sync.Mutex
	behind behind
}

// behind is since when reads have been under the leader epoch read, and the share-partition under the later one present.
type behind struct {
	read, present int32
	since         time.Time // zero: they are not
}

// behindWait is how long a read of an earlier epoch than the share-partition's is taken for an old leader's. After that
// upstream is believed: it may have been put back from a copy.
const behindWait = 30 * time.Second

// underEpoch judges a plan by the leader epoch that it was read under.
func (sh *share) underEpoch(ctx context.Context, v view, epoch int32, p *plan) (*plan, error) {
	if epoch < 0 {
		return p, nil // nothing was read
	}
	if epoch < v.epoch {
		if err := sh.fallBehind(epoch, v.epoch); err != nil {
			return nil, err
		}
		return p, nil
	}
	sh.epochs.caughtUp()
	if epoch == v.epoch {
		return p, nil
	}
	change, err := sh.endOfEpoch(ctx, v.epoch, epoch)
	if err != nil {
		return nil, err
	}
	if cuts := change.End >= 0 && change.End < v.end; p == nil && !cuts {
		return nil, nil // an idle partition: it is told once there is something to be acquired
	}
	return &plan{change: &change, logStart: -1}, nil
}

// endOfEpoch asks upstream what became of the records that were read under an epoch; once for each change.
func (sh *share) endOfEpoch(ctx context.Context, from, epoch int32) (sharestate.LeaderChange, error) {
	change := sharestate.LeaderChange{From: from, Epoch: epoch, End: -1}
	if from < 0 {
		return change, nil
	}
	e := &sh.epochs
	select {
	case e.asking <- struct{}{}:
		defer func() { <-e.asking }()
	case <-ctx.Done():
		return change, ctx.Err()
	}
	if e.last.From == from && e.last.Epoch == epoch {
		return e.last, nil
	}
	end, at, err := sh.s.o.Upstream.EndOfEpoch(ctx, sh.key.TP, from)
	if err != nil {
		return change, err
	}
	if at != epoch {
		return change, fmt.Errorf("%w: the leader of epoch %d was followed by that of epoch %d", upstream.ErrNotLeader, epoch, at)
	}
	change.End = end
	e.last = change
	return change, nil
}

// fallBehind refuses what an earlier leader has said, and has upstream asked for the present one.
func (sh *share) fallBehind(epoch, present int32) error {
	e := &sh.epochs
	e.mu.Lock()
	if b := &e.behind; b.since.IsZero() || b.read != epoch || b.present != present {
		*b = behind{epoch, present, time.Now()}
	}
	since := e.behind.since
	e.mu.Unlock()
	if time.Since(since) > behindWait {
		return nil
	}
	sh.s.o.Upstream.Recheck(sh.key.ID)
	return fmt.Errorf("%w: read under leader epoch %d, known is %d", upstream.ErrNotLeader, epoch, present)
}

func (e *epochs) caughtUp() {
	e.mu.Lock()
	e.behind = behind{}
	e.mu.Unlock()
}

// changed takes the result of a LeaderChange.
func (sh *share) changed(change *sharestate.LeaderChange, res []byte) {
	n, err := sharestate.DecodeCountResult(res)
	if err != nil || n == 0 {
		return
	}
	sh.s.o.Log.Warn().Str("partition", sh.log.Name()).Int64("log_end", change.End).Int64("offsets", n).Int32("leader_epoch", change.Epoch).
		Msg("an unclean leader election has cut upstream's log: offsets that were delivered are gone, what stands there now is delivered anew")
}
