package proxy

import (
	"context"
	"errors"
)

// readiness is one state of the server: why it is not ready, or nil. gone is
// closed when another state takes over.
type readiness struct {
	err  error
	gone chan struct{}
}

func newReadiness(err error) *readiness { return &readiness{err: err, gone: make(chan struct{})} }

// States that no readiness follows.
var (
	errDraining = errors.New("draining")
	errStopped  = errors.New("stopped")
)

func (s *Server) setState(err error) {
	close(s.state.Swap(newReadiness(err)).gone)
}

// Ready is nil while clients are served: upstream was reached and the ports of
// all its nodes are bound. Otherwise it says what is missing. A lost upstream
// or Redis does not end readiness, for a restart would not bring it back.
func (s *Server) Ready() error { return s.state.Load().err }

// WaitReady returns nil as soon as Ready does, or why it never will.
func (s *Server) WaitReady(ctx context.Context) error {
	for {
		state := s.state.Load()
		if state.err == nil || errors.Is(state.err, errDraining) || errors.Is(state.err, errStopped) {
			return state.err
		}
		select {
		case <-state.gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
