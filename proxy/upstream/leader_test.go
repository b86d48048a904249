package upstream

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestLeaderMoveIsFollowed(t *testing.T) {
	onFakes(t, func(f *fixture) {
		topic := f.topic("t", 1)
		tp := TP{topic.ID, 0}
		tail := f.open(tp, ReadUncommitted)
		w := tail.Watch()
		f.produce("t", 0, 1, 1, 10)
		f.next(tail, w, 0)
		for offset := int64(1); offset <= 3; offset++ {
			f.tailing(tail, offset)
			before, _, _ := f.c.Leader(tp)
			to := (before + 1) % 3
			if err := f.cluster.MoveTopicPartition("t", 0, to); err != nil {
				f.Fatal(err)
			}
			f.produce("t", 0, 1, 1, 10)
			start := time.Now()
			if v := f.next(tail, w, offset); v.Err != nil {
				f.Fatalf("a leader move was shown: %v", v.Err)
			}
			if took := time.Since(start); took > f.c.reader.patient.show {
				f.Fatalf("records of the new leader came after %v", took)
			}
			if node, _, ok := f.c.Leader(tp); !ok || node != to {
				f.Fatalf("leader is %d, moved to %d", node, to)
			}
		}
		if v := f.read(tail, 0, 1<<20); v.Err != nil || len(v.Batches) == 0 {
			f.Fatalf("old offsets after moves: %+v", v)
		}
	})
}

// Nothing is read of the partition, so that the move shows nowhere else.
func TestOldWordOnALeaderIsCheckedForWhoCameToAnotherNode(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) { c.MetadataMaxAge = time.Hour })
	topic := f.topic("t", 2)
	tps := []TP{{topic.ID, 0}, {topic.ID, 1}}
	before, _, _ := f.c.Leader(tps[0])
	to := (before + 1) % 3
	if err := f.cluster.MoveTopicPartition("t", 0, to); err != nil {
		t.Fatal(err)
	}
	asked := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, TopLevel: true, Observe: true, Count: -1})
	defer asked.Remove()
	f.c.CheckLeaders(f.ctx, to, tps)
	if node, _, _ := f.c.Leader(tps[0]); node != before || asked.Hits() != 0 {
		t.Fatalf("a young word was checked, by %d requests: leader %d", asked.Hits(), node)
	}
	eventually(f, "the word to be old", func() bool { return time.Since(f.c.topics.cachedID(topic.ID).at) > leaderAge })
	f.c.CheckLeaders(f.ctx, before, tps[:1])
	if node, _, _ := f.c.Leader(tps[0]); node != before || asked.Hits() != 0 {
		t.Fatalf("checked for who came to the leader, by %d requests: leader %d", asked.Hits(), node)
	}
	f.c.CheckLeaders(f.ctx, to, tps)
	if node, _, _ := f.c.Leader(tps[0]); node != to {
		t.Fatalf("leader is still %d, moved to %d", node, to)
	}
	n := asked.Hits()
	if n == 0 {
		t.Fatal("nothing was asked")
	}
	for range 100 {
		f.c.CheckLeaders(f.ctx, before, tps)
	}
	if asked.Hits() != n {
		t.Fatalf("what was just heard was checked, by %d requests", asked.Hits()-n)
	}
}

func TestEndOfEpochIsWhereTheNextLeadersRecordsBegin(t *testing.T) {
	onFakes(t, func(f *fixture) {
		topic := f.topic("t", 1)
		tp := TP{topic.ID, 0}
		tail := f.open(tp, ReadUncommitted)
		f.produce("t", 0, 3, 1, 10)
		if v := f.read(tail, 0, 1); v.Epoch != 0 {
			f.Fatalf("read under epoch %d", v.Epoch)
		}
		node, _, _ := f.c.Leader(tp)
		if err := f.cluster.MoveTopicPartition("t", 0, (node+1)%3); err != nil {
			f.Fatal(err)
		}
		f.produce("t", 0, 2, 1, 10)
		eventually(f, "the move to be known", func() bool {
			_, epoch, _ := f.c.Leader(tp)
			return epoch == 1
		})
		if v := f.read(tail, 0, 1); v.Epoch != 1 {
			f.Fatalf("read under epoch %d after the move", v.Epoch)
		}
		for _, c := range []struct {
			epoch int32
			want  int64
		}{{0, 3}, {1, 5}, {7, -1}} {
			end, at, err := f.c.EndOfEpoch(f.ctx, tp, c.epoch)
			if err != nil || end != c.want || at != 1 {
				f.Errorf("epoch %d ends at %d as the leader of epoch %d says, %v; want %d", c.epoch, end, at, err, c.want)
			}
		}
		if _, epoch, err := f.c.ListOffset(f.ctx, tp, AtLogStart); err != nil || epoch != 1 {
			f.Errorf("ListOffset: leader epoch %d, %v", epoch, err)
		}
	})
}

// After an unclean election the log may begin before where that of the earlier leader did. The fake cannot do that; what the
// earlier leader is taken to have said is put in place.
func TestLogStartOfAnEarlierLeaderIsForgotten(t *testing.T) {
	f := newFixture(t, newCluster(t))
	topic := f.topic("t", 1)
	tp := TP{topic.ID, 0}
	tail := f.open(tp, ReadUncommitted)
	f.produce("t", 0, 9, 1, 10)
	f.read(tail, 0, 1)
	f.c.reader.mu.Lock()
	tail.line.logStart = 7
	f.c.reader.mu.Unlock()
	if v := f.read(tail, 3, 1); v.LogStart != 7 || !errors.Is(v.Err, ErrOffsetOutOfRange) {
		t.Fatalf("below the log start: %+v", v)
	}
	node, _, _ := f.c.Leader(tp)
	if err := f.cluster.MoveTopicPartition("t", 0, (node+1)%3); err != nil {
		t.Fatal(err)
	}
	eventually(f, "the move to be known", func() bool {
		f.c.Recheck(topic.ID)
		_, epoch, _ := f.c.Leader(tp)
		return epoch == 1
	})
	if v := f.read(tail, 3, 1); v.Err != nil || len(v.Batches) == 0 || v.Batches[0].Base != 3 || v.LogStart != 0 {
		t.Fatalf("of the new leader's log: %+v", v)
	}
}
