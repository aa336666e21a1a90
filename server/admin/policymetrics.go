package admin

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/access"
)

// RegisterPolicies adds what policies under dry run would have denied to the metrics.
func RegisterPolicies(r prometheus.Registerer, policies *access.PolicySource) {
	r.MustRegister(policyCollector{policies})
}

// policyCollector reads the counts of the policies in force.
type policyCollector struct{ policies *access.PolicySource }

var dryRunDesc = prometheus.NewDesc("service_access_dry_run_denied_total",
	"Requests and resources that a policy under dry run would have denied on this server since its last change.", []string{"policy"}, nil)

// Describe names the metric.
func (c policyCollector) Describe(out chan<- *prometheus.Desc) { out <- dryRunDesc }

// Collect reads the counts.
func (c policyCollector) Collect(out chan<- prometheus.Metric) {
	now, err := c.policies.Current(context.Background())
	if err != nil {
		out <- prometheus.NewInvalidMetric(dryRunDesc, err)
		return
	}
	for _, p := range now.List {
		if p.DryRun {
			out <- prometheus.MustNewConstMetric(dryRunDesc, prometheus.CounterValue, float64(p.Denied()), p.Name)
		}
	}
}
