package coordinator

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// assignorCase is an input of the assignor together with what it made of it.
type assignorCase struct {
	topics      []assignable
	subscribers []subscriber
}

func (c *assignorCase) assign() [][]TopicPartitions {
	targets := assignSimple(c.topics, c.subscribers)
	for i := range c.subscribers {
		c.subscribers[i].current = targets[i]
	}
	return targets
}

func drawTopics(t *rapid.T, most, partitions int) []assignable {
	var topics []assignable
	for i := range rapid.IntRange(1, most).Draw(t, "topics") {
		a := assignable{name: fmt.Sprintf("t%02d", i), id: testID(fmt.Sprintf("t%02d", i))}
		for p := range rapid.IntRange(1, partitions).Draw(t, "partitions") {
			a.partitions = append(a.partitions, int32(p))
		}
		topics = append(topics, a)
	}
	return topics
}

func names(topics []assignable) []string {
	var names []string
	for _, t := range topics {
		names = append(names, t.name)
	}
	return names
}

// holders counts who has each partition of a topic.
func holders(targets [][]TopicPartitions, topic assignable) map[int32]int {
	counts := make(map[int32]int)
	for _, target := range targets {
		for _, tp := range target {
			if tp.ID == topic.id {
				for _, p := range tp.Partitions {
					counts[p]++
				}
			}
		}
	}
	return counts
}

func load(target []TopicPartitions) int {
	n := 0
	for _, tp := range target {
		n += len(tp.Partitions)
	}
	return n
}

// checkBalance fails unless every partition has ceil(members/partitions) members and loads differ by at most one.
func checkBalance(t rapid.TB, topics []assignable, targets [][]TopicPartitions) {
	total := 0
	for _, topic := range topics {
		total += len(topic.partitions)
	}
	if len(targets) == 0 || total == 0 {
		return
	}
	sharing := int(math.Ceil(float64(len(targets)) / float64(total)))
	for _, topic := range topics {
		counts := holders(targets, topic)
		for _, p := range topic.partitions {
			if counts[p] != sharing {
				t.Fatalf("%s-%d has %d members, want %d", topic.name, p, counts[p], sharing)
			}
		}
	}
	least, most := math.MaxInt, 0
	for _, target := range targets {
		least, most = min(least, load(target)), max(most, load(target))
	}
	if most-least > 1 {
		t.Fatalf("loads differ from %d to %d", least, most)
	}
}

func TestHomogeneousAssignmentIsBalancedThroughAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := assignorCase{topics: drawTopics(t, 4, 6)}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				at := rapid.IntRange(0, len(c.subscribers)).Draw(t, "at")
				for range rapid.IntRange(1, 6).Draw(t, "joining") {
					c.subscribers = slices.Insert(c.subscribers, at, subscriber{})
				}
			case 2:
				if n := len(c.subscribers); n > 0 {
					from := rapid.IntRange(0, n-1).Draw(t, "from")
					c.subscribers = slices.Delete(c.subscribers, from, rapid.IntRange(from, n).Draw(t, "to"))
				}
			case 3:
				c.topics = drawTopics(t, 4, 6)
			}
			for i := range c.subscribers {
				c.subscribers[i].topics = names(c.topics)
			}
			targets := c.assign()
			checkBalance(t, c.topics, targets)
			again := assignSimple(c.topics, c.subscribers)
			for i := range targets {
				if !equalAssignment(targets[i], again[i]) {
					t.Fatalf("member %d is moved although nothing changed: %v, then %v", i, targets[i], again[i])
				}
			}
		}
	})
}

func TestHeterogeneousAssignmentIsBalancedPerTopic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := assignorCase{topics: drawTopics(t, 4, 5)}
		c.subscribers = make([]subscriber, rapid.IntRange(1, 12).Draw(t, "members"))
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			different := false
			for i := range c.subscribers {
				wanted := rapid.SliceOfDistinct(rapid.SampledFrom(names(c.topics)), rapid.ID[string]).Draw(t, "wanted")
				slices.Sort(wanted)
				c.subscribers[i].topics = wanted
				different = different || len(wanted) > 0 && !slices.Equal(wanted, c.subscribers[0].topics)
			}
			targets := c.assign()
			for _, topic := range c.topics {
				var subscribers [][]TopicPartitions
				for i, s := range c.subscribers {
					own := slices.DeleteFunc(slices.Clone(targets[i]), func(tp TopicPartitions) bool { return tp.ID != topic.id })
					if slices.Contains(s.topics, topic.name) {
						subscribers = append(subscribers, own)
					} else if len(own) > 0 {
						t.Fatalf("member %d gets %s, which it does not want", i, topic.name)
					}
				}
				counts := holders(targets, topic)
				for _, p := range topic.partitions {
					if len(subscribers) > 0 && counts[p] == 0 {
						t.Fatalf("%s-%d has no member", topic.name, p)
					}
				}
				if different && len(c.subscribers[0].topics) > 0 {
					checkBalance(t, []assignable{topic}, subscribers)
				}
			}
		}
	})
}

// While every partition has one member, a joining member takes the smaller share and nothing else moves, and of a
// leaving one only its own partitions move.
func TestJoinAndLeaveMoveNoMoreThanBalanceNeeds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := assignorCase{topics: drawTopics(t, 4, 10)}
		total := 0
		for _, topic := range c.topics {
			total += len(topic.partitions)
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			n := len(c.subscribers)
			before := make([][]TopicPartitions, n)
			for i := range c.subscribers {
				before[i] = c.subscribers[i].current
			}
			if n == 0 || n < total && rapid.Bool().Draw(t, "join") {
				at := rapid.IntRange(0, n).Draw(t, "at")
				c.subscribers = slices.Insert(c.subscribers, at, subscriber{topics: names(c.topics)})
				after := c.assign()
				moved := total - kept(before, slices.Delete(slices.Clone(after), at, at+1))
				if want := total / (n + 1); n > 0 && (moved != want || load(after[at]) != want) {
					t.Fatalf("%d partitions moved for member %d of %d, which got %d", moved, at, n+1, load(after[at]))
				}
				continue
			}
			if n == 1 {
				return
			}
			at := rapid.IntRange(0, n-1).Draw(t, "leaving")
			c.subscribers = slices.Delete(c.subscribers, at, at+1)
			moved := total - kept(slices.Delete(slices.Clone(before), at, at+1), c.assign())
			if lost := load(before[at]); moved != lost {
				t.Fatalf("%d partitions moved when a member with %d left", moved, lost)
			}
		}
	})
}

func TestSurplusIsTakenWherePartitionsAreCrowded(t *testing.T) {
	c := assignorCase{topics: []assignable{{name: "t", partitions: []int32{0, 1, 2}}}}
	has := func(partitions ...int32) subscriber {
		return subscriber{topics: []string{"t"}, current: []TopicPartitions{{Name: "t", Partitions: partitions}}}
	}
	c.subscribers = []subscriber{has(0, 2), has(0, 1), has()}
	targets := c.assign()
	for i, want := range []string{"t[2]", "t[0]", "t[1]"} {
		if got := formatAssignment(targets[i]); got != want {
			t.Errorf("member %d gets %s, want %s", i, got, want)
		}
	}
}

// kept counts the partitions that stayed with their member.
func kept(before, after [][]TopicPartitions) int {
	n := 0
	for i := range before {
		for _, b := range before[i] {
			for _, a := range after[i] {
				if a.ID == b.ID {
					for _, p := range b.Partitions {
						if slices.Contains(a.Partitions, p) {
							n++
						}
					}
				}
			}
		}
	}
	return n
}

func TestWantsAreThoseOfKafkasCeilings(t *testing.T) {
	for n := 1; n <= 40; n++ {
		for p := 1; p <= 40; p++ {
			sharing := (n + p - 1) / p
			total := sharing * p
			var kafka, ours []int
			for i := range n {
				kafka = append(kafka, (total*(i+1)+n-1)/n-(total*i+n-1)/n)
			}
			hs := make([]*holder, n)
			for i := range hs {
				hs[i] = &holder{}
			}
			for _, h := range order(hs, total) {
				ours = append(ours, h.want)
			}
			slices.Sort(kafka)
			slices.Sort(ours)
			if !slices.Equal(kafka, ours) {
				t.Fatalf("%d members, %d partitions: want %v, got %v", n, p, kafka, ours)
			}
		}
	}
}

func TestLoadsElsewhereDecideWhoGetsTheLargerPart(t *testing.T) {
	// Topic by topic the first member would get everything; loads elsewhere decide instead.
	c := assignorCase{topics: nil}
	for i := range 12 {
		name := fmt.Sprintf("t%02d", i)
		c.topics = append(c.topics, assignable{name: name, id: testID(name), partitions: []int32{0, 1, 2, 3}})
	}
	all := names(c.topics)
	c.subscribers = []subscriber{{topics: all}, {topics: all}, {topics: all[:11]}}
	targets := c.assign()
	for i, target := range targets {
		if n := load(target); n < 14 || n > 17 {
			t.Fatalf("member %d has %d of 48 partitions", i, n)
		}
	}
}

func BenchmarkAssign200MembersOf1000Partitions(b *testing.B) {
	c := assignorCase{topics: []assignable{{name: "t"}}}
	for p := range 1000 {
		c.topics[0].partitions = append(c.topics[0].partitions, int32(p))
	}
	for range 200 {
		c.subscribers = append(c.subscribers, subscriber{topics: []string{"t"}})
	}
	c.assign()
	for b.Loop() {
		c.subscribers = append(c.subscribers[1:], subscriber{topics: []string{"t"}})
		c.assign()
	}
}
