package upstream

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// txn writes n records of one transaction, each a batch of its own, and leaves it open.
func (f *fixture) txn(id, topic string, n int) (end func(kgo.TransactionEndTry)) {
	f.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(f.seeds...), kgo.DisableClientMetrics(), kgo.TransactionalID(f.prefix+id),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(client.Close)
	if err := client.BeginTransaction(); err != nil {
		f.Fatal(err)
	}
	for i := range n {
		if err := client.ProduceSync(f.ctx, &kgo.Record{Topic: f.prefix + topic, Value: fmt.Appendf(nil, "%s %d", id, i)}).FirstErr(); err != nil {
			f.Fatal(err)
		}
	}
	return func(how kgo.TransactionEndTry) {
		f.Helper()
		if err := client.EndTransaction(f.ctx, how); err != nil {
			f.Fatal(err)
		}
	}
}

// flags draws a log: . data, a aborted, C control.
func flags(batches []Batch) (s string) {
	for _, b := range batches {
		switch {
		case b.Control:
			s += "C"
		case b.Aborted:
			s += "a"
		default:
			s += "."
		}
	}
	return s
}

func TestAbortedBatchesAreFlaggedFromEveryOffset(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		first := f.txn("first", "t", 2)      // 0 1
		second := f.txn("second", "t", 1)    // 2
		f.produce("t", 0, 1, 1, 10)          // 3
		first(kgo.TryAbort)                  // 4
		again := f.txn("first", "t", 1)      // 5: the same producer's next transaction
		second(kgo.TryCommit)                // 6
		f.txn("third", "t", 1)(kgo.TryAbort) // 7 8
		again(kgo.TryCommit)                 // 9
		const log = "aa..C.CaCC"
		for from := range int64(len(log)) {
			c := startClient(f, Config{Seeds: f.seeds}) // nothing cached
			tail := c.Open(TP{topic.ID, 0}, ReadCommitted)
			defer tail.Close()
			eventually(f, "the whole log", func() bool { // markers may come a moment after the transaction's end
				got := flags(f.read(tail, from, 1<<20).Batches)
				if !strings.HasPrefix(log[from:], got) {
					f.Fatalf("from %d: %q, want %q", from, got, log[from:])
				}
				return got == log[from:]
			})
		}
		if v := f.read(f.open(TP{topic.ID, 0}, ReadUncommitted), 0, 1<<20); flags(v.Batches) != "....C.C.CC" {
			f.Fatalf("read_uncommitted: %q", flags(v.Batches))
		}
	})
}

func TestReadCommittedEndsAtTheLastStableOffset(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		f.produce("t", 0, 1, 1, 10)
		end := f.txn("x", "t", 2)
		f.produce("t", 0, 1, 1, 10)
		committed, all := f.open(TP{topic.ID, 0}, ReadCommitted), f.open(TP{topic.ID, 0}, ReadUncommitted)
		w := committed.Watch()
		if v := f.read(committed, 0, 1<<20); len(v.Batches) != 1 || v.LastStable != 1 || v.HighWatermark != 4 {
			f.Fatalf("read_committed with an open transaction: %+v", v)
		}
		if v := f.read(all, 0, 1<<20); len(v.Batches) != 4 {
			f.Fatalf("read_uncommitted with an open transaction: %+v", v)
		}
		f.tailing(committed, 1)
		if v, ok := committed.Peek(1, 1<<20); !ok || len(v.Batches) > 0 || v.Err != nil {
			f.Fatalf("at the last stable offset: %+v %v", v, ok)
		}
		end(kgo.TryCommit)
		v := f.next(committed, w, 1)
		if flags(v.Batches) != "...C" {
			f.Fatalf("after the commit: %+v", v)
		}
		f.tailing(committed, 5)
		end = f.txn("x", "t", 1)
		end(kgo.TryAbort)
		if v := f.next(committed, w, 5); flags(v.Batches) != "aC" {
			f.Fatalf("an aborted transaction at the tail: %q", flags(v.Batches))
		}
	})
}

func TestBothIsolationLevelsFollowOnePartitionWithoutWaitingForEachOther(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		committed, all := f.open(TP{topic.ID, 0}, ReadCommitted), f.open(TP{topic.ID, 0}, ReadUncommitted)
		wc, wa := committed.Watch(), all.Watch()
		f.tailing(committed, 0)
		f.tailing(all, 0)
		for offset := range int64(5) {
			f.produce("t", 0, 1, 1, 10)
			f.next(all, wa, offset)
			f.next(committed, wc, offset)
		}
		if polls := f.c.Stats().Polls; polls > 30 {
			f.Fatalf("%d polls for five records", polls)
		}
	})
}

func TestMarkersEndTransactionsInUnsortedLists(t *testing.T) {
	data := func(base, producer int64) Batch { return testBatch(base, 1, transactional, producer) }
	marker := func(base, producer int64) Batch { return testBatch(base, 1, transactional|control, producer) }
	batches := []Batch{
		data(0, 7), data(1, 8), data(2, 7), marker(3, 7), data(4, 7), marker(5, 8), testBatch(6, 1, 0, 7), marker(7, 7), data(8, 8), data(9, 7), marker(10, 7),
	}
	flagAborted(batches, []abortedTxn{{7, 9}, {8, 1}, {7, 0}})
	if got := flags(batches); got != "aaaC.C.C.aC" {
		t.Fatalf("flags %q", got)
	}
}
