package sharestate

import (
	"errors"
	"fmt"
	"math"
)

// check tells the first broken invariant. A snapshot must pass before it is taken
// over, and the tests ask after every op.
func (p *Partition) check() error {
	if p.spso < 0 {
		if p.spso != -1 || len(p.spans) > 0 || p.written || p.logEpoch != -1 {
			return errors.New("state without a start offset")
		}
		return nil
	}
	if p.leaderEpoch < 0 {
		return fmt.Errorf("leader epoch %d", p.leaderEpoch)
	}
	if p.logEpoch < -1 {
		return fmt.Errorf("leader epoch of the window %d", p.logEpoch)
	}
	next := p.spso
	for i := range p.spans {
		s := &p.spans[i]
		if s.first != next || s.last < s.first || s.last == math.MaxInt64 {
			return fmt.Errorf("range %d-%d where %d was due", s.first, s.last, next)
		}
		if err := s.check(); err != nil {
			return fmt.Errorf("range %d-%d: %w", s.first, s.last, err)
		}
		if i > 0 && p.spans[i-1].joins(s) {
			return fmt.Errorf("range %d-%d continues the one before", s.first, s.last)
		}
		next = s.last + 1
	}
	if len(p.spans) > 0 && p.spans[0].state.terminal() {
		return errors.New("the first range is finished")
	}
	if len(p.spans) > 0 && p.end != next {
		return fmt.Errorf("the ranges end at %d, the window at %d", next, p.end)
	}
	if len(p.spans) == 0 && p.end != p.spso {
		return fmt.Errorf("nothing tracked, but %d is not %d", p.end, p.spso)
	}
	return nil
}

// check tells which field does not fit the state of the range.
func (s *span) check() error {
	tracked := s.state == StateAvailable || s.state == StateAcquired
	switch {
	case s.state > StateArchived:
		return fmt.Errorf("state %d", s.state)
	case s.flags&untracked != 0 && s.state != StateArchived,
		s.flags&rejected != 0 && s.state != StateArchiving:
		return fmt.Errorf("flags %d of state %v", s.flags, s.state)
	case s.state.terminal() && s.count != 0:
		return errors.New("finished, with a delivery count")
	case !tracked && (s.batchFirst != 0 || s.batchLast != 0):
		return fmt.Errorf("%v, with a batch", s.state)
	case tracked && (s.batchFirst < 0 || s.batchFirst > s.first || s.batchLast < s.last || s.batchLast == math.MaxInt64):
		return fmt.Errorf("not inside its batch %d-%d", s.batchFirst, s.batchLast)
	case s.state == StateAcquired && (s.holder == 0 || s.count == 0):
		return errors.New("Acquired, without holder or count")
	case s.state != StateAcquired && s.state != StateArchiving && s.holder != 0:
		return fmt.Errorf("%v, with a holder", s.state)
	case s.holder == 0 && s.deadline != 0 && s.state != StateAvailable:
		return errors.New("a deadline without a holder")
	case s.resting() && s.count == 0:
		return errors.New("resting, though never delivered")
	case s.count < 0:
		return fmt.Errorf("delivery count %d", s.count)
	}
	return nil
}
