//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"kshare/e2e/harness"
)

// 200 members of one group, then two of each of many groups, heartbeat for a while. Some
// leave and come back; then nothing changes any more, not even when a replica is killed:
// nobody is fenced, every partition has a member, and epochs stand still.
func TestManyMembersHeartbeatInPeace(t *testing.T) {
	if os.Getenv("E2E_CLIENTS") != "" {
		t.Skip("no client of any kind takes part")
	}
	tg := use(t)
	topics := tg.crowdTopics(t)
	idle := tg.idleCosts(t, time.Duration(sized(5, 30))*time.Second)
	t.Run("200 members of one group", func(t *testing.T) {
		c := newCrowd(t, tg, topics)
		c.add(200, 0, 1, 2, 3, 4, 5, 6, 7)
		c.liveInPeace(idle)
	})
	groups := sized(100, 500)
	t.Run(fmt.Sprintf("2 members of each of %d groups", groups), func(t *testing.T) {
		c := newCrowd(t, tg, topics)
		for i := range groups {
			c.add(2, i, i+1)
		}
		c.liveInPeace(idle)
	})
}

func (c *crowd) liveInPeace(idle costs) {
	c.start(time.Duration(sized(3, 20)) * time.Second)
	c.settles("joins")
	c.stir()
	c.settles("members that left and came back")

	moves := c.moves.Load()
	c.judgeRest(idle, time.Duration(sized(20, 120))*time.Second)
	if c.replicas != nil {
		c.broken.Store(true)
		c.replicas.Process(1).Kill()
		c.round("heartbeats without the replica that was killed")
		must(c.T, c.replicas.Start(1))
		must(c.T, c.replicas.WaitReady(1, time.Minute))
		c.round("heartbeats after it came back")
		c.broken.Store(false)
	}
	c.settles("the end")
	if n := c.moves.Load() - moves; n > 0 {
		c.errorf("members were told another epoch or assignment %d times though nothing changed", n)
	}
}

// judgeRest prints what a heartbeat costs where nothing changes: one script on Redis, and
// little processor time.
func (c *crowd) judgeRest(idle costs, wait time.Duration) {
	c.Helper()
	c.slowest()
	beats, before := c.beats.Load(), c.costs(c.T)
	<-time.After(wait)
	beats = c.beats.Load() - beats
	used := c.costs(c.T).since(before)
	middle, most, longest := c.slowest()
	if beats == 0 {
		c.Fatal("no heartbeat was answered")
	}
	each := func(what string) time.Duration {
		background := time.Duration(float64(idle.cpu[what]) * used.over.Seconds() / idle.over.Seconds())
		return max(0, ((used.cpu[what] - background) / time.Duration(beats)).Round(time.Microsecond))
	}
	per := func(n int64) float64 { return float64(n) / float64(beats) }
	c.Logf("%d heartbeats in %v, %.0f a second; median %v, 99 of 100 within %v, slowest %v", beats, used.over.Round(time.Second),
		float64(beats)/used.over.Seconds(), middle.Round(10*time.Microsecond), most.Round(10*time.Microsecond), longest.Round(10*time.Microsecond))
	if c.replicas == nil {
		c.Logf("each cost %v of the brokers' processor time", each("brokers"))
		return
	}
	c.Logf("each cost %v of the replicas' processor time, %v of Redis', %v of the upstream brokers', beside what they use when idle",
		each("replicas"), each("Redis"), each("brokers"))
	c.Logf("each cost %.3f scripts, and %.3f commands in all, with leases, the index and what scripts run", per(used.calls["evalsha"]), per(used.commands()))
	if n := per(used.calls["evalsha"]); n > 1.05 {
		c.errorf("a heartbeat cost %.3f scripts", n)
	}
}

// costs are what processes have used and Redis has run, in some time.
type costs struct {
	at    time.Time
	over  time.Duration
	cpu   map[string]time.Duration
	calls map[string]int64
}

func (a costs) since(b costs) costs {
	d := costs{over: a.at.Sub(b.at), cpu: map[string]time.Duration{}, calls: map[string]int64{}}
	for what, used := range a.cpu {
		d.cpu[what] = used - b.cpu[what]
	}
	for command, n := range a.calls {
		d.calls[command] = n - b.calls[command]
	}
	return d
}

func (a costs) commands() (n int64) {
	for _, calls := range a.calls {
		n += calls
	}
	return n
}

// costs reads the counters.
func (tg *target) costs(t *testing.T) costs {
	t.Helper()
	now := costs{at: time.Now(), cpu: map[string]time.Duration{}}
	add := func(what string, p *harness.Process) {
		used, err := p.ProcessorTime()
		must(t, err)
		now.cpu[what] += used
	}
	for _, node := range tg.kafka.Nodes {
		add("brokers", node)
	}
	if tg.replicas == nil {
		return now
	}
	add("Redis", tg.redis.Process)
	for i := range tg.replicas.Count() {
		add("replicas", tg.replicas.Process(i))
	}
	calls, err := tg.redis.Calls(context.Background())
	must(t, err)
	now.calls = calls
	return now
}

// idleCosts prints what goes on while nobody asks for anything.
func (tg *target) idleCosts(t *testing.T, wait time.Duration) costs {
	t.Helper()
	before := tg.costs(t)
	<-time.After(wait)
	used := tg.costs(t).since(before)
	second := func(what string) time.Duration {
		return (time.Duration(float64(used.cpu[what]) / used.over.Seconds())).Round(10 * time.Microsecond)
	}
	if tg.replicas == nil {
		t.Logf("idle, a second costs %v of the brokers' processor time", second("brokers"))
		return used
	}
	t.Logf("idle, a second costs %v of the replicas' processor time, %v of Redis', %v of the brokers', and %.1f commands",
		second("replicas"), second("Redis"), second("brokers"), float64(used.commands())/used.over.Seconds())
	return used
}
