package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/store"
)

// replicaConfig describes the standbys of a configuration.
func replicaConfig(c DatabaseConfig) store.ReplicaConfig {
	return store.ReplicaConfig{URLs: c.ReadURLs, Wait: time.Duration(c.ReadWaitMS) * time.Millisecond, MaxLag: time.Duration(c.ReadMaxLagSeconds) * time.Second,
		MaxConns: c.ReadMaxConnections, WithoutPrimary: time.Duration(c.ReadWithoutPrimarySeconds) * time.Second}
}

// registerReplicaMetrics adds the metrics of reads on standbys. Without standbys there are none.
func (s *Server) registerReplicaMetrics() {
	if !s.Store.HasReplicas() {
		return
	}
	waits := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "service_database_position_wait_seconds", Help: "Time that a read has waited for its position on a replica.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, 1}})
	s.Store.OnPositionWait(func(d time.Duration) { waits.Observe(d.Seconds()) })
	s.Metrics.MustRegister(waits, replicaMetrics{s.Store})
}

// replicaMetrics reads the counts of the Store when metrics are read.
type replicaMetrics struct{ store *store.Store }

var (
	readsDescription      = prometheus.NewDesc("service_database_reads_total", "Reads by the PostgreSQL that has answered: primary, or replica-N.", []string{"source"}, nil)
	fallbacksDescription  = prometheus.NewDesc("service_database_fallbacks_total", "Reads that a replica did not answer, by reason: position, conflict, lost, state.", []string{"reason"}, nil)
	replicaLagDescription = prometheus.NewDesc("service_database_replica_lag_seconds", "Age of the oldest commit that a replica has not replayed.", []string{"replica"}, nil)
	replicaUpDescription  = prometheus.NewDesc("service_database_replica_up", "1 where a replica serves reads, else 0.", []string{"replica"}, nil)
)

// Describe implements prometheus.Collector.
func (m replicaMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- readsDescription
	out <- fallbacksDescription
	out <- replicaLagDescription
	out <- replicaUpDescription
}

// Collect implements prometheus.Collector.
func (m replicaMetrics) Collect(out chan<- prometheus.Metric) {
	counts := m.store.RoutingStatistics()
	for source, n := range counts.Reads {
		out <- prometheus.MustNewConstMetric(readsDescription, prometheus.CounterValue, float64(n), source)
	}
	for reason, n := range counts.Fallbacks {
		out <- prometheus.MustNewConstMetric(fallbacksDescription, prometheus.CounterValue, float64(n), reason)
	}
	for _, r := range m.store.ReplicaStatistics() {
		up := 0.0
		if r.State == store.Streaming {
			up = 1
		}
		out <- prometheus.MustNewConstMetric(replicaLagDescription, prometheus.GaugeValue, r.LagSeconds, r.Name)
		out <- prometheus.MustNewConstMetric(replicaUpDescription, prometheus.GaugeValue, up, r.Name)
	}
}
