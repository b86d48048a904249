package proxy

import (
	"context"
	"errors"
	"os"
	"time"
)

// farewell is how long a client that closed its sending side may still wait
// for what it asked before. Brokers allow none of that; this spares a request
// that arrived together with the close, above all a last acknowledgement.
const farewell = 100 * time.Millisecond

// errGone: the client closed its side.
var errGone = errors.New("client is gone")

// working runs f in a goroutine of its own while the reading goroutine watches
// the client. f's context ends when the client goes away or the connection is
// closed; working returns once f has, with an error if the connection ends.
func (c *conn) working(f func(ctx context.Context)) error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	err := c.await(done)
	if err != nil {
		cancel()
		<-done
		if errors.Is(err, context.Canceled) {
			err = c.ended()
		}
	}
	return err
}

// settle waits until every earlier request is answered.
func (c *conn) settle() error {
	c.mu.Lock()
	if c.waiting == 0 {
		c.mu.Unlock()
		return nil
	}
	settled := make(chan struct{})
	c.settled = settled
	c.mu.Unlock()
	return c.await(settled)
}

// await waits for done and meanwhile watches the client, which may go away.
// It reads ahead, but only until the buffer is full. Called by the reading
// goroutine.
func (c *conn) await(done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	watcher := make(chan struct{})
	go func() { // interrupts the read below
		defer close(watcher)
		select {
		case <-done:
		case <-c.ctx.Done():
		}
		_ = c.client.SetReadDeadline(time.Unix(1, 0))
	}()
	var err error
	for err == nil && c.in.Buffered() < c.in.Size() {
		_, err = c.in.Peek(c.in.Buffered() + 1)
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		select {
		case <-done:
		case <-c.ctx.Done():
		case <-time.After(farewell):
			// The watcher is left to end with the connection.
			return errGone
		}
	}
	<-watcher
	if err := c.ctx.Err(); err != nil {
		return err
	}
	return c.client.SetReadDeadline(time.Time{})
}

// sayFarewell lets due responses reach a client that only closed its sending
// side.
func (c *conn) sayFarewell() {
	c.mu.Lock()
	settled := make(chan struct{})
	if c.waiting == 0 {
		close(settled)
	}
	c.settled = settled
	c.mu.Unlock()
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-settled:
	case <-timer.C:
	case <-c.ctx.Done():
	}
}
