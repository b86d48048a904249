package upstream

import (
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestReadServesStoredBatchesFromAnyOffset(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		f.produce("t", 0, 5, 10, 100)
		tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
		for from := int64(0); from < 50; from += 7 {
			v := f.read(tail, from, 1<<20)
			if v.Err != nil || v.HighWatermark != 50 || v.LogStart != 0 {
				f.Fatalf("view at %d: %+v", from, v)
			}
			if end := checkContiguous(f, v.Batches, from); end != 50 {
				f.Fatalf("view at %d ends at %d", from, end)
			}
		}
		if v := f.read(tail, 12, 1); len(v.Batches) != 1 || v.Batches[0].Base > 12 || v.Batches[0].Last < 12 {
			f.Fatalf("the first batch must come however large: %d batches, %v", len(v.Batches), v.Err)
		}
		if v := f.read(tail, 50, 1); len(v.Batches) != 0 || v.Err != nil || v.HighWatermark != 50 {
			f.Fatalf("at the log end: %+v", v)
		}
	})
}

func TestNewRecordsReachATailWithinMilliseconds(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
		w := tail.Watch()
		f.produce("t", 0, 1, 1, 10)
		f.next(tail, w, 0)
		for offset := int64(1); offset < 20; offset++ {
			if offset == 1 {
				f.tailing(tail, offset)
			}
			start := time.Now()
			f.produce("t", 0, 1, 1, 10)
			v := f.next(tail, w, offset)
			if took := time.Since(start); took > 250*time.Millisecond {
				f.Fatalf("offset %d came after %v: half of a long poll, so it was not woken", offset, took)
			}
			if v.Err != nil || v.Batches[0].Base != offset {
				f.Fatalf("at %d: %+v", offset, v)
			}
		}
	})
}

// A line that comes while its node's request is waiting must not wait for that request to end.
func TestPartitionThatJoinsAWaitingPollMissesNothing(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 2)
		first := f.open(TP{topic.ID, 0}, ReadUncommitted)
		f.tailing(first, 0)
		for offset := int64(0); offset < 5; offset++ {
			second := f.c.Open(TP{topic.ID, 1}, ReadUncommitted)
			w := second.Watch()
			second.Want(offset)
			eventually(f, "knows the log end", func() bool { _, ok := second.Peek(offset, 1); return ok })
			start := time.Now()
			f.produce("t", 1, 1, 1, 10)
			f.next(second, w, offset)
			if took := time.Since(start); took > 250*time.Millisecond {
				f.Fatalf("a partition that just joined got its record after %v", took)
			}
			second.Close()
		}
	}, kfake.NumBrokers(1))
}

func fetchCounter(cluster *kfake.Cluster, when func(*kmsg.FetchRequest) bool) *kfake.FaultHandle {
	return cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Observe: true, Count: -1, When: func(r kmsg.Request) bool {
		return when == nil || when(r.(*kmsg.FetchRequest))
	}})
}

func TestManyReadersCostOneUpstreamRead(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		f.produce("t", 0, 20, 10, 1000)
		catchUps := func() int64 { return f.c.Stats().CatchUps }
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				tail := f.c.Open(TP{topic.ID, 0}, ReadUncommitted)
				defer tail.Close()
				for from := int64(0); from < 200; {
					v, err := tail.Read(f.ctx, from, 20_000)
					if err != nil || v.Err != nil || len(v.Batches) == 0 {
						f.Errorf("read at %d: %+v %v", from, v, err)
						return
					}
					from = v.Batches[len(v.Batches)-1].Last + 1
				}
			})
		}
		wg.Wait()
		if n := catchUps(); n > 2 {
			f.Fatalf("32 readers of 200 KB cost %d catch-up fetches", n)
		}
		if bytes := f.c.Stats().FetchedBytes; bytes > 2*20*10*1100 {
			f.Fatalf("fetched %d bytes of a log of about 200 KB", bytes)
		}
	})
}

func TestBacklogDrainsThroughManyReaders(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) {
		c.CacheBytes, c.FetchMaxBytes, c.FetchPartitionBytes, c.PrefetchBytes = 4<<20, 512<<10, 128<<10, 512<<10
	})
	topic := f.topic("t", 1)
	const batches, perBatch = 300, 20
	f.produce("t", 0, batches, perBatch, 2000) // 12 MB, three times the cache
	var mu sync.Mutex
	var at int64
	var wg sync.WaitGroup
	for range 4 { // members of one group: each takes what follows
		wg.Go(func() {
			tail := f.c.Open(TP{topic.ID, 0}, ReadUncommitted)
			defer tail.Close()
			for {
				mu.Lock()
				from := at
				if from >= batches*perBatch {
					mu.Unlock()
					return
				}
				v, err := tail.Read(f.ctx, from, 100_000)
				if err != nil || v.Err != nil || len(v.Batches) == 0 {
					t.Errorf("read at %d: %+v %v", from, v, err)
					mu.Unlock()
					return
				}
				at = checkContiguous(t, v.Batches, from)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	s := f.c.Stats()
	if s.CacheBytes > 4<<20 {
		t.Fatalf("cache holds %d bytes, more than its bound", s.CacheBytes)
	}
	if size := int64(batches * perBatch * 2030); s.FetchedBytes > size*5/4 {
		t.Fatalf("fetched %d bytes for a backlog of about %d", s.FetchedBytes, size)
	}
}

// A consumer that is not faster than upstream never waits for it: what comes next has been read ahead.
func TestReadAheadHidesUpstreamFromADrain(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) {
		c.CacheBytes, c.FetchMaxBytes, c.FetchPartitionBytes, c.PrefetchBytes = 4<<20, 512<<10, 128<<10, 512<<10
	})
	topic := f.topic("t", 1)
	f.produce("t", 0, 150, 20, 2000) // 6 MB
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	for from := int64(0); from < 3000; {
		v := f.read(tail, from, 100_000)
		from = checkContiguous(t, v.Batches, from)
		eventually(t, "fetches land", f.quiet)
	}
	if s := f.c.Stats(); s.Misses != 1 {
		t.Fatalf("%d of %d reads waited for upstream", s.Misses, s.Hits+s.Misses)
	}
}

func TestLaggingGroupDoesNotSlowTheTail(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) {
		c.CacheBytes, c.FetchMaxBytes, c.FetchPartitionBytes, c.PrefetchBytes = 2<<20, 256<<10, 64<<10, 256<<10
	})
	topic := f.topic("t", 1)
	f.produce("t", 0, 100, 10, 3000)
	lagging, tail := f.open(TP{topic.ID, 0}, ReadUncommitted), f.open(TP{topic.ID, 0}, ReadUncommitted)
	w := tail.Watch()
	f.tailing(tail, 1000)
	from := int64(0)
	for end := int64(1000); end < 1020; end++ {
		v := f.read(lagging, from, 50_000)
		from = checkContiguous(t, v.Batches, from)
		start := time.Now()
		f.produce("t", 0, 1, 1, 10)
		f.next(tail, w, end)
		if took := time.Since(start); took > 250*time.Millisecond {
			t.Fatalf("the tail got offset %d after %v", end, took)
		}
	}
	if bytes := f.c.Stats().CacheBytes; bytes > 2<<20 {
		t.Fatalf("cache holds %d bytes", bytes)
	}
}

func TestReadAheadIsBoundedAndGoesOnWhenWantMoves(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) {
		c.CacheBytes, c.FetchMaxBytes, c.FetchPartitionBytes, c.PrefetchBytes = 8<<20, 256<<10, 64<<10, 256<<10
	})
	topic := f.topic("t", 1)
	f.produce("t", 0, 200, 10, 1000) // 2 MB
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	for from := int64(0); from < 100; from += 10 {
		tail.Want(from)
		eventually(t, "reading ahead pauses", f.quiet)
	}
	if bytes := f.c.Stats().FetchedBytes; bytes < 100<<10 || bytes > 600<<10 {
		t.Fatalf("read %d bytes ahead with a bound of 256 KiB", bytes)
	}
	before := f.c.Stats().FetchedBytes
	tail.Want(1000)
	eventually(t, "reading ahead goes on", func() bool { return f.c.Stats().FetchedBytes > before })
	if v, ok := tail.Peek(1000, 1); !ok || len(v.Batches) != 1 {
		f.next(tail, tail.Watch(), 1000)
	}
}

// What was read ahead for slow readers is still there after a fast one has turned the whole cache over.
func TestFastReaderDoesNotPushOutWhatSlowOnesNeed(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) {
		c.CacheBytes, c.FetchMaxBytes, c.FetchPartitionBytes, c.PrefetchBytes = 2<<20, 256<<10, 128<<10, 256<<10
	})
	topic := f.topic("t", 5)
	var slow []*Tail
	for p := range int32(4) {
		f.produce("t", p, 10, 10, 1000)
		slow = append(slow, f.open(TP{topic.ID, p}, ReadUncommitted))
		slow[p].Want(0)
	}
	f.produce("t", 4, 800, 10, 1000) // four times the cache
	eventually(t, "read ahead", f.quiet)
	fast := f.open(TP{topic.ID, 4}, ReadUncommitted)
	for from := int64(0); from < 8000; {
		from = checkContiguous(t, f.read(fast, from, 50_000).Batches, from)
	}
	for p, tail := range slow {
		v, ok := tail.Peek(0, 1<<20)
		if !ok || checkContiguous(t, v.Batches, 0) != 100 {
			t.Fatalf("partition %d has to be read again: %d batches, %v", p, len(v.Batches), ok)
		}
	}
	if bytes := f.c.Stats().CacheBytes; bytes > 2<<20 {
		t.Fatalf("cache holds %d bytes", bytes)
	}
}

// Nobody takes what comes at the tail: following it stops at the bound, and goes on when the records are taken.
func TestTailThatIsNotReadIsNotFollowedBeyondTheBound(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) {
		c.CacheBytes, c.FetchMaxBytes, c.FetchPartitionBytes, c.PrefetchBytes = 8<<20, 256<<10, 64<<10, 256<<10
	})
	topic := f.topic("t", 1)
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	f.tailing(tail, 0)
	f.produce("t", 0, 150, 10, 1000) // 1.5 MB
	eventually(t, "the partition leaves its poll", func() bool {
		t := tail.r
		t.mu.Lock()
		defer t.mu.Unlock()
		return tail.line.poll == nil
	})
	if bytes := f.c.Stats().FetchedBytes; bytes < 200<<10 || bytes > 500<<10 {
		t.Fatalf("%d bytes fetched with a bound of 256 KiB", bytes)
	}
	for from := int64(0); from < 1500; {
		from = checkContiguous(t, f.read(tail, from, 50_000).Batches, from)
	}
	f.tailing(tail, 1500)
	if bytes := f.c.Stats().FetchedBytes; bytes > 2000<<10 {
		t.Fatalf("%d bytes fetched of 1.5 MB", bytes)
	}
}

// A backlog that one group reads does not wake those who wait at the tail of the same partition.
func TestBacklogDoesNotWakeTheTail(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) {
		c.CacheBytes, c.FetchMaxBytes, c.FetchPartitionBytes, c.PrefetchBytes = 8<<20, 256<<10, 64<<10, 256<<10
	})
	topic := f.topic("t", 1)
	f.produce("t", 0, 100, 10, 1000)
	tail, lagging := f.open(TP{topic.ID, 0}, ReadUncommitted), f.open(TP{topic.ID, 0}, ReadUncommitted)
	f.tailing(tail, 1000)
	w := tail.Watch()
	for from := int64(0); from < 1000; {
		from = checkContiguous(t, f.read(lagging, from, 50_000).Batches, from)
	}
	select {
	case <-w.C:
		t.Fatal("woken, with nothing new")
	default:
	}
}

// Redeliveries far apart, each at a position that is not cached any more: what lies behind them is not read ahead.
func TestScatteredReadsDoNotReadAhead(t *testing.T) {
	f := newFixture(t, newCluster(t), func(c *Config) {
		c.CacheBytes, c.FetchMaxBytes, c.FetchPartitionBytes, c.PrefetchBytes = 8<<20, 1<<20, 32<<10, 1<<20
	})
	topic := f.topic("t", 1)
	f.produce("t", 0, 300, 10, 1000) // 3 MB
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	const reads = 10
	for i := range int64(reads) {
		from := 2900 - i*290
		tail.Want(from)
		f.read(tail, from, 1000)
		eventually(t, "fetches land", f.quiet)
	}
	if bytes := f.c.Stats().FetchedBytes; bytes > reads*(32<<10+11_000) {
		t.Fatalf("%d scattered reads fetched %d bytes", reads, bytes)
	}
}

func TestIdlePartitionsDoNotSpin(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.NumBrokers(1)))
	topic := f.topic("t", 50)
	tails := make([]*Tail, 50)
	for p := range tails {
		tails[p] = f.open(TP{topic.ID, int32(p)}, ReadUncommitted)
		tails[p].Want(0)
	}
	for _, tail := range tails {
		f.tailing(tail, 0)
	}
	counter := fetchCounter(f.cluster, nil)
	defer counter.Remove()
	start := time.Now()
	eventually(t, "four polls", func() bool { return counter.Hits() >= 4 })
	if took := time.Since(start); took < time.Second {
		t.Fatalf("four fetches of idle partitions within %v: more than one per half second", took)
	}
}

func TestWatchTellsOfHighWatermarkAndClosesQuietly(t *testing.T) {
	everywhere(t, func(f *fixture) {
		topic := f.topic("t", 1)
		tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
		f.tailing(tail, 0)
		w, closed := tail.Watch(), tail.Watch()
		closed.Close()
		f.produce("t", 0, 1, 3, 10)
		eventually(f, "high watermark moved", func() bool {
			select {
			case <-w.C:
			default:
			}
			v, _ := tail.Peek(0, 1)
			return v.HighWatermark == 3
		})
		select {
		case <-closed.C:
			f.Fatal("a closed Watch was told")
		default:
		}
	})
}

func TestOlderBrokersAreReadByName(t *testing.T) {
	f := newFixture(t, newCluster(t, kfake.MaxVersions(oldVersions())))
	byName := fetchCounter(f.cluster, func(r *kmsg.FetchRequest) bool { return r.Version <= 12 })
	byID := fetchCounter(f.cluster, func(r *kmsg.FetchRequest) bool { return r.Version > 12 })
	topic := f.topic("t", 2)
	f.produce("t", 1, 3, 5, 10)
	tail := f.open(TP{topic.ID, 1}, ReadCommitted)
	w := tail.Watch()
	checkContiguous(t, f.next(tail, w, 0).Batches, 0)
	f.tailing(tail, 15)
	f.produce("t", 1, 1, 1, 10)
	f.next(tail, w, 15)
	if byName.Hits() == 0 || byID.Hits() > 0 {
		t.Fatalf("%d fetches by name, %d by id", byName.Hits(), byID.Hits())
	}
	// A topic that only its id is known of: no metadata by id before 3.0.
	fresh := startClient(t, Config{Seeds: f.seeds})
	if got, ok, err := fresh.TopicByID(f.ctx, topic.ID); err != nil || !ok || got.Name != "t" {
		t.Fatalf("topic by id: %+v %v %v", got, ok, err)
	}
	if _, ok, err := fresh.TopicByID(f.ctx, [16]byte{1}); err != nil || ok {
		t.Fatalf("unknown id: %v %v", ok, err)
	}
}

func TestReadEndsWithItsContextAndWithRun(t *testing.T) {
	cluster := newCluster(t)
	f := newFixture(t, cluster)
	topic := f.topic("t", 1)
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Count: -1})
	tail := f.open(TP{topic.ID, 0}, ReadUncommitted)
	ctx, cancel := contextWithTimeout(f.ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := tail.Read(ctx, 0, 1); err != ctx.Err() || err == nil {
		t.Fatalf("read: %v", err)
	}
	other, err := New(Config{Seeds: cluster.ListenAddrs()}, testLog())
	if err != nil {
		t.Fatal(err)
	}
	runCtx, stop := contextWithTimeout(f.ctx, 50*time.Millisecond)
	defer stop()
	go func() { _ = other.Run(runCtx) }()
	if _, err := other.Open(TP{topic.ID, 0}, ReadUncommitted).Read(f.ctx, 0, 1); err != ErrClosed {
		t.Fatalf("read when Run has ended: %v", err)
	}
	<-other.ended
}
