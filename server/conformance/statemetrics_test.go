package conformance

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// stateMetric returns a metric by its name and labels as they are printed; false where it is absent.
func (s *service) stateMetric(name string) (float64, bool) {
	s.t.Helper()
	for line := range strings.SplitSeq(string(s.get(s.root("/metrics")).want(200).body), "\n") {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				s.t.Fatalf("%s: %v", line, err)
			}
			return v, true
		}
	}
	return 0, false
}

// The metrics that the alert rules ask for follow a failing App, a dead endpoint and a reader
// that lags.
// Contract, Operations: telemetry: Prometheus metrics of Apps, caches, reindexing, pending
// audit, readers, disks and the build.
func TestMetricsOfState(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	s := startOn(t, url, func(c *server.Config) {
		quick(c)
		c.Notifications.Webhook.AllowPrivateNetworks = "true"
	})
	above := func(name string, least float64) func() bool {
		return func() bool { v, ok := s.stateMetric(name); return ok && v >= least }
	}
	for _, name := range []string{`service_cache_hits_total{cache="token"}`, `service_cache_misses_total{cache="query"}`, `service_cache_entries{cache="definitions"}`,
		`service_cache_bytes{cache="query"}`, `service_cache_evictions_total{cache="total"}`, `service_audit_pending{source="reads"}`, `service_audit_pending{source="writes"}`,
		"service_reindex_remaining", "service_reindex_failed", `service_disk_free_bytes{folder="bulk.directory"}`, `service_disk_size_bytes{folder="bulk.directory"}`,
		`service_notifications_subscriptions{status="error"}`} {
		if _, ok := s.stateMetric(name); !ok {
			t.Errorf("there is no metric %s", name)
		}
	}
	if text := string(s.get(s.root("/metrics")).body); !strings.Contains(text, `service_build_info{go_version="go`) || !strings.Contains(text, `version="test"} 1`) {
		t.Error("there is no service_build_info")
	}
	// An App that fails, in an operation and in an event.
	s.put("/App/broken", app("broken", "active", "execute", "Patient", "fails", "() => { throw new Error('no') }", "execute", "Patient", "works", "() => 1")).want(201)
	s.post("/Patient/$fails", "").want(422)
	s.post("/Patient/$works", "").want(200)
	s.put("/App/event", eventApp("event", "Basic", `"create"`, "", script("() => { throw new Error('no') }"))).want(201)
	// A Subscription whose endpoint dies.
	dies := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	id := s.subscribe(subscription("Basic", dies.URL))
	dies.Close()
	s.post("/Basic", `{"resourceType":"Basic","code":{"text":"x"}}`).want(201)
	for name, least := range map[string]float64{
		`service_app_runs_total{app="broken",outcome="error"}`:                       1,
		`service_app_runs_total{app="broken",outcome="ok"}`:                          1,
		`service_app_runs_total{app="event",outcome="error"}`:                        1,
		`service_app_run_duration_seconds_count{app="broken"}`:                       2,
		`service_notifications_failed_total{subscription="Subscription/` + id + `"}`: 2,
	} {
		comes(t, name, above(name, least))
	}
	// A transaction that is open holds the readers back.
	older := onDatabase(t, url)
	sql(t, older, "BEGIN", "SELECT pg_current_xact_id()")
	s.post("/Basic", `{"resourceType":"Basic","code":{"text":"y"}}`).want(201)
	comes(t, "a reader that lags", func() bool {
		for line := range strings.SplitSeq(string(s.get(s.root("/metrics")).body), "\n") {
			if name, value, _ := strings.Cut(line, " "); strings.HasPrefix(name, "service_change_reader_lag_seconds{") {
				if v, err := strconv.ParseFloat(value, 64); err == nil && v > 1 {
					return true
				}
			}
		}
		return false
	})
	sql(t, older, "COMMIT")
}
