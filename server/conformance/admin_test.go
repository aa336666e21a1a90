package conformance

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// root is a URL of the service outside of FHIR.
func (s *service) root(path string) string { return s.base[:len(s.base)-len("/fhir")] + path }

// within waits up to a second for a condition on another server.
func within(t testing.TB, what string, holds func() bool) {
	t.Helper()
	began := time.Now()
	for !holds() {
		if time.Since(began) > patience {
			t.Fatalf("not even within %s: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(began); took > time.Second {
		t.Logf("%s took %s: more than a second, on a busy machine", what, took)
	}
}

// Operations: GET and PUT /admin/config, effective at once on all servers.
// Contract, Operations: `GET /admin/config[/{category}]`, `PUT` and `DELETE /admin/config/{category}/{key}`:
// entries, masked secrets, sources, unknown 404 with near ones, checked like the file.
func TestAdminConfig(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	put := func(s *service, path, body string) *answer {
		return s.do("PUT", s.root(path), body, "Content-Type", "application/json")
	}
	t.Run("the list has every key with its source", func(t *testing.T) {
		all := a.in(t).get(a.root("/admin/config")).want(200)
		found := false
		for i := range len(all.json.([]any)) {
			at := strconv.Itoa(i) + "."
			for _, name := range []string{"key", "category", "source", "description"} {
				if all.str(at+name) == "" {
					t.Errorf("entry %d has no %s", i, name)
				}
			}
			if all.str(at+"key") == "search.default_count" {
				found = true
				all.equal(at+"value", "20").equal(at+"default", "20").equal(at+"source", "default").equal(at+"category", "search").equal(at+"is_secret", "false").equal(at+"restart_required", "false")
			}
			if all.str(at+"key") == "database.url" {
				all.equal(at+"is_secret", "true").equal(at+"restart_required", "true")
			}
		}
		if !found {
			t.Error("search.default_count is missing")
		}
		a.in(t).get(a.root("/admin/config?category=search")).want(200).equal("0.category", "search")
		a.in(t).get(a.root("/admin/config/search")).want(200).equal("default_count", "20")
		a.in(t).get(a.root("/admin/config/serch")).issue(404, "not-found", "search")
	})
	t.Run("a change is seen on the other server within a second, and taken back", func(t *testing.T) {
		for range 3 {
			a.in(t).create(`{"resourceType":"Patient"}`)
		}
		put(a.in(t), "/admin/config/search/default_count", `{"value": 1}`).want(200).equal("value", "1").equal("source", "database").equal("key", "search.default_count")
		if n := a.in(t).get("/Patient").len("entry"); n != 1 {
			t.Errorf("%d entries on the server that was changed, want 1", n)
		}
		within(t, "search.default_count on the other server", func() bool { return b.in(t).get("/Patient").len("entry") == 1 })
		put(a.in(t), "/admin/config/search/default_count", `2`).want(200).equal("value", "2")
		within(t, "a bare value", func() bool { return b.in(t).get("/Patient").len("entry") == 2 })
		a.in(t).do("DELETE", a.root("/admin/config/search/default_count"), "").want(200).equal("value", "20").equal("source", "default")
		within(t, "the default again", func() bool { return b.in(t).get("/Patient").len("entry") == 3 })
	})
	t.Run("values are checked like the file", func(t *testing.T) {
		put(a.in(t), "/admin/config/search/default_count", `0`).issue(400, "invalid", "search.default_count")
		put(a.in(t), "/admin/config/search/default_count", `"x"`).issue(400, "invalid", "whole number")
		put(a.in(t), "/admin/config/search/default_count", `{`).issue(400, "structure")
		put(a.in(t), "/admin/config/search/defaultcount", `1`).issue(404, "not-found", "search.default_count")
		put(a.in(t), "/admin/config/fhir/version_conflict_status", `400`).issue(400, "invalid", "409 or 412")
	})
	t.Run("each that can change does: what a client sees of it", func(t *testing.T) {
		id := a.in(t).create(`{"resourceType":"Patient"}`)
		for _, tt := range []struct {
			key, value string
			holds      func(s *service) bool
		}{
			{"search/max_count", "20", func(s *service) bool { return s.get("/Patient?_count=100&_total=none").want(200).link("self") != "" }},
			{"fhir/update_create", "false", func(s *service) bool {
				return s.put("/Patient/unknown-"+strconv.Itoa(int(time.Now().UnixNano()%1e9)), `{"resourceType":"Patient","id":"x"}`).status != 201
			}},
			{"fhir/version_conflict_status", "412", func(s *service) bool {
				return s.put("/Patient/"+id, fmt.Sprintf(`{"resourceType":"Patient","id":%q}`, id), "If-Match", `W/"9"`).status == 412
			}},
			{"fhir/system_history", "false", func(s *service) bool { return s.get("/_history").status == 404 }},
			{"validation/mode", `"off"`, func(s *service) bool {
				return s.post("/Observation", `{"resourceType":"Observation","status":"final"}`).status == 201
			}},
			{"server/max_body_bytes", "1024", func(s *service) bool {
				return s.post("/Basic", `{"resourceType":"Basic","code":{"text":"`+fmt.Sprintf("%02000d", 1)+`"}}`).status == 413
			}},
			{"server/allowed_origins", `["https://app.example.org"]`, func(s *service) bool {
				return s.get("/metadata", "Origin", "https://app.example.org").header.Get("Access-Control-Allow-Origin") == "https://app.example.org"
			}},
			{"terminology/enabled", "false", func(s *service) bool {
				return s.get("/ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/administrative-gender").status == 501
			}},
			{"search/explain", "true", func(s *service) bool { return s.get("/Patient?_explain=true").status == 200 }},
		} {
			put(a.in(t), "/admin/config/"+tt.key, tt.value).want(200).equal("source", "database")
			within(t, tt.key, func() bool { return tt.holds(a.in(t)) && tt.holds(b.in(t)) })
			a.in(t).do("DELETE", a.root("/admin/config/"+tt.key), "").want(200)
		}
	})
}

// Operations: flags are real switches, one value with the setting of the same thing.
// Contract, Operations: `GET`, `PUT` and `DELETE /admin/features/{flag}`: `enabled`, `percentage`, `clients`;
// a flag and a setting of one thing are one value.
func TestAdminFeatures(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	list := a.get(a.root("/admin/features")).want(200)
	for i := range len(list.json.([]any)) {
		at := strconv.Itoa(i) + "."
		if list.str(at+"name") == "" || list.str(at+"flag_type") != "boolean" || list.str(at+"description") == "" || list.str(at+"source") != "default" {
			t.Errorf("flag %v", list.at(strconv.Itoa(i)))
		}
	}
	a.get(a.root("/admin/features/search.explian")).issue(404, "not-found", "search.explain")
	a.get("/Patient?_explain=true").want(400)
	a.do("PUT", a.root("/admin/features/search.explain"), `{"enabled":true}`).want(200).equal("enabled", "true").equal("source", "database")
	within(t, "the flag on the other server", func() bool { return b.get("/Patient?_explain=true").status == 200 })
	b.get(b.root("/admin/config/search")).want(200).equal("explain", "true")
	a.do("PUT", a.root("/admin/features/search.explain"), `{"enabled":true,"clients":["somebody"]}`).want(200).equal("flag_type", "clients")
	a.get("/Patient?_explain=true").want(400)
	a.do("PUT", a.root("/admin/features/search.explain"), `{"enabled":true,"percentage":100}`).want(200).equal("flag_type", "percentage").equal("percentage", "100")
	a.get("/Patient?_explain=true").want(200)
	a.do("PUT", a.root("/admin/features/search.explain"), `{"enabled":true,"percentage":101}`).issue(400, "invalid")
	a.do("PUT", a.root("/admin/features/search.explain"), `{"enabled":true,"percentage":"half"}`).issue(400, "invalid", "percentage is JSON of kind string: expected number")
	a.do("PUT", a.root("/admin/features/search.explain"), `[]`).issue(400, "invalid", "JSON of kind array: expected object")
	a.do("PUT", a.root("/admin/features/search.explain"), `{}`).issue(400, "required")
	a.do("DELETE", a.root("/admin/features/search.explain"), "").want(200).equal("enabled", "false").equal("source", "default")
	within(t, "the default on the other server", func() bool { return b.get("/Patient?_explain=true").status == 400 })
	a.do("PUT", a.root("/admin/features/history.system"), `{"enabled":false}`).want(200)
	a.get("/_history").issue(404, "not-supported", "fhir.system_history")
	a.do("PUT", a.root("/admin/features/validation.skip"), `{"enabled":true}`).want(200)
	a.post("/Observation", `{"resourceType":"Observation","status":"final"}`, "X-Skip-Validation", "true").want(201)
}

// Operations, Rate limits: shared by all servers of a database.
// Contract, Operations: rate limits: headers on every limited answer, 429 `throttled` with `Retry-After`, by
// address without authorization.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	limit := func(c *server.Config) { c.Auth.RateLimiting.Requests = 10 }
	a, b := startOn(t, url, limit), startOn(t, url, limit)
	a.get("/metadata").want(200).has("X-RateLimit-Limit", "10").has("X-RateLimit-Remaining", "9")
	for range 9 {
		a.get("/Patient/x").want(404)
	}
	refused := a.get("/Patient/x").issue(429, "throttled")
	for _, h := range []string{"Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
		if _, err := strconv.ParseInt(refused.header.Get(h), 10, 64); err != nil {
			t.Errorf("%s is %q", h, refused.header.Get(h))
		}
	}
	b.get("/Patient/x") // it learns of the client
	within(t, "the other server limits too", func() bool { return b.get("/Patient/x").status == 429 })
	for range 20 {
		a.get(a.root("/health/live")).want(200).has("X-RateLimit-Limit", "")
		a.get(a.root("/metrics")).want(200).has("X-RateLimit-Limit", "")
	}
	a.do("OPTIONS", "/Patient", "", "Origin", "https://x.test", "Access-Control-Request-Method", "GET").want(204)
}

// Contract, Operations: `GET /admin/cache/stats`, `POST /admin/cache/clear`, `GET /admin/db/stats`, `GET
// /admin/servers`.
func TestAdminState(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	a.create(`{"resourceType":"Patient"}`)
	stats := a.get(a.root("/admin/db/stats")).want(200)
	for _, path := range []string{"pool.0.max", "version", "tables.0.name", "tables.0.bytes", "tables.0.indexes", "cache_hit_ratio", "schema_version", "oldest_transaction_seconds"} {
		if stats.at(path) == nil {
			t.Errorf("/admin/db/stats has no %s", path)
		}
	}
	within(t, "both servers are listed", func() bool { return len(a.get(a.root("/admin/servers")).want(200).json.([]any)) == 2 })
	a.get(a.root("/admin/servers")).equal("0.version", "test")
	b.stop()
	within(t, "one that has ended is not", func() bool { return len(a.get(a.root("/admin/servers")).want(200).json.([]any)) == 1 })
	a.get("/ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/administrative-gender").want(200)
	for range 2 {
		a.get("/Patient?_sort=_lastUpdated&_total=accurate").want(200)
	}
	cache := a.get(a.root("/admin/cache/stats")).want(200)
	for _, c := range []string{"query", "total", "token", "terminology", "definitions"} {
		for _, name := range []string{"hits", "misses", "hit_ratio", "size", "capacity", "bytes", "evictions"} {
			if cache.at(c+"."+name) == nil {
				t.Errorf("the cache %s has no %s\n%s", c, name, cache.body)
			}
		}
	}
	if cache.str("total.size") == "0" {
		t.Errorf("no total is remembered\n%s", cache.body)
	}
	a.post(a.root("/admin/cache/clear"), `{"caches":["total"]}`).want(200).equal("caches.0", "total")
	a.get(a.root("/admin/cache/stats")).want(200).equal("total.size", "0")
	a.post(a.root("/admin/cache/clear"), `{"caches":["nonsense"]}`).issue(404, "not-found")
	if all := a.post(a.root("/admin/cache/clear"), ``).want(200).equal("status", "cleared"); all.len("caches") != 5 {
		t.Errorf("cleared %v", all.at("caches"))
	}
}
