package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// neighbour is a producer and a share consumer that want nothing but their records.
type neighbour struct {
	stop      context.CancelFunc
	done      sync.WaitGroup
	mu        sync.Mutex
	errs      []error
	produced  int
	delivered map[string]int
}

func startNeighbour(t *testing.T, f *fixture) *neighbour {
	ctx, stop := context.WithCancel(context.Background())
	n := &neighbour{stop: stop, delivered: map[string]int{}}
	seeds := []string{f.Addr().String()}
	cl := newClient(t, seeds, kgo.ConsumeTopics("orders"), kgo.ShareGroup("shared"))
	producer := newClient(t, seeds, kgo.DefaultProduceTopic("orders"))
	alterReset(t, producer)
	n.done.Go(func() {
		defer cl.Close()
		for ctx.Err() == nil {
			fetches := cl.PollFetches(ctx)
			fetches.EachError(func(_ string, _ int32, err error) { n.fail(ctx, fmt.Errorf("consumer: %w", err)) })
			fetches.EachRecord(func(r *kgo.Record) {
				n.mu.Lock()
				n.delivered[string(r.Value)]++
				n.mu.Unlock()
				r.Ack(kgo.AckAccept)
			})
		}
	})
	n.done.Go(func() {
		defer producer.Close()
		for i := 0; ctx.Err() == nil; i++ {
			if err := producer.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint("r", i))).FirstErr(); err != nil {
				n.fail(ctx, fmt.Errorf("producer: %w", err))
				continue
			}
			n.mu.Lock()
			n.produced++
			n.mu.Unlock()
			select {
			case <-time.After(5 * time.Millisecond): // its pace
			case <-ctx.Done():
			}
		}
	})
	return n
}

func (n *neighbour) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.errs = append(n.errs, err)
}

func (n *neighbour) counts() (produced, delivered int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.produced, len(n.delivered)
}

// alterReset has the group start with the first record.
func alterReset(t *testing.T, cl *kgo.Client) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeGroupConfig, "shared"
	res.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "share.auto.offset.reset", Value: kmsg.StringPtr("earliest")}}
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(context.Background(), cl)
	if err != nil || resp.Resources[0].ErrorCode != 0 {
		t.Fatalf("group config: %v %+v", err, resp)
	}
}

// attack is what one hostile client does; it may do it many times at once.
type attack struct {
	name  string
	times int
	run   func(t *testing.T, conn net.Conn)
}

func (a *attack) once(t *testing.T, addr string) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(1500 * time.Millisecond))
	a.run(t, conn)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// headed is a frame of any key and version that promises n bytes more than it has.
func headed(key, version int16, rest []byte, n int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(headerLen+len(rest)+n))
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	return append(append(b, 0, 0, 0, 1), rest...)
}

func send(conn net.Conn, b []byte) { _, _ = conn.Write(b) }

// untilClosed reads whatever comes. Hostile clients that expect to be closed wait for that.
func untilClosed(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func attacks(t *table) []attack {
	long := strings.Repeat("x", 32767)
	handshake := kmsg.NewPtrSASLHandshakeRequest()
	handshake.Version, handshake.Mechanism = 1, "PLAIN"
	odd := func(change func(*kmsg.ShareFetchRequest)) []byte {
		req := kmsg.NewPtrShareFetchRequest()
		req.Version, req.GroupID, req.MemberID = 2, kmsg.StringPtr("shared"), kmsg.StringPtr("stranger")
		req.MaxBytes, req.MaxRecords, req.MinBytes, req.BatchSize = 1<<20, 10, 1, 10
		change(req)
		return frameOf(1, req)
	}
	list := []attack{
		{"random bytes", 300, func(_ *testing.T, c net.Conn) { send(c, randomBytes(1+rand.IntN(20_000))) }},
		{"negative sizes", 100, func(_ *testing.T, c net.Conn) { send(c, []byte{0xff, 0xff, 0xff, byte(rand.Uint32())}); untilClosed(c) }},
		{"huge sizes", 100, func(_ *testing.T, c net.Conn) { send(c, []byte{0x7f, 0xff, 0xff, byte(rand.Uint32())}); untilClosed(c) }},
		{"half frames, then silence", 200, func(_ *testing.T, c net.Conn) {
			send(c, headed(int16(rand.IntN(93)), int16(rand.IntN(3)), randomBytes(rand.IntN(100)), 1000+rand.IntN(4<<20)))
			untilClosed(c)
		}},
		{"frames that are longer than promised", 200, func(_ *testing.T, c net.Conn) {
			b := frameOf(1, heartbeat("m"))
			binary.BigEndian.PutUint32(b, uint32(len(b)-4-rand.IntN(len(b)-14)))
			send(c, append(b, b...))
		}},
		{"versions out of range", 200, func(_ *testing.T, c net.Conn) {
			send(c, headed(int16(rand.IntN(100)), int16(rand.IntN(1<<16)), []byte("\xff\xff\x00\x00\x00\x00"), 0))
		}},
		{"keys out of range", 100, func(_ *testing.T, c net.Conn) {
			send(c, headed(int16(rand.IntN(1<<16)), 0, []byte("\xff\xff"), 0))
			untilClosed(c)
		}},
		{"client ids of 32 KiB", 50, func(_ *testing.T, c net.Conn) {
			send(c, appendRequest(nil, 1, &long, heartbeat("m")))
			send(c, appendRequest(nil, 2, &long, &kmsg.MetadataRequest{Version: 9}))
		}},
		{"names that are no UTF-8", 50, func(_ *testing.T, c net.Conn) {
			bad := heartbeat("\xff\xfe")
			bad.GroupID, bad.SubscribedTopicNames = "\xc3\x28", []string{"\xa0\xa1"}
			send(c, frameOf(1, bad))
			send(c, frameOf(2, &kmsg.FindCoordinatorRequest{Version: 3, CoordinatorKey: "\xf0\x28\x8c\x28"}))
		}},
		{"tokens without a handshake", 50, func(_ *testing.T, c net.Conn) {
			send(c, frameOf(1, &kmsg.SASLAuthenticateRequest{SASLAuthBytes: randomBytes(1000)}))
		}},
		{"a handshake in the middle", 50, func(_ *testing.T, c net.Conn) {
			send(c, frameOf(1, heartbeat("m")))
			send(c, frameOf(2, handshake))
			send(c, frameOf(3, heartbeat("m")))
		}},
		{"epochs from nowhere", 100, func(_ *testing.T, c net.Conn) {
			for range 5 {
				send(c, odd(func(r *kmsg.ShareFetchRequest) { r.ShareSessionEpoch = int32(rand.Uint32()) }))
			}
		}},
		{"fetches of everything", 100, func(_ *testing.T, c net.Conn) {
			send(c, odd(func(r *kmsg.ShareFetchRequest) {
				r.MaxWaitMillis, r.MinBytes, r.MaxBytes, r.MaxRecords = 1<<31-1, 1<<31-1, 1<<31-1, 1<<31-1
				for p := range int32(200) {
					r.Topics = append(r.Topics, kmsg.ShareFetchRequestTopic{TopicID: [16]byte(randomBytes(16)),
						Partitions: []kmsg.ShareFetchRequestTopicPartition{{Partition: p}, {Partition: -p}}})
				}
			}))
		}},
		{"responses that nobody reads", 20, func(_ *testing.T, c net.Conn) {
			_ = c.(*net.TCPConn).SetReadBuffer(4096)
			frame := frameOf(1, &kmsg.MetadataRequest{Version: 9})
			for range 100_000 { // until kshare reads no more
				if _, err := c.Write(frame); err != nil {
					return
				}
			}
		}},
	}
	for _, key := range decodedKeys(t) {
		list = append(list, attack{"lengths of " + apiName(key), 3 * int(kmsgMax(key)+1), func(_ *testing.T, c net.Conn) {
			req := kmsg.RequestForKey(key)
			req.SetVersion(int16(rand.IntN(int(kmsgMax(key)) + 1)))
			body := append(filled(req).AppendTo(nil), make([]byte, rand.IntN(100_000))...)
			head := headOf(req)
			send(c, headed(key, req.GetVersion(), append(head, lie(req, body, rand.IntN(min(len(body), 60)), []int{len(body) - 100, 1<<31 - 1, 1 << 24}[rand.IntN(3)])...), 0))
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // some are requests after all
			untilClosed(c)
		}})
	}
	return list
}

// headOf is a request's header behind the correlation id.
func headOf(req kmsg.Request) []byte {
	if req.IsFlexible() {
		return []byte("\x00\x01a\x00")
	}
	return []byte("\x00\x01a")
}

// heapPeak watches heap and stacks until stop, which gives the highest value seen.
func heapPeak() (stop func() uint64) {
	quit, peak := make(chan struct{}), make(chan uint64)
	go func() {
		highest := uint64(0)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-tick.C:
				highest = max(highest, heapNow())
			case <-quit:
				tick.Stop()
				peak <- highest
				return
			}
		}
	}()
	return func() uint64 { close(quit); return <-peak }
}

func heapNow() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64() + sample[1].Value.Uint64()
}

const mib = 1 << 20

func TestHostileClientsHarmNobodyElse(t *testing.T) {
	up := startUpstream(t)
	real := realServe(t, up.ListenAddrs())
	f := startProxy(t, setup{addrs: up.ListenAddrs(), apis: real.APIs(), split: real, cfg: func(c *Config) {
		c.AuthTimeout, c.FrameTimeout, c.StallTimeout = time.Second, 500*time.Millisecond, time.Second
	}})
	n := startNeighbour(t, f)
	eventually(t, "the neighbour to have records", func() bool { _, got := n.counts(); return got > 20 })
	runtime.GC()
	before, peak := heapNow(), heapPeak()
	list := attacks(f.table)
	sent := 0
	var clients sync.WaitGroup
	for _, a := range list {
		sent += a.times
		left := atomic.Int32{}
		left.Store(int32(a.times))
		for range min(a.times, 30) {
			clients.Go(func() {
				for left.Add(-1) >= 0 {
					a.once(t, f.nodeAddr(int32(rand.IntN(3))))
				}
			})
		}
	}
	clients.Wait()
	produced, _ := n.counts()
	eventually(t, "the neighbour's records of that time", func() bool { _, got := n.counts(); return got >= produced })
	n.stop()
	n.done.Wait()
	highest := peak()
	runtime.GC()
	after := heapNow()
	t.Logf("%d hostile connections in %d ways, meanwhile %d records produced and delivered; heap %d MiB before, at most %d MiB, %d MiB after",
		sent, len(list), produced, before/mib, highest/mib, after/mib)
	if highest > before+300*mib || after > before+50*mib {
		t.Errorf("heap grew from %d MiB to %d MiB, and %d MiB are left", before/mib, highest/mib, after/mib)
	}
	for _, err := range n.errs {
		t.Errorf("the neighbour saw %v", err)
	}
	if produced < 50 {
		t.Errorf("%d records are too few to tell", produced)
	}
	eventually(t, "no connection to be left", func() bool { return f.gauge("kshare_proxy_connections") == 0 })
	if s := f.log.String(); strings.Contains(s, "panic") {
		i := strings.Index(s, "panic")
		t.Errorf("a panic: %s", s[max(0, i-300):min(len(s), i+2000)])
	}
}

// TestTenThousandConnections: so many that come and go, and so many that stay and say nothing.
func TestTenThousandConnections(t *testing.T) {
	const many = 10_000
	stay := 9_000 // what two ends of each may have of 20,000 file descriptors
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) { c.AuthTimeout = 30 * time.Second }})
	f.dial().ask(1, &kmsg.MetadataRequest{Version: 9})
	runtime.GC()
	before, routines, peak := heapNow(), runtime.NumGoroutine(), heapPeak()
	var clients sync.WaitGroup
	for w := range 50 {
		clients.Go(func() {
			for i := range many / 50 {
				conn, err := net.Dial("tcp", f.nodeAddr(int32(i%3)))
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					send(conn, frameOf(1, &kmsg.MetadataRequest{Version: 9})[:1+(i+w)%30])
				}
				_ = conn.(*net.TCPConn).SetLinger(i % 3)
				_ = conn.Close()
			}
		})
	}
	clients.Wait()
	eventually(t, "all gone", func() bool { return f.gauge("kshare_proxy_connections") <= 1 })
	coming := peak()
	runtime.GC()
	t.Logf("%d that came and went: heap %d MiB before, at most %d MiB, %d MiB after", many, before/mib, coming/mib, heapNow()/mib)
	if coming > before+100*mib {
		t.Errorf("heap grew from %d MiB to %d MiB", before/mib, coming/mib)
	}

	var limit int
	limit, err := openFiles()
	if err != nil || limit < 2*stay+500 {
		stay = max(100, (limit-500)/2)
	}
	conns := make([]net.Conn, 0, stay)
	for i := range stay {
		conn, err := net.Dial("tcp", f.nodeAddr(int32(i%3)))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	eventually(t, "all in", func() bool { return f.gauge("kshare_proxy_connections") >= float64(stay) })
	runtime.GC()
	each := (int64(heapNow()) - int64(before)) / int64(stay)
	t.Logf("%d that stay silent: %d bytes of heap and stack each, both ends", stay, each)
	if each > 16<<10 {
		t.Errorf("a silent connection takes %d bytes", each)
	}
	f.dial().ask(1, &kmsg.MetadataRequest{Version: 9})
	for _, c := range f.openConns() {
		c.authClock.Reset(0) // the time is over
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, nil) || isTimeout(err) {
			t.Fatalf("still open: %v", err)
		}
		_ = conn.Close()
	}
	eventually(t, "all gone", func() bool { return f.gauge("kshare_proxy_connections") <= 3 })
	eventually(t, "their goroutines to be gone", func() bool { return runtime.NumGoroutine() < routines+50 })
	if n := f.closedWith(CloseSilent); n < stay {
		t.Errorf("%d are counted", n)
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// openFiles is how many the process may have.
func openFiles() (int, error) {
	var l syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return int(l.Cur), err
}

// TestTinyRequestsWithoutReading: a hundred thousand requests of a client that reads no answer are held back, not kept.
func TestTinyRequestsWithoutReading(t *testing.T) {
	up := startUpstream(t)
	f := startProxy(t, setup{addrs: up.ListenAddrs(), cfg: func(c *Config) { c.StallTimeout = time.Second }})
	f.dial().ask(1, &kmsg.MetadataRequest{Version: 9})
	runtime.GC()
	before, peak := heapNow(), heapPeak()
	w := f.dial()
	_ = w.conn.(*net.TCPConn).SetReadBuffer(4096)
	batch := bytes.Repeat(frameOf(1, &kmsg.MetadataRequest{Version: 1}), 1000)
	_, _ = w.conn.Write(bytes.Repeat(batch, 100)) // may fail half way
	eventually(t, "counted", func() bool { return f.closedWith(CloseSlowReader) == 1 })
	highest := peak()
	t.Logf("heap %d MiB before, at most %d MiB", before/mib, highest/mib)
	if highest > before+64*mib {
		t.Errorf("heap grew from %d MiB to %d MiB", before/mib, highest/mib)
	}
}
