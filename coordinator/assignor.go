package coordinator

import (
	"cmp"
	"math/bits"
	"slices"
)

// AssignorName is the only assignor of share groups.
const AssignorName = "simple"

// assignable is a topic with the partitions that may be assigned, ascending.
type assignable struct {
	id         [16]byte
	name       string
	partitions []int32
}

// subscriber is a member as the assignor sees it. Members are in the order of their ids.
type subscriber struct {
	topics  []string // sorted
	current []TopicPartitions
}

// assignSimple is Kafka's assignor `simple` (4.2 on). Every partition gets ceil(members/partitions) of the
// members, loads differ by at most one, and what a member has it keeps as far as that allows. Where all
// members want the same topics it balances over all partitions together, else topic by topic. Topics come
// in the order of their names; the result has one target per subscriber.
//
// Kafka computes with doubles; here everything is integer, because floats may differ between machines.
// Which partition goes where is not part of Kafka's contract: it follows from the order of ids here.
func assignSimple(topics []assignable, subscribers []subscriber) [][]TopicPartitions {
	wants := make([][]int, len(subscribers)) // topic numbers
	var all []int                            // members that want anything
	same := true
	for i, s := range subscribers {
		for t := range topics {
			if _, ok := slices.BinarySearch(s.topics, topics[t].name); ok {
				wants[i] = append(wants[i], t)
			}
		}
		if len(wants[i]) > 0 {
			all = append(all, i)
			same = same && slices.Equal(wants[i], wants[all[0]])
		}
	}
	targets := make([][]TopicPartitions, len(subscribers))
	loads := make([]int, len(subscribers))
	if same && len(all) > 0 {
		chosen := make([]assignable, 0, len(wants[all[0]]))
		for _, t := range wants[all[0]] {
			chosen = append(chosen, topics[t])
		}
		assignTogether(chosen, subscribers, all, loads, targets)
		return targets
	}
	for t := range topics {
		var members []int
		for _, i := range all {
			if slices.Contains(wants[i], t) {
				members = append(members, i)
			}
		}
		assignTogether(topics[t:t+1], subscribers, members, loads, targets)
	}
	return targets
}

// assignTogether balances the topics' partitions, numbered through, over the given members, and appends
// what each gets to its target.
func assignTogether(topics []assignable, subscribers []subscriber, members, loads []int, targets [][]TopicPartitions) {
	total := 0
	for _, t := range topics {
		total += len(t.partitions)
	}
	holders := make([]*holder, len(members))
	for h, i := range members {
		holders[h] = &holder{held: newBitset(total), load: loads[i]}
		first := 0
		for _, t := range topics {
			holders[h].keep(t, first, subscribers[i].current)
			first += len(t.partitions)
		}
	}
	spread(holders, total)
	for h, i := range members {
		loads[i] += holders[h].count
		first := 0
		for _, t := range topics {
			var partitions []int32
			for n, p := range t.partitions {
				if holders[h].held.has(first + n) {
					partitions = append(partitions, p)
				}
			}
			if len(partitions) > 0 {
				targets[i] = append(targets[i], TopicPartitions{ID: t.id, Name: t.name, Partitions: partitions})
			}
			first += len(t.partitions)
		}
	}
}

// holder is a member while partitions are spread.
type holder struct {
	held  bitset
	count int // of held
	want  int
	load  int // partitions that it got elsewhere
}

// keep takes over what the member has of the topic and may keep; first is the number of the topic's first
// partition.
func (h *holder) keep(t assignable, first int, current []TopicPartitions) {
	for _, c := range current {
		if c.ID != t.id {
			continue
		}
		for _, p := range c.Partitions {
			if n, ok := slices.BinarySearch(t.partitions, p); ok {
				h.give(first + n)
			}
		}
	}
}

func (h *holder) give(p int) { h.held.set(p); h.count++ }
func (h *holder) take(p int) { h.held.clear(p); h.count-- }

// spreading is the state of one call of spread.
type spreading struct {
	holders []*holder
	sharing int   // members that each partition should have
	shared  []int // members that it has
}

// spread moves as few partitions as balance needs: first it revokes surplus, then gives what is missing.
func spread(holders []*holder, partitions int) {
	if len(holders) == 0 || partitions == 0 {
		return
	}
	s := &spreading{
		sharing: (len(holders) + partitions - 1) / partitions,
		shared:  make([]int, partitions),
	}
	s.holders = order(holders, s.sharing*partitions)
	for p := range s.shared {
		for _, h := range holders {
			if h.held.has(p) {
				s.shared[p]++
			}
		}
	}
	s.revokeAboveWant()
	s.revokeAboveSharing()
	s.fill()
}

// order sets how much every member wants of the total and returns the members sorted so that those get
// the larger part who hold most already, then those with the smallest load elsewhere.
// The parts are those of ceil(exact*(i+1)) - ceil(exact*i) with exact = total/n: total mod n of them are
// the larger one.
func order(holders []*holder, total int) []*holder {
	sorted := slices.Clone(holders)
	slices.SortStableFunc(sorted, func(a, b *holder) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.load, b.load))
	})
	for i, h := range sorted {
		h.want = total / len(sorted)
		if i < total%len(sorted) {
			h.want++
		}
	}
	return sorted
}

// revokeAboveWant takes surplus from members, first of all partitions that too many members have.
func (s *spreading) revokeAboveWant() {
	for _, crowded := range []bool{true, false} {
		for _, h := range s.holders {
			for p := len(s.shared) - 1; p >= 0 && h.count > h.want; p-- {
				if h.held.has(p) && (!crowded || s.shared[p] > s.sharing) {
					h.take(p)
					s.shared[p]--
				}
			}
		}
	}
}

// revokeAboveSharing takes partitions that too many members have, from those with most first.
func (s *spreading) revokeAboveSharing() {
	for p := range s.shared {
		for s.shared[p] > s.sharing {
			var most *holder
			for _, h := range s.holders {
				if h.held.has(p) && (most == nil || h.count > most.count) {
					most = h
				}
			}
			most.take(p)
			s.shared[p]--
		}
	}
}

// fill gives partitions that too few members have to members that have too few, in turn.
func (s *spreading) fill() {
	ring := slices.DeleteFunc(slices.Clone(s.holders), func(h *holder) bool { return h.count >= h.want })
	at := 0
	for p := range s.shared {
		for s.shared[p] < s.sharing && len(ring) > 0 {
			i, ok := next(ring, at, p)
			if !ok {
				if !s.swap(ring[0], p) {
					break
				}
				i = 0
			} else {
				ring[i].give(p)
			}
			s.shared[p]++
			at = i + 1
			if ring[i].count >= ring[i].want {
				ring = slices.Delete(ring, i, i+1)
				at = i
			}
		}
	}
}

// next finds the first member of the ring from at on that does not have p.
func next(ring []*holder, at, p int) (int, bool) {
	for n := range ring {
		if i := (at + n) % len(ring); !ring[i].held.has(p) {
			return i, true
		}
	}
	return 0, false
}

// swap helps where all members that want more have p already: another member takes p and gives needy one
// of its own. Kafka leaves such a partition with too few members.
func (s *spreading) swap(needy *holder, p int) bool {
	for _, other := range s.holders {
		if other.held.has(p) {
			continue
		}
		for q := range s.shared {
			if other.held.has(q) && !needy.held.has(q) {
				other.take(q)
				other.give(p)
				needy.give(q)
				return true
			}
		}
	}
	return false
}

// bitset is a set of partition numbers.
type bitset []uint64

func newBitset(n int) bitset    { return make(bitset, (n+bits.UintSize-1)/bits.UintSize) }
func (b bitset) has(i int) bool { return b[i/bits.UintSize]&(1<<(i%bits.UintSize)) != 0 }
func (b bitset) set(i int)      { b[i/bits.UintSize] |= 1 << (i % bits.UintSize) }
func (b bitset) clear(i int)    { b[i/bits.UintSize] &^= 1 << (i % bits.UintSize) }
