package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
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
}

// newTestbed has no assignment interval, so that rebalances need no waiting.
func newTestbed(t *testing.T, topics ...Topic) *testbed {
	b := &testbed{t: t, redis: miniredis.RunT(t), up: &upstream{}, broker: DefaultBrokerConfig(), pace: defaultPace}
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
	t *testing.T
}

func (b *testbed) replica() *replica {
	client, err := statelog.Connect("redis://" + b.redis.Addr())
	if err != nil {
		b.t.Fatal(err)
	}
	store := statelog.NewStore(client, statelog.Options{ClusterID: "c", Log: zerolog.Nop()})
	s := New(Options{Store: store, Topics: b.up, Use: b.up, Broker: b.broker, Log: zerolog.Nop()})
	s.pace = b.pace
	s.catalog.goneAfter = 40 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = store.Run(ctx) })
	wg.Go(func() { _ = s.Run(ctx) })
	b.t.Cleanup(func() {
		cancel()
		wg.Wait()
		store.Close(context.Background())
		_ = client.Close()
	})
	r := &replica{Service: s, t: b.t}
	eventually(b.t, "the index is read", func() bool { return s.Ready() == nil })
	return r
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

func TestTwoReplicasShareOneGroup(t *testing.T) {
	b := newTestbed(t, testTopic("t", 4))
	one, two := b.replica(), b.replica()
	m := one.mustBeat("m", 0, "t")
	if m.Member != "m" || m.IntervalMs != 5000 || load(m.Assignment) != 4 || m.Assignment[0].ID != testID("t") {
		t.Fatalf("answer %+v", m)
	}
	n := two.mustBeat("n", 0, "t")
	m = one.mustBeat("m", m.Epoch)
	if load(n.Assignment) != 2 || load(m.Assignment) != 2 || m.Epoch != n.Epoch {
		t.Fatalf("answers %+v and %+v", m, n)
	}
	// Each heartbeat may come to any replica.
	two.mustBeat("m", m.Epoch)
	one.mustBeat("n", n.Epoch)
	if d := two.describe(); len(d.Members) != 2 || d.State != StateStable {
		t.Fatalf("description %+v", d)
	}
	for _, r := range []*replica{one, two} {
		eventually(t, "the group is listed", func() bool {
			return r.IsShareGroup("g") && slices.Equal(r.List(), []Listing{{Group: "g", State: StateStable}})
		})
	}
}

func TestKeepAliveCostsOneCommand(t *testing.T) {
	b := newTestbed(t, testTopic("t", 4))
	b.pace.metadata = time.Hour
	r := b.replica()
	r.mustBeat("m", 0, "t")
	r.mustBeat("m", 1)
	// The lease, the index and the catch-ups have commands of their own, so the cheapest of a few rounds counts.
	best := int64(1 << 60)
	for range 5 {
		before := r.store.Stats()
		for range 20 {
			r.mustBeat("m", 1)
		}
		best = min(best, r.store.Stats().Commands-before.Commands)
	}
	if best > 21 {
		t.Fatalf("20 keep-alives cost %d commands", best)
	}
	b.up.mu.Lock()
	defer b.up.mu.Unlock()
	if b.up.asked != 1 {
		t.Fatalf("upstream was asked %d times", b.up.asked)
	}
}

func TestJoinsOfManyMembersAtOnce(t *testing.T) {
	b := newTestbed(t, testTopic("t", 10))
	replicas := []*replica{b.replica(), b.replica()}
	var wg sync.WaitGroup
	errs := make(chan error, 40)
	for i := range 40 {
		wg.Go(func() {
			member := fmt.Sprintf("m%02d", i)
			response, err := replicas[i%2].beat(member, 0, "t")
			for range 3 {
				if err == nil {
					response, err = replicas[(i+1)%2].beat(member, response.Epoch)
				}
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range replicas[0].describe().Members {
		replicas[0].mustBeat(m.Member, m.Epoch)
	}
	d := replicas[1].describe()
	if len(d.Members) != 40 {
		t.Fatalf("%d members", len(d.Members))
	}
	for _, m := range d.Members {
		if load(m.Assignment) != 1 {
			t.Fatalf("member %s has %v", m.Member, m.Assignment)
		}
	}
}

func TestSilentMembersAreSeenAsGoneOnAnyReplica(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	b.shortSessions()
	one, two := b.replica(), b.replica()
	one.mustBeat("m", 0, "t")
	var d Description
	eventually(t, "the group reads as empty", func() bool { d = two.describe(); return d.State == StateEmpty })
	if d.GroupEpoch != 2 || len(d.Members) != 0 {
		t.Fatalf("description %+v", d)
	}
	eventually(t, "the group is listed as empty", func() bool {
		return slices.Equal(one.List(), []Listing{{Group: "g", State: StateEmpty}})
	})
	_, err := two.beat("m", 1)
	wantError(t, err, ErrUnknownMemberID, "Member m is not a member of group g.")
}

func TestNobodyIsTimedOutForAnOutageOfRedis(t *testing.T) {
	for name, health := range map[string]time.Duration{"found by looking": 10 * time.Millisecond, "found by heartbeats": time.Hour} {
		t.Run(name, func(t *testing.T) { outlast(t, health) })
	}
}

func outlast(t *testing.T, health time.Duration) {
	b := newTestbed(t, testTopic("t", 2))
	b.shortSessions()
	b.pace.health = health
	one, two := b.replica(), b.replica()
	one.mustBeat("m", 0, "t")
	epoch := two.mustBeat("n", 0, "t").Epoch
	one.mustBeat("m", 1)
	b.redis.Close()
	away := time.Now()
	eventually(t, "the outage is noticed", func() bool {
		_, err := one.beat("m", epoch)
		_, err2 := two.beat("n", epoch)
		return errors.Is(err, ErrUnavailable) && errors.Is(err2, ErrUnavailable)
	})
	eventually(t, "sessions would be over", func() bool { return time.Since(away) > 1000*time.Millisecond })
	if err := b.redis.Restart(); err != nil {
		t.Fatal(err)
	}
	// n speaks first. If that timed m out, m would be told so.
	for _, beat := range []func() error{
		func() error { _, err := two.beat("n", epoch); return err },
		func() error { _, err := one.beat("m", epoch); return err },
	} {
		eventually(t, "a heartbeat is accepted", func() bool {
			err := beat()
			if err != nil && !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	if d := one.describe(); len(d.Members) != 2 {
		t.Fatalf("description %+v", d)
	}
}

func TestGroupIsPutBackWhenRedisLosesEverything(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	r := b.replica()
	r.mustBeat("m", 0, "t")
	b.redis.FlushAll()
	r.mustBeat("m", 1)
	eventually(t, "the group is listed", func() bool {
		names, err := r.store.Index(context.Background())
		return err == nil && slices.Contains(names, "g/g")
	})
}

func TestGroupThatRedisLostMakesMembersJoinAgain(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	one, two := b.replica(), b.replica()
	one.mustBeat("m", 0, "t")
	eventually(t, "the group is known elsewhere", func() bool { return two.index.has("g") })
	b.redis.Del("kshare:c:{g}")
	_, err := two.beat("m", 1)
	wantError(t, err, ErrUnknownMemberID, "")
	two.mustBeat("m", 0, "t")
}

func TestCreationStepsBackFromAGroupMadeUpstreamMeanwhile(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	var asked atomic.Int32
	b.up.inUse = func(string) (bool, error) { return asked.Add(1) > 1, nil }
	one, two := b.replica(), b.replica()
	_, err := one.beat("m", 0, "t")
	wantError(t, err, ErrGroupIDNotFound, "Group g is not a share group.")
	for _, r := range []*replica{one, two} {
		eventually(t, "no group is left", func() bool { return len(r.List()) == 0 && !r.IsShareGroup("g") })
	}
}

func TestCreationNeedsUpstreamsWord(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	b.up.inUse = func(string) (bool, error) { return false, errors.New("no broker answers") }
	r := b.replica()
	_, err := r.beat("m", 0, "t")
	wantError(t, err, ErrUnavailable, "")
	if len(r.List()) != 0 {
		t.Fatal("the group was created")
	}
}

func TestReplicaWithOlderMetadataDoesNotUndoNewer(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	one, two := b.replica(), b.replica()
	one.mustBeat("m", 0, "t")
	two.mustBeat("m", 1)
	again := Topic{Name: "t", ID: testID("again"), Partitions: 3}
	b.up.set(again)
	eventually(t, "the new topic is assigned", func() bool {
		d := one.describe()
		one.mustBeat("m", d.Members[0].Epoch)
		return len(d.Members[0].Assignment) == 1 && d.Members[0].Assignment[0].ID == again.ID
	})
	epoch := one.describe().GroupEpoch
	for range 20 {
		two.mustBeat("m", two.describe().Members[0].Epoch)
		one.mustBeat("m", one.describe().Members[0].Epoch)
	}
	if now := one.describe().GroupEpoch; now != epoch {
		t.Fatalf("group epoch rose from %d to %d", epoch, now)
	}
}

func TestConfigChangeReachesOtherReplicas(t *testing.T) {
	b := newTestbed(t)
	b.pace.config, b.pace.configMost = time.Hour, time.Hour // so it is the message that tells
	one, two := b.replica(), b.replica()
	ctx := context.Background()
	value := "earliest"
	if err := one.AlterConfigs(ctx, "g", []ConfigOp{{Key: keyAutoOffsetReset, Value: &value}}, false); err != nil {
		t.Fatal(err)
	}
	if c, err := two.Config(ctx, "g"); err != nil || c.AutoOffsetReset.Kind != ResetEarliest {
		t.Fatalf("%+v, %v", c, err)
	}
	value2 := "read_committed"
	if err := two.AlterConfigs(ctx, "g", []ConfigOp{{Key: keyAutoOffsetReset, Op: ConfigDelete}, {Key: keyIsolationLevel, Value: &value2}}, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change is heard of", func() bool {
		c, err := one.Config(ctx, "g")
		return err == nil && c.ReadCommitted && c.AutoOffsetReset.Kind == ResetLatest
	})
	eventually(t, "the configs are listed", func() bool { return slices.Equal(one.ConfiguredGroups(), []string{"g"}) })
	if len(one.List()) != 0 {
		t.Fatal("configs make a group")
	}
	if err := one.ReplaceConfigs(ctx, "g", nil, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no configs are listed", func() bool { return len(two.ConfiguredGroups()) == 0 })
}

func TestDeletedGroupStartsAnew(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	one, two := b.replica(), b.replica()
	ctx := context.Background()
	wantError(t, one.Delete(ctx, "g"), ErrGroupIDNotFound, "Group g not found.")
	wantError(t, one.Delete(ctx, ""), ErrInvalidGroupID, "")
	value := "earliest"
	if err := one.AlterConfigs(ctx, "g", []ConfigOp{{Key: keyAutoOffsetReset, Value: &value}}, false); err != nil {
		t.Fatal(err)
	}
	one.mustBeat("m", 0, "t")
	before, ok, err := two.Initialized(ctx, "g", testID("t"), 0)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	wantError(t, two.Delete(ctx, "g"), ErrNonEmptyGroup, "")
	two.mustBeat("m", -1)
	if err := two.Delete(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the group is gone everywhere", func() bool { return len(one.List()) == 0 && !one.IsShareGroup("g") })
	if _, ok, err := one.Initialized(ctx, "g", testID("t"), 0); ok || err != nil {
		t.Fatal(ok, err)
	}
	_, err = one.beat("m", 1)
	wantError(t, err, ErrGroupIDNotFound, "Share group g not found.")
	one.mustBeat("m", 0, "t")
	after, ok, err := two.Initialized(ctx, "g", testID("t"), 0)
	if err != nil || !ok || after.Incarnation <= before.Incarnation {
		t.Fatalf("start %+v, then %+v (%v, %v)", before, after, ok, err)
	}
	if c, err := two.Config(ctx, "g"); err != nil || c.AutoOffsetReset.Kind != ResetEarliest {
		t.Fatalf("configs did not survive: %+v, %v", c, err)
	}
}

func TestGroupMadeAgainElsewhereIsAShareGroupHere(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	one, two := b.replica(), b.replica()
	ctx := context.Background()
	one.mustBeat("m", 0, "t")
	one.mustBeat("m", -1)
	if err := one.Delete(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	_, err := one.Describe(ctx, "g")
	wantError(t, err, ErrGroupIDNotFound, "")
	two.mustBeat("m", 0, "t")
	eventually(t, "the group is known", func() bool { return one.IsShareGroup("g") })
}

func TestRequestsOfAnyKindFailRetriablyWhileRedisIsAway(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	r := b.replica()
	r.mustBeat("m", 0, "t")
	b.redis.Close()
	ctx := context.Background()
	_, err := r.beat("m", 1)
	wantError(t, err, ErrUnavailable, "")
	_, err = r.Describe(ctx, "g")
	wantError(t, err, ErrUnavailable, "")
	wantError(t, r.Delete(ctx, "g"), ErrUnavailable, "")
	wantError(t, r.AlterConfigs(ctx, "g", nil, false), ErrUnavailable, "")
	_, err = r.InitializedPartitions(ctx, "g")
	wantError(t, err, ErrUnavailable, "")
	// What is known here is still good for routing and for fetches that run.
	if !r.IsShareGroup("g") {
		t.Fatal("group is not known")
	}
	if _, err := r.Config(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := r.Initialized(ctx, "g", testID("t"), 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func TestNameOfADeletedGroupLeavesTheIndex(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	one, two := b.replica(), b.replica()
	ctx := context.Background()
	one.mustBeat("m", 0, "t")
	one.mustBeat("m", -1)
	if err := one.Delete(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	// A replica that dies between the deletion and the list leaves this behind.
	if err := one.store.AddToIndex(ctx, "g/g"); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*replica{one, two} {
		eventually(t, "the group is not listed", func() bool {
			names, err := r.store.Index(ctx)
			return len(r.List()) == 0 && err == nil && len(names) == 0 && !r.index.has("g")
		})
	}
}

func TestOldConfigIsServedAtOnceAndRefreshed(t *testing.T) {
	b := newTestbed(t)
	b.pace.config = 20 * time.Millisecond
	r := b.replica()
	ctx := context.Background()
	value := "earliest"
	if err := r.AlterConfigs(ctx, "g", []ConfigOp{{Key: keyAutoOffsetReset, Value: &value}}, false); err != nil {
		t.Fatal(err)
	}
	age := func() time.Duration {
		age, _ := r.group("g").Cached(func(*Group) {})
		return age
	}
	eventually(t, "the copy is old", func() bool { return age() > 50*time.Millisecond })
	if c, err := r.Config(ctx, "g"); err != nil || c.AutoOffsetReset.Kind != ResetEarliest {
		t.Fatalf("%+v, %v", c, err)
	}
	before := r.store.Stats().Reads
	eventually(t, "the copy is read again", func() bool { return r.store.Stats().Reads > before || age() < 50*time.Millisecond })
}

func TestCheck038_MembersGoOnWhenAReplicaIsLost(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	one := b.replica()
	epoch := one.mustBeat("m", 0, "t").Epoch
	two := b.replica() // one is never heard of again
	if response := two.mustBeat("m", epoch); response.Epoch != epoch || response.HasAssignment {
		t.Fatalf("answer %+v", response)
	}
}

func TestCheck024_HeartbeatsOfOthersTakeOverFromTheSilent(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	b.shortSessions()
	one, two := b.replica(), b.replica()
	one.mustBeat("m", 0, "t")
	response := two.mustBeat("n", 0, "t")
	eventually(t, "n has everything", func() bool {
		again := two.mustBeat("n", response.Epoch)
		response.Epoch = again.Epoch
		if again.HasAssignment {
			response.Assignment = again.Assignment
		}
		return load(response.Assignment) == 2
	})
	_, err := one.beat("m", 1)
	wantError(t, err, ErrUnknownMemberID, "")
}

func TestGroupThatIsNotListedIsPutOnTheListByItsMembers(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	r := b.replica()
	ctx := context.Background()
	// Whoever makes a group may die before it is listed.
	made := NewGroup()
	made.exists = true
	if _, err := r.group("g").Create(ctx, made); err != nil {
		t.Fatal(err)
	}
	r.mustBeat("m", 0, "t")
	names, err := r.store.Index(ctx)
	if err != nil || !slices.Equal(names, []string{"g/g"}) || !r.IsShareGroup("g") {
		t.Fatalf("listed %v, %v", names, err)
	}
}

func TestMemberThatJoinsAgainIsKnownByItsClient(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	b.shortSessions()
	r := b.replica()
	r.mustBeat("m", 0, "t")
	since := time.Now()
	eventually(t, "the session is over, though the copy here still has the member", func() bool { return time.Since(since) > 900*time.Millisecond })
	r.mustBeat("m", 0, "t")
	if m := r.describe().Members[0]; m.ClientID != "app" || m.ClientHost != "/10.0.0.1" || m.Epoch != 3 {
		t.Fatalf("member %+v", m)
	}
}
