package statelog

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// Machine is a deterministic state machine. It must not use a clock, randomness, map iteration order or floating point
// where they can be seen in its state: all replicas apply the same ops with the same now and must come to equal states,
// and equal states must encode to equal bytes.
type Machine interface {
	// Apply applies one op at now (µs of Redis' clock, never falling) and appends the op's result to dst. wake tells that
	// other replicas' waiters have something to do. An error means that the op is not understood: it stops the key on
	// this replica. op must not be changed.
	Apply(dst, op []byte, now int64) (result []byte, wake bool, err error)
	// AppendSnapshot appends the encoded state.
	AppendSnapshot(dst []byte) []byte
	// Restore replaces the state by an encoded one. It fails on an encoding newer than it knows.
	Restore(snapshot []byte) error
}

const (
	// formatVersion is the version of this package's own part of a snapshot.
	formatVersion = 1
	// resultsKept is how long (log time, µs) a snapshot keeps the results of a writer's last ops. Callers wait seconds.
	resultsKept = int64(time.Minute / time.Microsecond)
	// writersKept is how long a writer's last counter is kept. It outlives every copy of a frame that the network may
	// still hold after its connection was closed.
	writersKept = int64(30 * time.Minute / time.Microsecond)
)

// errVersion is wrapped when a snapshot is of a newer version than this replica knows.
var errVersion = errors.New("snapshot of a newer version")

// writer is what the fold remembers of one writer of a log.
type writer struct {
	counter uint64 // highest counter seen; frames not above it are void
	seen    int64  // log time of that frame
	ops     uint64 // counter of its last frame that carried ops (a fence carries none and must not hide their outcome)
	opsTime int64
	results [][]byte
}

// state is one replica's copy of one log: the machine and the position up to which it was folded.
type state struct {
	m       Machine
	time    int64 // log time: the highest frame time so far, so that it never falls
	writers map[uint64]*writer
	pos     int64 // bytes of the log that are folded in
	token   token // of the frame that ends at pos
	base    int64 // bytes of the snapshot frame
}

// folded is what applying one frame gave.
type folded struct {
	results [][]byte
	void    bool // a late copy: ignored
	wake    bool
}

// writer returns what is known of w at log time now. An entry that has expired counts as absent even before it is
// removed, so that a copy that was rebuilt from a snapshot and one that was not behave alike.
func (s *state) writer(w uint64, now int64) *writer {
	e := s.writers[w]
	if e == nil || now-e.seen > writersKept {
		return nil
	}
	return e
}

// apply folds one op frame in. After an error the state must not be used.
func (s *state) apply(f frame) (folded, error) {
	if f.kind != kindOps {
		return folded{}, fmt.Errorf("frame %v: unknown kind %d", f.token, f.kind)
	}
	ops, err := parseOps(f.payload)
	if err != nil {
		return folded{}, fmt.Errorf("frame %v: %w", f.token, err)
	}
	s.pos += int64(f.size)
	s.token = f.token
	now := max(s.time, f.time)
	w := s.writer(f.token.writer, now)
	if w != nil && f.token.counter <= w.counter {
		return folded{void: true}, nil
	}
	if w == nil {
		w = &writer{}
		s.writers[f.token.writer] = w
	}
	s.time, w.counter, w.seen = now, f.token.counter, now
	if len(ops) == 0 {
		return folded{}, nil
	}
	var out folded
	out.results = make([][]byte, len(ops))
	for i, op := range ops {
		result, wake, err := applyOne(s.m, op, now)
		if err != nil {
			return folded{}, fmt.Errorf("frame %v: op %d of %d: %w", f.token, i+1, len(ops), err)
		}
		out.results[i] = result
		out.wake = out.wake || wake
	}
	w.ops, w.opsTime, w.results = f.token.counter, now, out.results
	return out, nil
}

// applyOne turns a panic of the machine into an error: that op stops one key, not one replica after the other.
func applyOne(m Machine, op []byte, now int64) (result []byte, wake bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return m.Apply(nil, op, now)
}

// appendContent appends what must be equal on all replicas at one position: log time, writers, machine.
func (s *state) appendContent(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(s.time))
	type entry struct {
		nonce uint64
		*writer
	}
	var live []entry
	for nonce, w := range s.writers {
		if s.time-w.seen <= writersKept {
			live = append(live, entry{nonce, w})
		}
	}
	slices.SortFunc(live, func(a, b entry) int { return cmp.Compare(a.nonce, b.nonce) })
	dst = binary.AppendUvarint(dst, uint64(len(live)))
	for _, w := range live {
		dst = binary.BigEndian.AppendUint64(dst, w.nonce)
		dst = binary.AppendUvarint(dst, w.counter)
		dst = binary.AppendUvarint(dst, uint64(w.seen))
		dst = binary.AppendUvarint(dst, w.ops)
		dst = binary.AppendUvarint(dst, uint64(w.opsTime))
		results := w.results
		if s.time-w.opsTime > resultsKept {
			results = nil
		}
		dst = appendOps(dst, results)
	}
	return append(dst, s.m.AppendSnapshot(nil)...)
}

// restoreContent is the inverse of appendContent.
func (s *state) restoreContent(b []byte) error {
	now, b, err := readUvarint(b)
	if err != nil {
		return err
	}
	s.time = int64(now)
	n, b, err := readUvarint(b)
	if err != nil {
		return err
	}
	s.writers = make(map[uint64]*writer)
	for range n {
		if len(b) < 8 {
			return fmt.Errorf("%w: writer cut", errFrame)
		}
		nonce := binary.BigEndian.Uint64(b)
		b = b[8:]
		var v [4]uint64
		for i := range v {
			if v[i], b, err = readUvarint(b); err != nil {
				return err
			}
		}
		w := &writer{counter: v[0], seen: int64(v[1]), ops: v[2], opsTime: int64(v[3])}
		if w.results, b, err = readList(b); err != nil {
			return err
		}
		s.writers[nonce] = w
	}
	return s.m.Restore(b)
}

// dropExpired frees what appendContent leaves out; it changes nothing that can be seen.
func (s *state) dropExpired() {
	for nonce, w := range s.writers {
		switch {
		case s.time-w.seen > writersKept:
			delete(s.writers, nonce)
		case s.time-w.opsTime > resultsKept:
			w.results = nil
		}
	}
}

// snapshot returns a complete snapshot frame of the state under the token t. It records the token of the last frame that
// is folded in, for the divergence check of the other replicas.
func (s *state) snapshot(semantics uint64, covers, t token) []byte {
	payload := binary.AppendUvarint(nil, formatVersion)
	payload = binary.AppendUvarint(payload, semantics)
	payload = covers.append(payload)
	payload = s.appendContent(payload)
	return appendFrame(nil, kindSnapshot, payload, s.time, t)
}

// restore makes a state from a snapshot frame that stands at the start of a log. covers is the token of the last frame
// that the snapshot stands for.
func restore(f frame, m Machine, semantics uint64) (s *state, covers token, err error) {
	if f.kind != kindSnapshot {
		return nil, token{}, fmt.Errorf("log starts with a frame of kind %d, not with a snapshot", f.kind)
	}
	format, b, err := readUvarint(f.payload)
	if err != nil {
		return nil, token{}, err
	}
	if format > formatVersion {
		return nil, token{}, fmt.Errorf("%w: format %d, this replica knows %d", errVersion, format, formatVersion)
	}
	sem, b, err := readUvarint(b)
	if err != nil {
		return nil, token{}, err
	}
	if sem > semantics {
		return nil, token{}, fmt.Errorf("%w: semantics %d, this replica knows %d", errVersion, sem, semantics)
	}
	if len(b) < tokenLen {
		return nil, token{}, fmt.Errorf("%w: snapshot cut", errFrame)
	}
	covers = readToken(b)
	s = &state{m: m, pos: int64(f.size), base: int64(f.size), token: f.token}
	if err := s.restoreContent(b[tokenLen:]); err != nil {
		return nil, token{}, fmt.Errorf("snapshot %v: %w", f.token, err)
	}
	return s, covers, nil
}

// differs compares two copies that were folded up to the same frame.
func differs(a, b *state) bool { return !bytes.Equal(a.appendContent(nil), b.appendContent(nil)) }
