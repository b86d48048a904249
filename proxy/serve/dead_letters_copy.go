package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"kshare/proxy/upstream"
)

// source reads the records that dead letters carry a copy of.
type source struct {
	l       *letters
	tail    *upstream.Tail
	batches []upstream.Batch
	copied  *upstream.Copies // of the batch that was last looked into
	start   int64            // of the log, as last heard
	failed  bool
}

const (
	// copyBytes is how much is read at a time, copyPatience how long a read may take.
	copyBytes    = 1 << 20
	copyPatience = 10 * time.Second
)

// record gives key and value of the record at the offset, or nothing: a record that cannot be read any more has a dead
// letter without them. After one failed read no other is tried.
func (s *source) record(ctx context.Context, offset int64) (key, value []byte) {
	if s.failed || offset < s.start {
		return nil, nil
	}
	if !s.copied.Covers(offset) {
		if err := s.load(ctx, offset); err != nil {
			s.l.noCopy(err)
		}
	}
	if !s.copied.Covers(offset) {
		return nil, nil
	}
	key, value, err := s.copied.At(offset)
	if err != nil {
		s.l.noCopy(err)
	}
	return key, value
}

// noCopy says why there are dead letters without key and value.
func (l *letters) noCopy(err error) {
	l.d.warn("copy "+l.key.group, func(e *zerolog.Event) {
		e.Err(err).Str("group", l.key.group).Str("topic", l.topic).Int32("partition", l.key.Partition).
			Msg("records cannot be copied; their dead letters are written without key and value")
	})
}

// load reads and unpacks the batch that holds the offset, if there is one.
func (s *source) load(ctx context.Context, offset int64) error {
	for try := 0; ; try++ {
		for _, b := range s.batches {
			if b.Base <= offset && offset <= b.Last {
				var err error
				s.copied, err = s.l.d.up.Copies(b)
				return err
			}
		}
		if try > 0 {
			return nil // not there any more
		}
		if err := s.read(ctx, offset); err != nil {
			s.failed = true
			return err
		}
	}
}

// read reads on from the offset.
func (s *source) read(ctx context.Context, offset int64) error {
	if s.tail == nil {
		iso := upstream.ReadUncommitted
		if s.l.cfg.ReadCommitted {
			iso = upstream.ReadCommitted
		}
		s.tail = s.l.d.up.Open(s.l.key.TP, iso)
	}
	ctx, cancel := context.WithTimeout(ctx, copyPatience)
	defer cancel()
	v, err := s.tail.Read(ctx, offset, copyBytes)
	if err == nil {
		err = v.Err
	}
	if err != nil && !errors.Is(err, upstream.ErrOffsetOutOfRange) {
		return fmt.Errorf("reading offset %d: %w", offset, err)
	}
	s.batches, s.start = v.Batches, v.LogStart
	return nil
}

func (s *source) close() {
	if s.tail != nil {
		s.tail.Close()
	}
}
