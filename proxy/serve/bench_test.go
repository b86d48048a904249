package serve

import (
	"fmt"
	"testing"
)

// BenchmarkFetchAndAccept is one member that fetches a batch and accepts the last one, over and over. Most of the time
// is the fake Redis' and the fake Kafka's.
func BenchmarkFetchAndAccept(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("batches-of-%d", size), func(b *testing.B) {
			w := newWorld(b, 1)
			topic := w.topic("t", 1)
			w.produce("t", 0, 2000, size)
			w.alter("g", "share.auto.offset.reset", "earliest")
			m := w.reps[0].member("g", "m").join("t")
			var acks []ack
			take := func(es []entry) {
				acks = acks[:0]
				for _, e := range es {
					acks = append(acks, accept(e.first, e.last))
				}
			}
			take(got(m.open(topic, maxRecords(int32(size))), topic, 0))
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				take(got(m.fetch(with(topic, 0, acks...), maxRecords(int32(size))), topic, 0))
				if len(acks) == 0 {
					b.StopTimer()
					w.produce("t", 0, 2000, size)
					b.StartTimer()
				}
			}
		})
	}
}
