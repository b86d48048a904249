package coordinator

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TEST_SIZE=full makes it as many members for as long as is promised.
func TestManyMembersHeartbeatInPeace(t *testing.T) {
	length, groups := crowdShortest, 40
	if os.Getenv("TEST_SIZE") == "full" {
		length, groups = 30*time.Minute, 500
	}
	t.Run("200 members of one group", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, length, 8, 16)
			c.add("g", 200, "t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7")
			c.liveInPeace()
		})
	})
	t.Run(fmt.Sprintf("2 members of each of %d groups", groups), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, length, 8, 16)
			for i := range groups {
				c.add(fmt.Sprintf("g%03d", i), 2, fmt.Sprintf("t%d", i%8), fmt.Sprintf("t%d", (i+1)%8))
			}
			c.liveInPeace()
		})
	})
}

// liveInPeace has the crowd live, and judges what the heartbeats cost once nothing changes: one command each, beside a few
// each second that a replica needs however many members there are.
func (c *crowd) liveInPeace() {
	type figures struct {
		at                                           time.Duration
		beats, commands, appends, reads, compactions int64
		cpu                                          time.Duration
		longest                                      int
	}
	now := func() (f figures) {
		f.at, f.beats, f.cpu = c.age(), c.beats.Load(), processorTime()
		f.commands, f.appends, f.reads, f.compactions, f.longest = c.stats()
		return f
	}
	var rest figures
	began := processorTime()
	c.live(func() { rest = now() })
	end := now()
	c.checkRest()

	beats, over := end.beats-rest.beats, end.at-rest.at
	if beats == 0 {
		c.t.Fatal("no heartbeat was accepted")
	}
	per := func(n int64) float64 { return float64(n) / float64(beats) }
	ofBeats := end.appends - rest.appends + end.reads - rest.reads + end.compactions - rest.compactions
	c.t.Logf("%d heartbeats in %v, %d of them in the last %v, when nothing changed; each of these cost:", end.beats, c.length, beats, over)
	c.t.Logf("%.3f Redis commands on the groups' logs (%.3f appends, %.3f reads, %.4f compactions)", per(ofBeats),
		per(end.appends-rest.appends), per(end.reads-rest.reads), per(end.compactions-rest.compactions))
	c.t.Logf("%.3f Redis commands in all, with leases and the index: %.1f a second beside the logs",
		per(end.commands-rest.commands), float64(end.commands-rest.commands-ofBeats)/over.Seconds())
	c.t.Logf("%v of processor time, the Redis in this process and its Lua included (%v over the whole life)",
		((end.cpu - rest.cpu) / time.Duration(beats)).Round(time.Microsecond), ((end.cpu - began) / time.Duration(end.beats)).Round(time.Microsecond))
	c.t.Logf("the longest log is of %d bytes", end.longest)
	if per(ofBeats) > 1.03 {
		c.t.Errorf("a heartbeat costs %.3f commands on the group's log", per(ofBeats))
	}
	const aSecond = 8 // for a replica, whatever it serves
	if most := float64(ofBeats) + aSecond*float64(len(c.replicas))*over.Seconds(); float64(end.commands-rest.commands) > most {
		c.t.Errorf("%d commands in %v, want %.0f at most", end.commands-rest.commands, over, most)
	}
}

// processorTime is what this process has used, in user and system mode.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
