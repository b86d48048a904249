package proxy

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"kshare/proxy/certs/certstest"
	"kshare/proxy/serve"
)

const briefly = 100 * time.Millisecond

func TestConnectionThatAsksNothingIsClosedInTime(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(nil)}, cfg: func(c *Config) { c.AuthTimeout = briefly }})
	produce := kmsg.NewPtrProduceRequest()
	produce.Version, produce.Acks, produce.TimeoutMillis = 9, 0, 1000
	for _, tt := range []struct {
		name string
		does func(w *wire)
		ends CloseReason // empty: it stays
	}{
		{"nothing", func(*wire) {}, CloseSilent},
		{"half a header", func(w *wire) { w.send([]byte{0, 0, 0}) }, CloseNotAuthenticated},
		{"half a request", func(w *wire) { w.send(frameOf(1, &kmsg.MetadataRequest{Version: 9})[:20]) }, CloseNotAuthenticated},
		{"ApiVersions", func(w *wire) { w.ask(1, apiVersionsRequest(3)) }, ""}, // a login is not wanted here
		{"relayed", func(w *wire) { w.ask(1, &kmsg.MetadataRequest{Version: 9}) }, ""},
		{"handled", func(w *wire) { w.ask(1, &kmsg.FindCoordinatorRequest{Version: 3, CoordinatorKey: "g"}) }, ""},
		{"served", func(w *wire) { w.ask(1, heartbeat("m")) }, ""},
		{"produce without acks", func(w *wire) { w.send(frameOf(1, produce)) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, w := f.closedWith(tt.ends), f.dial()
			w.t = t
			began := time.Now()
			tt.does(w)
			if tt.ends != "" {
				w.expectClosed()
				if d := time.Since(began); d < briefly || d > 50*briefly {
					t.Errorf("closed after %v", d)
				}
				eventually(t, "counted", func() bool { return f.closedWith(tt.ends) == before+1 })
				return
			}
			// One that came later ends: its clock ran out behind this one's.
			f.dial().expectClosed()
			w.ask(2, &kmsg.MetadataRequest{Version: 9})
		})
	}
}

// TestFirstRequestMayWaitAtUpstream: JoinGroup, for one, is held until the other members come.
func TestFirstRequestMayWaitAtUpstream(t *testing.T) {
	answer := make(chan struct{})
	addr := scripted(t, func(_ int, frame []byte) []byte {
		<-answer
		return append(frame[4:8:8], 0, 0, 0, 0)
	})
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster, cfg: func(c *Config) { c.AuthTimeout = briefly }})
	w := f.dial()
	w.send(frameOf(7, &kmsg.HeartbeatRequest{}))
	f.dial().expectClosed()
	close(answer)
	if _, err := w.receive(); err != nil {
		t.Error(err)
	}
}

func TestClientThatLoggedInMayRest(t *testing.T) {
	up := startUpstream(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "secret"))
	login := kgo.SASL(plain.Auth{User: "alice", Pass: "secret"}.AsMechanism())
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cluster: lookAt(t, up.ListenAddrs(), login), cfg: func(c *Config) { c.AuthTimeout = briefly }})
	handshake := kmsg.NewPtrSASLHandshakeRequest()
	handshake.Version, handshake.Mechanism = 1, "PLAIN"
	token := kmsg.NewPtrSASLAuthenticateRequest()
	token.Version, token.SASLAuthBytes = 2, []byte("\x00alice\x00secret")

	in, half, looks := f.dial(), f.dial(), f.dial()
	in.ask(1, handshake)
	half.ask(1, handshake)
	looks.ask(1, apiVersionsRequest(3))
	if resp := in.ask(2, token).(*kmsg.SASLAuthenticateResponse); resp.ErrorCode != 0 {
		t.Fatalf("login: code %d", resp.ErrorCode)
	}
	half.expectClosed()
	looks.expectClosed()
	f.dial().expectClosed()
	in.ask(3, &kmsg.MetadataRequest{Version: 9})
	eventually(t, "counted", func() bool { return f.closedWith(CloseNotAuthenticated) == 2 })
}

// TestClientThatStopsHalfWayThroughItsLoginIsClosed: after the first of two tokens only upstream knows that there is more
// to come. Whoever asks anything before is cut off, with or without an answer that says nothing.
func TestClientThatStopsHalfWayThroughItsLoginIsClosed(t *testing.T) {
	nothing := &kmsg.MetadataResponse{Version: metadataVersion}
	for name, refusal := range map[string]func(frame []byte) []byte{
		"cut off":          func([]byte) []byte { return nil },
		"told of no nodes": func(frame []byte) []byte { return nothing.AppendTo(append(frame[4:8:8], 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			addr := scripted(t, func(_ int, frame []byte) []byte {
				switch frame[1] {
				case byte(saslHandshakeKey):
					return append(frame[4:8:8], 0, 0, 0, 0, 0, 0)
				case byte(saslAuthenticateKey):
					return append(frame[4:8:8], 0, 0, 0xff, 0xff, 0, 0, 0, 0)
				}
				return refusal(frame)
			})
			cluster := &fakeCluster{ready: make(chan struct{})}
			close(cluster.ready)
			f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster, cfg: func(c *Config) { c.AuthTimeout = briefly }})
			w := f.dial()
			handshake := kmsg.NewPtrSASLHandshakeRequest()
			handshake.Version, handshake.Mechanism = 1, "SCRAM-SHA-256"
			w.ask(1, handshake)
			w.ask(2, &kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte("first")})
			w.expectClosed()
			eventually(t, "counted", func() bool { return f.closedWith(CloseNotAuthenticated) == 1 })
		})
	}
}

// plainAndTLS runs a test with a proxy as it is, and with one that speaks TLS, where nothing is spliced.
func plainAndTLS(t *testing.T, o setup, test func(t *testing.T, f *fixture, dial func() *wire)) {
	t.Run("plain", func(t *testing.T) {
		f := startProxy(t, o)
		test(t, f, f.dial)
	})
	t.Run("TLS", func(t *testing.T) {
		a, plain := certstest.New(t, "ours"), o.cfg
		secure := withTLS(tlsFiles(a, t.TempDir()))
		o.cfg = func(c *Config) { plain(c); secure(c) }
		f := startProxy(t, o)
		test(t, f, func() *wire { return dialTLS(t, f.Addr().String(), trusting(a)) })
	})
}

func TestRequestThatDoesNotArriveIsSlow(t *testing.T) {
	up := startUpstream(t)
	hour := func(c *Config) { c.AuthTimeout, c.FrameTimeout = time.Hour, briefly }
	plainAndTLS(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(nil)}, cfg: hour}, func(t *testing.T, f *fixture, dial func() *wire) {
		produce := "\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x01\x00\x01a"
		sized := func(frame string, n int) string {
			b := append([]byte(frame), make([]byte, n-len(frame))...)
			return string(putSize(b, 0))
		}
		for _, tt := range []struct{ name, frame string }{
			{"size", "\x00"},
			{"header", "\x00\x00\x00\x20\x00\x03"},
			{"head", "\x00\x00\x00\x20\x00\x00\x00\x09\x00\x00\x00\x01\x00\x01"},
			{"relayed", "\x00\x00\x00\x20\x00\x0c\x00\x04\x00\x00\x00\x01\x00\x01a"},
			{"served", "\x00\x00\x00\x20\x00\x4c\x00\x01\x00\x00\x00\x01\x00\x01a"},
			{"large", sized(produce, 20_000)[:18_000]},
			{"large and spliced", sized("\x00\x00\x00\x00\x00\x0c\x00\x04\x00\x00\x00\x01\x00\x01a", 30_000)[:29_000]},
		} {
			t.Run(tt.name, func(t *testing.T) {
				before, w := f.closedWith(CloseSlowRequest), dial()
				w.t = t
				w.ask(1, &kmsg.MetadataRequest{Version: 9}) // one that may do nothing for ever
				began := time.Now()
				w.send([]byte(tt.frame))
				w.expectClosed()
				if d := time.Since(began); d < briefly {
					t.Errorf("closed after %v", d)
				}
				eventually(t, "counted", func() bool { return f.closedWith(CloseSlowRequest) == before+1 })
			})
		}
		w := dial() // in pieces, but in time; and then at rest for longer
		for _, b := range frameOf(1, heartbeat("m")) {
			w.send([]byte{b})
		}
		w.expect(1, heartbeat("m"))
		late := dial()
		late.send([]byte{0})
		late.expectClosed()
		w.ask(2, heartbeat("m"))
	})
}

func TestTokenThatDoesNotArriveIsSlow(t *testing.T) {
	addr := scripted(t, func(_ int, frame []byte) []byte { return append(frame[4:8:8], 0, 0, 0, 0, 0, 0) })
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster, cfg: func(c *Config) { c.FrameTimeout = briefly }})
	w := f.dial()
	handshake := kmsg.NewPtrSASLHandshakeRequest()
	handshake.Mechanism = "PLAIN"
	w.ask(1, handshake)
	w.send([]byte("\x00\x00\x00\x0d\x00alice"))
	w.expectClosed()
	eventually(t, "counted", func() bool { return f.closedWith(CloseSlowRequest) == 1 })
}

// TestRequestThatWaitsForItsTurnIsNotSlow: a large request behind as many others as may be in flight is not read on.
func TestRequestThatWaitsForItsTurnIsNotSlow(t *testing.T) {
	answer := make(chan struct{})
	addr := scripted(t, func(_ int, frame []byte) []byte {
		<-answer
		return append(frame[4:8:8], 0, 0, 0, 0)
	})
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster, cfg: func(c *Config) { c.FrameTimeout, c.MaxInFlight = briefly, 3 }})
	w := f.dial()
	for i := range int32(3) {
		w.send(frameOf(i, &kmsg.HeartbeatRequest{}))
	}
	large := make([]byte, 8<<20)
	copy(large, "\x00\x00\x00\x00\x00\x0c\x00\x04\x00\x00\x00\x03\x00\x01a")
	sent := make(chan error, 1)
	go func() { _, err := w.conn.Write(putSize(large, 0)); sent <- err }()
	slow := f.dial()
	slow.send([]byte{0})
	slow.expectClosed()
	close(answer)
	for range 4 {
		if _, err := w.receive(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

const enormous = 12 << 20 // more than the buffers of two sockets take

// bigAnswers is an upstream whose answers to clients are enormous: no broker, and then zeros.
func bigAnswers(t *testing.T) string {
	return scripted(t, func(_ int, frame []byte) []byte {
		if int16(frame[1]) == metadataKey && frame[3] == metadataVersion { // kshare's question
			resp := kmsg.MetadataResponse{Version: metadataVersion, Brokers: []kmsg.MetadataResponseBroker{kmsg.NewMetadataResponseBroker()}}
			return resp.AppendTo(append(frame[4:8:8], 0))
		}
		return append(frame[4:8:8], make([]byte, enormous)...)
	})
}

func TestClientThatDoesNotReadIsClosed(t *testing.T) {
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	served := serve.API{Key: 77, Min: 1, Max: 1, Serve: func(ctx context.Context, r *serve.Request) (kmsg.Response, error) {
		resp := r.Body.(*kmsg.ShareGroupDescribeRequest).ResponseKind().(*kmsg.ShareGroupDescribeResponse)
		resp.UnknownTags.Set(9, make([]byte, enormous))
		return resp, nil
	}}
	const timeout = 5 * briefly
	describe := kmsg.NewPtrShareGroupDescribeRequest()
	describe.Version = 1
	plainAndTLS(t, setup{addrs: []string{bigAnswers(t)}, cluster: cluster, apis: []serve.API{served}, cfg: func(c *Config) {
		c.StallTimeout = timeout
	}}, func(t *testing.T, f *fixture, dial func() *wire) {
		for _, tt := range []struct {
			name string
			req  kmsg.Request
		}{
			{"relayed", &kmsg.HeartbeatRequest{}},
			{"rewritten", &kmsg.MetadataRequest{Version: 1}},
			{"served", describe},
		} {
			t.Run(tt.name, func(t *testing.T) {
				before := f.closedWith(CloseSlowReader)
				stalled, reading := dial(), dial()
				stalled.send(frameOf(1, tt.req))
				reading.send(frameOf(1, tt.req))
				// One that reads a little all the time, for longer than the time-out.
				began, n := time.Now(), 0
				for buf := make([]byte, 256<<10); n < enormous; {
					k, err := io.ReadFull(reading.conn, buf)
					if n += k; err != nil {
						break
					}
					time.Sleep(timeout / 40) // its pace
				}
				if n < enormous || time.Since(began) < timeout {
					t.Errorf("%d bytes in %v", n, time.Since(began))
				}
				eventually(t, "counted", func() bool { return f.closedWith(CloseSlowReader) == before+1 })
			})
		}
	})
}
