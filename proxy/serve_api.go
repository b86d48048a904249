package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

// parts says who answers what of one request.
type parts struct {
	own    kmsg.Request // nil: none of it is kshare's, and theirs is the whole
	theirs kmsg.Request // nil: none of it is upstream's
}

// serveAPI answers a request whose API package serve has a part in.
func (c *conn) serveAPI(r request, rt route) error {
	p, err := c.divide(r, rt.api)
	if err != nil {
		return err
	}
	if p.own == nil && p.theirs.GetVersion() == r.version {
		return c.relayHeld(r, rt.rewriteOf(p.theirs))
	}
	if err := c.settle(); err != nil {
		return err
	}
	if err := c.holdWhileDraining(r.key); err != nil {
		return err
	}
	started := time.Now()
	var resp kmsg.Response
	failed := c.working(func(ctx context.Context) { resp, err = c.answer(ctx, r, rt, p) })
	if failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	c.s.metrics.latency.WithLabelValues(apiName(r.key)).Observe(time.Since(started).Seconds())
	return c.respond(r.corr, resp)
}

// divide decodes the request and lets its API say whose it is. A version that
// was not advertised is treated as brokers do: the connection ends.
func (c *conn) divide(r request, api *serve.API) (parts, error) {
	upstreamHas, theirMax := false, int16(-1)
	var ranges map[int16]versionRange
	if api.Relayed || api.Split != nil {
		var err error
		if ranges, err = c.upstreamRanges(); err != nil {
			return parts{}, err
		}
		var vr versionRange
		if vr, upstreamHas = ranges[r.key]; upstreamHas {
			theirMax = vr.max
		}
	}
	if (!api.Relayed || !upstreamHas) && (r.version < api.Min || r.version > api.Max) {
		return parts{}, closing(CloseUnsupported, fmt.Errorf("%s v%d", apiName(r.key), r.version))
	}
	body, err := r.decode()
	if err != nil {
		return parts{}, err
	}
	if api.Split == nil || !upstreamHas {
		return parts{own: body}, nil
	}
	p := parts{}
	split := api.Split
	if o := api.Older; o != nil {
		if vr, ok := ranges[o.Key]; !ok || vr.max < o.Version {
			split = o.Split
		}
	}
	p.own, p.theirs = split(c.s.deps.split, body)
	if p.own == nil {
		p.theirs = body
	}
	if p.theirs != nil {
		// What upstream does not know yet, a filter for one, is kshare's to do.
		p.theirs.SetVersion(min(p.theirs.GetVersion(), theirMax))
	}
	return p, nil
}

// answer gets both parts of the answer and joins them, at the client's version.
func (c *conn) answer(ctx context.Context, r request, rt route, p parts) (resp kmsg.Response, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			c.log.Error().Str("api", apiName(r.key)).Interface("panic", cause).Bytes("stack", debug.Stack()).Msg("serving failed")
			resp, err = nil, closing(CloseServe, fmt.Errorf("%s: panic: %v", apiName(r.key), cause))
		}
	}()
	if err := c.checkAccepted(ctx); err != nil {
		return nil, err
	}
	var theirs kmsg.Response
	if p.theirs != nil {
		if theirs, err = c.askRewritten(ctx, p.theirs, rt.rewriteOf(p.theirs)); err != nil {
			return nil, err
		}
	}
	if p.own == nil {
		theirs.SetVersion(r.version)
		return theirs, nil
	}
	own, err := rt.api.Serve(ctx, &serve.Request{Body: p.own, ClientID: r.clientName(), Conn: c.peer, Theirs: theirs})
	if err == nil && own == nil {
		err = errors.New("no response")
	}
	if err != nil {
		return nil, closing(CloseServe, fmt.Errorf("%s v%d: %w", apiName(r.key), r.version, err))
	}
	if theirs != nil {
		own = rt.api.Merge(own, theirs)
	}
	own.SetVersion(r.version)
	return own, nil
}

// relayHeld passes on, unchanged, a request that had to be read to know that
// it is upstream's.
func (c *conn) relayHeld(r request, rewrite rewriter) error {
	sl := slot{corr: r.corr, key: r.key, version: r.version, client: true, rewrite: rewrite}
	return c.sendUp(sl, false, func(up net.Conn) error {
		buffers := net.Buffers{kbin.AppendInt32(nil, r.size), r.frame}
		n, err := buffers.WriteTo(up)
		c.s.metrics.toUpstream.Add(float64(n))
		return err
	})
}

// holdWhileDraining keeps share consumers from polling in a busy loop while
// their fetches are answered at once: the next fetch waits until its
// connection's time to close has come, is served, and is the last.
func (c *conn) holdWhileDraining(key int16) error {
	if key != shareFetchKey {
		return nil
	}
	select {
	case <-c.s.draining:
		return c.await(c.retire)
	default:
		return nil
	}
}
