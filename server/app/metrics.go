package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/gen/db"
	"kiln/server/app/journal"
)

// runMetrics count the runs of handlers.
type runMetrics struct {
	runs *prometheus.CounterVec
	took *prometheus.SummaryVec
}

// newRunMetrics registers the metrics of Apps; r may be nil.
func newRunMetrics(p *Platform, r prometheus.Registerer) *runMetrics {
	m := &runMetrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "service_app_runs_total",
			Help: "Runs of handlers of Apps, by App and outcome: ok, error, timeout, memory."}, []string{"app", "outcome"}),
		took: prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: "service_app_run_duration_seconds",
			Help: "Time of the runs of handlers, by App.", Objectives: map[float64]float64{0.5: 0.05, 0.99: 0.001}}, []string{"app"}),
	}
	if r != nil {
		r.MustRegister(m.runs, m.took, appQueueCollector{p})
	}
	return m
}

// countRun counts a run that has ended.
func (m *runMetrics) countRun(v *journal.Invocation) {
	if v.Outcome == "" { // a message about a handler that did not run
		return
	}
	m.runs.WithLabelValues(v.App, v.Outcome).Inc()
	m.took.WithLabelValues(v.App).Observe(v.Took.Seconds())
}

// appQueueCollector asks the database for the waiting events of Apps, when metrics are read.
type appQueueCollector struct{ p *Platform }

var (
	appQueueDepth = prometheus.NewDesc("service_app_queue_depth", "Events that wait for the subscriptions of an App.", []string{"app"}, nil)
	appQueueAge   = prometheus.NewDesc("service_app_queue_age_seconds", "Age of the oldest event that waits for a subscription of an App.", []string{"app"}, nil)
)

// Describe implements prometheus.Collector.
func (appQueueCollector) Describe(out chan<- *prometheus.Desc) {
	out <- appQueueDepth
	out <- appQueueAge
}

// Collect implements prometheus.Collector. Without the database it returns nothing.
func (c appQueueCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	rows, err := db.New(c.p.Store.Pool()).AppQueue(ctx)
	if err != nil {
		return
	}
	for _, r := range rows {
		out <- prometheus.MustNewConstMetric(appQueueDepth, prometheus.GaugeValue, float64(r.Depth), r.App)
		out <- prometheus.MustNewConstMetric(appQueueAge, prometheus.GaugeValue, r.Age, r.App)
	}
}
