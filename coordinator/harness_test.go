package coordinator

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"kshare/sharestate/statelog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream is a cluster that replicas of a test ask.
type upstream struct {
	mu     sync.Mutex
	topics map[string]Topic
	// inUse answers GroupUse; nil means that no id is taken.
	inUse func(group string) (bool, error)
	// asked counts questions for topics.
	asked int
}

func (u *upstream) set(topics ...Topic) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.topics == nil {
		u.topics = make(map[string]Topic)
	}
	for _, t := range topics {
		u.topics[t.Name] = t
	}
}

func (u *upstream) remove(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.topics, name)
}

func (u *upstream) TopicsByName(_ context.Context, names []string, _ bool) (map[string]Topic, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked++
	found := make(map[string]Topic)
	for _, name := range names {
		if t, ok := u.topics[name]; ok {
			found[name] = t
		}
	}
	return found, nil
}

func (u *upstream) InUse(_ context.Context, group string) (bool, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.inUse == nil {
		return false, nil
	}
	return u.inUse(group)
}

// testbed is Redis, upstream, and any number of replicas.
type testbed struct {
	t      *testing.T
	redis  *miniredis.Miniredis
	up     *upstream
	broker BrokerConfig
	pace   pace
	log    zerolog.Logger
}

// newTestbed has no assignment interval, so that rebalances need no waiting.
func newTestbed(t *testing.T, topics ...Topic) *testbed {
	b := &testbed{t: t, redis: miniredis.RunT(t), up: &upstream{}, broker: DefaultBrokerConfig(), pace: defaultPace, log: zerolog.Nop()}
	b.pace.metadata, b.pace.index = 20*time.Millisecond, 200*time.Millisecond
	b.pace.health, b.pace.conflicts = 10*time.Millisecond, 50*time.Millisecond
	b.set("group.share.assignment.interval.ms", "0")
	b.up.set(topics...)
	return b
}

func (b *testbed) set(key, value string) {
	b.t.Helper()
	if err := b.broker.Set(key, value); err != nil {
		b.t.Fatal(err)
	}
}

// shortSessions makes sessions end within the test.
func (b *testbed) shortSessions() {
	b.set("group.share.min.session.timeout.ms", "700")
	b.set("group.share.session.timeout.ms", "700")
	b.set("group.share.min.heartbeat.interval.ms", "100")
	b.set("group.share.heartbeat.interval.ms", "100")
	if err := b.broker.Validate(); err != nil {
		b.t.Fatal(err)
	}
}

// replica is a Service that runs.
type replica struct {
	*Service
	t       *testing.T
	client  redis.UniversalClient
	cancel  context.CancelFunc
	running sync.WaitGroup
	ended   sync.Once
}

func (b *testbed) replica() *replica {
	client, err := statelog.Connect("redis://" + b.redis.Addr())
	if err != nil {
		b.t.Fatal(err)
	}
	r := b.start(client)
	r.catalog.goneAfter = 40 * time.Millisecond
	eventually(b.t, "the index is read", func() bool { return r.Ready() == nil })
	return r
}

// start starts a replica, which is ready once it has read the index.
func (b *testbed) start(client redis.UniversalClient) *replica {
	store := statelog.NewStore(client, statelog.Options{ClusterID: "c", Log: zerolog.Nop()})
	s := New(Options{Store: store, Topics: b.up, Use: b.up, Broker: b.broker, Log: b.log})
	s.pace = b.pace
	r := &replica{Service: s, t: b.t, client: client}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.running.Go(func() { _ = store.Run(ctx) })
	r.running.Go(func() { _ = s.Run(ctx) })
	b.t.Cleanup(r.stop)
	return r
}

// stop ends the replica in order.
func (r *replica) stop() {
	r.ended.Do(func() {
		r.cancel()
		r.running.Wait()
		r.store.Close(context.Background())
		_ = r.client.Close()
	})
}

// kill ends the replica so that Redis does not hear of it.
func (r *replica) kill() {
	r.ended.Do(func() {
		_ = r.client.Close()
		r.cancel()
		r.running.Wait()
		r.store.Close(context.Background())
	})
}

// eventually polls until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *replica) beat(member string, epoch int32, topics ...string) (HeartbeatResponse, error) {
	return r.Heartbeat(context.Background(), HeartbeatRequest{Group: "g", Member: member, Epoch: epoch, Topics: topics, ClientID: "app", ClientHost: "/10.0.0.1"})
}

func (r *replica) mustBeat(member string, epoch int32, topics ...string) HeartbeatResponse {
	r.t.Helper()
	response, err := r.beat(member, epoch, topics...)
	if err != nil {
		r.t.Fatalf("heartbeat of %s at %d: %v", member, epoch, err)
	}
	return response
}

func (r *replica) describe() Description {
	r.t.Helper()
	d, err := r.Describe(context.Background(), "g")
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// wantError fails unless err is a refusal of that kind and, if given, with that message.
func wantError(t *testing.T, err, kind error, message string) {
	t.Helper()
	var refusal *Error
	if !errors.Is(err, kind) || !errors.As(err, &refusal) {
		t.Fatalf("error %v, want %v", err, kind)
	}
	if message != "" && refusal.Message != message {
		t.Fatalf("message %q, want %q", refusal.Message, message)
	}
}
