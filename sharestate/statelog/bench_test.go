package statelog

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkAppend measures ops per second on a real Redis, and Redis' CPU time per op.
func BenchmarkAppend(b *testing.B) {
	for _, shape := range []struct{ replicas, keys, callers int }{{1, 1, 1}, {1, 1, 16}, {1, 16, 16}, {4, 16, 16}, {8, 16, 16}} {
		b.Run(fmt.Sprintf("replicas=%d/keys=%d/callers=%d", shape.replicas, shape.keys, shape.callers), func(b *testing.B) {
			srv := startReal(b)
			var all [][]*Log[*tally]
			for range shape.replicas {
				logs := NewLogs(newStore(b, srv.addr()), "tally", func() *tally { return &tally{} })
				var list []*Log[*tally]
				for k := range shape.keys {
					l := logs.Get(fmt.Sprint(k))
					_, _ = l.Create(bg, &tally{})
					list = append(list, l)
				}
				all = append(all, list)
			}
			op := make([]byte, 40)
			before := redisCPU(b, all[0][0].core.store)
			b.ReportAllocs()
			b.ResetTimer()
			done := make(chan error)
			for _, list := range all {
				for c := range shape.callers {
					n := b.N / (shape.replicas * shape.callers)
					go func() {
						var err error
						for i := 0; i < n && err == nil; i++ {
							_, err = list[(c+i)%len(list)].Submit(op).Wait(bg)
						}
						done <- err
					}()
				}
			}
			for range shape.replicas * shape.callers {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64((redisCPU(b, all[0][0].core.store)-before).Microseconds())/float64(b.N), "redis-µs/op")
		})
	}
}

func redisCPU(b *testing.B, s *Store) time.Duration {
	fields := info(bg, s.client, "cpu")
	var user, sys float64
	_, err1 := fmt.Sscan(fields["used_cpu_user"], &user)
	_, err2 := fmt.Sscan(fields["used_cpu_sys"], &sys)
	if err1 != nil || err2 != nil {
		b.Fatal("no CPU time in INFO")
	}
	return time.Duration((user + sys) * float64(time.Second))
}

func BenchmarkFold(b *testing.B) {
	st := &state{m: &tally{}, writers: map[uint64]*writer{}}
	fr := frame{kind: kindOps, payload: appendOps(nil, [][]byte{make([]byte, 40)}), time: 1}
	raw := appendFrame(nil, fr.kind, fr.payload, 1, token{1, 1})
	b.ReportAllocs()
	for i := range b.N {
		f, err := parseFrame(raw)
		if err != nil {
			b.Fatal(err)
		}
		f.token.counter = uint64(i + 1)
		if _, err := st.apply(f); err != nil {
			b.Fatal(err)
		}
	}
}
