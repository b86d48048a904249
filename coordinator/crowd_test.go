package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A crowd is the members of share groups through half an hour of their lives, which takes a bubble of testing/synctest
// seconds: Redis, two replicas and all their timers go by the bubble's clock. Members join over the first minute, and
// heartbeat as often as they are told to, through a replica chosen at random each time. Then a few leave and come back,
// change what they subscribe to, or fall silent until they are timed out; a topic grows; a replica is killed and another
// started. All the while the crowd looks whether every partition has a member, and whether epochs come to rest.
type crowd struct {
	*testbed
	began  time.Time
	length time.Duration
	// replicas are those that answer; nil while there is none.
	replicas [2]atomic.Pointer[replica]
	groups   []*crowdGroup
	// moves is how often the members were told another epoch or assignment.
	beats, moves, failed atomic.Int64
}

// When the members of a crowd do what, as a part of its length. In the shortest life too all is at rest again before the
// next begins, which takes the age of metadata, the assignment interval and a heartbeat.
const (
	crowdJoins       = time.Minute
	crowdLeave       = 0.2
	crowdResubscribe = 0.3
	crowdSilence     = 0.4
	crowdGrowth      = 0.6
	crowdKill        = 0.66
	crowdRestart     = 0.72
	crowdRest        = 0.76
	crowdShortest    = 6 * time.Minute

	crowdAway   = 20 * time.Second // for who leaves
	crowdSilent = time.Minute      // for who is silent, longer than a session
	crowdBeat   = 5 * time.Second
)

// crowdGroup is one share group, as its members know it.
type crowdGroup struct {
	c       *crowd
	name    string
	topics  []string
	members []*crowdMember
	// good are the epochs at which all was well last, stale those of a target that was older than the group then, since.
	good, stale [2]int32
	since       time.Time
}

// crowdMember is one member, which lives on a goroutine of its own.
type crowdMember struct {
	g                           *crowdGroup
	id                          string
	leaves, falls, resubscribes bool // what it will do
	left, fallen, resubscribed  bool // what it has done
	topics                      []string
	rng                         *rand.Rand

	mu    sync.Mutex
	epoch int32 // 0 while it is not in the group
	held  []TopicPartitions
}

// newCrowd makes the topics "t0", "t1", ... and two replicas.
func newCrowd(t *testing.T, length time.Duration, topics int, partitions int32) *crowd {
	if length < crowdShortest {
		t.Fatalf("a crowd needs %v", crowdShortest)
	}
	fake := miniredis.NewMiniRedis()
	fake.ClockTTL(true)
	t.Cleanup(fake.Close)
	c := &crowd{began: time.Now(), length: length,
		testbed: &testbed{t: t, redis: fake, up: &upstream{}, broker: DefaultBrokerConfig(), pace: defaultPace}}
	for i := range topics {
		c.up.set(testTopic(fmt.Sprintf("t%d", i), partitions))
	}
	for i := range c.replicas {
		c.startReplica(i)
	}
	return c
}

func (c *crowd) startReplica(i int) {
	r := c.start(redis.NewClient(&redis.Options{
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return c.redis.Dial() },
		MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, // and whatever else Connect sets that does not need a network
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}))
	eventually(c.t, "the index is read", func() bool { return r.Ready() == nil })
	c.replicas[i].Store(r)
}

// add makes a group. Its members join at random moments of the first minute.
func (c *crowd) add(name string, members int, topics ...string) {
	g := &crowdGroup{c: c, name: name, topics: topics}
	for i := range members {
		rng := rand.New(rand.NewPCG(uint64(len(c.groups)), uint64(i)))
		m := &crowdMember{g: g, id: fmt.Sprintf("%016x%06d", rng.Uint64(), i), topics: topics, rng: rng}
		if i > 0 { // so that there is always somebody
			n := len(c.groups) + i
			m.leaves, m.resubscribes, m.falls = n%20 == 3, n%20 == 11, n%40 == 7
		}
		g.members = append(g.members, m)
	}
	c.groups = append(c.groups, g)
}

// errorf fails the test, ten times at most.
func (c *crowd) errorf(format string, args ...any) {
	c.t.Helper()
	if c.failed.Add(1) <= 10 {
		c.t.Errorf("after %v: %s", c.age().Round(time.Millisecond), fmt.Sprintf(format, args...))
	}
}

func (c *crowd) age() time.Duration { return time.Since(c.began) }

// at is a moment as a part of the crowd's length.
func (c *crowd) at(part float64) time.Duration { return time.Duration(part * float64(c.length)) }

func (c *crowd) sleepUntil(age time.Duration) { time.Sleep(age - c.age()) }

// live has everybody live to the end of the crowd's time, and calls atRest when nothing changes any more.
func (c *crowd) live(atRest func()) {
	var wg sync.WaitGroup
	for _, g := range c.groups {
		for _, m := range g.members {
			wg.Go(m.live)
		}
	}
	done := make(chan struct{})
	wg.Go(func() { c.watch(done) })
	wg.Go(func() {
		defer close(done)
		for _, part := range []float64{crowdLeave, crowdResubscribe, crowdSilence, crowdGrowth} {
			c.sleepUntil(c.at(part) - time.Millisecond)
			c.checkRest()
		}
		c.up.set(testTopic("t0", 3+c.up.topic("t0").Partitions))
		c.sleepUntil(c.at(crowdKill))
		c.checkRest()
		// From here on nothing of the groups changes: not when a replica dies, not when one comes.
		moves := c.moves.Load()
		c.replicas[1].Swap(nil).kill()
		c.sleepUntil(c.at(crowdRestart))
		c.startReplica(1)
		c.sleepUntil(c.at(crowdRest))
		atRest()
		c.sleepUntil(c.length)
		if n := c.moves.Load() - moves; n > 0 {
			c.errorf("members were told another epoch or assignment %d times though nothing changed", n)
		}
	})
	wg.Wait()
}

func (u *upstream) topic(name string) Topic {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.topics[name]
}

// live is the life of a member.
func (m *crowdMember) live() {
	c := m.g.c
	half := m.topics[:(len(m.topics)+1)/2]
	time.Sleep(rand.N(crowdJoins))
	for c.age() < c.length {
		wait := crowdBeat
		switch age := c.age(); {
		case m.leaves && !m.left && age >= c.at(crowdLeave):
			m.left = true
			m.beat(epochLeave, nil)
			m.topics = half
			wait = crowdAway
		case m.falls && !m.fallen && age >= c.at(crowdSilence):
			m.fallen = true
			time.Sleep(crowdSilent)
			if err := m.try(m.epoch, nil); !errors.Is(err, ErrUnknownMemberID) {
				c.errorf("%s was silent for %v: %v", m, crowdSilent, err)
			}
			m.joinAgain()
			wait = 0
		case m.resubscribes && !m.resubscribed && age >= c.at(crowdResubscribe):
			m.resubscribed = true
			m.topics = half
			m.beat(m.epoch, half)
		case m.epoch == epochJoin:
			m.beat(epochJoin, m.topics)
		default:
			m.beat(m.epoch, nil)
		}
		time.Sleep(wait)
	}
}

func (m *crowdMember) String() string { return fmt.Sprintf("member %s of %s", m.id, m.g.name) }

func (m *crowdMember) joinAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch, m.held = epochJoin, nil
}

// beat sends a heartbeat, which must be accepted.
func (m *crowdMember) beat(epoch int32, topics []string) {
	if err := m.try(epoch, topics); err != nil {
		m.g.c.errorf("heartbeat of %s at %d: %v", m, epoch, err)
	}
}

// try sends a heartbeat, to another replica where the first was killed meanwhile.
func (m *crowdMember) try(epoch int32, topics []string) error {
	c := m.g.c
	for {
		i := m.rng.IntN(len(c.replicas))
		r := c.replicas[i].Load()
		if r == nil {
			continue
		}
		response, err := r.Heartbeat(context.Background(), HeartbeatRequest{
			Group: m.g.name, Member: m.id, Epoch: epoch, Topics: topics, ClientID: "consumer-app-" + m.id[len(m.id)-4:], ClientHost: "/10.0.0.1"})
		if err != nil && c.replicas[i].Load() != r {
			continue
		}
		if err == nil {
			m.heard(response)
		}
		return err
	}
}

func (m *crowdMember) heard(r HeartbeatResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.g.c.beats.Add(1)
	if r.Epoch == epochLeave {
		m.epoch, m.held = epochJoin, nil
		return
	}
	if r.IntervalMs != int32(crowdBeat.Milliseconds()) {
		m.g.c.errorf("%s is to heartbeat every %d ms", m, r.IntervalMs)
	}
	if r.HasAssignment || r.Epoch != m.epoch {
		m.g.c.moves.Add(1)
	}
	m.epoch = r.Epoch
	if r.HasAssignment {
		m.held = r.Assignment
	}
}

// watch looks each second at what the replicas know, until done.
func (c *crowd) watch(done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		for _, g := range c.groups {
			for i := range c.replicas {
				if r := c.replicas[i].Load(); r != nil {
					r.group(g.name).Cached(g.look)
				}
			}
		}
	}
}

// look checks that every partition of the topics that members want is meant for one of them, whenever the target is of
// the group as it is, and that it soon is.
func (g *crowdGroup) look(state *Group) {
	epochs := [2]int32{state.epoch, state.assignmentEpoch}
	switch {
	case len(state.members) == 0 || epochs == g.good || state.assignmentEpoch < max(g.good[1], g.stale[1]): // or an older copy
		return
	case state.epoch > state.assignmentEpoch:
		if g.since.IsZero() || state.assignmentEpoch > g.stale[1] {
			g.stale, g.since = epochs, time.Now()
		}
		// An interval has passed at the first heartbeat after it.
		if most := time.Second + crowdBeat; time.Since(g.since) > most {
			g.c.errorf("group %s at epoch %d has had the target of %d for %v", g.name, state.epoch, state.assignmentEpoch, time.Since(g.since))
		}
		return
	}
	g.good = epochs
	var targets [][]TopicPartitions
	for _, m := range state.members {
		targets = append(targets, m.target)
	}
	for _, t := range state.topics {
		if state.subscribed(t.name) {
			g.covers(targets, t.name, t.partitions)
		}
	}
}

func (g *crowdGroup) covers(assignments [][]TopicPartitions, topic string, partitions int32) {
	covered := make([]bool, partitions)
	for _, assignment := range assignments {
		for _, tp := range assignment {
			if tp.Name == topic {
				for _, p := range tp.Partitions {
					covered[p] = true
				}
			}
		}
	}
	if p := slices.Index(covered, false); p >= 0 {
		g.c.errorf("group %s: nobody has partition %d of %s", g.name, p, topic)
	}
}

// checkRest checks that all groups are at rest: the members have the epoch of the group, and all partitions.
func (c *crowd) checkRest() {
	for _, g := range c.groups {
		d, err := c.replicas[0].Load().Describe(context.Background(), g.name)
		if err != nil {
			c.errorf("group %s: %v", g.name, err)
			continue
		}
		var held [][]TopicPartitions
		in := 0
		for _, m := range g.members {
			m.mu.Lock()
			if m.epoch != epochJoin {
				in++
				held = append(held, m.held)
				if m.epoch != d.GroupEpoch || d.AssignmentEpoch != d.GroupEpoch {
					c.errorf("%s is at epoch %d, its group at %d, the assignment at %d", m, m.epoch, d.GroupEpoch, d.AssignmentEpoch)
				}
			}
			m.mu.Unlock()
		}
		if in != len(g.members) || len(d.Members) != len(g.members) {
			c.errorf("group %s: %d members think they are in it, it has %d, want %d", g.name, in, len(d.Members), len(g.members))
		}
		for _, name := range g.topics {
			g.covers(held, name, c.up.topic(name).Partitions)
		}
	}
}

// stats adds up what the replicas that live have done, and the longest of the logs in Redis.
func (c *crowd) stats() (commands, appends, reads, compactions int64, longest int) {
	for i := range c.replicas {
		s := c.replicas[i].Load().store.Stats()
		commands, appends, reads, compactions = commands+s.Commands, appends+s.Appends, reads+s.Reads, compactions+s.Compactions
	}
	for _, key := range c.redis.Keys() {
		if strings.HasSuffix(key, "}") {
			log, _ := c.redis.Get(key)
			longest = max(longest, len(log))
		}
	}
	return commands, appends, reads, compactions, longest
}
