package coordinator

import "context"

// Describe shows a group for ShareGroupDescribe (key 77). Members whose session is over are removed first, so a
// group whose members all died reads as Empty.
func (s *Service) Describe(ctx context.Context, group string) (Description, error) {
	if group == "" {
		return Description{}, invalidGroupID()
	}
	var d Description
	overdue := false
	read := func(g *Group) {
		now := int64(s.asOf())
		d, overdue = g.Describe(group, now), g.Overdue(now)
	}
	found, err := s.view(ctx, group, 0, read)
	if err != nil {
		return Description{}, err
	}
	if !found || d.State == StateDead {
		return Description{}, s.notFound(ctx, group, "Group %s not found.")
	}
	if overdue {
		if _, err := s.submit(ctx, group, s.local(group), EncodeOp(nil, Expire{AsOf: s.asOf()})); err != nil {
			return Description{}, s.retriable(group, err)
		}
		// Whom the log has not timed out is a member still, though by this replica's clock, which may be ahead of Redis',
		// the time is over: members and epoch must be of one moment.
		s.group(group).Cached(func(g *Group) { d = g.Describe(group, 0) })
	}
	return d, nil
}

// Delete removes a group that has no members (DeleteGroups). Its configs stay; its share-partitions lose their
// initialization, so a group of that id made later starts by the reset policy.
func (s *Service) Delete(ctx context.Context, group string) error {
	if err := s.changeEmpty(ctx, group, Delete{AsOf: s.asOf()}); err != nil {
		return err
	}
	s.unlistLate(ctx, indexGroup+group)
	s.restorer.remove(ctx, group)
	s.log.Info().Str("group", group).Msg("share group deleted")
	return nil
}

// Initialized returns the starting point of a share-partition, and false if it has none. Redis is asked only where
// this replica does not know of one.
func (s *Service) Initialized(ctx context.Context, group string, topic [16]byte, partition int32) (Initialized, bool, error) {
	return s.InitializedSince(ctx, group, topic, partition, 0)
}

// InitializedSince is Initialized where a starting point that is known here does not do if it is of an incarnation
// before the given one.
func (s *Service) InitializedSince(ctx context.Context, group string, topic [16]byte, partition int32, incarnation int64) (start Initialized, ok bool, err error) {
	read := func(g *Group) { start, ok = g.Initialized(topic, partition) }
	if s.group(group).Cached(read); ok && start.Incarnation >= incarnation {
		return start, true, nil
	}
	if _, err := s.view(ctx, group, 0, read); err != nil {
		return Initialized{}, false, err
	}
	return start, ok, nil
}

// InitializedPartitions lists the share-partitions of a group, by topic name; none where there is no group.
func (s *Service) InitializedPartitions(ctx context.Context, group string) (all []TopicPartitions, err error) {
	_, err = s.view(ctx, group, 0, func(g *Group) { all = g.InitializedPartitions() })
	return all, err
}

// Config returns the settings of a group that are in force; a group without configs, or without existence, has the
// broker's. It waits for Redis only where a change was heard of or nothing is known, so that a fetch need not.
func (s *Service) Config(ctx context.Context, group string) (Config, error) {
	config := (*Group)(nil).Effective(&s.broker)
	read := func(g *Group) { config = g.Effective(&s.broker) }
	found, err := s.view(ctx, group, s.pace.configMost, read)
	if !found && err == nil {
		return config, nil
	}
	age, known := s.group(group).Cached(read)
	switch {
	case known && err == nil && age > s.pace.config:
		select {
		case s.stale <- group:
		default:
		}
	case !known && err != nil:
		return Config{}, err
	}
	return config, nil
}

// DescribeConfigs lists configs of a group for DescribeConfigs (resource type GROUP): the named ones, or all where
// none is named. The group need not exist.
func (s *Service) DescribeConfigs(ctx context.Context, group string, keys []string) ([]ConfigEntry, error) {
	if group == "" {
		return nil, &Error{Kind: ErrInvalidRequest, Message: "Group name must not be empty"}
	}
	entries := describeConfigs(&s.broker, NewGroup(), keys)
	_, err := s.view(ctx, group, 0, func(g *Group) { entries = describeConfigs(&s.broker, g, keys) })
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// AlterConfigs changes configs of a group as IncrementalAlterConfigs does: all operations or none. The group need
// not exist. Replicas go by the change at once, or after seconds where the message is lost.
func (s *Service) AlterConfigs(ctx context.Context, group string, ops []ConfigOp, validateOnly bool) error {
	return s.alterConfigs(ctx, group, ops, false, validateOnly)
}

// ReplaceConfigs makes exactly the given values the group's configs, as legacy AlterConfigs (key 33) does.
func (s *Service) ReplaceConfigs(ctx context.Context, group string, ops []ConfigOp, validateOnly bool) error {
	return s.alterConfigs(ctx, group, ops, true, validateOnly)
}

func (s *Service) alterConfigs(ctx context.Context, group string, ops []ConfigOp, replace, validateOnly bool) error {
	if group == "" {
		return &Error{Kind: ErrInvalidRequest, Message: "Default group resources are not allowed."}
	}
	plan, refusal := planConfig(&s.broker, NewGroup(), ops, replace)
	found, err := s.view(ctx, group, 0, func(g *Group) { plan, refusal = planConfig(&s.broker, g, ops, replace) })
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return refusal
	case validateOnly:
		return nil
	}
	return s.setConfig(ctx, group, plan, found)
}

func (s *Service) setConfig(ctx context.Context, group string, plan SetConfig, found bool) error {
	if !found {
		if _, err := s.group(group).Create(ctx, NewGroup()); err != nil {
			return s.failed(group, err)
		}
	}
	if _, err := s.submit(ctx, group, &local{resumed: s.outages.Load()}, EncodeOp(nil, plan)); err != nil {
		return s.retriable(group, err)
	}
	s.restorer.touch(group)
	configured := false
	s.group(group).Cached(func(g *Group) { configured = g.Configured() })
	change := s.unlist
	if configured {
		change = s.list
	}
	if err := change(ctx, indexConfig+group); err != nil {
		s.log.Warn().Err(err).Str("group", group).Msg("cannot list the configs of a group")
	}
	return nil
}
