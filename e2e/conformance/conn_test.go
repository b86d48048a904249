//go:build e2e

package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// conn is one TCP connection that requests go over one at a time. Nothing is retried, looked up or negotiated.
type conn struct {
	net.Conn
	correlation int32
}

// requestTimeout is beyond every wait that a test asks a server for.
const requestTimeout = 45 * time.Second

func dial(address string) (*conn, error) {
	c, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// send writes a request, in the version that it has set.
func (c *conn) send(req kmsg.Request) error {
	c.correlation++
	const client = "conformance"
	b := make([]byte, 4, 256)
	b = binary.BigEndian.AppendUint16(b, uint16(req.Key()))
	b = binary.BigEndian.AppendUint16(b, uint16(req.GetVersion()))
	b = binary.BigEndian.AppendUint32(b, uint32(c.correlation))
	b = binary.BigEndian.AppendUint16(b, uint16(len(client)))
	b = append(b, client...)
	if req.IsFlexible() {
		b = append(b, 0) // no tags
	}
	b = req.AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	c.SetDeadline(time.Now().Add(requestTimeout))
	_, err := c.Write(b)
	return err
}

// receive reads the response to the request that was sent last.
func (c *conn) receive(req kmsg.Request) (kmsg.Response, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	if got := int32(binary.BigEndian.Uint32(b)); got != c.correlation {
		return nil, fmt.Errorf("correlation id %d, want %d", got, c.correlation)
	}
	b = b[4:]
	if req.IsFlexible() && req.Key() != 18 { // ApiVersions has the old header at all versions
		if b[0] != 0 {
			return nil, errors.New("tags in the response header")
		}
		b = b[1:]
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	return resp, resp.ReadFrom(b)
}

func (c *conn) do(req kmsg.Request) (kmsg.Response, error) {
	if err := c.send(req); err != nil {
		return nil, err
	}
	resp, err := c.receive(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kmsg.NameForKey(req.Key()), err)
	}
	return resp, nil
}
