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
)

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
			return r.IsShareGroup("g") && slices.Equal(r.List(t.Context()), []Listing{{Group: "g", State: StateStable}})
		})
	}
}

func TestListIsOfThisMomentOnAnyReplica(t *testing.T) {
	b := newTestbed(t, testTopic("t", 4))
	one, two := b.replica(), b.replica()
	eventually(t, "the group is listed", func() bool {
		one.mustBeat("m", 0, "t")
		return slices.Equal(two.List(t.Context()), []Listing{{Group: "g", State: StateStable}})
	})
	one.mustBeat("m", -1)
	if l := two.List(t.Context()); !slices.Equal(l, []Listing{{Group: "g", State: StateEmpty}}) {
		t.Errorf("after the last member has left on another replica: %v", l)
	}
}

func TestListsHaveWhatAnotherReplicaHasJustListed(t *testing.T) {
	b := newTestbed(t, testTopic("t", 1))
	b.pace.index = time.Hour
	one := b.replica()
	two := New(Options{Store: one.store, Topics: b.up, Use: b.up, Broker: b.broker}) // hears of nothing, for it does not run
	one.mustBeat("m", 0, "t")
	value := "earliest"
	if err := one.AlterConfigs(context.Background(), "other", []ConfigOp{{Key: keyAutoOffsetReset, Value: &value}}, false); err != nil {
		t.Fatal(err)
	}
	if l := two.ListConfigured(t.Context()); !slices.Equal(l, []string{"other"}) {
		t.Errorf("configured %v", l)
	}
	if l := two.List(t.Context()); !slices.Equal(l, []Listing{{Group: "g", State: StateStable}}) {
		t.Errorf("groups %v", l)
	}
}

func TestNameOfDeletedConfigsLeavesTheIndex(t *testing.T) {
	b := newTestbed(t)
	one, two := b.replica(), b.replica()
	ctx := context.Background()
	// Redis was away at the moment that the configs were deleted and were to be unlisted.
	if err := one.store.AddToIndex(ctx, "c/g"); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*replica{one, two} {
		if l := r.ListConfigured(t.Context()); len(l) != 0 {
			t.Errorf("configured %v", l)
		}
	}
	if names, err := two.store.Index(ctx); err != nil || len(names) != 0 {
		t.Errorf("index %v, %v", names, err)
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
		return slices.Equal(one.List(t.Context()), []Listing{{Group: "g", State: StateEmpty}})
	})
	_, err := two.beat("m", 1)
	wantError(t, err, ErrUnknownMemberID, "Member m is not a member of group g.")
}

func TestCreationStepsBackFromAGroupMadeUpstreamMeanwhile(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	var asked atomic.Int32
	b.up.inUse = func(string) (bool, error) { return asked.Add(1) > 1, nil }
	one, two := b.replica(), b.replica()
	_, err := one.beat("m", 0, "t")
	wantError(t, err, ErrGroupIDNotFound, "Group g is not a share group.")
	for _, r := range []*replica{one, two} {
		eventually(t, "no group is left", func() bool { return len(r.List(t.Context())) == 0 && !r.IsShareGroup("g") })
	}
}

func TestCreationNeedsUpstreamsWord(t *testing.T) {
	b := newTestbed(t, testTopic("t", 2))
	b.up.inUse = func(string) (bool, error) { return false, errors.New("no broker answers") }
	r := b.replica()
	_, err := r.beat("m", 0, "t")
	wantError(t, err, ErrUnavailable, "")
	if len(r.List(t.Context())) != 0 {
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
	if len(one.List(t.Context())) != 0 {
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
	eventually(t, "the group is gone everywhere", func() bool { return len(one.List(t.Context())) == 0 && !one.IsShareGroup("g") })
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
			return len(r.List(t.Context())) == 0 && err == nil && len(names) == 0 && !r.index.has("g")
		})
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
