//go:build e2e

package conformance

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// revocation is how long an ACL may be at work after it was taken back, with some time for the machine.
func revocation() time.Duration { return allowed().keepsAnswers + 700*time.Millisecond }

// tap is a connection that keeps what comes.
type tap struct {
	net.Conn
	mu   sync.Mutex
	came []byte
}

func (c *tap) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.came = append(c.came, p[:n]...)
	return n, err
}

// heard tells whether text came since the last forget.
func (c *tap) heard(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.came, []byte(text))
}

func (c *tap) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.came = nil
}

// tapped is a member whose connection is a user's, with the tap in it.
func (w *world) tapped(user, address string) (*member, *tap) {
	w.Helper()
	c, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	t := &tap{Conn: c}
	m := w.member()
	m.c.Close()
	m.c = &conn{Conn: t}
	w.login(m.c, user)
	return m, t
}

// quickly is a fetch that does not wait long.
func (m *member) quickly(parts ...tp) *kmsg.ShareFetchRequest {
	req := m.fetching(parts...)
	req.MaxWaitMillis = 100
	return req
}

// deniedOf sends a fetch that must be served, with a denial for a partition and nothing else of it. A request that does
// not name the partition may not tell of it at all.
func (m *member) deniedOf(p tp, req *kmsg.ShareFetchRequest) {
	m.w.Helper()
	f := m.do(req)
	part := f.part(p)
	if part == nil && len(req.Topics) == 0 {
		return
	}
	m.w.code("ShareFetch of a topic without READ", f.failure(p), kerr.TopicAuthorizationFailed)
	if len(part.Records) > 0 || len(part.AcquiredRecords) > 0 {
		m.w.Fatalf("records beside a denial: %+v", part)
	}
}

// Who may not READ a topic gets no byte of it, whatever is asked for and whoever else has just read it.
func TestNoByteForWhoMayNotRead(t *testing.T) {
	w := enter(t, setup{secured: true})
	marker := "marker-" + w.unique() + w.unique()
	put := func() { w.put(w.p(0), batch{n: 3, key: marker}) }
	put()
	alice, bob := "alice-"+w.unique(), "bob-"+w.unique()
	w.granted(alice, readers(w)...)
	w.granted(bob, onGroup(opRead, w.group))
	address := w.tg.at(0, w.node)
	reader, readers := w.tapped(alice, address)
	reader.takes("0-2x1", w.p(0))
	if !readers.heard(marker) {
		t.Fatal("the marker does not come as it is")
	}

	b, bobs := w.tapped(bob, address)
	tries := func() {
		w.Helper()
		b.epoch = 0
		b.deniedOf(w.p(0), b.quickly(w.p(0)))
		b.deniedOf(w.p(0), b.quickly())
		b.deniedOf(w.p(0), b.quickly(w.p(0)))
		withAck := b.quickly()
		carry(withAck, w.p(0), accept(0, 0))
		b.deniedOf(w.p(0), withAck)
		strict := b.quickly()
		strict.ShareAcquireMode, strict.MaxRecords = 1, 1
		b.deniedOf(w.p(0), strict)
		b.close()
		// In the name of who may.
		other := reader.over(b.c)
		other.deniedOf(w.p(0), other.quickly())
		reader.epoch = other.epoch
		w.ordinarilyDenied(b.c)
	}
	tries()
	put()
	reader.takes("3-5x1")
	tries()
	reader.close() // frees all six
	tries()
	if bobs.heard(marker) {
		t.Fatal("bytes of a topic came to who may not READ it")
	}

	grant := onTopic(opRead, w.main)
	w.granted(bob, grant)
	w.until("records after the grant", revocation(), func() error {
		b.do(b.quickly(w.p(0)))
		if !bobs.heard(marker) {
			return errors.New("none")
		}
		return nil
	})
	b.close()
	w.revoked(bob, grant)
	w.until("denial after the revocation", revocation(), func() error {
		put()
		f := b.do(b.quickly(w.p(0)))
		part := f.part(w.p(0))
		if part == nil || part.ErrorCode == 0 {
			return errors.New("still allowed")
		}
		w.code("after the revocation", part.ErrorCode, kerr.TopicAuthorizationFailed)
		return nil
	})
	b.close()
	bobs.forget()
	put()
	reader = reader.over(reader.c)
	reader.epoch = 0
	reader.take(w.p(0))
	tries()
	put()
	tries()
	if bobs.heard(marker) {
		t.Fatal("bytes of a topic came to who may not READ it any more")
	}
}

// ordinarilyDenied sends an ordinary Fetch that the topic's ACLs must refuse.
func (w *world) ordinarilyDenied(c *conn) {
	w.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MaxBytes, req.SessionEpoch = 12, 0, 1<<20, -1
	part := kmsg.NewFetchRequestTopicPartition()
	part.PartitionMaxBytes = 1 << 20
	ft := kmsg.NewFetchRequestTopic()
	ft.Topic, ft.Partitions = w.main.name, append(ft.Partitions, part)
	req.Topics = append(req.Topics, ft)
	got := ask[*kmsg.FetchResponse](w, c, req).Topics[0].Partitions[0]
	w.code("Fetch", got.ErrorCode, kerr.TopicAuthorizationFailed)
}

// A revoked grant ends what a session is served within seconds; what its member holds stays locked for its time.
func TestRevokedReadEndsFetchesAndLocksStay(t *testing.T) {
	const lock = 9 * time.Second
	for name, grant := range map[string]int{"group": 0, "topic": 1} {
		t.Run(name, func(t *testing.T) {
			w := enter(t, setup{secured: true, configs: map[string]string{"share.record.lock.duration.ms": "9000"}})
			w.produce(w.p(0), 3)
			alice := "alice-" + w.unique()
			w.granted(alice, readers(w)...)
			m := w.member()
			m.c = w.dialAs(alice, w.node)
			acquired := time.Now()
			m.takes("0-2x1", w.p(0))
			m.fetch()
			w.revoked(alice, readers(w)[grant])
			w.until("denial", revocation(), func() error {
				resp := ask[*kmsg.ShareFetchResponse](w, m.c, m.quickly())
				if resp.ErrorCode == 0 {
					m.advance(m.epoch)
				}
				denied := kerr.GroupAuthorizationFailed.Code
				code := resp.ErrorCode
				if grant == 1 {
					denied, code = kerr.TopicAuthorizationFailed.Code, fetched{w: w, ShareFetchResponse: resp}.codeOf(w.p(0))
				}
				if code != denied {
					return errors.New("still allowed")
				}
				return nil
			})
			ack := m.acknowledging()
			carry(ack, w.p(0), accept(0, 0))
			if _, failed := attempt(w, m.c, ack); failed == "" {
				t.Fatal("an acknowledgement passed after the denial")
			}
			other := w.member()
			other.getsNone(w.p(0))
			if held := time.Since(acquired); held > lock {
				t.Fatalf("it took %v to see that the records stay locked", held)
			}
			other.takes("0-2x2")
			if held := time.Since(acquired); held < lock {
				t.Fatalf("a lock of %v ended after %v", lock, held)
			}
		})
	}
}

// codeOf is the error of a partition, 0 if it has no entry.
func (f fetched) codeOf(p tp) int16 {
	if part := f.part(p); part != nil {
		return part.ErrorCode
	}
	return 0
}
