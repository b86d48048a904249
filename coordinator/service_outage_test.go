package coordinator

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

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
