package serve

import (
	"context"
	"fmt"

	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// ReplicaDead frees what sessions opened through a dead replica hold, on the initialized partitions of all groups.
// Records that come free wake waiting fetches on every replica. Doing it twice is harmless. An error means that some
// partition was not reached; the caller tries again.
func (s *Server) ReplicaDead(ctx context.Context, replica uint64) error {
	if err := s.o.Groups.Ready(); err != nil { // just started: there may be groups that are not listed yet
		return fmt.Errorf("index of groups: %w", err)
	}
	var first error
	var freed int64
	for _, group := range s.o.Groups.Groups() {
		n, err := s.releaseReplica(ctx, group, replica)
		freed += n
		if first == nil && err != nil {
			first = fmt.Errorf("group %q: %w", group, err)
		}
	}
	s.o.Log.Info().Str("replica", fmt.Sprintf("%016x", replica)).Int64("offsets", freed).AnErr("error", first).
		Msg("records held through a dead replica are released")
	return first
}

func (s *Server) releaseReplica(ctx context.Context, group string, replica uint64) (freed int64, err error) {
	parts, err := s.initializedParts(ctx, group)
	if err != nil {
		return 0, fmt.Errorf("initialized partitions: %w", err)
	}
	set, err := s.settings(ctx, group)
	if err != nil {
		return 0, fmt.Errorf("settings: %w", err)
	}
	release := sharestate.ReleaseReplica{Replica: replica, Settings: set}
	results, err := s.submitEach(ctx, group, parts, func(upstream.TP) sharestate.Op { return release })
	for _, res := range results {
		if n, derr := sharestate.DecodeCountResult(res); derr == nil {
			freed += n
		}
	}
	return freed, err
}
