package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/admin"
)

// databaseHealth describes the database to health checks.
func (s *Server) databaseHealth(ctx context.Context) (admin.DatabaseHealth, error) {
	h := admin.DatabaseHealth{Primary: "ok", Epoch: s.Store.Epoch().Number(), Readers: "ok", Replicas: []admin.ReplicaHealth{}}
	for _, r := range s.Store.ReplicaStatistics() {
		h.Replicas = append(h.Replicas, admin.ReplicaHealth{Name: r.Name, State: string(r.State), LagSeconds: r.LagSeconds})
	}
	if s.Store.ReadsContinue() {
		h.Primary = "lost"
		return h, nil
	}
	readers, err := s.Store.Readers(ctx)
	for _, r := range readers {
		if r.Ahead {
			h.Readers = "ahead"
		}
	}
	return h, err
}

// forgetDatabase makes the parts of this server forget what they remember of the database, or read it anew before the
// next use: a new epoch may lack the last changes of the one before, and may give their numbers again. The Store
// forgets by itself before it calls this. Every part that remembers something of the database has its line here.
func (s *Server) forgetDatabase() {
	s.Settings.Forget()
	s.policies.Forget()
	s.Apps.Forget()
	s.notifier.Forget()
	if a, ok := s.authorizationServer.(interface{ Forget() }); ok {
		a.Forget() // keys, tokens, revocations
	}
	s.profiles.forget()
	s.Validator.Forget()
	s.Terminology.ClearCaches()
	// The search parameters compare the epoch each time (searchparam.Service.Refresh).
}

// registerEpochMetrics adds the metrics of epochs and of the readers of the change log.
func (s *Server) registerEpochMetrics() {
	s.Metrics.MustRegister(epochMetrics{s})
}

// epochMetrics asks the database when metrics are read.
type epochMetrics struct{ s *Server }

var (
	primaryDescription = prometheus.NewDesc("service_database_primary_up", "1 where the primary answers, else 0.", nil, nil)
	epochDescription   = prometheus.NewDesc("service_database_epoch", "Number of the database's epoch.", nil, nil)
	lagDescription     = prometheus.NewDesc("service_change_reader_lag_seconds", "Age of the oldest change that a reader of the change log has not passed.", []string{"reader"}, nil)
	readerDescription  = prometheus.NewDesc("service_change_reader_ahead", "1 where a reader of the change log is ahead of the database, else 0.", []string{"reader"}, nil)
)

// Describe implements prometheus.Collector.
func (m epochMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- primaryDescription
	out <- epochDescription
	out <- readerDescription
	out <- lagDescription
}

// Collect implements prometheus.Collector. Without the database it returns the epoch, and that the primary is not up.
func (m epochMetrics) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(epochDescription, prometheus.GaugeValue, float64(m.s.Store.Epoch().Number()))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	readers, err := m.s.Store.Readers(ctx)
	up := 1.0
	if err != nil {
		up = 0
	}
	out <- prometheus.MustNewConstMetric(primaryDescription, prometheus.GaugeValue, up)
	if err != nil {
		return
	}
	for _, r := range readers {
		ahead := 0.0
		if r.Ahead {
			ahead = 1
		}
		out <- prometheus.MustNewConstMetric(readerDescription, prometheus.GaugeValue, ahead, r.Name)
		out <- prometheus.MustNewConstMetric(lagDescription, prometheus.GaugeValue, r.Behind.Seconds(), r.Name)
	}
}
