package statelog

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"kshare/sharestate"
)

// The machine that this package was made for: several replicas acquire, acknowledge and release on one share-partition
// while its log is compacted. All copies stay equal, and no offset is acquired twice at a time.
func TestSharePartitionStaysEqualOnAllReplicas(t *testing.T) {
	onBoth(t, func(t *testing.T, srv server) {
		const replicas, rounds = 4, 150
		settings := sharestate.Settings{DeliveryLimit: 5, LockDurationMs: 30_000, MaxRecordLocks: 2000, RenewEnabled: true}
		fresh := func() *sharestate.Partition { return sharestate.NewPartition(0, -1) }
		var logs []*Log[*sharestate.Partition]
		for range replicas {
			logs = append(logs, NewLogs(newStore(t, srv.addr()), "partition", fresh).Get("g/t/0"))
		}
		if ok, err := logs[0].Create(bg, sharestate.NewPartition(1, 0)); err != nil || !ok {
			t.Fatal(ok, err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		accepted := make(map[int64]int)
		for i, l := range logs {
			wg.Go(func() {
				member := fmt.Sprintf("member-%d", i)
				session := sharestate.SessionNonce{Opened: int64(i), Replica: uint64(i)}
				for range rounds {
					held, err := acquire(l, member, session, settings)
					if err != nil {
						t.Error(err)
						return
					}
					ack := sharestate.AckType(1 + rand.N(3))
					for _, a := range held {
						op := sharestate.Acknowledge{Member: member, Settings: settings,
							Batches: []sharestate.AckBatch{{First: a.First, Last: a.Last, Types: []sharestate.AckType{ack}}}}
						results, err := l.Submit(sharestate.EncodeOp(nil, op)).Wait(bg)
						if err != nil {
							t.Error(err)
							return
						}
						if r, err := sharestate.DecodeAcknowledgeResult(results[0]); err != nil || r.Code != sharestate.AckOK {
							t.Errorf("acknowledge: %+v %v", r, err)
							return
						}
						if ack == sharestate.AckAccept {
							mu.Lock()
							for o := a.First; o <= a.Last; o++ {
								accepted[o]++
							}
							mu.Unlock()
						}
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		for o, n := range accepted {
			if n != 1 {
				t.Fatalf("offset %d was accepted %d times", o, n)
			}
		}
		var want []byte
		var compactions int64
		for i, l := range logs {
			if err := l.View(bg, 0, func(*sharestate.Partition) {}); err != nil {
				t.Fatal(err)
			}
			l.core.mu.Lock()
			got := l.core.st.appendContent(nil)
			l.core.mu.Unlock()
			if i == 0 {
				want = got
			}
			st := l.core.store.Stats()
			compactions += st.Compactions
			if string(got) != string(want) || st.Divergences > 0 {
				t.Fatalf("replica %d differs (%d divergences)", i, st.Divergences)
			}
		}
		if compactions == 0 {
			t.Fatal("the log was never compacted")
		}
	})
}

// acquire takes from what an endless topic with batches of ten has at the position that the replica knows of.
func acquire(l *Log[*sharestate.Partition], member string, session sharestate.SessionNonce, settings sharestate.Settings) ([]sharestate.Acquired, error) {
	var from int64
	if _, ok := l.Cached(func(p *sharestate.Partition) { from = p.SPSO() }); !ok {
		from = 0
	}
	op := sharestate.Acquire{Member: member, Session: session, From: from, MaxRecords: 30, BatchSize: 30, Settings: settings}
	for b := from - from%10; b < from+300; b += 10 {
		op.Batches = append(op.Batches, sharestate.OffsetRange{First: b, Last: b + 9})
	}
	results, err := l.Submit(sharestate.EncodeOp(nil, op)).Wait(bg)
	if err != nil {
		return nil, err
	}
	r, err := sharestate.DecodeAcquireResult(results[0])
	return r.Acquired, err
}
