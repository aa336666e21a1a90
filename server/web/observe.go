package web

import (
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/telemetry"
)

// LogAccess says which requests are logged.
type LogAccess string

// Every request; those that failed on our side or took a second; none.
const (
	LogAll    LogAccess = "all"
	LogErrors LogAccess = "errors"
	LogOff    LogAccess = "off"
)

// slow is from when on a request is worth a line in the log.
const slow = time.Second

// observeRequest counts a request and logs it. The log has the path without its query, which
// contains search values and may contain a token.
func (m *Mux) observeRequest(x *Exchange, r *http.Request) {
	took := time.Since(x.start)
	if x.status == 0 {
		x.status = http.StatusOK
	}
	if _, inside := fromInside(x.ctx); !inside && !x.stream && m.Observed != nil {
		m.Observed(x.status, took)
	}
	if m.Metrics != nil {
		m.Metrics.observe(x.Route, x.status, took, telemetry.TraceID(x.ctx))
	}
	level := slog.LevelInfo
	switch log := m.Now().LogAccess; {
	case log == LogOff:
		return
	case x.status >= 500:
		level = slog.LevelError
	case took >= slow && !x.stream:
		level = slog.LevelWarn
	case log != LogAll:
		return
	}
	attrs := []slog.Attr{
		slog.String("request", x.ID), slog.String("method", r.Method), slog.String("path", x.path),
		slog.String("route", x.Route), slog.Int("status", x.status), slog.Int("bytes", x.bytes),
		slog.Float64("duration_seconds", took.Seconds()), slog.String("address", m.Now().Proxies.ClientAddress(r).String()),
	}
	if p := x.Principal; p != nil && p.ClientID != "" {
		attrs = append(attrs, slog.String("client", p.ClientID))
	}
	if p := x.Principal; p != nil && p.Subject != "" && p.Subject != p.ClientID {
		attrs = append(attrs, slog.String("user", p.Subject))
	}
	if trace := telemetry.TraceID(x.ctx); trace != "" {
		attrs = append(attrs, slog.String("trace_id", trace))
	}
	m.Logger.LogAttrs(x.ctx, level, "request", attrs...)
}

// Metrics counts and times requests by route.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics of this package.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "service_requests_total",
			Help: "Requests answered, by route (of FHIR: the interaction) and HTTP status.",
		}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "service_request_duration_seconds",
			Help:    "Time from the request's header to the end of the answer, by route (of FHIR: the interaction).",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
	}
	reg.MustRegister(m.requests, m.duration)
	return m
}

func (m *Metrics) observe(route string, status int, took time.Duration, traceID string) {
	requests, duration := m.requests.WithLabelValues(route, strconv.Itoa(status)), m.duration.WithLabelValues(route)
	if traceID != "" {
		exemplar := prometheus.Labels{"trace_id": traceID}
		if r, ok := requests.(prometheus.ExemplarAdder); ok {
			r.AddWithExemplar(1, exemplar)
		}
		if d, ok := duration.(prometheus.ExemplarObserver); ok {
			d.ObserveWithExemplar(took.Seconds(), exemplar)
		}
		return
	}
	requests.Inc()
	duration.Observe(took.Seconds())
}
