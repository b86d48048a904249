package coordinator

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// maxPartitions bounds the partitions of one topic that a decoder accepts, far above what a cluster can
// hold, so that a damaged length cannot ask for gigabytes.
const maxPartitions = 1 << 18

// maxExpanded bounds the partitions that all runs of one input may expand to together.
const maxExpanded = 1 << 22

var errMalformed = errors.New("coordinator: malformed bytes")

// reader takes ops, results and snapshots apart. The first failure sticks.
type reader struct {
	b        []byte
	err      error
	expanded uint64
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errMalformed, what)
	}
	r.b = nil
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("truncated")
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) bool() bool {
	v := r.byte()
	if v > 1 {
		r.fail("boolean")
	}
	return v == 1
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("varint")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("varint")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int32() int32 {
	v := r.varint()
	if v < math.MinInt32 || v > math.MaxInt32 {
		r.fail("32-bit integer")
		return 0
	}
	return int32(v)
}

// count reads a length of elements that take at least size bytes each.
func (r *reader) count(size int) int {
	v := r.uvarint()
	if v > uint64(len(r.b)/size) {
		r.fail("length")
		return 0
	}
	return int(v)
}

func (r *reader) string() string {
	n := r.count(1)
	if r.err != nil {
		return ""
	}
	v := string(r.b[:n])
	r.b = r.b[n:]
	return v
}

func (r *reader) optional() *string {
	if !r.bool() || r.err != nil {
		return nil
	}
	v := r.string()
	return &v
}

func (r *reader) strings() []string {
	n := r.count(1)
	v := make([]string, 0, n)
	for range n {
		v = append(v, r.string())
	}
	return v
}

func (r *reader) id() (id [16]byte) {
	if len(r.b) < len(id) {
		r.fail("truncated")
		return id
	}
	copy(id[:], r.b)
	r.b = r.b[len(id):]
	return id
}

// partitions reads what appendPartitions wrote: runs of neighbours, ascending.
func (r *reader) partitions() []int32 {
	n := r.count(2)
	var v []int32
	next := uint64(0)
	for range n {
		gap, more := r.uvarint(), r.uvarint()
		if r.err != nil {
			return nil
		}
		if gap > maxPartitions || more > maxPartitions || next+gap+more >= maxPartitions {
			r.fail("partition run")
			return nil
		}
		if r.expanded += more + 1; r.expanded > maxExpanded {
			r.fail("too many partitions")
			return nil
		}
		first := next + gap
		for p := first; p <= first+more; p++ {
			v = append(v, int32(p))
		}
		next = first + more + 1
	}
	return v
}

// end is the reader's verdict: the first failure, or leftover bytes.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("trailing bytes")
	}
	return r.err
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendString(b []byte, v string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendOptional(b []byte, v *string) []byte {
	if v == nil {
		return append(b, 0)
	}
	return appendString(append(b, 1), *v)
}

func appendStrings(b []byte, v []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	for _, s := range v {
		b = appendString(b, s)
	}
	return b
}

func appendInt32(b []byte, v int32) []byte { return binary.AppendVarint(b, int64(v)) }

// appendPartitions writes ascending partitions as runs, so that a whole topic costs a few bytes.
func appendPartitions(b []byte, v []int32) []byte {
	runs := 0
	for i := range v {
		if i == 0 || v[i] != v[i-1]+1 {
			runs++
		}
	}
	b = binary.AppendUvarint(b, uint64(runs))
	next := int32(0)
	for i := 0; i < len(v); {
		j := i
		for j+1 < len(v) && v[j+1] == v[j]+1 {
			j++
		}
		b = binary.AppendUvarint(b, uint64(v[i]-next))
		b = binary.AppendUvarint(b, uint64(j-i))
		next = v[j] + 1
		i = j + 1
	}
	return b
}
