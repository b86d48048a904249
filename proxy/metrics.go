package proxy

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// metrics are the proxy's series. Label sets are closed: API names, route
// kinds, close reasons, two directions.
type metrics struct {
	open     prometheus.Gauge
	accepted prometheus.Counter
	closed   *prometheus.CounterVec   // reason
	requests *prometheus.CounterVec   // api, kind
	bytes    *prometheus.CounterVec   // direction
	latency  *prometheus.HistogramVec // api
	unbound  prometheus.Counter
	held     prometheus.Gauge

	toUpstream, toClient prometheus.Counter
	perRequest           sync.Map // requestLabel -> prometheus.Counter
}

type requestLabel struct {
	key  int16
	kind routeKind
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		open:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "kshare_proxy_connections", Help: "Client connections open now."}),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_proxy_connections_accepted_total", Help: "Client connections accepted."}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kshare_proxy_connections_closed_total",
			Help: "Client connections ended, by reason."}, []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kshare_proxy_requests_total",
			Help: "Requests by API and by what became of them."}, []string{"api", "kind"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kshare_proxy_relay_bytes_total",
			Help: "Bytes relayed between clients and upstream."}, []string{"direction"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kshare_proxy_served_seconds",
			Help: "Time from a served request's turn to its response, waiting included.", Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12)}, []string{"api"}),
		unbound: prometheus.NewCounter(prometheus.CounterOpts{Name: "kshare_proxy_node_bind_failures_total", Help: "Node ports that could not be bound."}),
	}
	m.held = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kshare_proxy_connections_held", Help: "Client connections that wait to be served, because max-connections are open."})
	m.toUpstream, m.toClient = m.bytes.WithLabelValues("to_upstream"), m.bytes.WithLabelValues("to_client")
	if reg != nil {
		reg.MustRegister(m.open, m.accepted, m.closed, m.requests, m.bytes, m.latency, m.unbound, m.held)
	}
	return m
}

// request counts one request without building label strings each time.
func (m *metrics) request(key int16, kind routeKind) {
	label := requestLabel{key, kind}
	if kind == unknown {
		label.key = -1
	}
	counter, ok := m.perRequest.Load(label)
	if !ok {
		counter, _ = m.perRequest.LoadOrStore(label, m.requests.WithLabelValues(apiName(label.key), kind.String()))
	}
	counter.(prometheus.Counter).Inc()
}

func apiName(key int16) string {
	if kmsg.RequestForKey(key) == nil {
		return "unknown"
	}
	if name := kmsg.NameForKey(key); name != "" {
		return name
	}
	return strconv.Itoa(int(key))
}
