package conformance

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Contract, Operations: CORS by the specification; beside it PATCH, HEAD and the headers that FHIR needs; exposed
// headers; credentials never with `*`.
func TestCORS(t *testing.T) {
	t.Parallel()
	any, some := start(t), start(t, func(c *server.Config) { c.Server.AllowedOrigins = []string{"https://app.example.org"} })
	list := func(a *answer, name string) []string {
		return strings.FieldsFunc(strings.ToLower(strings.Join(a.header.Values(name), ",")), func(c rune) bool { return c == ',' || c == ' ' })
	}
	for _, s := range []*service{any, some} {
		a := s.do("OPTIONS", "/Patient/x", "", "Origin", "https://app.example.org", "Access-Control-Request-Method", "PATCH",
			"Access-Control-Request-Headers", "if-match,prefer,authorization").want(204)
		for _, want := range []string{"get", "post", "put", "delete", "options", "patch", "head"} {
			if !slices.Contains(list(a, "Access-Control-Allow-Methods"), want) {
				t.Errorf("methods %q lack %s", a.header.Values("Access-Control-Allow-Methods"), want)
			}
		}
		for _, want := range []string{"content-type", "authorization", "accept", "x-request-id", "if-match", "if-none-match", "if-none-exist", "prefer", "x-skip-validation", "last-event-id"} {
			if !slices.Contains(list(a, "Access-Control-Allow-Headers"), want) {
				t.Errorf("headers %q lack %s", a.header.Values("Access-Control-Allow-Headers"), want)
			}
		}
		a = s.post("/Patient", `{"resourceType":"Patient"}`, "Origin", "https://app.example.org").want(201)
		for _, want := range []string{"etag", "location", "content-location", "last-modified", "x-request-id", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"} {
			if !slices.Contains(list(a, "Access-Control-Expose-Headers"), want) {
				t.Errorf("exposed %q lack %s", a.header.Values("Access-Control-Expose-Headers"), want)
			}
		}
		if origin := a.header.Get("Access-Control-Allow-Origin"); origin == "*" && a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("credentials with *: %v", a.header)
		}
	}
	some.get("/metadata", "Origin", "https://other.example.org").want(200).has("Access-Control-Allow-Origin", "")
	some.get("/metadata", "Origin", "https://app.example.org").want(200).has("Access-Control-Allow-Origin", "https://app.example.org")
}

// Contract, Operations: `server.pprof` changes at run time, on every server.
func TestPprofAtRunTime(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	status := func(s *service) int { return s.get(s.root("/debug/pprof/cmdline")).status }
	if got := status(b); got != 404 {
		t.Errorf("by default: %d", got)
	}
	a.put(a.root("/admin/config/server/pprof"), `true`).want(200).equal("restart_required", "false")
	within(t, "pprof on the other server", func() bool { return status(b) == 200 })
	a.do("DELETE", a.root("/admin/config/server/pprof"), "").want(200)
	within(t, "pprof off on the other server", func() bool { return status(b) == 404 })
}

// Contract, Operations: rate limits: a 401 counts as anonymous, by address, and takes
// nothing from clients with a token; `requests_per_minute` is of each client and user.
func TestRateLimitOfStrangers(t *testing.T) {
	t.Parallel()
	s := authorized(t, func(c *server.Config) { c.Auth.RateLimiting.Anonymous, c.Auth.RateLimiting.Requests = 4, 6 })
	for range 2 {
		s.get("/Patient").want(401)
		s.get("/Patient", "Authorization", "Bearer nonsense").want(401)
	}
	s.get("/Patient", "Authorization", "Bearer nonsense").issue(429, "throttled")
	s.get("/Patient").issue(429, "throttled")
	one, two := s.as(systemClient("system/*.rs")), s.as(claims{Subject: "other", Client: "backend", Scope: "system/*.rs"})
	for range 6 {
		one.get("/Patient").want(200)
	}
	one.get("/Patient").issue(429, "throttled").has("X-RateLimit-Limit", "6").has("X-RateLimit-Remaining", "0")
	two.get("/Patient").want(200) // the same client for another user
	s.get(s.root("/health")).want(200)
}

// Contract, Operations: rate limits: X-RateLimit-Limit, -Remaining and -Reset on every limited
// answer, 429 with Retry-After: of a stream too many as well, by server-sent events and WebSocket.
func TestLimitedAnswersOfStreams(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Auth.RateLimiting.Streams, c.Auth.RateLimiting.Requests = 1, 0 })
	open := s.stream("/Patient/$events")
	if open.resp.StatusCode != 200 {
		t.Fatalf("the first stream: %d", open.resp.StatusCode)
	}
	for path, headers := range map[string][]string{
		"/Patient/$events":          nil,
		s.root("/notifications/ws"): {"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "MDEyMzQ1Njc4OWFiY2RlZg=="},
	} {
		a := s.get(path, headers...).issue(429, "throttled").has("X-RateLimit-Limit", "1").has("X-RateLimit-Remaining", "0").has("Retry-After", "1")
		reset, err := strconv.ParseInt(a.header.Get("X-RateLimit-Reset"), 10, 64)
		if until := reset - time.Now().Unix(); err != nil || until < -5 || until > 5 {
			t.Errorf("%s: X-RateLimit-Reset %q", path, a.header.Get("X-RateLimit-Reset"))
		}
	}
}

// Contract, Operations: all of `/admin/*` is JSON in and out, with errors as
// OperationOutcome.
func TestAdministrationIsJSON(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, path := range []string{"/admin/cache/stats", "/admin/config", "/admin/features", "/admin/db/stats", "/admin/indexes/suggestions", "/admin/indexes/sort", "/admin/searches", "/admin/jobs", "/admin/servers"} {
		if got := s.get(s.root(path)).want(200).header.Get("Content-Type"); !strings.HasPrefix(got, "application/json") {
			t.Errorf("%s: Content-Type %q", path, got)
		}
	}
	for _, r := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/admin/nowhere", "", http.StatusNotFound}, {"GET", "/admin/config/nowhere", "", http.StatusNotFound}, {"GET", "/admin/features/nowhere", "", http.StatusNotFound},
		{"PUT", "/admin/config/search/default_count", `"x"`, http.StatusBadRequest}, {"GET", "/admin/jobs/nowhere", "", http.StatusNotFound},
		{"DELETE", "/admin/servers", "", http.StatusMethodNotAllowed},
	} {
		s.do(r.method, s.root(r.path), r.body).want(r.status).equal("resourceType", "OperationOutcome").equal("issue.0.severity", "error")
	}
	near := s.get(s.root("/admin/features/search.explian")).want(404)
	if !strings.Contains(string(near.body), "search.explain") {
		t.Errorf("no near flag: %s", near.body)
	}
}

// A limited answer is for who asks: a page for users, RFC 6749's words beside FHIR's for OAuth
// clients, all with the headers.
// Contract, Operations: rate limits: 429 of `/auth/*`.
func TestLimitedAnswersOfAuthorization(t *testing.T) {
	t.Parallel()
	s := withAuthorizationOn(t, storetest.New(t), func(c *server.Config) {
		c.Auth.Bootstrap.Users, c.Auth.RateLimiting.Auth, c.Auth.RateLimiting.Token = nil, 1, 1
	})
	for _, q := range []struct {
		method, path string
		page         bool
	}{
		{"GET", "/auth/authorize", true}, {"POST", "/auth/authorize", true}, {"GET", "/auth/callback", true}, {"GET", "/auth/logout", true},
		{"POST", "/auth/token", false}, {"POST", "/auth/revoke", false}, {"POST", "/auth/register", false},
	} {
		a := s.do(q.method, s.origin()+q.path, "")
		for deadline := time.Now().Add(time.Minute); a.status != 429 && time.Now().Before(deadline); { // a window may just have begun
			a = s.do(q.method, s.origin()+q.path, "")
		}
		if a.status != 429 {
			t.Fatalf("%s %s: %d", q.method, q.path, a.status)
		}
		for _, h := range []string{"Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
			if a.header.Get(h) == "" {
				t.Errorf("%s %s: no %s", q.method, q.path, h)
			}
		}
		if q.page {
			if typ := a.header.Get("Content-Type"); !strings.HasPrefix(typ, "text/html") || !strings.Contains(string(a.body), "Wait "+a.header.Get("Retry-After")+" s") {
				t.Errorf("%s %s: %s %s", q.method, q.path, typ, a.body)
			}
			continue
		}
		a.equal("error", "temporarily_unavailable").equal("resourceType", "OperationOutcome").equal("issue.0.code", "throttled")
		if a.str("error_description") == "" || a.header.Get("Cache-Control") != "no-store" || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
			t.Errorf("%s %s: %v %s", q.method, q.path, a.header, a.body)
		}
	}
}
