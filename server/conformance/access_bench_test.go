package conformance

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	"kiln/server"
	"kiln/server/access"
	"kiln/server/store/storetest"
)

// knownTokens verifies a token once, as an authorization server does.
type knownTokens struct {
	tokens
	known *sync.Map
}

func (k knownTokens) Verify(ctx context.Context, token string) (*access.Principal, error) {
	if p, ok := k.known.Load(token); ok {
		return p.(*access.Principal), nil
	}
	p, err := k.tokens.Verify(ctx, token)
	if err == nil {
		k.known.Store(token, p)
	}
	return p, err
}

// guardedRequests are the same read and the same search without authorization, with a
// system token and with a patient's.
var guardedRequests = []struct {
	name, token, path string
	auth              bool
}{
	{"read open", "", "/fhir/Observation/obs-a", false},
	{"read system", systemClient("system/*.rs").token(), "/fhir/Observation/obs-a", true},
	{"read patient", patientApp("a", "patient/*.rs").token(), "/fhir/Observation/obs-a", true},
	{"search open", "", "/fhir/Observation?patient=a&_count=20", false},
	{"search patient", patientApp("a", "patient/*.rs").token(), "/fhir/Observation?_count=20", true},
}

// guardedHandlers are two services on one database: open, and with authorization.
func guardedHandlers(t testing.TB) map[bool]http.Handler {
	t.Helper()
	database := storetest.New(t)
	out := make(map[bool]http.Handler)
	for _, on := range []bool{false, true} {
		cfg := server.Default()
		cfg.Database.URL, cfg.Auth.Enabled, cfg.Audit.Rest, cfg.Notifications.Enabled = database, on, "off", false
		s, err := server.New(context.Background(), cfg, server.Options{Version: "test", Logger: slog.New(slog.DiscardHandler), Sandbox: sandboxCommand(),
			Authorization: func(context.Context, *server.Server) (server.Authorization, error) {
				return knownTokens{known: new(sync.Map)}, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		out[on] = s.Handler
	}
	web := httptest.NewServer(out[true])
	t.Cleanup(web.Close)
	twoPatients(&service{t: t, base: web.URL + "/fhir"})
	return out
}

// response collects the answer of a handler, and is used again.
type response struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *response) Header() http.Header         { return r.header }
func (r *response) WriteHeader(status int)      { r.status = status }
func (r *response) Write(b []byte) (int, error) { return r.body.Write(b) }

func guardedRequest(t testing.TB, h http.Handler, path, token string) func() {
	w := &response{header: make(http.Header)}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		clear(w.header)
		w.status = 200
		w.body.Reset()
		at := *u
		r := &http.Request{Method: "GET", URL: &at, RequestURI: path, Host: "127.0.0.1", RemoteAddr: "127.0.0.1:1", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{}, Body: http.NoBody}
		if token != "" {
			r.Header["Authorization"] = []string{token}
		}
		h.ServeHTTP(w, r)
		if w.status != 200 {
			t.Fatalf("%s: %d %s", path, w.status, w.body.Bytes())
		}
	}
}

// Authorization, Speed: the cost of a request beside the same without authorization.
// Contract, Authorization 6: reads with a system and with a patient token, searches with a patient token.
func BenchmarkAuthorized(b *testing.B) {
	handlers := guardedHandlers(b)
	for _, q := range guardedRequests {
		b.Run(q.name, func(b *testing.B) {
			request := guardedRequest(b, handlers[q.auth], q.path, q.token)
			request()
			b.ReportAllocs()
			for b.Loop() {
				request()
			}
		})
	}
}
