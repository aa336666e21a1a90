package web

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Contract: Bulk data: requests that jobs give way to.
func TestInFlight(t *testing.T) {
	for _, x := range []struct {
		name, path string
		counted    bool
	}{
		{"FHIR", "/Patient/1", true},
		{"discovery", "/.well-known/x", true},
		{"a request that panics", "/auth/panic", true},
		{"health", "/health", false},
		{"metrics", "/metrics", false},
		{"administration", "/admin/jobs", false},
		{"the status of a job", "/$job/1", false},
		{"a kick-off", "/$export", false},
		{"a stream", "/notifications/events", false},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := &InFlight{}
			m := &Mux{Logger: slog.New(slog.DiscardHandler), InFlight: f}
			inside := false
			look := func(http.ResponseWriter, *http.Request) { inside = f.count > 0 }
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
			total := f.Total()
			if inside != x.counted || f.count != 0 || x.counted && total == 0 {
				t.Errorf("inside %t, afterwards %d, in flight for %s; want %t", inside, f.count, total, x.counted)
			}
			if again := f.Total(); again != total {
				t.Errorf("after its end the request has been in flight for %s, then %s", total, again)
			}
		})
	}
}
