package statelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A frame is
//
//	uvarint(len(body)) body time(16 ASCII digits, µs) token(16 bytes)
//	body = kind(1) crc32c(4) payload
//
// The script appends the time, so the checksum covers kind and payload only. The token comes last so that the bytes just
// before a position are the token of the frame that ends there.
type frame struct {
	kind    byte
	payload []byte
	time    int64 // Redis' clock, µs
	token   token
	size    int // bytes of the whole frame
}

// Frame kinds. They are part of the stored format and never change their meaning.
const (
	kindSnapshot byte = 1
	kindOps      byte = 2
)

const (
	timeLen  = 16
	tokenLen = 16
	crcLen   = 4
)

// token names one frame: the writer's random nonce and the writer's rising counter.
type token struct{ writer, counter uint64 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errFrame is what every malformed frame's error wraps.
var errFrame = errors.New("malformed frame")

func (t token) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, t.writer)
	return binary.BigEndian.AppendUint64(dst, t.counter)
}

func (t token) String() string { return fmt.Sprintf("%016x-%d", t.writer, t.counter) }

func readToken(b []byte) token {
	return token{writer: binary.BigEndian.Uint64(b), counter: binary.BigEndian.Uint64(b[8:])}
}

// appendHead appends length and body: what the append script gets, because Redis adds time and token.
func appendHead(dst []byte, kind byte, payload []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(1+crcLen+len(payload)))
	dst = append(dst, kind)
	dst = binary.BigEndian.AppendUint32(dst, checksum(kind, payload))
	return append(dst, payload...)
}

// appendFrame appends a complete frame.
func appendFrame(dst []byte, kind byte, payload []byte, time int64, t token) []byte {
	dst = appendHead(dst, kind, payload)
	dst = appendTime(dst, time)
	return t.append(dst)
}

func appendTime(dst []byte, time int64) []byte { return fmt.Appendf(dst, "%016d", time) }

// parseTime reads the 16 digits that [appendTime] or a script wrote.
func parseTime(b []byte) (int64, bool) {
	if len(b) != timeLen {
		return 0, false
	}
	var t int64
	for _, d := range b {
		if d < '0' || d > '9' {
			return 0, false
		}
		t = t*10 + int64(d-'0')
	}
	return t, true
}

func checksum(kind byte, payload []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, []byte{kind}), castagnoli, payload)
}

// parseFrame reads the frame at the start of b, which must hold all of it. The payload aliases b.
func parseFrame(b []byte) (frame, error) {
	n, w := binary.Uvarint(b)
	if w <= 0 {
		return frame{}, fmt.Errorf("%w: length", errFrame)
	}
	if n < 1+crcLen || n > uint64(len(b)) {
		return frame{}, fmt.Errorf("%w: body of %d bytes with %d left", errFrame, n, len(b)-w)
	}
	size := w + int(n) + timeLen + tokenLen
	if size > len(b) {
		return frame{}, fmt.Errorf("%w: cut after %d of %d bytes", errFrame, len(b), size)
	}
	body := b[w : w+int(n)]
	f := frame{kind: body[0], payload: body[1+crcLen:], size: size}
	if got, want := checksum(f.kind, f.payload), binary.BigEndian.Uint32(body[1:]); got != want {
		return frame{}, fmt.Errorf("%w: checksum %08x, want %08x", errFrame, got, want)
	}
	var ok bool
	if f.time, ok = parseTime(b[w+int(n) : size-tokenLen]); !ok {
		return frame{}, fmt.Errorf("%w: time %q", errFrame, b[w+int(n):size-tokenLen])
	}
	f.token = readToken(b[size-tokenLen:])
	return f, nil
}

// parseFrames reads all of b. Nothing is returned when any of it is malformed, so that a reply is folded whole or not at
// all.
func parseFrames(b []byte) ([]frame, error) {
	var frames []frame
	for at := 0; at < len(b); {
		f, err := parseFrame(b[at:])
		if err != nil {
			return nil, fmt.Errorf("at byte %d: %w", at, err)
		}
		frames = append(frames, f)
		at += f.size
	}
	return frames, nil
}

// appendOps encodes the payload of an op frame. No ops make a fence.
func appendOps(dst []byte, ops [][]byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ops)))
	for _, op := range ops {
		dst = appendBytes(dst, op)
	}
	return dst
}

func parseOps(b []byte) ([][]byte, error) {
	ops, rest, err := readList(b)
	if err != nil {
		return nil, err
	}
	if len(rest) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after the last op", errFrame, len(rest))
	}
	return ops, nil
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

func readUvarint(b []byte) (uint64, []byte, error) {
	n, w := binary.Uvarint(b)
	if w <= 0 {
		return 0, nil, fmt.Errorf("%w: number", errFrame)
	}
	return n, b[w:], nil
}

func readBytes(b []byte) (value, rest []byte, err error) {
	n, b, err := readUvarint(b)
	if err != nil {
		return nil, nil, err
	}
	if n > uint64(len(b)) {
		return nil, nil, fmt.Errorf("%w: %d bytes wanted, %d left", errFrame, n, len(b))
	}
	return b[:n:n], b[n:], nil
}

// readList reads a count and that many byte strings.
func readList(b []byte) (list [][]byte, rest []byte, err error) {
	n, b, err := readUvarint(b)
	if err != nil {
		return nil, nil, err
	}
	if n > uint64(len(b)) { // each entry takes a byte at least: bounds the allocation
		return nil, nil, fmt.Errorf("%w: %d entries in %d bytes", errFrame, n, len(b))
	}
	if n > 0 {
		list = make([][]byte, n)
	}
	for i := range list {
		if list[i], b, err = readBytes(b); err != nil {
			return nil, nil, err
		}
	}
	return list, b, nil
}
