package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxDecoded bounds requests that are decoded here. No client has reason to come near it, and an array may promise an
// element of a hundred bytes in memory for each byte of the frame.
const maxDecoded = 4 << 20

// serveWhole reads the request, waits for its turn and has it answered.
func (c *conn) serveWhole(h header, rt route) error {
	if h.size > maxDecoded {
		return closing(CloseOversizedFrame, fmt.Errorf("%s of %d bytes; what is read here may have %d", apiName(h.key), h.size, maxDecoded))
	}
	if err := c.mayBeHeld(h); err != nil {
		return err
	}
	frame, err := readFrame(c.in, h.size)
	c.frame.stop()
	if err != nil {
		return closing(CloseTruncated, err)
	}
	flexible := false
	if !rt.raw {
		body := kmsg.RequestForKey(h.key)
		body.SetVersion(h.version)
		flexible = body.IsFlexible()
	}
	r, err := parseRequest(h, frame, flexible)
	if err != nil {
		return err
	}
	c.clientID = r.clientID
	if rt.api != nil {
		return c.serveAPI(r, rt)
	}
	if err := c.settle(); err != nil {
		return err
	}
	return rt.handle(c, r)
}

// maxStrangers is what a request may have in bytes that is read here before upstream has accepted its client. With what
// the client's connection itself takes, and thirty times that while it is decoded, it is what each stranger costs.
const maxStrangers = readerSize

// mayBeHeld asks upstream about the client, if it is not known, before a large request of it is read into memory.
func (c *conn) mayBeHeld(h header) error {
	if h.size <= maxStrangers || c.at(stageAccepted) {
		return nil
	}
	if openToAll(h.key) {
		return closing(CloseOversizedFrame, fmt.Errorf("%s of %d bytes; what strangers send may have %d", apiName(h.key), h.size, maxStrangers))
	}
	c.frame.stop()
	var err error
	if failed := c.working(func(ctx context.Context) { err = c.checkAccepted(ctx) }); failed != nil {
		return failed
	}
	c.clockFrame(sizeLen+int64(h.size), h.size)
	return err
}

// respond writes a response of our own. Only called when settled, so nobody
// else writes to the client.
func (c *conn) respond(corr int32, resp kmsg.Response) error {
	buf := responseBuffers.Get().(*[]byte)
	*buf = appendResponse((*buf)[:0], corr, resp)
	err := c.writeClient(*buf)
	if cap(*buf) <= keepBuffer {
		responseBuffers.Put(buf)
	}
	return err
}

// writeClient writes a response that is held whole.
func (c *conn) writeClient(b []byte) error {
	err := patience(c.s.cfg.StallTimeout).write(c.client, b)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return closing(CloseSlowReader, nil)
	case err != nil:
		return closing(CloseClient, err)
	}
	return nil
}

// keepBuffer bounds what an unused response buffer may pin.
const keepBuffer = 4 << 20

var responseBuffers = sync.Pool{New: func() any { return new([]byte) }}
