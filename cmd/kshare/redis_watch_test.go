package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"kshare/sharestate/statelog"
)

func TestSettingsOfRedisThatBecomeUnsafeAreWarnedOfOnce(t *testing.T) {
	const evicts = "Redis may evict keys that have no TTL (maxmemory-policy allkeys-lru): set maxmemory-policy noeviction"
	evicting := fmt.Errorf("%w (maxmemory-policy allkeys-lru): set maxmemory-policy noeviction", statelog.ErrEvicts)
	looks := []struct {
		found []string
		err   error
		want  []string // all warnings after this look
	}{
		{found: []string{"old news"}},
		{err: evicting, want: []string{evicts}},
		{err: statelog.ErrUnavailable, want: []string{evicts}},
		{err: evicting, want: []string{evicts}},
		{want: []string{evicts}},
		{found: []string{"keeps nothing"}, want: []string{evicts, "keeps nothing"}},
		{err: evicting, want: []string{evicts, "keeps nothing", evicts}},
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var warnings []string
		i := 0
		check := func(context.Context) ([]string, error) {
			if i > 0 && !slices.Equal(warnings, looks[i-1].want) {
				t.Errorf("after look %d: %q, want %q", i-1, warnings, looks[i-1].want)
			}
			if i == len(looks) {
				stop()
				return nil, ctx.Err()
			}
			look := looks[i]
			i++
			return look.found, look.err
		}
		if err := watchRedis(ctx, check, []string{"old news"}, func(w string) { warnings = append(warnings, w) }); err != nil {
			t.Error(err)
		}
		if i != len(looks) {
			t.Errorf("%d looks, want %d", i, len(looks))
		}
	})
}
