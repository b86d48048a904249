package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kshare/sharestate/statelog"
)

// createAttempts bounds how often a join makes the group anew that somebody deletes meanwhile.
const createAttempts = 3

// metadataPatience is how long a join waits for upstream's word on topics that are not known here. Later
// heartbeats pick up what was missed.
const metadataPatience = 2 * time.Second

// validate makes the checks that need no state.
func (r *HeartbeatRequest) validate() error {
	for _, check := range [...]struct {
		bad     bool
		message string
	}{
		{blank(r.Member), "MemberId can't be empty."},
		{blank(r.Group), "GroupId can't be empty."},
		{r.Rack != nil && blank(*r.Rack), "RackId can't be empty."},
		{r.Epoch == epochJoin && len(r.Topics) == 0, "SubscribedTopicNames must be set in first request."},
		{r.Epoch < epochLeave, "MemberEpoch is invalid."},
	} {
		if check.bad {
			return &Error{Kind: ErrInvalidRequest, Message: check.message}
		}
	}
	return nil
}

// blank reports whether there is nothing in a text, as Java's trim sees it.
func blank(text string) bool { return trim(text) == "" }

// trim takes away what Java's trim does: control characters count as space, and space beyond ASCII does not.
func trim(text string) string { return strings.TrimFunc(text, func(r rune) bool { return r <= ' ' }) }

// Heartbeat serves a ShareGroupHeartbeat (key 76) behind authorization: a join, which makes the group if
// need be, a keep-alive, a change of subscription, or a leave. Refusals are *Error.
func (s *Service) Heartbeat(ctx context.Context, r HeartbeatRequest) (HeartbeatResponse, error) {
	if err := r.validate(); err != nil {
		return HeartbeatResponse{}, err
	}
	for range createAttempts {
		result, lost, err := s.heartbeat(ctx, &r)
		switch {
		case err != nil:
			return HeartbeatResponse{}, err
		case result.Code == CodeOK:
			return s.accepted(ctx, &r, result), nil
		case result.Code != CodeGroupMissing:
			return HeartbeatResponse{}, refused(&r, result)
		case r.Epoch != epochJoin && lost && s.index.has(r.Group):
			// Redis has lost the group. The member is told what makes it join again, not what makes it give up.
			return HeartbeatResponse{}, refused(&r, HeartbeatResult{Code: CodeUnknownMember})
		case r.Epoch != epochJoin:
			return HeartbeatResponse{}, s.notFound(ctx, r.Group, "Share group %s not found.")
		}
		if err := s.create(ctx, r.Group); err != nil {
			return HeartbeatResponse{}, err
		}
	}
	return HeartbeatResponse{}, unavailable(fmt.Errorf("group %q is deleted again and again", r.Group))
}

// heartbeat submits the op, with what is new about the group's topics ahead of it. lost tells that the group
// has no log at all.
func (s *Service) heartbeat(ctx context.Context, r *HeartbeatRequest) (result HeartbeatResult, lost bool, err error) {
	seen, err := s.look(ctx, r)
	if err != nil {
		return HeartbeatResult{}, false, err
	}
	if !seen.exists {
		return HeartbeatResult{Code: CodeGroupMissing}, seen.lost, nil
	}
	l := s.local(r.Group)
	var ops [][]byte
	if r.Epoch != epochLeave {
		if news, ok := s.news(ctx, l, r, seen.watch); ok {
			news.AsOf = s.asOf()
			ops = append(ops, EncodeOp(nil, news))
		}
	}
	op := Heartbeat{Member: r.Member, Epoch: r.Epoch, Rack: r.Rack, Topics: r.Topics, Settings: s.settings, AsOf: s.asOf()}
	// A join always says who joins: the member that is seen here may have been removed since.
	if r.Epoch == epochJoin || r.Epoch != epochLeave && !seen.sameClient {
		op.Client = &Client{ID: r.ClientID, Host: r.ClientHost}
	}
	ops = append(ops, EncodeOp(nil, op))
	results, err := s.submit(ctx, r.Group, l, ops...)
	switch {
	case errors.Is(err, statelog.ErrMissing):
		return HeartbeatResult{Code: CodeGroupMissing}, true, nil
	case err != nil:
		return HeartbeatResult{}, false, err
	}
	result, err = DecodeHeartbeatResult(results[len(results)-1])
	if err != nil {
		return HeartbeatResult{}, false, unavailable(fmt.Errorf("group %q: %w", r.Group, err))
	}
	return result, false, nil
}

// sight is what the replica's copy says before an op is submitted. It only shapes the op, never the answer,
// except that nothing is submitted to a group that surely does not exist.
type sight struct {
	exists, lost, sameClient bool
	watch                    *watchlist
}

func (s *Service) look(ctx context.Context, r *HeartbeatRequest) (seen sight, err error) {
	read := func(g *Group) {
		seen = sight{exists: g.exists, watch: g.watch}
		if _, m := g.find(r.Member); m != nil {
			seen.sameClient = m.client == Client{ID: r.ClientID, Host: r.ClientHost}
		}
	}
	if _, ok := s.group(r.Group).Cached(read); ok && seen.exists {
		return seen, nil
	}
	found, err := s.view(ctx, r.Group, 0, read)
	if !found {
		seen = sight{lost: true}
	}
	return seen, err
}

// news compares what the group knows of its topics, and of those that the request adds, with upstream.
func (s *Service) news(ctx context.Context, l *local, r *HeartbeatRequest, watch *watchlist) (TopicMetadata, bool) {
	var extra []string
	for _, name := range r.Topics {
		if _, known := watch.topics[name]; !known {
			extra = append(extra, name)
		}
	}
	generation := s.catalog.generation()
	l.mu.Lock()
	if l.watch != watch {
		l.watch, l.seenAt, l.compared = watch, time.Now(), 0
	}
	since, same := l.seenAt, l.compared == generation && len(extra) == 0
	l.mu.Unlock()
	if same {
		return TopicMetadata{}, false
	}
	if missing := s.catalog.unsure(extra); len(missing) > 0 {
		s.ask(ctx, r.Group, missing)
	}
	names := append(slices.Clip(watch.names), extra...)
	slices.Sort(names)
	news := s.catalog.compare(watch, slices.Compact(names), since)
	if len(news.Topics) > 0 || len(news.Gone) > 0 {
		return news, true
	}
	l.mu.Lock()
	if l.watch == watch {
		l.compared = generation
	}
	l.mu.Unlock()
	return TopicMetadata{}, false
}

// ask gets upstream's word on topics now. If it does not come the heartbeat goes on without.
func (s *Service) ask(ctx context.Context, group string, names []string) {
	ctx, cancel := context.WithTimeout(ctx, metadataPatience)
	defer cancel()
	if err := s.catalog.fetch(ctx, names); err != nil {
		s.log.Warn().Err(err).Str("group", group).Strs("topics", names).Msg("cannot ask upstream for topics of a share group")
	}
}

// accepted makes the answer to a heartbeat that was applied.
func (s *Service) accepted(ctx context.Context, r *HeartbeatRequest, result HeartbeatResult) HeartbeatResponse {
	response := HeartbeatResponse{Member: r.Member, Epoch: result.Epoch}
	if r.Epoch == epochLeave {
		return response
	}
	response.Assignment, response.HasAssignment = result.Assignment, result.HasAssignment
	response.IntervalMs = s.broker.HeartbeatIntervalMs
	s.group(r.Group).Cached(func(g *Group) { response.IntervalMs = g.Effective(&s.broker).HeartbeatIntervalMs })
	if !s.index.has(r.Group) {
		// Whoever made the group died before it was listed, or the list was lost.
		if err := s.list(ctx, indexGroup+r.Group); err != nil {
			s.index.drop(indexGroup + r.Group)
			s.log.Warn().Err(err).Str("group", r.Group).Msg("cannot list share group")
		}
	}
	return response
}

func refused(r *HeartbeatRequest, result HeartbeatResult) error {
	switch result.Code {
	case CodeGroupFull:
		return &Error{Kind: ErrGroupMaxSize, Message: "The share group has reached its maximum number of members."}
	case CodeUnknownMember:
		return &Error{Kind: ErrUnknownMemberID, Message: fmt.Sprintf("Member %s is not a member of group %s.", r.Member, r.Group)}
	case CodeFencedEpoch:
		return &Error{Kind: ErrFencedMemberEpoch, Message: fmt.Sprintf(
			"Member %s sent epoch %d, but its epoch in group %s is %d; it must give up its partitions and join again.",
			r.Member, r.Epoch, r.Group, result.Epoch)}
	}
	return &Error{Kind: ErrInvalidRequest, Message: "MemberEpoch is invalid."}
}

// notFound is GROUP_ID_NOT_FOUND with the message that fits: upstream may have a group of that id.
func (s *Service) notFound(ctx context.Context, group, message string) error {
	if used, err := s.use.InUse(ctx, group); err == nil && used {
		return notShareGroup(group)
	}
	return &Error{Kind: ErrGroupIDNotFound, Message: fmt.Sprintf(message, group)}
}

func notShareGroup(group string) error {
	return &Error{Kind: ErrGroupIDNotFound, Message: fmt.Sprintf("Group %s is not a share group.", group)}
}

// create makes the group unless upstream has one of that id. Upstream is asked again afterwards: who made a
// group there between would not have been seen, and the share group steps back.
func (s *Service) create(ctx context.Context, group string) error {
	if restored, err := s.restorer.restore(ctx, group); err != nil || restored {
		return err
	}
	if err := s.checkUse(ctx, group); err != nil {
		return err
	}
	initial := NewGroup()
	initial.exists = true
	created, err := s.group(group).Create(ctx, initial)
	if err != nil {
		return s.failed(group, err)
	}
	if !created {
		if _, err := s.submit(ctx, group, s.local(group), EncodeOp(nil, Create{})); err != nil {
			return s.retriable(group, err)
		}
	}
	if err := s.list(ctx, indexGroup+group); err != nil {
		return s.failed(group, err)
	}
	conflict := s.checkUse(ctx, group)
	if conflict == nil {
		s.log.Info().Str("group", group).Msg("share group created")
		return nil
	}
	if err := s.Delete(ctx, group); err != nil {
		s.log.Warn().Err(err).Str("group", group).Msg("share group exists beside a group of the same id upstream, and could not be removed")
	}
	return conflict
}

func (s *Service) checkUse(ctx context.Context, group string) error {
	used, err := s.use.InUse(ctx, group)
	switch {
	case err != nil:
		if ctx.Err() == nil && s.moan() { // else nobody learns why no group can be made
			s.log.Warn().Err(err).Str("group", group).Msg("cannot ask upstream whether it has a group of that id; no share group is made meanwhile")
		}
		return unavailable(fmt.Errorf("group %q: asking upstream whether the id is taken: %w", group, err))
	case used:
		return notShareGroup(group)
	}
	return nil
}

// moan tells whether trouble that all groups may have at once is to be logged now: at most once a second.
func (s *Service) moan() bool {
	now, last := time.Now().UnixNano(), s.moaned.Load()
	return now-last >= int64(time.Second) && s.moaned.CompareAndSwap(last, now)
}

// retriable hides that a log is missing where the client can only try again.
func (s *Service) retriable(group string, err error) error {
	if errors.Is(err, statelog.ErrMissing) {
		return unavailable(fmt.Errorf("group %q: %w", group, err))
	}
	return err
}
