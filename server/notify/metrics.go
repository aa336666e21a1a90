package notify

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
	"kiln/server/store"
)

// metrics are the service's figures.
type metrics struct {
	sent    *prometheus.CounterVec
	failed  *prometheus.CounterVec
	latency prometheus.Summary
	s       *Service
}

func newMetrics(s *Service) *metrics {
	m := &metrics{
		s: s,
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "service_notifications_sent_total", Help: "Notifications that arrived, by channel."}, []string{"channel"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "service_notifications_failed_total", Help: "Attempts to deliver that failed, by subscription."}, []string{"subscription"}),
		latency: prometheus.NewSummary(prometheus.SummaryOpts{
			Name: "service_notifications_latency_seconds", Help: "Time from the write of a resource to the delivery of its notification.",
			Objectives: map[float64]float64{0.5: 0.05, 0.9: 0.01, 0.99: 0.001}}),
	}
	for _, channel := range []string{"webhook", "websocket", "sse"} {
		m.sent.WithLabelValues(channel)
	}
	return m
}

// register makes the figures known.
func (m *metrics) register(r prometheus.Registerer) {
	s := m.s
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	r.MustRegister(m.sent, m.failed, m.latency, queueCollector{s})
	gauge("service_notifications_websocket_connections", "WebSockets that are open.", func() float64 { n, _ := s.hub.CountConnections(); return float64(n) })
	gauge("service_notifications_sse_connections", "Streams of server-sent events that are open.", func() float64 { _, n := s.hub.CountConnections(); return float64(n) })
}

// countDelivery counts an attempt.
func (m *metrics) countDelivery(channel, subscription string, r webhook.Result, written time.Time) {
	if r.OK() {
		m.sent.WithLabelValues(channel).Inc()
		m.latency.Observe(max(0, time.Since(written)).Seconds())
		return
	}
	m.failed.WithLabelValues(subscription).Inc()
}

// queueCollector asks the database how full the queue is, when somebody wants to know.
type queueCollector struct{ s *Service }

var (
	depthDesc  = prometheus.NewDesc("service_notifications_queue_depth", "Deliveries in the queue, by status.", []string{"status"}, nil)
	oldestDesc = prometheus.NewDesc("service_notifications_oldest_transaction_seconds",
		"Age of the oldest transaction of the PostgreSQL cluster that has written something: events of later writes wait for its end.", nil, nil)
	statusDesc = prometheus.NewDesc("service_notifications_subscriptions", "Subscriptions by status: requested, active, error, off.", []string{"status"}, nil)
	ageDesc    = prometheus.NewDesc("service_notifications_queue_age_seconds", "Age of the oldest delivery, by status.", []string{"status"}, nil)
)

// Describe implements prometheus.Collector.
func (queueCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- depthDesc
	ch <- ageDesc
	ch <- oldestDesc
	ch <- statusDesc
}

// Collect implements prometheus.Collector.
func (c queueCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if t, err := store.FindOldestTransaction(ctx, c.s.Store.Pool()); err == nil {
		ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, t.Age.Seconds())
	}
	if list, err := c.s.db().SubscriptionStatuses(ctx); err == nil {
		number := map[string]int64{subscription.Requested: 0, subscription.Active: 0, subscription.Error: 0, subscription.Off: 0}
		for _, r := range list {
			number[r.Status] = r.Number
		}
		for status, n := range number {
			ch <- prometheus.MustNewConstMetric(statusDesc, prometheus.GaugeValue, float64(n), status)
		}
	}
	rows, err := c.s.db().QueueDepth(ctx)
	if err != nil {
		return
	}
	depth, age := map[string]float64{"pending": 0, "processing": 0}, map[string]float64{"pending": 0, "processing": 0}
	for _, r := range rows {
		name := queue.Status(r.Status).String()
		depth[name], age[name] = float64(r.Depth), r.Age
	}
	if n, err := c.s.db().CountFailed(ctx); err == nil {
		depth["failed"] = float64(n)
	}
	for name, v := range depth {
		ch <- prometheus.MustNewConstMetric(depthDesc, prometheus.GaugeValue, v, name)
	}
	for name, v := range age {
		ch <- prometheus.MustNewConstMetric(ageDesc, prometheus.GaugeValue, v, name)
	}
}
