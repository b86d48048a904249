//go:build e2e

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/client"
	"kshare/e2e/harness"
)

// hostileFrame is a request's frame with any rest, whose size says n bytes more than there are.
func hostileFrame(key, version uint16, rest []byte, n int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(rest)+n))
	b = binary.BigEndian.AppendUint16(b, key)
	b = binary.BigEndian.AppendUint16(b, version)
	return append(binary.BigEndian.AppendUint32(b, 1), rest...)
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// hostile is what clients do that mean no good; each has a connection of its own.
var hostile = []struct {
	name  string
	times int
	run   func(net.Conn)
}{
	{"come and go", 10_000, func(net.Conn) {}},
	{"random bytes", 500, func(c net.Conn) { _, _ = c.Write(noise(1 + rand.IntN(50_000))) }},
	{"sizes that lie", 200, func(c net.Conn) {
		_, _ = c.Write(hostileFrame(uint16(rand.IntN(93)), uint16(rand.IntN(4)), noise(rand.IntN(200)), rand.IntN(1<<31-1000)))
	}},
	{"arrays of 2^31", 300, func(c net.Conn) {
		rest := append([]byte("\x00\x01a\x00"), noise(rand.IntN(20))...)
		rest = append(rest, "\xff\xff\xff\xff\x0f\xff\xff\xff\xff\x0f"...)
		_, _ = c.Write(hostileFrame([]uint16{9, 10, 15, 16, 32, 42, 44, 69, 74, 76, 77, 78, 79, 90, 91, 92}[rand.IntN(16)], uint16(rand.IntN(6)), append(rest, make([]byte, 50_000)...), 0))
		_, _ = io.CopyN(io.Discard, c, 100)
	}},
	{"half a frame, then silence", 100, func(c net.Conn) {
		_, _ = c.Write(hostileFrame(0, 9, []byte("\x00\x01a\x00"), 5_000_000))
		_, _ = io.Copy(io.Discard, c)
	}},
	{"ten thousand requests and no ear", 20, func(c net.Conn) {
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		one := hostileFrame(3, 1, []byte("\x00\x01a\xff\xff\xff\xff"), 0)
		for range 10_000 {
			if _, err := c.Write(one); err != nil {
				return
			}
		}
		<-time.After(time.Second) // the answers come all the same
	}},
	{"tokens out of turn", 100, func(c net.Conn) {
		_, _ = c.Write(hostileFrame(36, 2, append([]byte("\xff\xff\x00\x40"), noise(70)...), 0))
		_, _ = io.CopyN(io.Discard, c, 100)
	}},
}

// TestHostileClientsHarmNobody: while strangers do their worst to every replica, a producer and two share consumers go on
// without an error, and the replicas hold no more memory than before plus little.
func TestHostileClientsHarmNobody(t *testing.T) {
	needReplicas(t)
	const partitions = 4
	tg := use(t)
	s := tg.scenario(t, client.Franz{Suite: suite}, partitions)
	perPartition := sized(2000, 20_000) / partitions
	audit := client.NewAudit(partitions, perPartition)
	stop := s.audit(audit, 2, client.AuditRules{}, implicit)
	s.members(2)
	before := make([]replicaState, s.replicas.Count())
	for i := range before {
		before[i] = s.stateOf(i)
	}

	_, port, err := net.SplitHostPort(s.bootstrap)
	must(t, err)
	var strangers sync.WaitGroup
	for _, h := range hostile {
		for w := range 10 {
			strangers.Go(func() {
				for i := range h.times / 10 {
					s.stranger(net.JoinHostPort(harness.ReplicaHost((i+w)%s.replicas.Count()), port), h.run)
				}
			})
		}
	}
	produced := 0
	for ; produced < perPartition; produced += 10 {
		for p := range partitions {
			s.produceOnce(int32(p), 10)
		}
	}
	strangers.Wait()
	must(t, harness.Until("all accepted", time.Minute, func() error { return audit.Settled(time.Hour) }))
	stop()
	v := audit.Verdict()
	s.Log(v)
	for _, problem := range v.CleanRun() {
		s.Error(problem)
	}
	for i := range before {
		must(t, harness.Until("the strangers' goroutines to end", time.Minute, func() error {
			if now := s.stateOf(i); now.goroutines > before[i].goroutines+100 {
				return fmt.Errorf("replica %d: %d goroutines, %d before", i, now.goroutines, before[i].goroutines)
			}
			return nil
		}))
		now := s.stateOf(i)
		s.Logf("replica %d: at most %d MiB resident, %d MiB before; %d goroutines, %d before; connections closed: %s",
			i, now.peak>>20, before[i].peak>>20, now.goroutines, before[i].goroutines, now.closed)
		if now.peak > before[i].peak+256<<20 {
			s.Errorf("replica %d took %d MiB", i, now.peak>>20)
		}
	}
}

func (s *scenario) stranger(addr string, run func(net.Conn)) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		s.Error(err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(1500 * time.Millisecond))
	run(conn)
}

// produceOnce is produce by way of kshare, without the retries of the client.
func (s *scenario) produceOnce(partition int32, n int) {
	s.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: s.topic, Partition: partition, Value: []byte("value")}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		s.Fatalf("produce: %v", err)
	}
}

// replicaState is what a replica takes.
type replicaState struct {
	peak       int64 // bytes
	goroutines int
	closed     string
}

func (s *scenario) stateOf(i int) (st replicaState) {
	s.Helper()
	var err error
	st.peak, err = s.replicas.Process(i).PeakRSS()
	must(s.T, err)
	resp, err := http.Get(s.replicas.HTTP(i) + "/metrics")
	must(s.T, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(s.T, err)
	var closed []string
	for line := range strings.Lines(string(text)) {
		var reason string
		var n float64
		if _, err := fmt.Sscanf(line, "go_goroutines %d", &st.goroutines); err == nil {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "kshare_proxy_connections_closed_total{reason="); ok {
			if _, err := fmt.Sscanf(strings.ReplaceAll(rest, "}", " "), "%q %f", &reason, &n); err == nil {
				closed = append(closed, fmt.Sprintf("%s %.0f", reason, n))
			}
		}
	}
	st.closed = strings.Join(closed, ", ")
	return st
}

// TestAcceptedClientMayRest: the limits of new connections are not those of a client that upstream has accepted.
func TestAcceptedClientMayRest(t *testing.T) {
	needReplicas(t)
	tg := use(t)
	r, err := suite.StartReplicas(1, tg.kafka, tg.redis, "--auth-timeout=1s", "--frame-timeout=1s", "--stall-timeout=1s", "--redis-prefix=hasty", "--max-connections=20")
	must(t, err)
	defer r.Close()
	resting, err := kgo.NewClient(kgo.SeedBrokers(r.Bootstrap), kgo.DisableClientMetrics(), kgo.RequestRetries(0)) // it shows a connection that was closed
	must(t, err)
	defer resting.Close()
	_, err = kmsg.NewPtrMetadataRequest().RequestWith(context.Background(), resting)
	must(t, err)
	node := resting.DiscoveredBrokers()[0]
	ask := func() error {
		_, err := kmsg.NewPtrListGroupsRequest().RequestWith(context.Background(), node)
		return err
	}
	must(t, ask())
	silent, err := net.Dial("tcp", strings.Replace(r.Bootstrap, "127.0.0.1", harness.ReplicaHost(0), 1))
	must(t, err)
	defer silent.Close()
	_ = silent.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := silent.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a silent client got %d bytes, %v", n, err)
	}
	must(t, ask())
}
