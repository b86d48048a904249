package serve

import (
	"context"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"kshare/coordinator"
	"kshare/sharestate"
)

// knownConfigs bounds the groups whose settings a replica remembers for the time that Redis is away.
const knownConfigs = 4096

// configCache remembers the last settings seen of each group.
type configCache struct {
	mu  sync.Mutex
	lru *simplelru.LRU[string, coordinator.Config]
}

func newConfigCache() *configCache {
	l, err := simplelru.NewLRU[string, coordinator.Config](knownConfigs, nil)
	if err != nil {
		panic(err) // only for a size below one
	}
	return &configCache{lru: l}
}

// config gives the group's settings; while Redis is away those that were last seen here, so that requests can be
// answered partition by partition and their sessions go on.
func (s *Server) config(ctx context.Context, group string) (coordinator.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, planWait)
	defer cancel()
	cfg, err := s.o.Groups.Config(ctx, group)
	s.configs.mu.Lock()
	defer s.configs.mu.Unlock()
	if err == nil {
		s.configs.lru.Add(group, cfg)
		return cfg, nil
	}
	if known, ok := s.configs.lru.Get(group); ok {
		return known, nil
	}
	return cfg, err
}

// settings are the group's settings that the share-partition's transitions depend on.
func (s *Server) settings(ctx context.Context, group string) (sharestate.Settings, error) {
	cfg, err := s.config(ctx, group)
	if err != nil {
		return sharestate.Settings{}, err
	}
	return s.settingsOf(cfg), nil
}

func (s *Server) settingsOf(cfg coordinator.Config) sharestate.Settings {
	set := sharestate.Settings{
		DeliveryLimit:  cfg.DeliveryLimit,
		LockDurationMs: cfg.LockDurationMs,
		MaxRecordLocks: cfg.MaxRecordLocks,
		RenewEnabled:   cfg.RenewEnabled,
		// Without a writer an Archiving record would hold the SPSO for ever.
		DeadLetters: cfg.DeadLetterTopic != "" && s.o.DeadLetters != nil,
	}
	if cfg.ReleaseBackoffMs > 0 { // off, ops carry nothing of it
		set.ReleaseBackoffMs, set.ReleaseBackoffMaxMs = cfg.ReleaseBackoffMs, cfg.ReleaseBackoffMaxMs
	}
	return set
}
