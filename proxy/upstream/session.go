package upstream

import (
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// session is a fetch session (KIP-227) of one poll with its node: requests name only what changed.
type session struct {
	id, epoch int32
	parts     map[TP]asked // what the node knows, once it has accepted the last request
	fails     int          // in a row
}

// fill completes a request so that the session holds just these partitions afterwards.
func (s *session) fill(req *kmsg.FetchRequest, want map[TP]asked) {
	req.SessionID, req.SessionEpoch = s.id, s.epoch
	if s.epoch == 0 {
		askFor(req, want)
		s.parts = want
		return
	}
	changed := make(map[TP]asked)
	for tp, a := range want {
		if s.parts[tp] != a {
			changed[tp] = a
		}
	}
	gone := make(map[TP]asked)
	for tp, a := range s.parts {
		if _, ok := want[tp]; !ok {
			gone[tp] = a
		}
	}
	askFor(req, changed)
	forget(req, gone)
	s.parts = want
}

// answered takes a response's session part. After an error the next request begins a new session, and ends the old one.
func (s *session) answered(resp *kmsg.FetchResponse) error {
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		s.reset()
		if err == kerr.FetchSessionIDNotFound {
			s.id = 0
		}
		return fmt.Errorf("fetch session: %w", err)
	}
	s.fails = 0
	switch {
	case resp.SessionID == 0: // the node keeps no session for us: its cache is full
		s.id, s.epoch = 0, 0
	case s.epoch == math.MaxInt32:
		s.id, s.epoch = resp.SessionID, 1
	default:
		s.id, s.epoch = resp.SessionID, s.epoch+1
	}
	return nil
}

// reset begins anew, since what the node knows is not certain.
func (s *session) reset() {
	s.epoch, s.parts = 0, nil
	s.fails++
}
