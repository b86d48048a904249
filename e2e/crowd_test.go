//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

// A crowd is many members of share groups that do nothing but heartbeat, as often as
// they are told to. Several share a connection. No heartbeat may be refused.
type crowd struct {
	*testing.T
	*target
	topics  []string // with crowdPartitions each
	base    string   // of the groups' names
	clients []*kgo.Client
	groups  []*crowdGroup

	// restless tells those members that can that now is the time to leave and join again.
	restless chan struct{}
	// broken is true while connections may end and requests come to nothing.
	broken atomic.Bool

	// moves is how often members were told another epoch or assignment.
	beats, moves, left, failed atomic.Int64

	mu   sync.Mutex
	took []time.Duration // since last asked
}

const (
	crowdPartitions  = 16
	crowdConnections = 50
)

type crowdGroup struct {
	name    string
	node    int32 // its coordinator
	topics  []string
	members []*crowdMember
}

type crowdMember struct {
	c      *crowd
	g      *crowdGroup
	id     string
	client *kgo.Client
	// restless members leave and join again when all do.
	restless bool

	mu    sync.Mutex
	epoch int32 // 0 while it is not in the group
	held  map[[16]byte][]int32
	beats int64
}

// crowdTopics makes the topics that crowds subscribe to.
func (tg *target) crowdTopics(t *testing.T) []string {
	base := fmt.Sprintf("crowd-%x", time.Now().UnixMilli()&0xffffff)
	var topics []string
	for i := range 8 {
		topics = append(topics, fmt.Sprintf("%s-t%d", base, i))
		tg.createTopic(t, topics[i], crowdPartitions, 1, nil)
	}
	return topics
}

// newCrowd makes connections.
func newCrowd(t *testing.T, tg *target, topics []string) *crowd {
	c := &crowd{T: t, target: tg, topics: topics, restless: make(chan struct{}),
		base: fmt.Sprintf("crowd-%x", time.Now().UnixMilli()&0xffffff)}
	for range crowdConnections {
		cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(tg.bootstrap, ",")...), kgo.DisableClientMetrics(), kgo.ClientID("crowd"))
		must(t, err)
		t.Cleanup(cl.Close)
		c.clients = append(c.clients, cl)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		_, err = kadm.NewClient(cl).ListBrokers(ctx) // so that it knows them
		cancel()
		must(t, err)
	}
	return c
}

// add makes a group with members that subscribe to the topics of these numbers.
func (c *crowd) add(members int, topics ...int) {
	g := &crowdGroup{name: fmt.Sprintf("%s-g%d", c.base, len(c.groups))}
	for _, i := range topics {
		g.topics = append(g.topics, c.topics[i%len(c.topics)])
	}
	for i := range members {
		n := len(c.groups) + i
		g.members = append(g.members, &crowdMember{c: c, g: g, id: fmt.Sprintf("%016x%06d", rand.Uint64(), i),
			client: c.clients[n%len(c.clients)], restless: i > 0 && n%20 == 3})
	}
	c.groups = append(c.groups, g)
}

// start has the members join over some time and go on until the test ends.
func (c *crowd) start(over time.Duration) {
	names := make([]string, len(c.groups))
	for i, g := range c.groups {
		names[i] = g.name
	}
	must(c.T, harness.Until("coordinators", time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		found := c.admin.FindGroupCoordinators(ctx, names...)
		if err := found.Error(); err != nil {
			return err
		}
		for _, g := range c.groups {
			g.node = found[g.name].NodeID
		}
		// A coordinator that still loads would refuse heartbeats; one that has loaded knows that there are no such groups.
		described, err := c.admin.DescribeShareGroups(ctx, names...)
		if err != nil {
			return err
		}
		for _, d := range described {
			if !errors.Is(d.Err, kerr.GroupIDNotFound) {
				return fmt.Errorf("%s, before its first member: %v", d.GroupID, d.Err)
			}
		}
		return nil
	}))
	living, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, g := range c.groups {
		for _, m := range g.members {
			wg.Go(func() { m.live(living, rand.N(over)) })
		}
	}
	c.Cleanup(func() {
		stop()
		wg.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		deleted, err := c.admin.DeleteGroups(ctx, names...)
		if err = errors.Join(err, deleted.Error()); err != nil {
			c.Errorf("groups cannot be deleted: %v", err)
		}
	})
}

// errorf fails the test, ten times at most.
func (c *crowd) errorf(format string, args ...any) {
	if c.failed.Add(1) <= 10 {
		c.Errorf(format, args...)
	}
}

// live joins after a while, heartbeats until ctx ends, and leaves.
func (m *crowdMember) live(ctx context.Context, wait time.Duration) {
	restless := m.c.restless
	if !m.restless {
		restless = nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			if m.epoch != 0 {
				m.beat(-1)
			}
			return
		case <-restless:
			restless = nil
			m.beat(-1)
			timer.Reset(2 * time.Second)
		case <-timer.C:
			timer.Reset(m.beat(m.epoch))
		}
	}
}

func (m *crowdMember) String() string { return fmt.Sprintf("member %s of %s", m.id, m.g.name) }

// beat sends a heartbeat until it is answered, and returns when the next is due.
func (m *crowdMember) beat(epoch int32) time.Duration {
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.GroupID, req.MemberID, req.MemberEpoch = m.g.name, m.id, epoch
	if epoch == 0 {
		req.SubscribedTopicNames = m.g.topics
	}
	for {
		sent := time.Now()
		resp, err := m.ask(req)
		switch {
		case err == nil:
			m.heard(resp, time.Since(sent))
			return time.Duration(resp.HeartbeatIntervalMillis) * time.Millisecond
		case !m.c.broken.Load() || errors.As(err, new(*kerr.Error)):
			m.c.errorf("heartbeat of %s at epoch %d: %v", m, epoch, err)
			return 5 * time.Second
		}
		<-time.After(100 * time.Millisecond)
	}
}

func (m *crowdMember) ask(req *kmsg.ShareGroupHeartbeatRequest) (*kmsg.ShareGroupHeartbeatResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := m.client.Broker(int(m.g.node)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := r.(*kmsg.ShareGroupHeartbeatResponse)
	return resp, kerr.ErrorForCode(resp.ErrorCode)
}

func (m *crowdMember) heard(r *kmsg.ShareGroupHeartbeatResponse, took time.Duration) {
	m.c.beats.Add(1)
	m.c.mu.Lock()
	m.c.took = append(m.c.took, took)
	m.c.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beats++
	if r.MemberEpoch < 0 {
		m.c.left.Add(1)
		m.epoch, m.held = 0, nil
		return
	}
	if r.Assignment != nil || r.MemberEpoch != m.epoch {
		m.c.moves.Add(1)
	}
	m.epoch = r.MemberEpoch
	if r.Assignment != nil {
		m.held = map[[16]byte][]int32{}
		for _, t := range r.Assignment.TopicPartitions {
			m.held[t.TopicID] = t.Partitions
		}
	}
}

// stir has the restless members leave and join again, and returns when all have left.
func (c *crowd) stir() {
	c.Helper()
	want := int64(0)
	for _, g := range c.groups {
		for _, m := range g.members {
			if m.restless {
				want++
			}
		}
	}
	close(c.restless)
	must(c.T, harness.Until("members to leave", time.Minute, func() error {
		if n := c.left.Load(); n < want {
			return fmt.Errorf("%d of %d have left", n, want)
		}
		return nil
	}))
}

// settles waits until all groups are at rest: every member at the epoch of its group,
// and every partition of what they subscribe to with one of them at least.
func (c *crowd) settles(what string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	md, err := c.admin.Metadata(ctx, c.topics...)
	must(c.T, err)
	began := time.Now()
	must(c.T, harness.Until(what, time.Minute, func() error {
		for _, g := range c.groups {
			if err := g.atRest(md); err != nil {
				return err
			}
		}
		return c.described()
	}))
	c.Logf("%s: at rest after %v", what, time.Since(began).Round(10*time.Millisecond))
}

func (g *crowdGroup) atRest(md kadm.Metadata) error {
	epoch := int32(0)
	covered := map[string]*[crowdPartitions]bool{}
	for _, name := range g.topics {
		covered[name] = &[crowdPartitions]bool{}
	}
	for _, m := range g.members {
		m.mu.Lock()
		at, held := m.epoch, m.held // held is replaced, never changed
		m.mu.Unlock()
		if epoch == 0 {
			epoch = at
		}
		if at == 0 || at != epoch {
			return fmt.Errorf("%s is at epoch %d, another at %d", m, at, epoch)
		}
		for _, name := range g.topics {
			for _, p := range held[md.Topics[name].ID] {
				covered[name][p] = true
			}
		}
	}
	for name, parts := range covered {
		if p := slices.Index(parts[:], false); p >= 0 {
			return fmt.Errorf("nobody in %s has partition %d of %s", g.name, p, name)
		}
	}
	return nil
}

// described checks that the groups are described as their members know them. A group that
// changed less than an assignment interval after its last target is ahead of its members.
func (c *crowd) described() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for chunk := range slices.Chunk(c.groups, 100) {
		var names []string
		for _, g := range chunk {
			names = append(names, g.name)
		}
		all, err := c.admin.DescribeShareGroups(ctx, names...)
		if err != nil {
			return err
		}
		for _, g := range chunk {
			d, epoch := all[g.name], g.members[0].at()
			if d.Err != nil || d.GroupEpoch != epoch || d.AssignmentEpoch != epoch || len(d.Members) != len(g.members) {
				return fmt.Errorf("%s is described with group epoch %d, assignment epoch %d and %d members (%v), its members are %d at epoch %d",
					g.name, d.GroupEpoch, d.AssignmentEpoch, len(d.Members), d.Err, len(g.members), epoch)
			}
		}
	}
	return nil
}

func (m *crowdMember) at() int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// round waits until every member has been answered once more.
func (c *crowd) round(what string) {
	c.Helper()
	before := map[*crowdMember]int64{}
	for _, g := range c.groups {
		for _, m := range g.members {
			before[m] = m.answered()
		}
	}
	must(c.T, harness.Until(what, time.Minute, func() error {
		for m, n := range before {
			if m.answered() == n {
				return fmt.Errorf("%s has not been answered", m)
			}
			delete(before, m)
		}
		return nil
	}))
}

func (m *crowdMember) answered() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.beats
}

// slowest returns the middle, the 99th percentile and the longest of the times that
// heartbeats took since it was called last.
func (c *crowd) slowest() (middle, most, longest time.Duration) {
	c.mu.Lock()
	took := c.took
	c.took = nil
	c.mu.Unlock()
	if len(took) == 0 {
		return 0, 0, 0
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
}
