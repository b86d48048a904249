package proxy

import (
	"bufio"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/proxy/serve"
)

func TestHostileFramesEndWithTheirReasonAndOneLogLine(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: shareAPIs(), cfg: func(c *Config) { c.MaxFrame = 1 << 20 }})
	tests := []struct {
		name   string
		bytes  string
		reason CloseReason
		end    bool // the client closes its side
	}{
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abc", CloseTLS, false},
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", CloseHTTP, false},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\n", CloseHTTP, false},
		{"negative", "\xff\xff\xff\xff\x00\x03\x00\x00", CloseNegativeFrame, false},
		{"oversized", "\x00\x10\x00\x01\x00\x03\x00\x00\x00\x00\x00\x00", CloseOversizedFrame, false},
		{"empty", "\x00\x00\x00\x00", CloseMalformed, false},
		{"no header", "\x00\x00\x00\x07\x00\x03\x00\x00\x00\x00\x00", CloseMalformed, false},
		{"truncated size", "\x00\x00", CloseTruncated, true},
		{"truncated header", "\x00\x00\x00\x10\x00\x03", CloseTruncated, true},
		{"truncated relayed body", "\x00\x00\x10\x00\x00\x10\x00\x04\x00\x00\x00\x01\x00\x01a", CloseTruncated, true},
		{"truncated served body", "\x00\x00\x10\x00\x00\x4c\x00\x01\x00\x00\x00\x01\x00\x01a", CloseTruncated, true},
		{"client id beyond frame", "\x00\x00\x00\x0a\x00\x4c\x00\x01\x00\x00\x00\x01\x7f\xff", CloseMalformed, false},
		{"served garbage", "\x00\x00\x00\x10\x00\x4c\x00\x01\x00\x00\x00\x01\x00\x01a\x00\xff\xff\xff\xff\xff", CloseMalformed, false},
		{"produce without acks field", "\x00\x00\x00\x0a\x00\x00\x00\x09\x00\x00\x00\x01\x00\x00", CloseMalformed, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, logged := f.closedWith(tt.reason), len(f.log.String())
			w := f.dial()
			w.send([]byte(tt.bytes))
			if tt.end {
				_ = w.conn.(*net.TCPConn).CloseWrite()
			}
			w.expectClosed()
			eventually(t, "counted", func() bool { return f.closedWith(tt.reason) == before+1 })
			lines := f.log.String()[logged:]
			if n := strings.Count(lines, `"client connection closed"`); n != 1 || !strings.Contains(lines, string(tt.reason)) {
				t.Errorf("%d log lines: %s", n, lines)
			}
		})
	}
	f.dial().ask(1, &kmsg.MetadataRequest{Version: 9})
}

func TestRequestThatIsDecodedHereIsSmall(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: shareAPIs()})
	for _, key := range []byte{10, 18, 76, 78} {
		w := f.dial()
		w.send([]byte{0, 0x40, 0, 1, 0, key, 0, 1, 0, 0, 0, 1})
		w.expectClosed()
	}
	eventually(t, "counted", func() bool { return f.closedWith(CloseOversizedFrame) == 4 })
	w := f.dial() // what is only relayed may be large
	w.send([]byte{0, 0x40, 0, 1, 0, 1, 0, 4, 0, 0, 0, 1})
	w.send(make([]byte, 4<<20-7))
	if _, err := w.receive(); err != nil {
		t.Error(err)
	}
}

// TestLargeRequestOfAStrangerIsNotTakenIn: what may cost memory is read once upstream has accepted the client.
func TestLargeRequestOfAStrangerIsNotTakenIn(t *testing.T) {
	addr := scripted(t, func(int, []byte) []byte { return nil }) // accepts nobody
	cluster := &fakeCluster{ready: make(chan struct{})}
	close(cluster.ready)
	f := startProxy(t, setup{addrs: []string{addr}, cluster: cluster, apis: shareAPIs()})
	for key, reason := range map[byte]CloseReason{76: CloseUpstream, 10: CloseUpstream, 17: CloseOversizedFrame, 18: CloseOversizedFrame} {
		before, w := f.closedWith(reason), f.dial()
		w.send([]byte{0, 0, 0x40, 1, 0, key, 0, 1, 0, 0, 0, 1})
		w.expectClosed()
		eventually(t, "counted", func() bool { return f.closedWith(reason) == before+1 })
	}
	up := startUpstream(t)
	f = startProxy(t, setup{addrs: up.ListenAddrs(), apis: []serve.API{echoHeartbeat(nil)}})
	large := heartbeat("m")
	large.SubscribedTopicNames = make([]string, 100_000)
	f.dial().ask(1, large)
}

func TestSilentConnectionIsClosed(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) { c.AuthTimeout = 50 * time.Millisecond }})
	used := f.dial()
	used.ask(1, &kmsg.MetadataRequest{Version: 9})
	f.dial().expectClosed()
	eventually(t, "counted", func() bool { return f.closedWith(CloseSilent) == 1 })
	used.ask(2, &kmsg.MetadataRequest{Version: 9})
}

func TestMemoryIsTakenAsBytesArriveNotAsPromised(t *testing.T) {
	server, client := net.Pipe()
	defer server.Close()
	go func() {
		_, _ = client.Write([]byte("\x06\x00\x00\x00some"))
		_ = client.Close()
	}()
	in := bufio.NewReaderSize(server, readerSize)
	if _, err := in.Peek(8); err != nil {
		t.Fatal(err)
	}
	b, err := readFrame(in, 100<<20)
	if err == nil || cap(b) > 1<<20 {
		t.Errorf("error %v, %d bytes taken for 4 that came", err, cap(b))
	}
}
