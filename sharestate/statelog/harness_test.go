package statelog

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a Redis for a test, fake or real.
type server interface {
	addr() string // host:port, perhaps after "name:password@"
	real() bool
	stop()    // it answers no more; what it holds survives
	start()   // again, on the same address
	forward() // lets expiry happen where the fake has no clock of its own
}

// onBoth runs a test on the fake and on a real redis-server.
func onBoth(t *testing.T, test func(t *testing.T, srv server)) {
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		test(t, startFake(t))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, startLimited(t))
	})
}

type fakeServer struct {
	m    *miniredis.Miniredis
	last time.Time
}

func startFake(t testing.TB) *fakeServer {
	m := miniredis.NewMiniRedis()
	for try := 0; m.StartAddr(freeAddr(t)) != nil; try++ { // another process may be quicker
		if try == 10 {
			t.Fatal("cannot listen")
		}
	}
	f := &fakeServer{m: m, last: time.Now()}
	// The fake lets keys expire only when it is told how much time has passed.
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				f.forward()
			}
		}
	}()
	t.Cleanup(func() { close(quit); <-done; m.Close() })
	return f
}

func (f *fakeServer) addr() string { return f.m.Addr() }
func (f *fakeServer) real() bool   { return false }
func (f *fakeServer) stop()        { f.m.Close() }
func (f *fakeServer) forward() {
	now := time.Now()
	f.m.FastForward(now.Sub(f.last))
	f.last = now
}

func (f *fakeServer) start() {
	if err := f.m.Restart(); err != nil {
		panic(err)
	}
}

type realServer struct {
	t    testing.TB
	at   string
	dir  string
	args []string
	cmd  *exec.Cmd
	user string // "name:password@" that tests use
}

// startLimited is startReal with a user that may do no more than [Rights] says, which is the one that tests use.
func startLimited(t testing.TB) *realServer {
	r := startReal(t, append([]string{"--user", "kshare", "on", ">s3cr3t"}, Rights("t")...)...)
	r.user = "kshare:s3cr3t@"
	return r
}

// admin is a client that may do everything.
func admin(t testing.TB, srv server) redis.UniversalClient {
	_, at := splitUser(srv.addr())
	return connect(t, at)
}

// splitUser takes "name:password@" off an address.
func splitUser(addr string) (user, at string) {
	if user, at, ok := strings.Cut(addr, "@"); ok {
		return user + "@", at
	}
	return "", addr
}

// startReal starts redis-server on a free port with a folder of its own. Without the binary the test is skipped, or
// fails where TEST_REQUIRE_REDIS=1 says that it must be there.
func startReal(t testing.TB, args ...string) *realServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("TEST_REQUIRE_REDIS") == "1" {
			t.Fatal("TEST_REQUIRE_REDIS=1 but redis-server is not in PATH: install Debian's redis-server")
		}
		t.Skip("SKIPPED: redis-server is not in PATH, so nothing was tested on a real Redis: install Debian's redis-server")
	}
	r := &realServer{t: t, at: freeAddr(t), dir: t.TempDir(), args: args}
	t.Cleanup(r.stop)
	r.start()
	return r
}

func (r *realServer) addr() string { return r.user + r.at }
func (r *realServer) real() bool   { return true }
func (r *realServer) forward()     {}

func (r *realServer) start() {
	_, port, _ := net.SplitHostPort(r.at)
	args := append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", r.dir, "--save", "", "--appendonly", "yes",
		"--appendfsync", "no", "--loglevel", "warning"}, r.args...)
	r.cmd = exec.Command("redis-server", args...)
	out, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	defer out.Close()
	r.cmd.Stdout, r.cmd.Stderr = out, out
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "redis-server to answer", func() bool {
		c := redis.NewClient(&redis.Options{Addr: r.at, MaxRetries: -1, DialerRetries: 1})
		defer c.Close()
		return c.Ping(context.Background()).Err() == nil
	})
}

func (r *realServer) stop() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	_ = r.cmd.Wait()
	r.cmd = nil
}

var nextPort atomic.Int32

// freeAddr returns an address whose port is below the range of ephemeral ports, and outside the ranges that the tests of
// other packages, which run at the same time, take theirs from.
func freeAddr(t testing.TB) string {
	for range 1000 {
		port := 10000 + (os.Getpid()*37+int(nextPort.Add(1))*13)%4000
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			addr := l.Addr().String()
			l.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// eventually polls until ok; it fails the test after 20 seconds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		pause(2 * time.Millisecond)
	}
}

// pause is the interval of polls.
func pause(d time.Duration) { <-time.After(d) }

func connect(t testing.TB, addr string) redis.UniversalClient {
	// A busy machine must not look like an outage.
	c, err := Connect("redis://" + addr + "?read_timeout=10s&write_timeout=10s&dial_timeout=5s&pool_timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// newStore makes a store on addr with short times.
func newStore(t testing.TB, addr string, change ...func(*Options)) *Store {
	o := Options{Prefix: "t", ClusterID: "c", Log: testLog(t), CatchUp: 200 * time.Millisecond, Lease: 900 * time.Millisecond,
		Timeout: 10 * time.Second}
	for _, f := range change {
		f(&o)
	}
	s := NewStore(connect(t, addr), o)
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// run runs the store until the test ends or the returned function is called.
func run(t testing.TB, s *Store) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// subscribed waits until the store hears wake-ups.
func subscribed(t testing.TB, s *Store) {
	t.Helper()
	select {
	case <-s.wake.ready:
	case <-time.After(20 * time.Second):
		t.Fatal("no subscription")
	}
}

func testLog(t testing.TB) zerolog.Logger {
	if os.Getenv("TEST_LOG") == "" {
		return zerolog.Nop()
	}
	return zerolog.New(zerolog.NewTestWriter(t))
}

// book is the machine of these tests: an append-only list of strings. Each op adds one and returns how many there were
// before, and the last of them. An op that begins with "wake" wakes; one that begins with "?" is not understood,
// one with "!" panics.
type book struct {
	entries []string
	last    int64
	salt    byte // makes a machine that breaks the rules: see divergence
}

func newBook() *book { return &book{} }

func (b *book) Apply(dst, op []byte, now int64) ([]byte, bool, error) {
	if strings.HasPrefix(string(op), "?") {
		return nil, false, fmt.Errorf("unknown op %q", op)
	}
	if strings.HasPrefix(string(op), "!") {
		panic("a bug")
	}
	if now < b.last {
		return nil, false, fmt.Errorf("time fell from %d to %d", b.last, now)
	}
	b.last = now
	dst = binary.AppendUvarint(dst, uint64(len(b.entries)))
	if n := len(b.entries); n > 0 {
		dst = append(dst, b.entries[n-1]...)
	}
	b.entries = append(b.entries, string(op)+strings.Repeat("x", int(b.salt)))
	return dst, strings.HasPrefix(string(op), "wake"), nil
}

func (b *book) AppendSnapshot(dst []byte) []byte {
	dst = binary.AppendVarint(dst, b.last)
	dst = binary.AppendUvarint(dst, uint64(len(b.entries)))
	for _, e := range b.entries {
		dst = appendBytes(dst, []byte(e))
	}
	return dst
}

func (b *book) Restore(s []byte) error {
	v, n := binary.Varint(s)
	if n <= 0 {
		return errFrame
	}
	b.last = v
	list, rest, err := readList(s[n:])
	if err != nil || len(rest) > 0 {
		return fmt.Errorf("%w %d bytes left", errFrame, len(rest))
	}
	b.entries = nil
	for _, e := range list {
		b.entries = append(b.entries, string(e))
	}
	return nil
}

// place reads the result of a book's op.
func place(t testing.TB, result []byte) int {
	v, n := binary.Uvarint(result)
	if n <= 0 {
		t.Fatalf("bad result %x", result)
	}
	return int(v)
}

func mustCreate(t testing.TB, l *Log[*book]) {
	t.Helper()
	if ok, err := l.Create(context.Background(), newBook()); err != nil || !ok {
		t.Fatalf("create: %v %v", ok, err)
	}
}

// add submits one op and returns its place in the book.
func add(t testing.TB, l *Log[*book], op string) int {
	t.Helper()
	results, err := l.Submit([]byte(op)).Wait(context.Background())
	if err != nil {
		t.Fatalf("op %q: %v", op, err)
	}
	return place(t, results[0])
}

// entries reads the book as it is in Redis now.
func entries(t testing.TB, l *Log[*book]) []string {
	t.Helper()
	var list []string
	if err := l.View(context.Background(), 0, func(b *book) { list = append(list, b.entries...) }); err != nil {
		t.Fatalf("view: %v", err)
	}
	return list
}

// content is the encoded state, which must be equal on all replicas.
func content(l *Log[*book]) string {
	c := l.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st == nil {
		return ""
	}
	return string(c.st.appendContent(nil))
}

func count(list []string, want string) int {
	n := 0
	for _, e := range list {
		if e == want {
			n++
		}
	}
	return n
}
