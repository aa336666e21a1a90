package admin

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/web"
)

// Part answers for the state of one server. Its fields are set before Mount.
type Part struct {
	// Instance is the id of the server in the table of servers. The answers of /health/live
	// name it, so that a command can tell whether the server uses a database.
	Instance string
	// Ready returns why the service cannot serve, nil when it can.
	Ready func(ctx context.Context) error
	// Health describes the database; nil says nothing of it.
	Health func(ctx context.Context) (DatabaseHealth, error)
	// Replicas are the standbys that serve reads.
	Replicas func() []store.ReplicaStatistics
	Metrics  *prometheus.Registry
	Pprof    func() bool // whether profiles are served, to clients on this machine only; nil serves none

	Settings Settings
	Caches   []Cache
	// ClearEverywhere tells the other servers to empty caches, by names with commas
	// between.
	ClearEverywhere func(ctx context.Context, names string) error
	Pools           func() []store.Pool
	Database        func(ctx context.Context) (store.DatabaseStatistics, error)
	Instances       func(ctx context.Context) ([]store.Instance, error)
	Searches        Searches
	SortIndexes     SortIndexes
	Jobs            []JobSource
	// StartRetention starts a job that removes what is older than the settings allow.
	StartRetention func(ctx context.Context) (Job, error)
	// Changed is called after each change that an administrator has made; may be nil.
	Changed func(ctx context.Context, r *http.Request, x *web.Exchange, what, to string)
}

// readyTimeout bounds how long a health check may wait for the database.
const readyTimeout = 2 * time.Second

// Mount serves health, metrics, administration and, where they are wanted, profiles.
func (p *Part) Mount(m *web.Mux) {
	m.HandleFunc(web.Health, "GET /health/live", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(InstanceHeader, p.Instance)
		alive(w, r)
	})
	m.Handle(web.Health, "GET /health/ready", p.ready())
	m.Handle(web.Health, "GET /health", p.ready())
	m.Handle(web.Metric, "GET /metrics", promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	p.mountConfig(m)
	p.mountState(m)
	p.mountSearches(m)
	p.mountSortIndexes(m)
	p.mountJobs(m)
	if p.Pprof != nil {
		m.Handle(web.Admin, "/debug/pprof", p.profile(http.RedirectHandler("/debug/pprof/", http.StatusMovedPermanently).ServeHTTP))
		m.Handle(web.Admin, "/debug/pprof/", p.profile(pprof.Index))
		m.Handle(web.Admin, "/debug/pprof/profile", p.profile(pprof.Profile))
		m.Handle(web.Admin, "/debug/pprof/trace", p.profile(pprof.Trace))
		m.Handle(web.Admin, "/debug/pprof/symbol", p.profile(pprof.Symbol))
		m.Handle(web.Admin, "/debug/pprof/cmdline", p.profile(pprof.Cmdline))
	}
}

// InstanceHeader is a header of the answers of /health/live: the id of the server, or
// InstanceStarting.
const (
	InstanceHeader   = "X-Kiln-Instance"
	InstanceStarting = "starting"
)

// RegisterProcess adds the metrics of the Go runtime and of the process.
func RegisterProcess(r prometheus.Registerer) {
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// StartingHandler answers while the service is being built: alive, not ready.
func StartingHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health/live", "/fhir/health/live":
			w.Header().Set(InstanceHeader, InstanceStarting)
			alive(w, r)
		default:
			unavailable(w, "the server is starting")
		}
	})
}

func alive(w http.ResponseWriter, _ *http.Request) {
	sendLine(w, http.StatusOK, "application/json; charset=utf-8", []byte(`{"status":"ok"}`))
}

// DatabaseHealth is the database's part of a health check.
type DatabaseHealth struct {
	Primary  string          `json:"primary"` // ok, or lost while replicas serve reads
	Epoch    int             `json:"epoch"`
	Readers  string          `json:"readers"` // ok, or ahead where a reader is ahead of the database
	Replicas []ReplicaHealth `json:"replicas"`
}

// ReplicaHealth is a replica's part of a health check.
type ReplicaHealth struct {
	Name       string  `json:"name"`
	State      string  `json:"state"`
	LagSeconds float64 `json:"lag_seconds"`
}

func (p *Part) ready() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		var health DatabaseHealth
		err := p.Ready(ctx)
		if err == nil && p.Health != nil {
			health, err = p.Health(ctx)
		}
		if err != nil {
			reason := "the database does not answer"
			if o, ok := outcome.From(err); ok {
				reason = o.Error()
			}
			unavailable(w, reason)
			return
		}
		if p.Health == nil {
			alive(w, r)
			return
		}
		status := "ok"
		if health.Readers != "ok" || health.Primary != "ok" {
			status = "degraded"
		}
		body, err := json.Marshal(struct {
			Status   string         `json:"status"`
			Database DatabaseHealth `json:"database"`
		}{status, health})
		if err != nil {
			unavailable(w, "the state of the database cannot be written")
			return
		}
		sendLine(w, http.StatusOK, "application/json; charset=utf-8", body)
	})
}

func unavailable(w http.ResponseWriter, reason string) {
	w.Header().Set("Retry-After", "1")
	sendLine(w, http.StatusServiceUnavailable, "application/fhir+json; charset=utf-8", outcome.JSON(outcome.New(outcome.CodeTimeout, "%s", reason).Issues))
}

// sendLine answers with JSON on one line. While the server starts there is no web.Mux
// that adds the header and the line feed.
func sendLine(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that has gone needs no answer
}

// profile hides a profile from other machines, and while profiles are not served.
func (p *Part) profile(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.Pprof() {
			web.ExchangeOf(w).Fail(r, outcome.NotSupported("profiles are not served (server.pprof)"))
			return
		}
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err == nil {
			if a, err := netip.ParseAddr(host); err == nil && a.IsLoopback() {
				h(w, r)
				return
			}
		}
		web.ExchangeOf(w).Fail(r, outcome.New(outcome.CodeForbidden, "profiles are for clients on the server's own machine"))
	})
}
