package jobs

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/gen/db"
)

// jobCounts is the metric service_jobs: the jobs in the database, by type and state.
type jobCounts struct{ core *Core }

var jobsDescription = prometheus.NewDesc("service_jobs", "Jobs of all servers, by type and state, up to seven days after the end.", []string{"type", "state"}, nil)

// Describe implements prometheus.Collector.
func (m *jobCounts) Describe(out chan<- *prometheus.Desc) { out <- jobsDescription }

// Collect implements prometheus.Collector.
func (m *jobCounts) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	rows, err := db.New(m.core.Pool).CountJobs(ctx)
	if err != nil {
		m.core.Logger.Warn("count the jobs", slog.Any("error", err))
		return
	}
	for _, r := range rows {
		out <- prometheus.MustNewConstMetric(jobsDescription, prometheus.GaugeValue, float64(r.Jobs), r.Type, r.State)
	}
}
