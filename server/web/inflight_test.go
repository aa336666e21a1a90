package web

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Contract: Bulk data: requests that jobs give way to.
func TestInFlight(t *testing.T) {
	for _, x := range []struct {
		name, path    string
		inside, after bool // it is counted inside of its handler, and shortly afterwards
	}{
		{"FHIR", "/Patient/1", true, true},
		{"discovery", "/.well-known/x", true, true},
		{"a request that panics", "/auth/panic", true, true},
		{"health", "/health", false, false},
		{"metrics", "/metrics", false, false},
		{"administration", "/admin/jobs", false, false},
		{"the status of a job", "/$job/1", false, false},
		{"a kick-off", "/$export", false, false},
		{"a stream", "/notifications/events", false, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := &InFlight{}
			m := &Mux{Logger: slog.New(slog.DiscardHandler), InFlight: f}
			inside := false
			look := func(http.ResponseWriter, *http.Request) { inside = f.Any(0) }
			m.HandleFunc(Health, "GET /health", look)
			m.HandleFunc(Metric, "GET /metrics", look)
			m.HandleFunc(Admin, "GET /admin/jobs", look)
			m.HandleFunc(Jobs, "GET /$job/{id}", look)
			m.HandleFunc(Public, "GET /.well-known/x", look)
			m.HandleFunc(Public, "GET /auth/panic", func(w http.ResponseWriter, r *http.Request) {
				look(w, r)
				panic(http.ErrAbortHandler)
			})
			m.HandleFunc(Streams, "GET /notifications/events", look)
			m.HandleRest(FHIR, handlerFunc(func(e *Exchange, r *http.Request) {
				if r.URL.Path == "/$export" {
					e.LeaveFlight()
				}
				look(e, r)
			}))
			func() {
				defer func() { _ = recover() }() // of the request that panics
				r := httptest.NewRequest("GET", x.path, nil)
				r.RemoteAddr = "127.0.0.1:1"
				m.ServeHTTP(httptest.NewRecorder(), r)
			}()
			if inside != x.inside || f.Any(time.Hour) != x.after || f.Any(0) {
				t.Errorf("inside %t, afterwards %t, for ever %t; want %t, %t, false", inside, f.Any(time.Hour), f.Any(0), x.inside, x.after)
			}
		})
	}
}
