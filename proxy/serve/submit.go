package serve

import (
	"context"
	"errors"
	"slices"

	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// submitBatch is how many share-partitions submitEach has under way at a time: the time that an op may take counts from its
// submission, and other requests' ops are to come between.
const submitBatch = 256

// submitEach submits an op to each of a group's share-partitions, which are noted for checkpoints and dead letters, and
// returns the results, in no order to rely on. A share-partition without a log was never fetched from and has none. The
// error is the first of what went wrong; the other share-partitions have got their op all the same.
func (s *Server) submitEach(ctx context.Context, group string, parts []upstream.TP, op func(upstream.TP) sharestate.Op) (results [][]byte, err error) {
	for batch := range slices.Chunk(parts, submitBatch) {
		pending := make([]*statelog.Pending, len(batch))
		for i, tp := range batch {
			pending[i] = s.logs.Get(logName(group, tp)).Submit(sharestate.EncodeOp(nil, op(tp)))
			s.o.Checkpoints.later(group, tp)
		}
		s.o.Store.Kick()
		for i, tp := range batch {
			res, werr := pending[i].Wait(ctx)
			switch {
			case werr == nil:
				results = append(results, res[0])
			case err == nil && !errors.Is(werr, statelog.ErrMissing):
				err = werr
			}
			s.o.DeadLetters.made(shareKey{group, tp}, s.logs.Get(logName(group, tp)))
		}
	}
	return results, err
}

// initializedParts lists the share-partitions of a group that are initialized.
func (s *Server) initializedParts(ctx context.Context, group string) (parts []upstream.TP, err error) {
	topics, err := s.o.Groups.InitializedPartitions(ctx, group)
	for _, t := range topics {
		for _, p := range t.Partitions {
			parts = append(parts, upstream.TP{ID: t.ID, Partition: p})
		}
	}
	return parts, err
}
