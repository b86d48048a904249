package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// slot is the place of one request in the order of upstream's answers.
type slot struct {
	corr         int32
	key, version int16
	client       bool // a client's request, as opposed to a question of ours
	token        bool // a SASL token: the answer has no header either
	rewrite      rewriter
	answer       chan<- []byte // our own question: who waits for it (capacity 1)
}

// readAnswers takes upstream's responses in order and brings each to where its
// slot says. It is the only writer to the client while relayed responses are
// due.
func (c *conn) readAnswers() {
	defer close(c.answered)
	for {
		if err := c.readAnswer(); err != nil {
			c.close(err)
			return
		}
	}
}

func (c *conn) readAnswer() error {
	b, err := c.upIn.Peek(sizeLen)
	if err != nil {
		return c.upstreamEnded(err)
	}
	size := int32(binary.BigEndian.Uint32(b))
	var sl slot
	select {
	case sl = <-c.pending:
	default:
		return closing(CloseUpstreamProtocol, errors.New("a response to no request"))
	}
	c.reach(stageHeard)
	if sl.token {
		return c.passOn(sl, size)
	}
	if size < 4 {
		return closing(CloseUpstreamProtocol, fmt.Errorf("response of %d bytes", size))
	}
	b, err = c.upIn.Peek(sizeLen + 4)
	if err != nil {
		return closing(CloseUpstream, err)
	}
	if corr := int32(binary.BigEndian.Uint32(b[sizeLen:])); corr != sl.corr {
		return closing(CloseUpstreamProtocol, fmt.Errorf("response to request %d where %d is due", corr, sl.corr))
	}
	switch {
	case sl.answer != nil:
		frame, err := c.holdAnswer(size)
		if err != nil {
			return err
		}
		sl.answer <- frame[4:]
		return nil
	case sl.rewrite != nil:
		return c.passOnRewritten(sl, size)
	}
	return c.passOn(sl, size)
}

// openToAll: upstream answers these before it accepted the client.
func openToAll(key int16) bool {
	return key == apiVersionsKey || key == saslHandshakeKey || key == saslAuthenticateKey
}

// passOn streams the response to the client.
func (c *conn) passOn(sl slot, size int32) error {
	if size < 0 {
		return closing(CloseUpstreamProtocol, fmt.Errorf("response of %d bytes", size))
	}
	n := sizeLen + int64(size)
	c.s.metrics.toClient.Add(float64(n))
	err := copyFrame(c.client, c.upIn, c.up, n, patience(c.s.cfg.StallTimeout))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return closing(CloseSlowReader, nil)
	case errors.Is(err, errWrite):
		return closing(CloseClient, err)
	case err != nil:
		return closing(CloseUpstream, err)
	}
	c.done()
	return nil
}

// passOnRewritten holds the response whole and lets its API's file change it.
func (c *conn) passOnRewritten(sl slot, size int32) error {
	frame, err := c.holdAnswer(size)
	if err != nil {
		return err
	}
	body, err := sl.rewrite(c.s.nodes, sl.version, frame[4:])
	if err != nil {
		return closing(CloseUpstreamProtocol, fmt.Errorf("%s v%d response: %w", apiName(sl.key), sl.version, err))
	}
	out := make([]byte, 0, sizeLen+4+len(body))
	out = append(out, 0, 0, 0, 0)
	out = append(out, frame[:4]...)
	out = append(out, body...)
	if err := c.writeClient(putSize(out, 0)); err != nil {
		return err
	}
	c.s.metrics.toClient.Add(float64(len(out)))
	c.done()
	return nil
}

func (c *conn) holdAnswer(size int32) ([]byte, error) {
	if size > c.s.cfg.MaxFrame {
		return nil, closing(CloseUpstreamProtocol, fmt.Errorf("response of %d bytes is over max-frame %d", size, c.s.cfg.MaxFrame))
	}
	frame, err := readFrame(c.upIn, size)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, closing(CloseUpstream, err)
	}
	return frame, nil
}

// done takes note that a relayed request of the client is answered.
func (c *conn) done() {
	c.mu.Lock()
	c.waiting--
	if c.waiting == 0 && c.settled != nil {
		close(c.settled)
		c.settled = nil
	}
	idle := c.retired && !c.busy && c.waiting == 0
	c.mu.Unlock()
	if idle {
		c.close(closing(CloseDrain, nil))
	}
}
