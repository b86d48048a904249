package upstream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"
)

// MostUnpacked is how many bytes a compressed batch may unpack to for its records to be copied. A broker stops at the dead
// letter topic's max.message.bytes, a megabyte by default.
const MostUnpacked = 8 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Copies are the records of one unpacked batch. Nothing else in kshare looks into a batch. They are for one goroutine.
type Copies struct {
	base, last int64
	records    []byte

	rest []byte // of records, what At has not looked at
	next int64  // the offset of the first record in rest is this or a later one
}

// Copies unpacks the batch. With an error, ErrTooLarge or ErrCorrupt, the copies cover the batch and hold nothing.
func (c *Client) Copies(b Batch) (*Copies, error) {
	copies := &Copies{base: b.Base, last: b.Last, next: b.Base}
	if b.Control {
		return copies, nil // a marker is no record
	}
	corrupt := func(err error) error {
		return fmt.Errorf("%w: batch at offset %d: %w", ErrCorrupt, b.Base, err)
	}
	if want := binary.BigEndian.Uint32(b.Bytes[atChecksum:]); crc32.Checksum(b.Bytes[atAttributes:], castagnoli) != want {
		return copies, corrupt(errors.New("the checksum does not match"))
	}
	const codecs = 7
	records, err := c.unpacker().Decompress(b.Bytes[headerBytes:], kgo.CompressionCodecType(b.Bytes[atAttributes+1]&codecs))
	switch {
	case errors.Is(err, kgo.ErrMaxDecompress):
		return copies, fmt.Errorf("%w: batch at offset %d unpacks to more than %d bytes", ErrTooLarge, b.Base, MostUnpacked)
	case err != nil:
		return copies, corrupt(err)
	}
	copies.records, copies.rest = records, records
	return copies, nil
}

// unpacker is franz-go's decompressor as options bound it.
func (c *Client) unpacker() kgo.Decompressor {
	return c.kgo.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
}

// Covers tells whether the offset lies in the batch; never for nil.
func (c *Copies) Covers(offset int64) bool {
	return c != nil && c.base <= offset && offset <= c.last
}

// At gives key and value of the record at the offset, nil without one. It is quick where offsets ascend. Of records that
// are not well-formed it says ErrCorrupt, and holds nothing from then on.
func (c *Copies) At(offset int64) (key, value []byte, err error) {
	if offset < c.next {
		c.rest, c.next = c.records, c.base
	}
	for len(c.rest) > 0 {
		length, n := binary.Varint(c.rest)
		if n <= 0 || length < 0 || length > int64(len(c.rest)-n) {
			return nil, nil, c.malformed()
		}
		r := kbin.Reader{Src: c.rest[n : n+int(length)]}
		r.Int8()    // attributes
		r.Varlong() // timestamp
		at := c.base + int64(r.Varint())
		if !r.Ok() || at < c.next {
			return nil, nil, c.malformed()
		}
		if at > offset {
			break
		}
		c.rest, c.next = c.rest[n+int(length):], at+1
		if at < offset {
			continue
		}
		key, value = r.VarintBytes(), r.VarintBytes()
		if !r.Ok() {
			return nil, nil, c.malformed()
		}
		return key, value, nil
	}
	return nil, nil, nil
}

func (c *Copies) malformed() error {
	c.records, c.rest = nil, nil
	return fmt.Errorf("%w: batch at offset %d: a record at offset %d or later is not well-formed", ErrCorrupt, c.base, c.next)
}
