package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"kshare/sharestate/statelog"
)

const redisWatch = time.Minute // between looks at the settings of Redis

// watchRedis looks at the settings of Redis again and again, for they can be changed, or be others after a restart, while
// kshare serves. It warns of what it has not said before: said is from the look at start. That Redis is away is told
// elsewhere. It returns nil when ctx ends.
func watchRedis(ctx context.Context, check func(context.Context) ([]string, error), said []string, warn func(string)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(redisWatch):
		}
		found, err := check(ctx)
		switch {
		case errors.Is(err, statelog.ErrEvicts):
			found = []string{strings.TrimPrefix(err.Error(), "statelog: ")}
		case err != nil:
			continue
		}
		for _, w := range found {
			if !slices.Contains(said, w) {
				warn(w)
			}
		}
		said = found
	}
}
