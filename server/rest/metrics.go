package rest

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts and times requests by interaction.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics of this package.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "service_requests_total",
			Help: "Requests answered, by interaction and HTTP status.",
		}, []string{"interaction", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "service_request_duration_seconds",
			Help:    "Time from the request's header to the end of the answer, by interaction.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"interaction"}),
	}
	reg.MustRegister(m.requests, m.duration)
	return m
}

func (m *Metrics) observe(interaction string, status int, took time.Duration) {
	m.requests.WithLabelValues(interaction, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(interaction).Observe(took.Seconds())
}
