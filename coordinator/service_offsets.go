package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// SetOffsets initializes share-partitions of a group without members anew, at the given offsets (AlterShareGroupOffsets,
// key 91). A group that does not exist is made, unless there is nothing to set. Partitions that their topic does not have
// are left out. Refusals are *Error.
func (s *Service) SetOffsets(ctx context.Context, group string, topics []TopicOffsets) error {
	for range createAttempts {
		err := s.changeEmpty(ctx, group, SetOffsets{Topics: topics, AsOf: s.asOf()})
		switch {
		case err == nil:
			s.restorer.touch(group)
			return nil
		case !errors.Is(err, ErrGroupIDNotFound):
			return err
		case len(topics) == 0:
			return s.checkUse(ctx, group)
		}
		if err := s.create(ctx, group); err != nil {
			return err
		}
	}
	return unavailable(fmt.Errorf("group %q is deleted again and again", group))
}

// DeleteOffsets makes the topics' share-partitions uninitialized, in a group without members (DeleteShareGroupOffsets,
// key 92): where they start next is for the reset policy to say. It returns the share-partitions as they were before.
// Refusals are *Error.
func (s *Service) DeleteOffsets(ctx context.Context, group string, topics [][16]byte) ([]PartitionStanding, error) {
	before, err := s.Standing(ctx, group)
	if err != nil {
		return nil, err
	}
	if err := s.changeEmpty(ctx, group, DeleteOffsets{IDs: topics, AsOf: s.asOf()}); err != nil {
		return nil, err
	}
	s.restorer.touch(group)
	return slices.DeleteFunc(before.Partitions, func(p PartitionStanding) bool { return !slices.Contains(topics, p.ID) }), nil
}

// changeEmpty submits an op that needs a group without members.
func (s *Service) changeEmpty(ctx context.Context, group string, op Op) error {
	if group == "" {
		return invalidGroupID()
	}
	exists := false
	if _, err := s.view(ctx, group, 0, func(g *Group) { exists = g.exists }); err != nil {
		return err
	}
	code := CodeGroupMissing
	if exists {
		results, err := s.submit(ctx, group, s.local(group), EncodeOp(nil, op))
		if err != nil {
			return s.retriable(group, err)
		}
		if code, err = DecodeCodeResult(results[0]); err != nil {
			return unavailable(fmt.Errorf("group %q: %w", group, err))
		}
	}
	switch code {
	case CodeNonEmpty:
		return &Error{Kind: ErrNonEmptyGroup, Message: "The group is not empty."}
	case CodeGroupMissing:
		return s.notFound(ctx, group, "Group %s not found.")
	}
	return nil
}

func invalidGroupID() error {
	return &Error{Kind: ErrInvalidGroupID, Message: "The group id is invalid."}
}
