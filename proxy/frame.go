package proxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A frame is a big-endian int32 size and that many bytes. A request starts
// with key int16, version int16, correlation id int32, client id (nullable
// string, also in flexible versions), tags if flexible; a response with the
// correlation id and tags if flexible, but for ApiVersions never tags.
const (
	sizeLen    = 4
	headerLen  = 8        // key, version, correlation id: what every request has
	readerSize = 16 << 10 // per direction and connection
	copySize   = 64 << 10
)

// header is the part of a request that says where it goes.
type header struct {
	size         int32 // bytes after the size field
	key, version int16
	corr         int32
}

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, readerSize) }

// readHeader waits for the next request and looks at its header without
// consuming it. A clean end between two frames is io.EOF; everything else that
// is not a Kafka request is a closeError.
func readHeader(in *bufio.Reader, maxFrame int32) (header, error) {
	b, err := in.Peek(sizeLen)
	if err != nil {
		if len(b) > 0 && errors.Is(err, io.EOF) {
			return header{}, closing(CloseTruncated, io.ErrUnexpectedEOF)
		}
		return header{}, err
	}
	size, err := checkSize(b, maxFrame)
	if err != nil {
		return header{}, err
	}
	b, err = in.Peek(sizeLen + headerLen)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = closing(CloseTruncated, io.ErrUnexpectedEOF)
		}
		return header{}, err
	}
	return header{
		size:    size,
		key:     int16(binary.BigEndian.Uint16(b[4:])),
		version: int16(binary.BigEndian.Uint16(b[6:])),
		corr:    int32(binary.BigEndian.Uint32(b[8:])),
	}, nil
}

var httpVerbs = [][]byte{[]byte("GET "), []byte("POST"), []byte("HEAD"), []byte("PUT "), []byte("DELE"), []byte("OPTI"), []byte("PATC"), []byte("CONN"), []byte("PRI ")}

// checkSize judges the first four bytes before anything is allocated for them.
func checkSize(b []byte, maxFrame int32) (int32, error) {
	size := int32(binary.BigEndian.Uint32(b))
	switch {
	case b[0] == 0x16 && b[1] == 0x03 && b[2] <= 0x04:
		return 0, closing(CloseTLS, errors.New("a TLS handshake came to a plain-text port; set security.protocol to PLAINTEXT or SASL_PLAINTEXT"))
	case isHTTP(b):
		return 0, closing(CloseHTTP, errors.New("an HTTP request came to a Kafka port; metrics and health are on the --http address"))
	case size < 0:
		return 0, closing(CloseNegativeFrame, fmt.Errorf("frame of %d bytes", size))
	case size > maxFrame:
		return 0, closing(CloseOversizedFrame, fmt.Errorf("frame of %d bytes is over max-frame %d", size, maxFrame))
	case size < headerLen:
		return 0, closing(CloseMalformed, fmt.Errorf("frame of %d bytes holds no request header", size))
	}
	return size, nil
}

func isHTTP(b []byte) bool {
	for _, verb := range httpVerbs {
		if bytes.Equal(b[:4], verb) {
			return true
		}
	}
	return false
}

// readFrame consumes a frame whose size was checked and returns what stands
// behind the size field. Memory grows with what arrives, not with what was
// promised.
func readFrame(in *bufio.Reader, size int32) ([]byte, error) {
	if _, err := in.Discard(sizeLen); err != nil {
		return nil, err
	}
	if size <= copySize {
		b := make([]byte, size)
		_, err := io.ReadFull(in, b)
		return b, err
	}
	var b bytes.Buffer
	b.Grow(copySize)
	n, err := io.CopyN(&b, in, int64(size))
	if err == io.EOF && n < int64(size) {
		err = io.ErrUnexpectedEOF
	}
	return b.Bytes(), err
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, copySize); return &b }}

// errWrite marks a copy that failed on the writing side.
var errWrite = errors.New("write")

// copyFrame moves the next n bytes from in to dst: what is buffered in one
// write, the rest in large pieces, by splice where both ends are plain TCP.
// src is the connection that in reads from, p how long dst may take nothing.
func copyFrame(dst net.Conn, in *bufio.Reader, src net.Conn, n int64, p patience) error {
	// A frame that fits the buffer is worth waiting for: it leaves in one write.
	for n > readerSize && in.Buffered() > 0 {
		k := min(int64(in.Buffered()), n)
		if err := copyBuffered(dst, in, int(k), p); err != nil {
			return err
		}
		n -= k
	}
	if n <= readerSize {
		return copyBuffered(dst, in, int(n), p)
	}
	_, plainSrc := src.(*net.TCPConn)
	plainDst, ok := dst.(*net.TCPConn)
	if ok && plainSrc {
		return spliceFrame(plainDst, src, n, p)
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for n > 0 {
		k, err := in.Read((*buf)[:min(n, copySize)])
		if k > 0 {
			if err := p.write(dst, (*buf)[:k]); err != nil {
				return fmt.Errorf("%w: %w", errWrite, err)
			}
			n -= int64(k)
		}
		if err != nil && n > 0 {
			return unexpectedEnd(err)
		}
	}
	return nil
}

// copyBuffered moves n bytes, at most the reader's size, in one write.
func copyBuffered(dst net.Conn, in *bufio.Reader, n int, p patience) error {
	b, err := in.Peek(n)
	if err != nil {
		return unexpectedEnd(err)
	}
	if err := p.write(dst, b); err != nil {
		return fmt.Errorf("%w: %w", errWrite, err)
	}
	_, err = in.Discard(n)
	return err
}

func spliceFrame(dst *net.TCPConn, src net.Conn, n int64, p patience) error {
	for n > 0 {
		piece := n
		if p > 0 {
			piece = min(n, stallPiece)
		}
		if err := p.begin(dst); err != nil {
			return err
		}
		rest := &io.LimitedReader{R: src, N: piece}
		if _, err := dst.ReadFrom(rest); err != nil {
			return err
		}
		if rest.N > 0 {
			return io.ErrUnexpectedEOF
		}
		n -= piece
	}
	return nil
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// request is a request that was read whole.
type request struct {
	header
	clientID *string
	frame    []byte // all behind the size field
	body     []byte // behind the header
}

// parseRequest takes a whole frame apart; flexible tells which header it has.
func parseRequest(h header, frame []byte, flexible bool) (request, error) {
	r := kbin.Reader{Src: frame}
	r.Span(headerLen)
	id := r.NullableString()
	if flexible {
		kmsg.SkipTags(&r)
	}
	if !r.Ok() {
		return request{}, closing(CloseMalformed, fmt.Errorf("request header of key %d version %d: %w", h.key, h.version, r.Complete()))
	}
	return request{header: h, clientID: id, frame: frame, body: r.Src}, nil
}

// decode reads the body as its key and version say.
func (r *request) decode() (kmsg.Request, error) {
	body := kmsg.RequestForKey(r.key)
	if body == nil {
		return nil, closing(CloseUnsupportedAPI, fmt.Errorf("key %d", r.key))
	}
	body.SetVersion(r.version)
	if len(r.body) > largeBody {
		largeBodies <- struct{}{}
		defer func() { <-largeBodies }()
	}
	if err := body.ReadFrom(r.body); err != nil {
		return nil, closing(CloseMalformed, fmt.Errorf("%s v%d: %w", kmsg.NameForKey(r.key), r.version, err))
	}
	return body, nil
}

// largeBodies lets few large requests be decoded at a time: each may take many times its size until it turns out that it
// promised more than it has.
var largeBodies = make(chan struct{}, 2)

const largeBody = 256 << 10

func (r *request) clientName() string {
	if r.clientID == nil {
		return ""
	}
	return *r.clientID
}

// appendRequest writes a whole request frame.
func appendRequest(dst []byte, corr int32, clientID *string, body kmsg.Request) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = kbin.AppendInt16(dst, body.Key())
	dst = kbin.AppendInt16(dst, body.GetVersion())
	dst = kbin.AppendInt32(dst, corr)
	dst = kbin.AppendNullableString(dst, clientID)
	if body.IsFlexible() {
		dst = append(dst, 0)
	}
	dst = body.AppendTo(dst)
	return putSize(dst, start)
}

// appendResponse writes a whole response frame.
func appendResponse(dst []byte, corr int32, body kmsg.Response) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = kbin.AppendInt32(dst, corr)
	if body.IsFlexible() && body.Key() != apiVersionsKey {
		dst = append(dst, 0)
	}
	dst = body.AppendTo(dst)
	return putSize(dst, start)
}

func putSize(dst []byte, start int) []byte {
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-sizeLen))
	return dst
}

// decodeResponse reads what stands behind the correlation id of an answer to
// a request of this key and version.
func decodeResponse(key, version int16, b []byte) (kmsg.Response, error) {
	resp := kmsg.ResponseForKey(key)
	resp.SetVersion(version)
	if resp.IsFlexible() && key != apiVersionsKey {
		r := kbin.Reader{Src: b}
		kmsg.SkipTags(&r)
		if !r.Ok() {
			return nil, r.Complete()
		}
		b = r.Src
	}
	if err := resp.ReadFrom(b); err != nil {
		return nil, err
	}
	return resp, nil
}
