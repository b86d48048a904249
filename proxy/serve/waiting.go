package serve

import (
	"context"
	"time"
)

// DefaultMaxWaitingFetches is generous: one connection waits with one fetch.
const DefaultMaxWaitingFetches = 10_000

// waitingPlaces bounds how many fetches wait to be woken. What comes above that looks for records when it comes and when
// its time is over, and costs nothing in between.
type waitingPlaces chan struct{}

func newWaitingPlaces(n int) waitingPlaces {
	if n == 0 {
		n = DefaultMaxWaitingFetches
	}
	return make(waitingPlaces, n)
}

// try takes a place if there is one.
func (p waitingPlaces) try() bool {
	select {
	case p <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p waitingPlaces) free() { <-p }

// awaitPlace waits for a place until there is something else to do. The caller frees the place.
func (f *fetch) awaitPlace(ctx context.Context, deadline time.Time) bool {
	f.s.m.held.Inc()
	defer f.s.m.held.Dec()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case f.s.places <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	case <-f.cs.gone:
	case <-f.visit.ss.ended:
	case <-f.s.drain:
	}
	return false
}
