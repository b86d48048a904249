package proxy

import (
	"math/rand/v2"
	"sync"
	"time"
)

// drain ends the server's life without a gap for clients that can go to
// another replica: no readiness and no new connection from here on, waiting
// ShareFetches are answered, and connections close one by one, each at an idle
// moment after its turn within the first four fifths of the window. What is
// left at the deadline is cut.
func (s *Server) drain() {
	s.setState(errDraining)
	s.nodes.close()
	s.mu.Lock()
	close(s.draining)
	s.mu.Unlock()
	list := s.openConns()
	s.log.Info().Int("connections", len(list)).Dur("window", s.cfg.Drain).Msg("draining")
	s.deps.serve.Drain()

	var ended sync.WaitGroup
	var timers []*time.Timer
	spread := s.cfg.Drain * 4 / 5
	for _, c := range list {
		timers = append(timers, time.AfterFunc(time.Duration(rand.Float64()*float64(spread)), c.setRetired))
		ended.Go(func() { <-c.ctx.Done() })
	}
	all := make(chan struct{})
	go func() {
		ended.Wait()
		close(all)
	}()
	deadline := time.NewTimer(s.cfg.Drain)
	defer deadline.Stop()
	select {
	case <-all:
	case <-deadline.C:
		s.CloseClients(CloseDrainDeadline)
	}
	for _, t := range timers {
		t.Stop()
	}
}

// stop leaves nothing behind, whatever way Run ends.
func (s *Server) stop() {
	s.setState(errStopped)
	s.nodes.close()
	s.mu.Lock()
	select {
	case <-s.draining:
	default:
		close(s.draining)
	}
	s.mu.Unlock()
	s.CloseClients(CloseShutdown)
	s.running.Wait()
}
