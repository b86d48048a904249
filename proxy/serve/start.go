package serve

import (
	"context"
	"errors"
	"time"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// Before a share-partition is fetched from, its log must exist, belong to the life that the group knows (incarnation),
// and have a start offset. All three are looked at on cached state, so only the first fetch pays for them.

// sight is what a share-partition's cached view showed.
type sight struct {
	incarnation int64
	started     bool
}

// ready makes the share-partition fit to be fetched from. The error is errUninitialized, errNoStart, or trouble with
// Redis or upstream.
func (sh *share) ready(ctx context.Context, cfg coordinator.Config) error {
	init, err := sh.initialized(ctx, 0)
	if err != nil {
		return err
	}
	at, err := sh.look(ctx, init)
	if err != nil {
		return err
	}
	if at.incarnation > init.Incarnation && at.incarnation > sh.ahead.Load() {
		// The group was changed, and this replica has not heard of it.
		if init, err = sh.initialized(ctx, at.incarnation); err != nil {
			return err
		}
		sh.ahead.Store(at.incarnation)
	}
	if at.incarnation < init.Incarnation {
		op := sharestate.Reset{Offset: init.StartOffset, Incarnation: init.Incarnation}
		if err := sh.submit(ctx, op); err != nil {
			return err
		}
		if at.started = init.StartOffset >= 0; at.started {
			sh.s.o.Checkpoints.started(sh)
		}
	}
	if at.started {
		return nil
	}
	return sh.start(ctx, cfg.AutoOffsetReset)
}

// initialized is the life that the group knows, asked for anew if the one that is known here is older.
func (sh *share) initialized(ctx context.Context, since int64) (coordinator.Initialized, error) {
	init, ok, err := sh.s.o.Groups.InitializedSince(ctx, sh.key.group, sh.key.ID, sh.key.Partition, since)
	if err == nil && !ok {
		err = errUninitialized
	}
	return init, err
}

// look reads the cached view, after fetching it or creating the log where need be.
func (sh *share) look(ctx context.Context, init coordinator.Initialized) (at sight, err error) {
	see := func(p *sharestate.Partition) { at = sight{p.Incarnation(), p.Started()} }
	if _, ok := sh.log.Cached(see); ok {
		return at, nil
	}
	err = sh.log.View(ctx, 0, see)
	if !errors.Is(err, statelog.ErrMissing) {
		return at, err
	}
	offset, epoch, err := sh.s.o.Checkpoints.startFrom(ctx, sh.key.group, sh.key.TP, init)
	if err != nil {
		return at, err
	}
	if _, err := sh.log.Create(ctx, sharestate.NewPartitionUnder(init.Incarnation, offset, epoch)); err != nil {
		return at, err
	}
	if offset >= 0 {
		sh.s.o.Checkpoints.started(sh)
	}
	return at, sh.log.View(ctx, 0, see)
}

// start resolves share.auto.offset.reset and appends the outcome before anybody waits, so that `latest` is resolved
// once: of several replicas the first in the log wins.
func (sh *share) start(ctx context.Context, reset coordinator.OffsetReset) error {
	ts := upstream.AtEnd
	switch reset.Kind {
	case coordinator.ResetEarliest:
		ts = upstream.AtLogStart
	case coordinator.ResetByDuration:
		ts = max(time.Now().UnixMilli()-reset.AgeMs, 0)
	}
	offset, epoch, err := sh.s.o.Upstream.ListOffset(ctx, sh.key.TP, ts)
	if err != nil {
		return err
	}
	if offset < 0 {
		return errNoStart
	}
	// In one frame, so that of several replicas the same one comes first with both.
	change := sharestate.LeaderChange{From: -1, Epoch: epoch, End: -1}
	if err = sh.submit(ctx, sharestate.Start{Offset: offset, LeaderEpoch: epoch}, change); err == nil {
		sh.s.o.Checkpoints.started(sh)
	}
	return err
}

// submit appends ops in one frame and waits until they are applied.
func (sh *share) submit(ctx context.Context, ops ...sharestate.Op) error {
	raw := make([][]byte, len(ops))
	for i, op := range ops {
		raw[i] = sharestate.EncodeOp(nil, op)
	}
	p := sh.log.Submit(raw...)
	sh.s.o.Store.Kick()
	_, err := p.Wait(ctx)
	return err
}
