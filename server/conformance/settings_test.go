package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/settings"
	"kiln/server/store/storetest"
)

// otherValue is a value of a key that is not its default, "" where none can be told by
// the type alone.
func otherValue(key string, now any) string {
	special := map[string]string{
		"log.level": `"debug"`, "log.format": `"json"`, "log.access": `"off"`, "validation.mode": `"structure"`, "fhir.version": `"4.0.1"`,
		"fhir.version_conflict_status": `412`, "audit.rest": `"writes"`, "server.base_url": `"https://fhir.example.org/fhir"`, "server.listen": `"127.0.0.1:1"`, "server.metrics_listen": `"127.0.0.1:2"`,
		"server.trusted_proxies": `["10.0.0.0/8"]`, "server.allowed_origins": `["https://app.example.org"]`, "terminology.server_url": `"http://127.0.0.1:1/fhir"`,
		"telemetry.otlp_endpoint": `"http://127.0.0.1:1"`, "telemetry.sample_ratio": `0.5`, "search.default_count": `7`, "search.max_count": `100`,
		"auth.rate_limiting.lockout_duration": `"7m"`, "auth.oauth.access_token_lifetime": `"2h"`, "auth.oauth.refresh_token_lifetime": `"9d"`,
		"auth.oauth.grant_types": `["client_credentials"]`, "auth.smart.supported_scopes": `["openid"]`, "auth.signing.algorithm": `"ES384"`,
		"auth.issuer": `"https://auth.example.org"`, "auth.enabled": `true`, "notifications.webhook.retry_backoff_seconds": `[1,2]`,
		"notifications.webhook.allow_private_networks": `"true"`, "bulk.s3.presign": `"2h"`, "bulk.s3.endpoint": `"https://s3.example.org"`, "bulk.s3.bucket": ``, "bulk.import.allow_private_networks": `"true"`, "bulk.import.sources": `["https://data.example/"]`, "notifications.webhook.signing_secret": `"a-secret-that-is-long-enough-for-a-key"`,
		"auth.pages.colour": `"#123456"`, "jobs.lease": `"11s"`, "jobs.retention": `"25h"`, "bulk.snapshot_wait": `"61s"`, "console.idle_timeout": `"31m"`, "console.session_lifetime": `"13h"`, "views.stall_timeout": `"61s"`, "views.timeout": `"11m"`, "views.sql.timeout": `"31s"`,
		"auth.signing.encryption_key": ``, "server.tls.cert_file": ``, "server.tls.key_file": ``, "server.tls.client_ca_file": ``,
	}
	if strings.Contains(key, "requests_per_") || strings.Contains(key, ".concurrent_") {
		return "100000" // this test makes some
	}
	if v, ok := special[key]; ok {
		return v
	}
	switch v := now.(type) {
	case bool:
		return fmt.Sprint(!v)
	case json.Number:
		n, err := v.Int64()
		if err != nil {
			return ""
		}
		return fmt.Sprint(n + 3)
	case string:
		return `"changed"`
	}
	return ""
}

// Operations: every key that can change at run time is changed on one of two servers
// and seen on the other within a second, and taken back; each flag likewise.
// Contract, Operations: `PUT /admin/config`, `PUT /admin/features`: effective at once on every server; the
// flags are real switches of real behaviour.
func TestEveryKeyAndFlag(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	logo := filepath.Join(t.TempDir(), "logo.svg")
	if err := os.WriteFile(logo, []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), 0o644); err != nil {
		t.Fatal(err)
	}
	var all []settings.Entry
	if err := json.Unmarshal(a.get(a.root("/admin/config")).want(200).body, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != len(settings.Keys[server.Config]()) {
		t.Errorf("%d entries of %d keys", len(all), len(settings.Keys[server.Config]()))
	}
	path := func(key string) string { return "/admin/config/" + strings.Replace(key, ".", "/", 1) }
	type state struct{ was, is any }
	changed := make(map[string]state)
	for _, e := range all {
		was := a.get(a.root(path(e.Key))).want(200)
		to := otherValue(e.Key, was.at("value"))
		if e.Key == "auth.pages.logo" { // the value must name an image
			to = strconv.Quote(logo)
		}
		if to == "" {
			continue
		}
		if slices.Contains([]string{"database.url", "database.data_dir", "database.wait_seconds"}, e.Key) {
			a.put(a.root(path(e.Key)), to).issue(400, "invalid", "leads to the database")
			continue
		}
		put := a.put(a.root(path(e.Key)), `{"value":`+to+`}`)
		if put.status == 400 && e.Restart {
			continue // with which this server could not start again
		}
		put.want(200).equal("key", e.Key).equal("source", "database")
		x := state{was.at("value"), put.at("value")}
		if reflect.DeepEqual(x.was, x.is) && !e.Secret {
			t.Errorf("%s is still %v", e.Key, x.is)
		}
		changed[e.Key] = x
	}
	seen := func(s *service, want func(state) any) func() bool {
		return func() bool {
			list := s.get(s.root("/admin/config"))
			for i := range len(list.json.([]any)) {
				at := fmt.Sprintf("%d.", i)
				if x, ok := changed[list.str(at+"key")]; ok && !reflect.DeepEqual(list.at(at+"value"), want(x)) {
					return false
				}
			}
			return true
		}
	}
	within(t, "every key on the other server", seen(b, func(x state) any { return x.is }))
	for key, x := range changed {
		back := a.do("DELETE", a.root(path(key)), "").want(200)
		if !reflect.DeepEqual(back.at("value"), x.was) || back.str("source") == "database" {
			t.Errorf("%s was taken back to %v from %v, want %v", key, back.at("value"), back.str("source"), x.was)
		}
	}
	within(t, "every key back on the other server", seen(b, func(x state) any { return x.was }))
	if len(changed) < 70 {
		t.Errorf("only %d keys were changed", len(changed))
	}
	want := []string{"search.explain", "terminology.external", "validation.skip", "notifications", "notifications.websocket", "notifications.sse",
		"notifications.webhook", "apps", "apps.javascript", "auth.dynamic_registration", "history.system"}
	for _, flag := range want {
		was := a.get(a.root("/admin/features/"+flag)).want(200).equal("name", flag).str("enabled")
		to := map[string]string{"true": "false", "false": "true"}[was]
		a.put(a.root("/admin/features/"+flag), `{"enabled":`+to+`}`).want(200).equal("enabled", to).equal("source", "database")
		within(t, flag+" on the other server", func() bool { return b.get(b.root("/admin/features/"+flag)).str("enabled") == to })
		a.do("DELETE", a.root("/admin/features/"+flag), "").want(200).equal("enabled", was)
		within(t, flag+" back on the other server", func() bool { return b.get(b.root("/admin/features/"+flag)).str("enabled") == was })
	}
}

// A key that is true, false or auto takes JSON booleans and strings, and is shown as a boolean
// where it is one.
// Contract, Operations: `PUT /admin/config`: `{value}` or a bare value, checked like the file.
func TestBooleanOrAuto(t *testing.T) {
	t.Parallel()
	s := start(t)
	path := s.root("/admin/config/notifications/webhook.allow_private_networks")
	is := func(a *answer, want any) {
		t.Helper()
		if got := a.want(200).at("value"); got != want {
			t.Errorf("the value is %v (%T), want %v", got, got, want)
		}
	}
	is(s.get(path), "auto")
	for body, want := range map[string]any{
		`{"value":true}`: true, `{"value":"true"}`: true, `{"value":"1"}`: true, `true`: true,
		`{"value":false}`: false, `{"value":"false"}`: false, `{"value":"0"}`: false, `{"value":"auto"}`: "auto", `"auto"`: "auto",
	} {
		is(s.put(path, body), want)
		is(s.get(path), want)
	}
	for _, body := range []string{`{"value":null}`, `{"value":1}`, `{"value":"yes"}`, `{"value":[true]}`} {
		s.put(path, body).issue(400, "invalid", "expected true, false or auto")
	}
	is(s.do("DELETE", path, ""), "auto")
}

// Operations: server.listen and what of database.* can be kept in the database holds
// when the server starts again.
// Contract, Operations: `PUT /admin/config`: `restart_required` keys take effect at the next start.
func TestDatabaseSettingsAtStart(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a := startOn(t, url)
	max := func(s *service) string { return s.get(s.root("/admin/db/stats")).want(200).str("pool.0.max") }
	before := max(a)
	a.put(a.root("/admin/config/database/max_connections"), `17`).want(200).equal("restart_required", "true")
	time.Sleep(300 * time.Millisecond) // it is not to happen at once
	if now := max(a); now != before {
		t.Errorf("the pool went from %s to %s connections at once", before, now)
	}
	a.stop()
	b := startOn(t, url)
	if now := max(b); now != "17" {
		t.Errorf("the pool has %s connections after the restart, want 17", now)
	}
}

// Contract, Operations: `PUT /admin/config`: the entry in force; effective at once on every server. A value that is only
// usable beside another one in the database takes effect, in any order of their names.
func TestSettingsThatNeedEachOther(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	a.put(a.root("/admin/config/search/max_count"), `5000`).want(200).equal("value", "5000")
	a.put(a.root("/admin/config/search/default_count"), `3000`).want(200).equal("value", "3000").equal("source", "database")
	within(t, "both on the other server", func() bool {
		at := b.get(b.root("/admin/config/search"))
		return at.str("max_count") == "5000" && at.str("default_count") == "3000"
	})
	c := startOn(t, url)
	c.get(c.root("/admin/config/search")).want(200).equal("max_count", "5000").equal("default_count", "3000")
	a.do("DELETE", a.root("/admin/config/search/max_count"), "").want(200).equal("value", "1000").equal("source", "default")
	// A file of TLS is looked at before its name is taken.
	a.put(a.root("/admin/config/search/default_count"), `1001`).want(400)
}

// Contract, Operations: `GET /admin/config`: secrets are masked, the passwords of URLs too.
func TestPasswordsOfSettingsAreMasked(t *testing.T) {
	t.Parallel()
	s := start(t)
	for key, value := range map[string]string{"telemetry/otlp_endpoint": "http://kiln:hunter2@127.0.0.1:1", "terminology/server_url": "http://kiln:hunter2@127.0.0.1:1/fhir"} {
		path := s.root("/admin/config/" + key)
		shown := strings.Replace(value, "hunter2", "xxxxx", 1)
		if a := s.put(path, `"`+value+`"`).want(200).equal("value", shown); strings.Contains(string(a.body), "hunter2") {
			t.Errorf("PUT %s: %s", key, a.body)
		}
		if a := s.get(path).want(200).equal("value", shown); strings.Contains(string(a.body), "hunter2") {
			t.Errorf("GET %s: %s", key, a.body)
		}
	}
	if a := s.get(s.root("/admin/config")).want(200); strings.Contains(string(a.body), "hunter2") {
		t.Errorf("GET /admin/config: %s", a.body)
	}
}
