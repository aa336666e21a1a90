package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Each command of kiln admin asks its endpoint.
// Contract, Operations: every endpoint of the table with `kiln admin …`.
func TestAdminCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ command, want string }{
		{"config list", "GET /admin/config "},
		{"config get search", "GET /admin/config/search "},
		{"config set search.default_count 5", `PUT /admin/config/search/default_count {"value":5}`},
		{"config set log.level debug", `PUT /admin/config/log/level {"value":"debug"}`},
		{"config set auth.rate_limiting.requests_per_minute 9", `PUT /admin/config/auth/rate_limiting.requests_per_minute {"value":9}`},
		{"config reset search.default_count", "DELETE /admin/config/search/default_count "},
		{"features list", "GET /admin/features "},
		{"features enable search.explain", `PUT /admin/features/search.explain {"enabled":true}`},
		{"features enable search.explain --percentage 25", `PUT /admin/features/search.explain {"enabled":true,"percentage":25}`},
		{"features enable search.explain --percentage 0 --client a --client b", `PUT /admin/features/search.explain {"clients":["a","b"],"enabled":true,"percentage":0}`},
		{"features get search.explain", "GET /admin/features/search.explain "},
		{"features disable search.explain", `PUT /admin/features/search.explain {"enabled":false}`},
		{"features reset search.explain", "DELETE /admin/features/search.explain "},
		{"cache stats", "GET /admin/cache/stats "},
		{"cache clear terminology", `POST /admin/cache/clear {"caches":["terminology"]}`},
		{"db stats", "GET /admin/db/stats "},
		{"servers", "GET /admin/servers "},
		{"searches", "GET /admin/searches "},
		{"indexes suggestions", "GET /admin/indexes/suggestions "},
		{"indexes apply x1", "POST /admin/indexes/suggestions/x1/apply "},
		{"indexes list", "GET /admin/indexes/sort "},
		{"indexes sort Observation code", "PUT /admin/indexes/sort/Observation/code "},
		{"indexes unsort Observation code", "DELETE /admin/indexes/sort/Observation/code "},
		{"jobs list", "GET /admin/jobs "},
		{"jobs get reindex-1", "GET /admin/jobs/reindex-1 "},
		{"jobs cancel reindex-1", "DELETE /admin/jobs/reindex-1 "},
	} {
		t.Run(tt.command, func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 1)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				got <- r.Method + " " + r.URL.Path + " " + string(body)
				if r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("the token is %q", r.Header.Get("Authorization"))
				}
				io.WriteString(w, `{"ok":true}`)
			}))
			defer s.Close()
			var out bytes.Buffer
			c := root()
			c.SetOut(&out)
			c.SetArgs(append(append([]string{"admin"}, strings.Fields(tt.command)...), "--server", s.URL, "--token", "secret"))
			if err := c.Execute(); err != nil {
				t.Fatal(err)
			}
			if g := <-got; g != tt.want {
				t.Errorf("asked %q, want %q", g, tt.want)
			}
			if !strings.Contains(out.String(), `"ok": true`) {
				t.Errorf("printed %q", out.String())
			}
		})
	}
}
