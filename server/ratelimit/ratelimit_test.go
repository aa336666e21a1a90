package ratelimit

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"kiln/server/access"
	"kiln/server/store"
	"kiln/server/web"
)

// shared is the database of several servers.
type shared struct {
	mu    sync.Mutex
	rates map[[2]int64]int64
}

func (s *shared) AddRates(_ context.Context, added []store.Rate) ([]store.Rate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]store.Rate, len(added))
	for i, a := range added {
		k := [2]int64{a.Client, a.Starts}
		s.rates[k] += a.Count
		out[i] = store.Rate{Client: a.Client, Starts: a.Starts, Count: s.rates[k]}
	}
	return out, nil
}

func (s *shared) Rates(_ context.Context, clients []int64) ([]store.Rate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []store.Rate
	for k, n := range s.rates {
		if slices.Contains(clients, k[0]) {
			out = append(out, store.Rate{Client: k[0], Starts: k[1], Count: n})
		}
	}
	return out, nil
}

func (s *shared) DropRates(context.Context, time.Time) error { return nil }

func newLimiter(l Limits, s Store, now func() time.Time) *Limiter {
	return &Limiter{Limits: func() Limits { return l }, Proxies: func() web.Proxies { return nil }, Store: s, Now: now}
}

// server answers every path behind a limiter.
type server struct{ *web.Mux }

func newServer(l *Limiter, v access.Verifier) server {
	m := &web.Mux{Limiter: l, Verifier: v, Logger: slog.New(slog.DiscardHandler)}
	m.HandleFunc(web.Health, "GET /health", func(http.ResponseWriter, *http.Request) {})
	m.HandleFunc(web.Public, "POST /auth/token", func(http.ResponseWriter, *http.Request) {})
	for _, pattern := range []string{"GET /auth/authorize", "POST /auth/authorize", "GET /auth/style.css", "POST /auth/introspect", "GET /auth/logout"} {
		m.HandleFunc(web.Public, pattern, func(http.ResponseWriter, *http.Request) {})
	}
	m.HandleRest(web.FHIR, ok{})
	return server{m}
}

type ok struct{}

func (ok) ServeExchange(*web.Exchange, *http.Request) {}

func (s server) do(method, path, from, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = from + ":1"
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// names is a verifier that takes a token for the name of a client.
type names struct{}

func (names) Verify(_ context.Context, token string) (*access.Principal, error) {
	return &access.Principal{ClientID: token, Subject: token}, nil
}

// Operations, Rate limits: headers on every limited answer, 429 with Retry-After.
// Contract, Operations: rate limits: `X-RateLimit-Limit`, `-Remaining`, `-Reset` on every limited answer; 429
// `throttled` with `Retry-After`.
func TestHeaders(t *testing.T) {
	s := newServer(newLimiter(Limits{Requests: 3}, nil, time.Now), nil)
	for i := range 5 {
		w := s.do("GET", "/Patient/1", "192.0.2.1", "")
		want, left := 200, max(0, 2-i)
		if i >= 3 {
			want = 429
		}
		h := w.Header()
		if w.Code != want || h.Get("X-RateLimit-Limit") != "3" || h.Get("X-RateLimit-Remaining") != strconv.Itoa(left) {
			t.Errorf("request %d: %d %v, want %d with %d left", i, w.Code, h, want, left)
		}
		reset, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64)
		if until := reset - time.Now().Unix(); err != nil || until < -1 || until > 60 {
			t.Errorf("request %d: X-RateLimit-Reset %q", i, h.Get("X-RateLimit-Reset"))
		}
		if wait, err := strconv.Atoi(h.Get("Retry-After")); want == 429 && (err != nil || wait < 1 || wait > 120) {
			t.Errorf("Retry-After %q", h.Get("Retry-After"))
		}
	}
	if w := s.do("GET", "/health", "192.0.2.1", ""); w.Code != 200 || w.Header().Get("X-RateLimit-Limit") != "" {
		t.Errorf("health is limited: %d %v", w.Code, w.Header())
	}
	if w := s.do("GET", "/Patient/1", "192.0.2.2", ""); w.Code != 200 {
		t.Errorf("another address: %d", w.Code)
	}
}

// Contract, Operations: rate limits: each client and user, each address, the token endpoint by minute and
// hour, `/auth`; `/health*` and `/metrics` never.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		name, method, path, token string
		limits                    Limits
		want                      int // requests that pass
	}{
		{"a client by requests_per_minute", "GET", "/Patient/1", "app", Limits{Requests: 4, Anonymous: 1}, 4},
		{"without a token by anonymous_requests_per_minute", "GET", "/Patient/1", "", Limits{Requests: 1, Anonymous: 2}, 2},
		{"the token endpoint by the minute", "POST", "/auth/token", "", Limits{Token: 3, TokenHour: 100}, 3},
		{"the token endpoint by the hour", "POST", "/auth/token", "", Limits{Token: 100, TokenHour: 5}, 5},
		{"the login page", "GET", "/auth/authorize", "", Limits{Authorization: 2}, 2},
		{"forms that follow, ten times as often", "POST", "/auth/authorize", "", Limits{Authorization: 1}, 10},
		{"a sign-out", "GET", "/auth/logout", "", Limits{Authorization: 1}, 10},
		{"style sheets are not counted", "GET", "/auth/style.css", "", Limits{Authorization: 1}, 15},
		{"introspection is not counted", "POST", "/auth/introspect", "", Limits{Authorization: 1}, 15},
		{"0 is off", "GET", "/Patient/1", "app", Limits{}, 15},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(newLimiter(tt.limits, nil, time.Now), names{})
			passed := 0
			for range 15 {
				if w := s.do(tt.method, tt.path, "192.0.2.1", tt.token); w.Code != 429 {
					passed++
				}
			}
			if passed != tt.want {
				t.Errorf("%d requests pass, want %d", passed, tt.want)
			}
		})
	}
}

// The window slides: half a minute later, half of it is free again.
// Contract, Operations: rate limits: a sliding window.
func TestSliding(t *testing.T) {
	l := newLimiter(Limits{}, nil, nil)
	start := time.Unix(6000, 0)
	u := rule{"x", 10, 60, "me"}
	for i := range 10 {
		if !l.take(u, start).allowed {
			t.Fatalf("request %d is refused", i)
		}
	}
	v := l.take(u, start.Add(59*time.Second))
	if v.allowed {
		t.Error("an eleventh within the minute")
	}
	if again := start.Add(59*time.Second + time.Duration(v.wait)*time.Second); !l.take(u, again).allowed {
		t.Error("refused after the wait that was asked for")
	}
	l = newLimiter(Limits{}, nil, nil)
	for range 10 {
		l.take(u, start)
	}
	passed := 0
	for range 10 {
		if l.take(u, start.Add(90*time.Second)).allowed {
			passed++
		}
	}
	if passed != 5 {
		t.Errorf("%d pass half a minute into the next window, want 5", passed)
	}
}

// Two servers hold one rate together.
// Contract, Operations: rate limits: shared by all servers of a database to within a second.
func TestShared(t *testing.T) {
	db := &shared{rates: map[[2]int64]int64{}}
	now := func() time.Time { return time.Unix(6000, 0) }
	a, b := newLimiter(Limits{}, db, now), newLimiter(Limits{}, db, now)
	u := rule{"x", 10, 60, "me"}
	passed := 0
	for range 20 {
		for _, l := range []*Limiter{a, b} {
			if l.take(u, now()).allowed {
				passed++
			}
			for _, l := range []*Limiter{a, b, a} {
				if err := l.Sync(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if passed != 10 {
		t.Errorf("%d requests pass on two servers, want 10", passed)
	}
}

// Contract, Operations: rate limits: bounds on concurrent searches, bundles and streams for each client.
func TestConcurrent(t *testing.T) {
	l := newLimiter(Limits{Bundles: 2}, nil, time.Now)
	r := httptest.NewRequest("POST", "/", nil)
	h := make(http.Header)
	first, err := l.Enter(t.Context(), h, r, Bundle)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Enter(t.Context(), h, r, Bundle); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Enter(t.Context(), h, r, Bundle); err == nil {
		t.Error("a third at the same time")
	}
	first()
	if _, err := l.Enter(t.Context(), h, r, Bundle); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// Operations: the cost on a read is at most a microsecond.
// Contract, Operations: rate limits: the cost on a read is <= 1 us.
func BenchmarkLimit(b *testing.B) {
	l := newLimiter(Limits{Requests: 1 << 30}, nil, time.Now)
	p := &access.Principal{ClientID: "app", Subject: "user"}
	r := httptest.NewRequest("GET", "/Patient/1", nil)
	x := &web.Exchange{ResponseWriter: httptest.NewRecorder()}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Limit(x, r, web.FHIR, p); err != nil {
			b.Fatal(err)
		}
	}
}
