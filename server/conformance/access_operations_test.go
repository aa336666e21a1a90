package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"kiln/server"
)

// The access matrix of TestAccessMatrix for every path that is no interaction on a
// resource: operations, packages, streams of events, administration.

// adminPaths are asked with the scope admin, and with nothing less. Where a body is
// needed, an administrator's request fails for its body, and never for its rights.
var adminPaths = []struct{ method, path, body string }{
	{"GET", "/$packages", ""},
	{"POST", "/$install-package", "nonsense"},
	{"POST", "/$remove-package?name=nowhere", ""},
	{"GET", "/$reindex", ""},
	{"POST", "/$reindex", `{"resourceType":"Parameters","parameter":[{"name":"type","valueCode":"Nonsense"}]}`},
	{"POST", "/SearchParameter", `{"resourceType":"SearchParameter"}`},
	{"PUT", "/SearchParameter/mine", `{"resourceType":"SearchParameter","id":"mine"}`},
	{"PATCH", "/SearchParameter/own", `[]`},
	{"DELETE", "/SearchParameter/nowhere", ""},
	{"GET", "/App", ""},
	{"GET", "/App?status=active", ""},
	{"POST", "/App/_search", "status=active"},
	{"GET", "/App/probe", ""},
	{"GET", "/App/nowhere", ""},
	{"GET", "/App/probe/_history", ""},
	{"GET", "/App/probe/_history/1", ""},
	{"GET", "/App/_history", ""},
	{"GET", "/App/probe/$meta", ""},
	{"GET", "/App/probe/$log", ""},
	{"POST", "/App", `{"resourceType":"App"}`},
	{"PUT", "/App/other", `{"resourceType":"App","id":"other"}`},
	{"PATCH", "/App/probe", `[]`},
	{"DELETE", "/App/nowhere", ""},
	{"POST", "/Observation/lab-alpha/$notify", `{}`},
	{"POST", "/Patient/nowhere/$notify", `{}`},
	{"GET", "!/metrics", ""},
	{"GET", "!/admin/cache/stats", ""},
	{"POST", "!/admin/cache/clear", `{"caches":["nonsense"]}`},
	{"GET", "!/admin/config", ""},
	{"GET", "!/admin/config/search", ""},
	{"GET", "!/admin/config/search/default_count", ""},
	{"PUT", "!/admin/config/search/default_count", `{"value":"nonsense"}`},
	{"DELETE", "!/admin/config/search/nonsense", ""},
	{"GET", "!/admin/features", ""},
	{"GET", "!/admin/features/search.explain", ""},
	{"PUT", "!/admin/features/nonsense", `{"enabled":true}`},
	{"DELETE", "!/admin/features/nonsense", ""},
	{"GET", "!/admin/db/stats", ""},
	{"GET", "!/admin/servers", ""},
	{"GET", "!/admin/searches", ""},
	{"GET", "!/admin/indexes/suggestions", ""},
	{"POST", "!/admin/indexes/suggestions/nowhere/apply", ""},
	{"GET", "!/admin/indexes/sort", ""},
	{"PUT", "!/admin/indexes/sort/Patient/nowhere", ""},
	{"DELETE", "!/admin/indexes/sort/Patient/nowhere", ""},
	{"GET", "!/admin/jobs", ""},
	{"GET", "!/admin/jobs/nowhere", ""},
	{"DELETE", "!/admin/jobs/nowhere", ""},
	{"GET", "!/admin/policies", ""},
	{"POST", "!/admin/policies", `{}`},
	{"GET", "!/admin/policies/nowhere", ""},
	{"PUT", "!/admin/policies/nowhere", `{}`},
	{"DELETE", "!/admin/policies/nowhere", ""},
	{"GET", "!/admin/notifications/deliveries", ""},
	{"GET", "!/admin/notifications/deliveries/nowhere", ""},
	{"POST", "!/admin/notifications/deliveries/nowhere/redeliver", ""},
	{"POST", "!/admin/notifications/dead-letters/redeliver?subscription=nowhere", ""},
	{"GET", "!/admin/apps/handlers", ""},
	{"GET", "!/admin/apps/probe/grants", ""},
	{"POST", "!/admin/apps/nowhere/grants", `{"scopes":[]}`},
	{"PUT", "!/admin/apps/nowhere/secrets/x", `{"value":"x"}`},
	{"GET", "!/admin/nowhere", ""},
	{"GET", "!/debug/pprof/", ""},
}

// tokenPaths are answered to every valid token: codes and profiles are nobody's secret.
var tokenPaths = []struct{ method, path, body string }{
	{"GET", "/ValueSet/$expand?url=http://x/shade-set", ""},
	{"GET", "/ValueSet/$validate-code?url=http://x/shade-set&system=http://x/colours&code=red", ""},
	{"GET", "/CodeSystem/$validate-code?url=http://x/colours&code=red", ""},
	{"GET", "/CodeSystem/$lookup?system=http://x/colours&code=pink", ""},
	{"GET", "/CodeSystem/$subsumes?system=http://x/colours&codeA=red&codeB=pink", ""},
	{"GET", "/ConceptMap/$translate?url=http://x/shades&system=http://x/colours&code=red", ""},
	{"POST", "/ValueSet/$expand", `{"resourceType":"Parameters","parameter":[{"name":"url","valueUri":"http://x/shade-set"}]}`},
	{"POST", "/Observation/$validate", `{"resourceType":"Observation","status":"final","code":{"text":"x"}}`},
	{"POST", "/Patient/$validate", `{"resourceType":"Patient"}`},
}

// Contract, Authorization 1: /metrics a token with metrics or admin, /admin/* an admin token; Authorization 4: admin
// is the scope of management endpoints, App, SearchParameter writes, $reindex, packages;
// operations: $validate, terminology, App operations.
func TestAccessMatrixOfOperations(t *testing.T) {
	t.Parallel()
	s := authorized(t, func(c *server.Config) { c.Server.Pprof = true })
	all := storeRecords(t, s)
	boss := s.as(claims{Subject: "boss", Client: "console", Scope: "admin system/*.cruds", Roles: []string{"admin"}})
	boss.stores(colours, shades, `{"resourceType":"ValueSet","id":"shade-set","url":"http://x/shade-set","status":"active","compose":{"include":[{"system":"http://x/colours"}]}}`,
		parameter("own", "own", "string", "Patient", "Patient.name.family"))
	var operations []string
	types := []string{"Condition", "Device", "Observation", "Organization", "Patient"}
	for _, typ := range types {
		operations = append(operations,
			fmt.Sprintf(`{"type":"read","resourceType":%q,"name":"peek","handler":{"type":"internal","url":"internal:fhirpath?expression=id"}}`, typ),
			fmt.Sprintf(`{"type":"execute","affectsState":false,"resourceType":%q,"name":"look","handler":{"type":"internal","url":"internal:fhirpath?expression=id"}}`, typ),
			fmt.Sprintf(`{"type":"execute","resourceType":%q,"name":"change","handler":{"type":"internal","url":"internal:fhirpath?expression=id"}}`, typ))
	}
	boss.put("/App/probe", `{"resourceType":"App","id":"probe","name":"probe","status":"active","operations":[`+strings.Join(operations, ",")+`]}`).want(201)

	at := func(s *service, path string) string {
		if rest, ok := strings.CutPrefix(path, "!"); ok {
			return s.server() + rest
		}
		return path
	}
	headers := func(method, path string) []string {
		switch {
		case strings.HasSuffix(path, "/_search"):
			return []string{"Content-Type", "application/x-www-form-urlencoded"}
		case strings.HasSuffix(path, "$install-package"):
			return []string{"Content-Type", "application/gzip"}
		case method == "PATCH":
			return []string{"Content-Type", "application/json-patch+json"}
		}
		return nil
	}
	s.do("GET", at(s, "!/admin/nowhere"), "").want(401)
	for _, p := range slices.Concat(adminPaths, tokenPaths) {
		if a := s.do(p.method, at(s, p.path), p.body, headers(p.method, p.path)...); a.status != 401 {
			t.Errorf("%s without a token: %d", a.what, a.status)
		}
	}
	list := append(holders(), holder{name: "system, everything", claims: systemClient("system/*.cruds"), grants: []grant{{"cruds", "", "", ""}}},
		holder{name: "admin of everything", claims: claims{Subject: "boss", Client: "console", Scope: "admin system/*.cruds"}, grants: []grant{{"cruds", "", "", ""}}},
		holder{name: "no data at all", claims: systemClient("launch/context")})
	for _, h := range list {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := s.in(t).as(h.claims)
			admin := slices.Contains(strings.Fields(h.Scope), "admin")
			for _, p := range adminPaths {
				a := s.do(p.method, at(s, p.path), p.body, headers(p.method, p.path)...)
				switch {
				case admin && (a.status == 401 || a.status == 403 || a.status >= 500):
					t.Errorf("%s: %d %s", a.what, a.status, clip(a.body))
				case !admin && a.status != 403:
					t.Errorf("%s: %d, want 403 %s", a.what, a.status, clip(a.body))
				case !admin:
					scope := "admin"
					if p.path == "!/metrics" {
						scope = "metrics"
					}
					a.has("WWW-Authenticate", `Bearer error="insufficient_scope", scope="`+scope+`"`)
				}
			}
			for _, p := range tokenPaths {
				s.do(p.method, p.path, p.body).want(200)
			}
			for _, r := range all {
				body, _ := json.Marshal(r.fields)
				instance := func(method, operation, body string, letter string) {
					t.Helper()
					a := s.do(method, "/"+r.name()+"/"+operation, body)
					switch {
					case !h.covers(letter, r.typ):
						a.issue(403, "forbidden", r.typ+"."+letter)
					case h.sees("r", r):
						a.want(200)
					default:
						a.issue(404, "not-found")
					}
				}
				// Everybody may validate a resource that is sent; a stored one only if it is readable.
				s.post("/"+r.name()+"/$validate", string(body)).want(200)
				instance("GET", "$validate", "", "r")
				s.sameAsAbsent("/"+r.name()+"/$validate?mode=delete", "/"+r.typ+"/nowhere/$validate?mode=delete", r.id, "nowhere")
				if slices.Contains(types, r.typ) {
					instance("GET", "$peek", "", "r")
					instance("POST", "$look", "", "r")
					instance("POST", "$change", "", "u")
				}
			}
			// Only types of readable and searchable resources are in use.
			for _, typ := range types {
				a := s.get("/" + typ + "/$meta")
				if !h.covers("s", typ) {
					a.issue(403, "forbidden", typ+".s")
					continue
				}
				for _, p := range []string{"alpha", "bravo"} {
					found := slices.ContainsFunc(all, func(r *resource) bool {
						return r.typ == typ && strings.HasSuffix(r.id, p) && r.fields["meta"] != nil && h.sees("s", r) && h.sees("r", r)
					})
					if told := strings.Contains(string(a.want(200).body), `"tag-`+p+`"`); told != found {
						t.Errorf("%s tells the tag of %s: %v, want %v\n%s", a.what, p, told, found, clip(a.body))
					}
				}
			}
		})
	}
}

// Streams and the history of events contain only readable resources, live and replayed, over server-sent events and
// WebSockets.
// Contract, Notifications 6; Specification, Authentication 12.
func TestAccessMatrixOfEvents(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	all := storeRecords(t, s)
	const begin = "2000-01-01T00:00:00Z"
	// Two more rounds of everything are written while the streams are open. After the events of the last round, all events
	// of earlier rounds have been decided.
	rounds := [][]*resource{all}
	for _, suffix := range []string{"-then", "-last"} {
		var more []*resource
		for _, r := range all {
			fields := map[string]any{}
			for k, v := range r.fields {
				fields[k] = v
			}
			fields["id"] = r.id + suffix
			more = append(more, &resource{r.typ, r.id + suffix, fields})
		}
		rounds = append(rounds, more)
	}
	types := []string{"Binary", "Condition", "Device", "List", "Observation", "Patient", "Practitioner", "Task"}
	type open struct {
		h    holder
		what string
		typ  string // "" for every type
		next func() string
	}
	var streams []open
	for _, h := range holders() {
		s := s.as(h.claims)
		bearer := "token=" + strings.TrimPrefix(s.token, "Bearer ")
		sees := func(typ string) bool {
			return slices.ContainsFunc(all, func(r *resource) bool { return (typ == "" || r.typ == typ) && h.sees("r", r) })
		}
		if e := s.stream(s.server()+"/notifications/events?_since="+begin, "Authorization", s.token); e.resp.StatusCode != 200 {
			t.Errorf("%s: /notifications/events: %d", h.name, e.resp.StatusCode)
		} else if sees("") {
			streams = append(streams, open{h, "events", "", func() string { return e.next().data }})
		} else {
			e.close()
		}
		conn, response, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws?"+bearer, nil)
		if err != nil {
			t.Fatalf("%s: %v %v", h.name, err, response)
		}
		t.Cleanup(func() { conn.Close() })
		socket := &ws{t, conn}
		for _, typ := range types {
			allowed := h.covers("r", typ) && h.covers("s", typ)
			e := s.stream("/" + typ + "/$events?_since=" + begin + "&" + bearer)
			if want := map[bool]int{true: 200, false: 403}[allowed]; e.resp.StatusCode != want {
				t.Errorf("%s: /%s/$events: %d, want %d", h.name, typ, e.resp.StatusCode, want)
			} else if allowed && sees(typ) {
				streams = append(streams, open{h, "$events", typ, func() string { return e.next().data }})
			} else {
				e.close()
			}
			socket.send(`{"type":"subscribe","resourceType":"` + typ + `","ref":"` + typ + `","since":"` + begin + `"}`)
			if m := socket.reply(typ); (m["type"] == "subscribed") != allowed || !allowed && m["code"] != "forbidden" {
				t.Errorf("%s: subscribe to %s: %v", h.name, typ, m)
			}
			if slices.ContainsFunc(all, func(r *resource) bool { return r.typ == typ && h.sees("r", r) }) && allowed && typ == "Observation" {
				// One WebSocket for each holder listens to one type: the others would mix.
				one := s.socket("?" + bearer)
				one.send(`{"type":"subscribe","resourceType":"` + typ + `","since":"` + begin + `"}`)
				streams = append(streams, open{h, "WebSocket", typ, one.text})
			}
		}
		conn.Close()
	}
	writer := s.as(systemClient("system/*.cruds"))
	for _, round := range rounds[1:] {
		var entries []string
		for _, r := range round {
			body, _ := json.Marshal(r.fields)
			entries = append(entries, entry("PUT", r.name(), "", string(body)))
		}
		writer.post("/", bundle("batch", entries...)).want(200)
	}
	visible := func(h holder, typ string, round []*resource) map[string]bool {
		set := map[string]bool{}
		for _, r := range round {
			if (typ == "" || r.typ == typ) && h.sees("r", r) {
				set[r.name()] = true
			}
		}
		return set
	}
	for _, o := range streams {
		allowed, last := map[string]bool{}, visible(o.h, o.typ, rounds[len(rounds)-1])
		for _, round := range rounds {
			for name := range visible(o.h, o.typ, round) {
				allowed[name] = true
			}
		}
		seen := map[string]bool{}
		for len(last) > 0 {
			text := o.next()
			var m struct{ ResourceType, ResourceID, Type string }
			if err := json.Unmarshal([]byte(text), &m); err != nil {
				t.Fatalf("%s: %s %s: %v", o.h.name, o.what, text, err)
			}
			if m.Type == "subscribed" {
				continue
			}
			name := m.ResourceType + "/" + m.ResourceID
			if !allowed[name] {
				t.Fatalf("%s: %s %s tells of %s", o.h.name, o.what, o.typ, name)
			}
			seen[name] = true
			delete(last, name)
		}
		if len(seen) != len(allowed) {
			t.Errorf("%s: %s %s tells of %d resources, want %d", o.h.name, o.what, o.typ, len(seen), len(allowed))
		}
	}
	// The past, by pages.
	for _, h := range holders() {
		s := s.as(h.claims)
		for _, typ := range types {
			a := s.get("/" + typ + "/$events-history?_count=200")
			if !h.covers("r", typ) || !h.covers("s", typ) {
				a.issue(403, "forbidden")
				continue
			}
			var want []string
			for _, round := range rounds {
				for name := range visible(h, typ, round) {
					want = append(want, name)
				}
			}
			slices.Sort(want)
			var found []string
			for i := range a.want(200).len("entry") {
				at := fmt.Sprintf("entry.%d.resource.", i)
				found = append(found, a.str(at+"resourceType")+"/"+a.str(at+"id"))
			}
			slices.Sort(found)
			if !slices.Equal(found, want) {
				t.Errorf("%s: %s tells of %v, want %v", h.name, a.what, found, want)
			}
			// A search of the stream is blind too.
			a = s.get("/Observation/$events-history?_count=200&" + url.Values{"subject:Patient.name": {"name-bravo"}}.Encode())
			if a.status != http.StatusOK && a.status != http.StatusForbidden {
				t.Errorf("%s: %s: %d", h.name, a.what, a.status)
			}
		}
	}
}

// reply is the answer to a message with ref; replayed messages in between are skipped.
func (w *ws) reply(ref string) map[string]any {
	w.t.Helper()
	for {
		if m := w.json(); m["ref"] == ref {
			return m
		}
	}
}
