package proxy

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ownCorrelation is a correlation id for a question that kshare itself puts on a
// client's upstream connection. Clients count up from zero, and the order of
// answers keeps the two apart; that no client can guess it keeps an answer that
// came out of order, to a request of the client's, from being taken for ours.
func ownCorrelation() int32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return math.MinInt32 | int32(binary.BigEndian.Uint32(b[:])&math.MaxInt32)
}

// versionRange is what upstream advertises for one key.
type versionRange struct{ min, max int16 }

// ask puts a request of ours on the client's upstream connection, where it
// runs as the client, and waits for the answer. It takes its own place among
// the client's requests.
func (c *conn) ask(ctx context.Context, body kmsg.Request) (kmsg.Response, error) {
	return c.askRewritten(ctx, body, nil)
}

// askRewritten is ask for what a client is told of the answer.
func (c *conn) askRewritten(ctx context.Context, body kmsg.Request, rewrite rewriter) (kmsg.Response, error) {
	b, err := c.askBytes(ctx, body)
	if err != nil {
		return nil, err
	}
	if rewrite != nil {
		if b, err = rewrite(c.s.nodes, body.GetVersion(), b); err != nil {
			return nil, closing(CloseUpstreamProtocol, fmt.Errorf("%s v%d response: %w", apiName(body.Key()), body.GetVersion(), err))
		}
	}
	resp, err := decodeResponse(body.Key(), body.GetVersion(), b)
	if err != nil {
		return nil, closing(CloseUpstreamProtocol, fmt.Errorf("%s v%d response: %w", apiName(body.Key()), body.GetVersion(), err))
	}
	return resp, nil
}

// askBytes is ask for an answer whose form depends on itself; it returns what
// stands behind the correlation id.
func (c *conn) askBytes(ctx context.Context, body kmsg.Request) ([]byte, error) {
	return c.askAs(ctx, body, c.clientID)
}

func (c *conn) askAs(ctx context.Context, body kmsg.Request, clientID *string) ([]byte, error) {
	answer := make(chan []byte, 1)
	corr := ownCorrelation()
	sl := slot{corr: corr, key: body.Key(), version: body.GetVersion(), answer: answer}
	frame := appendRequest(nil, corr, clientID, body)
	err := c.sendUp(sl, false, func(up net.Conn) error {
		_, err := up.Write(frame)
		return err
	})
	if err != nil {
		return nil, err
	}
	select {
	case b := <-answer:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, c.ended()
	}
}

// askWatching is ask for the reading goroutine: it notices a client that goes
// away meanwhile.
func (c *conn) askWatching(body kmsg.Request) (resp kmsg.Response, err error) {
	failed := c.working(func(ctx context.Context) { resp, err = c.ask(ctx, body) })
	if failed != nil {
		return nil, failed
	}
	return resp, err
}

// ended tells why the connection was closed.
func (c *conn) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending != nil {
		return c.ending
	}
	return context.Canceled
}

// upstreamRanges tells what upstream advertises on this connection, asking
// once if the client did not.
func (c *conn) upstreamRanges() (map[int16]versionRange, error) {
	if c.ranges != nil {
		return c.ranges, nil
	}
	resp, err := c.askWatching(&kmsg.ApiVersionsRequest{})
	if err != nil {
		return nil, err
	}
	c.keepRanges(resp.(*kmsg.ApiVersionsResponse))
	return c.ranges, nil
}

func (c *conn) keepRanges(resp *kmsg.ApiVersionsResponse) {
	c.ranges = make(map[int16]versionRange, len(resp.ApiKeys))
	for _, k := range resp.ApiKeys {
		c.ranges[k.ApiKey] = versionRange{k.MinVersion, k.MaxVersion}
	}
}

// checkUpstreamHas lets a key that kmsg does not know pass only if upstream
// advertises it.
func (c *conn) checkUpstreamHas(h header) error {
	ranges, err := c.upstreamRanges()
	if err != nil {
		return err
	}
	r, ok := ranges[h.key]
	if !ok {
		return closing(CloseUnsupportedAPI, fmt.Errorf("key %d", h.key))
	}
	if h.version < r.min || h.version > r.max {
		return closing(CloseUnsupported, fmt.Errorf("key %d v%d", h.key, h.version))
	}
	return nil
}

// checkAccepted makes sure that upstream takes this client before anything is
// served to it. Where upstream wants SASL first, it closes an unauthenticated
// connection at a question, after SaslHandshake with an answer that says
// nothing: no broker leaves itself out to those it has accepted.
func (c *conn) checkAccepted(ctx context.Context) error { return c.checkAcceptedAs(ctx, c.clientID) }

func (c *conn) checkAcceptedAs(ctx context.Context, clientID *string) error {
	if c.at(stageAccepted) {
		return nil
	}
	b, err := c.askAs(ctx, &kmsg.MetadataRequest{Version: metadataVersion, Topics: []kmsg.MetadataRequestTopic{}}, clientID)
	if err != nil {
		return err
	}
	resp, err := decodeResponse(metadataKey, metadataVersion, b)
	if err != nil {
		return closing(CloseUpstreamProtocol, fmt.Errorf("%s v%d response: %w", apiName(metadataKey), metadataVersion, err))
	}
	if len(resp.(*kmsg.MetadataResponse).Brokers) == 0 {
		return closing(CloseNotAuthenticated, nil)
	}
	c.reach(stageAccepted)
	return nil
}
