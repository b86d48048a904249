package serve

import (
	"github.com/prometheus/client_golang/prometheus"

	"kshare/sharestate"
)

// metrics of the served side; the names follow the broker's ShareGroupMetrics and SharePartitionMetrics.
type metrics struct {
	acks         [5]prometheus.Counter // by AckType
	acquired     prometheus.Counter
	redelivered  prometheus.Counter
	lockTimeouts prometheus.Counter
	waiting      prometheus.Gauge
	held         prometheus.Gauge
	sessions     prometheus.Gauge
}

var ackTypeNames = [5]string{"gap", "accept", "release", "reject", "renew"}

func newMetrics(reg prometheus.Registerer) *metrics {
	acks := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kshare_record_acknowledgements_total",
		Help: "Offsets acknowledged by clients, by acknowledgement type."}, []string{"type"})
	m := &metrics{
		acquired: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_records_acquired_total",
			Help: "Offsets acquired for clients."}),
		redelivered: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_records_redelivered_total",
			Help: "Offsets acquired for clients that had been delivered before."}),
		lockTimeouts: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_acquisition_lock_timeouts_total",
			Help: "Offsets whose acquisition lock ran out and that this replica's sweep found."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kshare_share_fetches_waiting",
			Help: "ShareFetch requests that wait for records."}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kshare_share_fetches_held",
			Help: "ShareFetch requests that wait unregistered until their time is over, because max-waiting-fetches wait for records."}),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kshare_share_sessions",
			Help: "Share sessions opened by connections of this replica."}),
	}
	for i, name := range ackTypeNames {
		m.acks[i] = acks.WithLabelValues(name)
	}
	if reg != nil {
		reg.MustRegister(acks, m.acquired, m.redelivered, m.lockTimeouts, m.waiting, m.held, m.sessions)
	}
	return m
}

// countAcks counts acknowledgements that were applied.
func (m *metrics) countAcks(batches []sharestate.AckBatch) {
	for _, b := range batches {
		if len(b.Types) == 1 {
			m.acks[b.Types[0]].Add(float64(b.Last - b.First + 1))
			continue
		}
		for _, t := range b.Types {
			m.acks[t].Inc()
		}
	}
}

func (m *metrics) countAcquired(acquired []sharestate.Acquired) {
	for _, a := range acquired {
		n := float64(a.Last - a.First + 1)
		m.acquired.Add(n)
		if a.DeliveryCount > 1 {
			m.redelivered.Add(n)
		}
	}
}
