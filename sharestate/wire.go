package sharestate

import (
	"encoding/binary"
	"errors"
	"math"
)

var (
	// ErrMalformed tells that the bytes of an op, a result or a snapshot are not
	// what this package writes.
	ErrMalformed = errors.New("sharestate: malformed encoding")
	// ErrUnknownKind tells of an op kind that this version does not know; a newer
	// replica wrote it.
	ErrUnknownKind = errors.New("sharestate: unknown op kind")
	// ErrSnapshotVersion tells of a snapshot that a newer replica wrote.
	ErrSnapshotVersion = errors.New("sharestate: unknown snapshot version")
)

// reader takes an encoding apart. After the first mistake bad is set and every
// further read gives zero, so callers check once.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) fail() {
	r.b, r.bad = nil, true
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int32() int32 {
	v := r.varint()
	if v < math.MinInt32 || v > math.MaxInt32 {
		r.fail()
		return 0
	}
	return int32(v)
}

func (r *reader) int16() int16 {
	v := r.varint()
	if v < math.MinInt16 || v > math.MaxInt16 {
		r.fail()
		return 0
	}
	return int16(v)
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// flags reads one byte of which only the bits of known may be set.
func (r *reader) flags(known byte) byte {
	v := r.byte()
	if v&^known != 0 {
		r.fail()
		return 0
	}
	return v
}

// bytes reads a length and that many bytes; the result shares the input.
func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// count reads a number of elements of at least size bytes each, so that a lie
// about it cannot make us allocate more than the input's own size suggests.
func (r *reader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/size) {
		r.fail()
		return 0
	}
	return int(n)
}

// end tells whether the whole input was read without a mistake.
func (r *reader) end() error {
	if r.bad || len(r.b) != 0 {
		return ErrMalformed
	}
	return nil
}

func appendBytes[T []byte | string](dst []byte, b T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// appendRanges writes ranges as differences from one to the next, beginning at
// origin. The arithmetic wraps, so even nonsense survives the round trip and can
// be judged where it is applied.
func appendRanges(dst []byte, origin int64, ranges []OffsetRange) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ranges)))
	for _, x := range ranges {
		dst = binary.AppendVarint(dst, x.First-origin)
		dst = binary.AppendUvarint(dst, uint64(x.Last-x.First))
		origin = x.Last
	}
	return dst
}

func (r *reader) ranges(into []OffsetRange, origin int64) []OffsetRange {
	into = into[:0]
	for n := r.count(2); n > 0; n-- {
		first := origin + r.varint()
		last := first + int64(r.uvarint())
		into = append(into, OffsetRange{first, last})
		origin = last
	}
	return into
}
