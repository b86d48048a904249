package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/upstream"
	"kshare/sharestate"
)

// DeleteRecords (21): upstream's answer, of which the share groups take note.
//
//	v2: flexible
//
// Behaviours: a broker's share-partitions read the log anew with every fetch, so what was deleted before a fetch began is
// not delivered by it. kshare's replicas read ahead, and hear of a new log start only with their next read. So before the
// client has the answer, the new log starts go into the logs of all share-partitions concerned, which every replica
// obeys. Where that cannot be done in time (Redis is away), and for records deleted past kshare, the next read tells.

func (s *Server) deleteRecords(ctx context.Context, r *Request) (kmsg.Response, error) {
	resp, ok := r.Theirs.(*kmsg.DeleteRecordsResponse)
	if !ok {
		return nil, errors.New("no answer of upstream")
	}
	ctx, cancel := storeContext(ctx)
	defer cancel()
	if err := s.logStartsMoved(ctx, resp); err != nil {
		s.o.Log.Warn().Err(err).Msg("records were deleted; share groups hear of it with the next read only")
	}
	return resp, nil
}

// splitDeleteRecords has upstream delete, and kshare take note of it where there are share groups.
func splitDeleteRecords(s *Server, body kmsg.Request) (own, theirs kmsg.Request) {
	if len(s.o.Groups.Groups()) == 0 {
		return nil, nil
	}
	req := body.(*kmsg.DeleteRecordsRequest)
	mine, rest := *req, *req
	return &mine, &rest
}

func mergeDeleteRecords(own, _ kmsg.Response) kmsg.Response { return own }

// logStartsMoved puts the new log starts into the logs of all share-partitions. The error is the first of those that
// something went wrong with.
func (s *Server) logStartsMoved(ctx context.Context, resp *kmsg.DeleteRecordsResponse) error {
	starts, err := s.logStarts(ctx, resp)
	if err != nil || len(starts) == 0 {
		return err
	}
	groups := s.o.Groups.Groups()
	errs := make([]error, len(groups))
	inParallel(len(groups), func(i int) {
		if errs[i] = s.advanceLogStarts(ctx, groups[i], starts); errs[i] != nil {
			errs[i] = fmt.Errorf("group %q: %w", groups[i], errs[i])
		}
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// logStarts are the new log starts by topic id. The low watermark is the least log start of all replicas.
func (s *Server) logStarts(ctx context.Context, resp *kmsg.DeleteRecordsResponse) (map[upstream.TP]int64, error) {
	moved := map[string]map[int32]int64{}
	var names []string
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != codeNone || p.LowWatermark <= 0 {
				continue
			}
			if moved[t.Topic] == nil {
				moved[t.Topic] = map[int32]int64{}
				names = append(names, t.Topic)
			}
			moved[t.Topic][p.Partition] = p.LowWatermark
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	topics, err := s.o.Upstream.TopicsByName(ctx, names, true)
	if err != nil {
		return nil, err
	}
	starts := map[upstream.TP]int64{}
	for name, parts := range moved {
		if t, ok := topics[name]; ok {
			for p, start := range parts {
				starts[upstream.TP{ID: t.ID, Partition: p}] = start
			}
		}
	}
	return starts, nil
}

// advanceLogStarts is logStartsMoved for one group.
func (s *Server) advanceLogStarts(ctx context.Context, group string, starts map[upstream.TP]int64) error {
	parts, err := s.initializedParts(ctx, group)
	if err != nil {
		return err
	}
	moved, _ := sift(parts, func(tp upstream.TP) bool { return starts[tp] > 0 })
	if len(moved) == 0 {
		return nil
	}
	set, err := s.settings(ctx, group)
	if err != nil {
		return err
	}
	_, err = s.submitEach(ctx, group, moved, func(tp upstream.TP) sharestate.Op {
		return sharestate.AdvanceLogStart{LogStart: starts[tp], Settings: set}
	})
	return err
}
