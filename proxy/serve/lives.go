package serve

import (
	"context"
	"maps"
	"slices"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// The life of a share-partition (its incarnation) is for its group to say, and begins in the share-partition's own log
// with the first fetch that knows of it. After an administrator has changed offsets that would be too late: a replica that
// has not heard of the change yet would go on with the old life for a moment. So who makes the change writes it there too.

// beginLives begins lives in the logs of share-partitions. A share-partition without a log has no life to go on with.
// What fails is only logged: the next fetch that knows of the life does the same.
func (s *Server) beginLives(ctx context.Context, group string, lives map[upstream.TP]coordinator.Initialized) {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	_, failed := s.submitEach(ctx, group, slices.Collect(maps.Keys(lives)), func(tp upstream.TP) sharestate.Op {
		return sharestate.Reset{Offset: lives[tp].StartOffset, Incarnation: lives[tp].Incarnation}
	})
	if failed != nil {
		s.o.Log.Warn().Err(failed).Str("group", group).Msg("offsets of a share group were changed, but other replicas may go by the old ones for a moment")
	}
}

// endLives puts share-partitions that are not initialized any more into a life without a start offset. Any that begins
// later has a higher incarnation.
func (s *Server) endLives(ctx context.Context, group string, over []coordinator.PartitionStanding) {
	lives := make(map[upstream.TP]coordinator.Initialized, len(over))
	for _, p := range over {
		lives[tpOfStanding(p)] = coordinator.Initialized{Incarnation: p.Incarnation + 1, StartOffset: -1}
	}
	s.beginLives(ctx, group, lives)
}
