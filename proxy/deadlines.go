package proxy

import (
	"io"
	"net"
	"time"
)

// Three clocks run on a client connection: until upstream has accepted the client or is to judge a request of it, while a
// request that has begun does not arrive, and while a response is not read. The first two close the connection when they
// run out, whatever it is doing. None uses the read deadline, which belongs to await alone.

// frameClock runs while a request that has begun is not there yet.
type frameClock struct {
	timer   *time.Timer
	expired func()
}

// start gives it d from now on.
func (f *frameClock) start(d time.Duration) {
	if f.timer == nil {
		f.timer = time.AfterFunc(d, f.expired)
		return
	}
	f.timer.Reset(d)
}

func (f *frameClock) stop() {
	if f.timer != nil {
		f.timer.Stop()
	}
}

func (c *conn) frameExpired() { c.close(closing(CloseSlowRequest, nil)) }

// clockFrame runs the frame's clock unless the n bytes of it, as far as they are known, are here.
func (c *conn) clockFrame(n int64, size int32) {
	if int64(c.in.Buffered()) >= n {
		c.frame.stop()
		return
	}
	c.frame.start(c.s.cfg.frameTime(size))
}

// The stages of a client, in their order.
const (
	stageSilent   int32 = iota
	stageSpoken         // a byte came
	stageHeard          // upstream has answered something, such as ApiVersions or a part of a login
	stageAsked          // a request that is for accepted clients only is with upstream
	stageAccepted       // upstream answered one of kshare's as it does to accepted clients
)

// at tells whether the client has come as far as a stage.
func (c *conn) at(stage int32) bool { return c.stage.Load() >= stage }

// reach notes that it has. There is no way back.
func (c *conn) reach(stage int32) {
	for now := c.stage.Load(); now < stage && !c.stage.CompareAndSwap(now, stage); {
		now = c.stage.Load()
	}
}

// judged notes that a whole request is with upstream that it answers to accepted clients only: it will answer, or end the
// connection, in its own time. The first of a connection may be one that waits for minutes.
func (c *conn) judged() {
	if !c.at(stageAsked) {
		c.reach(stageAsked)
		c.authClock.Stop()
	}
}

// authExpired ends a connection whose client was not accepted in the time that it had. One that did log in and then rests,
// or rests where upstream wants no login, is told apart from one that stopped half way by asking upstream something: if
// the client was not accepted, upstream ends the connection, or answers with nothing.
func (c *conn) authExpired() {
	switch {
	case c.at(stageAsked):
	case !c.at(stageHeard):
		c.close(c.notAuthenticated())
	default:
		c.doubted.Store(true)
		err := c.checkAcceptedAs(c.ctx, nil) // clientID is the reading goroutine's
		c.doubted.Store(false)
		if err != nil {
			c.close(c.notAuthenticated())
		}
	}
}

// notAuthenticated is the reason for a client that came to nothing; one that never said a word is a probe, mostly.
func (c *conn) notAuthenticated() error {
	if !c.at(stageSpoken) {
		return closing(CloseSilent, nil)
	}
	return closing(CloseNotAuthenticated, nil)
}

// upstreamEnded is the reason for an upstream connection that ended.
func (c *conn) upstreamEnded(cause error) error {
	if c.doubted.Load() {
		return closing(CloseNotAuthenticated, cause)
	}
	return closing(CloseUpstream, cause)
}

// stallPiece is how much a client has to read within the stall time-out.
const stallPiece = 1 << 20

// patience is how long the other side of a connection may leave untaken what is written to it; 0 is for ever.
type patience time.Duration

// begin is called before each write of at most stallPiece.
func (p patience) begin(dst net.Conn) error {
	if p == 0 {
		return nil
	}
	return dst.SetWriteDeadline(time.Now().Add(time.Duration(p)))
}

// write writes all of b, and leaves no deadline behind: a TLS connection may have to answer a change of keys while it is
// read, long after.
func (p patience) write(dst net.Conn, b []byte) error {
	for len(b) > 0 {
		if err := p.begin(dst); err != nil {
			return err
		}
		n, err := dst.Write(b[:min(len(b), stallPiece)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	if p == 0 {
		return nil
	}
	return dst.SetWriteDeadline(time.Time{})
}

// firstByte waits for the client's first byte; only then is a buffer taken for it.
func (c *conn) firstByte() error {
	head := &headReader{rest: c.client}
	if _, err := io.ReadFull(c.client, head.first[:]); err != nil {
		return err
	}
	c.reach(stageSpoken)
	c.in = newReader(head)
	return nil
}

// headReader gives back the first byte.
type headReader struct {
	first [1]byte
	given bool
	rest  io.Reader
}

func (h *headReader) Read(p []byte) (int, error) {
	if h.given || len(p) == 0 {
		return h.rest.Read(p)
	}
	h.given = true
	return copy(p, h.first[:]), nil
}
