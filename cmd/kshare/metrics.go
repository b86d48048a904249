package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"kshare/proxy/upstream"
	"kshare/sharestate/statelog"
)

// counted lists what the log on Redis and the reader of upstream count by themselves, and whether both answer, for /metrics.
func counted(store *statelog.Store, client *upstream.Client) []prometheus.Collector {
	total := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "kshare_" + name + "_total", Help: help}, func() float64 { return float64(value()) })
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kshare_" + name, Help: help}, value)
	}
	return []prometheus.Collector{
		gauge("redis_up", "1 while Redis answers.", func() float64 { return up(store.Healthy()) }),
		total("redis_round_trips", "Pipelines sent to Redis.", func() int64 { return store.Stats().Pipelines }),
		total("redis_commands", "Commands sent to Redis.", func() int64 { return store.Stats().Commands }),
		total("log_ops", "Ops sent to the logs of groups and share-partitions.", func() int64 { return store.Stats().Ops }),
		total("log_reads", "Reads of a log, catch-ups included.", func() int64 { return store.Stats().Reads }),
		total("log_compactions", "Logs that this replica compacted.", func() int64 { return store.Stats().Compactions }),
		total("log_reseeds", "Logs put back after Redis had lost them.", func() int64 { return store.Stats().Reseeds }),
		total("log_stops", "Logs that this replica serves no more because it does not understand them.", func() int64 { return store.Stats().Stops }),
		total("log_divergences", "Copies that differed from another replica's: a bug.", func() int64 { return store.Stats().Divergences }),

		gauge("upstream_up", "1 while upstream answers.", func() float64 { return up(client.Healthy()) }),
		total("upstream_fetched_bytes", "Bytes of records read from upstream.", func() int64 { return client.Stats().FetchedBytes }),
		total("upstream_cache_hits", "Reads answered from the cache of batches.", func() int64 { return client.Stats().Hits }),
		total("upstream_cache_misses", "Reads that upstream had to be asked for.", func() int64 { return client.Stats().Misses }),
		gauge("upstream_cache_bytes", "Memory that the cache of batches pins.", func() float64 { return float64(client.Stats().CacheBytes) }),
	}
}

func up(err error) float64 {
	if err != nil {
		return 0
	}
	return 1
}
