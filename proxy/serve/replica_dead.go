package serve

import (
	"context"
	"errors"
	"fmt"

	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// releaseBatch is how many share-partitions are released in one pipeline.
const releaseBatch = 256

// ReplicaDead frees what sessions opened through a dead replica hold, on the initialized partitions of all groups.
// Records that come free wake waiting fetches on every replica. Doing it twice is harmless. An error means that some
// partition was not reached; the caller tries again.
func (s *Server) ReplicaDead(ctx context.Context, replica uint64) error {
	if err := s.o.Groups.Ready(); err != nil { // just started: there may be groups that are not listed yet
		return fmt.Errorf("index of groups: %w", err)
	}
	var first error
	fail := func(err error) {
		if first == nil && err != nil {
			first = err
		}
	}
	var freed int64
	for _, l := range s.o.Groups.List() {
		n, err := s.releaseReplica(ctx, l.Group, replica)
		freed += n
		fail(err)
	}
	s.o.Log.Info().Str("replica", fmt.Sprintf("%016x", replica)).Int64("offsets", freed).AnErr("error", first).
		Msg("records held through a dead replica are released")
	return first
}

func (s *Server) releaseReplica(ctx context.Context, group string, replica uint64) (freed int64, err error) {
	topics, err := s.o.Groups.InitializedPartitions(ctx, group)
	if err != nil {
		return 0, fmt.Errorf("initialized partitions of group %q: %w", group, err)
	}
	set, err := s.settings(ctx, group)
	if err != nil {
		return 0, fmt.Errorf("settings of group %q: %w", group, err)
	}
	op := sharestate.EncodeOp(nil, sharestate.ReleaseReplica{Replica: replica, Settings: set})
	var pending []*statelog.Pending
	var keys []shareKey
	flush := func() {
		s.o.Store.Kick()
		for i, p := range pending {
			res, werr := p.Wait(ctx)
			if werr != nil {
				if !errors.Is(werr, statelog.ErrMissing) && err == nil { // missing: never fetched from
					err = fmt.Errorf("group %q: %w", group, werr)
				}
				continue
			}
			if n, derr := sharestate.DecodeCountResult(res[0]); derr == nil {
				freed += n
			}
			s.o.DeadLetters.made(keys[i], s.logs.Get(logName(group, keys[i].TP)))
		}
		pending, keys = pending[:0], keys[:0]
	}
	for _, t := range topics {
		for _, part := range t.Partitions {
			tp := upstream.TP{ID: t.ID, Partition: part}
			pending = append(pending, s.logs.Get(logName(group, tp)).Submit(op))
			keys = append(keys, shareKey{group, tp})
			s.o.Checkpoints.later(group, tp)
			if len(pending) == releaseBatch {
				flush()
			}
		}
	}
	flush()
	return freed, err
}
