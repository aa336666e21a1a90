package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/store"
)

// RegisterPools adds the metrics of the database connections.
func RegisterPools(r prometheus.Registerer, pools func() []store.Pool) {
	r.MustRegister(poolCollector{pools})
}

// poolCollector reads all figures of the pools at once.
type poolCollector struct{ pools func() []store.Pool }

var poolMetrics = []struct {
	desc  *prometheus.Desc
	typ   prometheus.ValueType
	value func(store.Pool) float64
}{
	{poolDesc("max", "Connections that the pool may open."), prometheus.GaugeValue, func(p store.Pool) float64 { return float64(p.Max) }},
	{poolDesc("open", "Connections that are open."), prometheus.GaugeValue, func(p store.Pool) float64 { return float64(p.Open) }},
	{poolDesc("busy", "Connections in use."), prometheus.GaugeValue, func(p store.Pool) float64 { return float64(p.Busy) }},
	{poolDesc("acquired_total", "Times a connection was taken."), prometheus.CounterValue, func(p store.Pool) float64 { return float64(p.Acquired) }},
	{poolDesc("waited_total", "Times a connection had to be waited for."), prometheus.CounterValue, func(p store.Pool) float64 { return float64(p.Waited) }},
	{poolDesc("wait_seconds_total", "Time spent waiting for connections."), prometheus.CounterValue, func(p store.Pool) float64 { return p.WaitSeconds }},
}

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("service_database_connections_"+name, help, []string{"pool"}, nil)
}

// Describe names the metrics.
func (c poolCollector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range poolMetrics {
		out <- m.desc
	}
}

// Collect reads the metrics.
func (c poolCollector) Collect(out chan<- prometheus.Metric) {
	for _, p := range c.pools() {
		for _, m := range poolMetrics {
			out <- prometheus.MustNewConstMetric(m.desc, m.typ, m.value(p), p.Name)
		}
	}
}
