package proxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Produce: relayed; the response's NodeEndpoints rewritten
//
//   - v9: flexible
//   - v10: NodeEndpoints of new leaders (KIP-951), rewritten
//   - acks=0 has no response, so it takes no place in the queue of answers

// rewriteProduce puts kshare's addresses into NodeEndpoints. The usual
// response has none and goes on as it came.
func rewriteProduce(n *nodes, version int16, resp []byte) ([]byte, error) {
	decoded, err := decodeResponse(produceKey, version, resp)
	if err != nil {
		return nil, err
	}
	r := decoded.(*kmsg.ProduceResponse)
	if len(r.Brokers) == 0 {
		return resp, nil
	}
	kept := r.Brokers[:0]
	for _, b := range r.Brokers {
		host, port, ok := n.rewrite(b.NodeID, b.Host, b.Port)
		if ok {
			b.Host, b.Port = host, port
			kept = append(kept, b)
		}
	}
	r.Brokers = kept
	return appendRewritten(resp, r), nil
}

// appendRewritten encodes a response anew behind the header of the one that it
// was decoded from: the tag section that opens a flexible response stays, so
// that unknown header tags survive a rewrite.
func appendRewritten(from []byte, resp kmsg.Response) []byte {
	body := kbin.Reader{Src: from}
	if resp.IsFlexible() {
		kmsg.SkipTags(&body) // as decodeResponse reads them
	}
	header := from[:len(from)-len(body.Src)]
	return resp.AppendTo(append(make([]byte, 0, len(from)+64), header...))
}

// producesSilently tells whether a Produce request that waits in the reader
// has acks=0. Only the bytes up to that field are looked at.
func producesSilently(in *bufio.Reader, h header) (bool, error) {
	c := cursor{peek: in.Peek, off: sizeLen + headerLen, end: sizeLen + int(h.size)}
	c.string(false)
	switch {
	case h.version >= 9:
		c.skipTags()
		c.string(true)
	case h.version >= 3:
		c.string(false)
	}
	acks := c.take(2)
	if c.err != nil {
		return false, closing(CloseMalformed, fmt.Errorf("produce v%d: %w", h.version, c.err))
	}
	return binary.BigEndian.Uint16(acks) == 0, nil
}

// cursor reads the head of a frame that is still arriving, field by field.
type cursor struct {
	peek     func(n int) ([]byte, error) // the first n bytes of the frame
	off, end int
	err      error
}

// take returns the next n bytes, or zeros after an error.
func (c *cursor) take(n int) []byte {
	if c.err == nil && (n < 0 || n > c.end-c.off) {
		c.err = fmt.Errorf("%d bytes at offset %d of %d", n, c.off, c.end)
	}
	if c.err != nil {
		return make([]byte, 8)
	}
	b, err := c.peek(c.off + n)
	if err != nil {
		c.err = err
		return make([]byte, 8)
	}
	c.off += n
	return b[c.off-n:]
}

// string returns the next string, which is compact in flexible versions; null
// and an error give none.
func (c *cursor) string(compact bool) []byte {
	var n int
	if compact {
		n = c.uvarint() - 1
	} else {
		n = int(int16(binary.BigEndian.Uint16(c.take(2))))
	}
	if n <= 0 {
		return nil
	}
	if b := c.take(n); c.err == nil {
		return b
	}
	return nil
}

func (c *cursor) skipTags() {
	for n := c.uvarint(); n > 0 && c.err == nil; n-- {
		c.uvarint()
		c.take(c.uvarint())
	}
}

// uvarint takes no number above what an int32 holds: to brokers such a length is
// negative, so that they read on elsewhere.
func (c *cursor) uvarint() int {
	var v uint64
	for shift := 0; shift < 35 && c.err == nil; shift += 7 {
		b := c.take(1)[0]
		v |= uint64(b&0x7f) << shift
		switch {
		case v > math.MaxInt32:
			c.err = fmt.Errorf("varint at offset %d is too high", c.off)
		case b < 0x80:
			return int(v)
		}
	}
	if c.err == nil {
		c.err = fmt.Errorf("varint at offset %d too long", c.off)
	}
	return 0
}
