package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// remoteApp is an active App with one operation whose handler is given as JSON.
func remoteApp(id, kind, name, handler string) string {
	return fmt.Sprintf(`{"resourceType":"App","id":%q,"name":%q,"status":"active","version":"1.0.0","operations":[{"type":%q,"resourceType":"Patient","name":%q,"handler":%s}]}`, id, id, kind, name, handler)
}

// The contract, Apps section 3: http handlers.
func TestAppHTTP(t *testing.T) {
	type seen struct {
		method, uri string
		header      http.Header
		body        string
	}
	calls := make(chan seen, 10)
	stop := make(chan struct{})
	handler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch path := r.URL.Path; path {
		case "/resource":
			fmt.Fprint(w, `{"resourceType":"Patient","active":true}`)
		case "/created":
			w.WriteHeader(201)
			fmt.Fprint(w, `{"made":1}`)
		case "/empty":
			w.WriteHeader(204)
		case "/nofhir":
			fmt.Fprint(w, `{"resourceType":"Patient","colour":1}`)
		case "/nonsense":
			fmt.Fprint(w, `<html>`)
		case "/outcome":
			w.WriteHeader(409)
			fmt.Fprint(w, `{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"conflict","diagnostics":"taken"}]}`)
		case "/bad":
			w.WriteHeader(404)
			fmt.Fprint(w, `none`)
		case "/fails":
			w.WriteHeader(500)
		case "/redirects":
			http.Redirect(w, r, "/resource", http.StatusFound)
		case "/breaks":
			panic(http.ErrAbortHandler)
		case "/huge":
			chunk := strings.Repeat(" ", 1<<20)
			for range 17 {
				io.WriteString(w, chunk)
			}
			io.WriteString(w, "1")
		case "/switches":
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
			<-stop
		case "/slow":
			select {
			case <-stop:
			case <-r.Context().Done():
			}
		default:
			calls <- seen{r.Method, r.RequestURI, r.Header, string(body)}
			fmt.Fprint(w, `{"ok":true}`)
		}
	}))
	defer handler.Close()
	defer close(stop)
	s := start(t, func(c *server.Config) { c.Apps.TimeoutSeconds = 1 })
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)

	s.put("/App/post", remoteApp("post", "execute", "post", `{"type":"http","url":"`+handler.URL+`/post","headers":{"X-Own":"1"}}`)).want(201)
	s.post("/Patient/p/$post", `{"parameters":{"a":1.10}}`, "X-Request-Id", "r-1", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").
		want(200).equal("ok", "true").has("Content-Type", "application/json")
	c := <-calls
	for name, want := range map[string]string{"X-Own": "1", "X-App-Id": "post", "X-Operation": "post", "X-Resource-Type": "Patient", "X-Resource-Id": "p",
		"X-Request-Id": "r-1", "Content-Type": "application/json", "Authorization": ""} {
		if got := c.header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := c.header.Get("Traceparent"); !strings.HasPrefix(got, "00-0af7651916cd43dd8448eb211c80319c-") || !strings.HasSuffix(got, "-01") || strings.Contains(got, "b7ad6b7169203331") {
		t.Errorf("traceparent is %q", got)
	}
	var told struct {
		Operation, Type, ResourceID, RequestID string
		Resource                               struct{ ResourceType string }
		App                                    struct{ ID, Version string }
	}
	if err := json.Unmarshal([]byte(c.body), &told); err != nil || c.method != "POST" || told.Operation != "post" || told.Type != "execute" || told.ResourceID != "p" ||
		told.RequestID != "r-1" || told.Resource.ResourceType != "Patient" || told.App.Version != "1.0.0" || !strings.Contains(c.body, "1.10") {
		t.Errorf("%s %s %v", c.method, c.body, err)
	}

	s.put("/App/get", remoteApp("get", "search", "get", `{"type":"http","method":"GET","url":"`+handler.URL+`/v/{Type}/{name}?q={q}"}`)).want(201)
	s.get("/Patient/$get?name=a%2Fb%3Fc&q=x%26y%3D%231").want(200)
	if c = <-calls; c.method != "GET" || c.uri != "/v/Patient/a%2Fb%3Fc?q=x%26y%3D%231" || c.body != "" {
		t.Errorf("%s %s %q", c.method, c.uri, c.body)
	}
	s.get("/Patient/$get?q=1").issue(400, "required", "name")
	s.get("/Patient/$get?name=..&q=1").issue(400, "invalid", "..")

	for i, c := range []struct {
		path   string
		status int
		code   string
	}{
		{"nofhir", 502, "exception"}, {"nonsense", 502, "exception"}, {"outcome", 409, "conflict"}, {"bad", 422, "invalid"}, {"fails", 502, "exception"},
		{"redirects", 502, "exception"}, {"switches", 502, "exception"}, {"breaks", 502, "exception"}, {"huge", 502, "exception"}, {"slow", 504, "timeout"},
	} {
		id := fmt.Sprintf("f%d", i)
		s.put("/App/"+id, remoteApp(id, "execute", c.path, `{"type":"http","url":"`+handler.URL+"/"+c.path+`"}`)).want(201)
		s.post("/Patient/$"+c.path, "").issue(c.status, c.code)
	}
	for path, status := range map[string]int{"resource": 200, "created": 201, "empty": 204} {
		s.put("/App/"+path, remoteApp(path, "execute", path, `{"type":"http","url":"`+handler.URL+"/"+path+`"}`)).want(201)
		a := s.post("/Patient/$"+path, "").want(status)
		if path == "resource" {
			a.has("Content-Type", "application/fhir+json; charset=utf-8").equal("active", "true")
		}
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	s.put("/App/refused", remoteApp("refused", "execute", "refused", `{"type":"http","url":"`+gone.URL+`"}`)).want(201)
	s.post("/Patient/$refused", "").issue(502, "exception")
	s.put("/App/script", app("script", "active", "execute", "Patient", "through", "async () => { try { await fhir.operation('Patient/$outcome') } catch (e) { return e.message } }")).want(201)
	if a := s.post("/Patient/$through", "").want(200); !strings.Contains(string(a.body), "taken") {
		t.Errorf("a script catches %s", a.body)
	}
}

// The contract, Apps section 3: http handlers that are rejected when the App is written.
func TestAppHTTPIsChecked(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Notifications.Webhook.AllowPrivateNetworks = "false" })
	for _, c := range []struct{ handler, word string }{
		{`{"type":"http"}`, "url"},
		{`{"type":"http","url":"ftp://x/"}`, "http or https"},
		{`{"type":"http","url":"https://x.example:65536/"}`, "65535"},
		{`{"type":"http","url":"https://u:p@x.example/"}`, "user"},
		{`{"type":"http","url":"https://{host}/"}`, "url"},
		{`{"type":"http","url":"http://x.example/"}`, "allow_http"},
		{`{"type":"http","url":"https://10.0.0.1/"}`, "private"},
		{`{"type":"http","url":"https://[::ffff:127.0.0.1]/"}`, "loopback"},
		{`{"type":"http","url":"https://x.example/","method":"BREW"}`, "BREW"},
		{`{"type":"http","url":"https://x.example/","headers":{"Host":"y"}}`, "Host"},
		{`{"type":"http","url":"https://x.example/","headers":{"X-App-Id":"y"}}`, "X-App-Id"},
		{`{"type":"http","url":"https://x.example/","headers":{"X":"a\r\nY: b"}}`, "header"},
		{`{"type":"http","url":"https://x.example/","headers":{"X":"${env:KEY}"}}`, "secret"},
		{`{"type":"http","url":"https://x.example/","headers":{"X":"${secret:a b}"}}`, "secret"},
		{`{"type":"http","url":"https://x.example/","retryPolicy":{"maxRetries":-1}}`, "maxRetries"},
		{`{"type":"http","url":"https://x.example/","auth":"mine"}`, "mine"},
	} {
		if a := s.put("/App/a", remoteApp("a", "execute", "x", c.handler)); a.status != 422 || !strings.Contains(string(a.body), c.word) {
			t.Errorf("%s: %d %s, want 422 with %q", c.handler, a.status, a.body, c.word)
		}
	}
	// A name may resolve to loopback: the address that is dialled counts.
	s.put("/App/a", remoteApp("a", "execute", "x", `{"type":"http","url":"http://localhost:9/"}`)).want(201)
	s.post("/Patient/$x", "").issue(502, "exception")
}

// The contract, Apps section 3: auth caller sends the caller's token.
func TestAppHTTPAuth(t *testing.T) {
	tokens := make(chan string, 2)
	handler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens <- r.Header.Get("Authorization")
		fmt.Fprint(w, `1`)
	}))
	defer handler.Close()
	s := start(t)
	for auth, want := range map[string]string{"caller": "Bearer abc", "none": ""} {
		s.put("/App/"+auth, remoteApp(auth, "execute", auth, `{"type":"http","url":"`+handler.URL+`/","auth":"`+auth+`"}`)).want(201)
		s.post("/Patient/$"+auth, "", "Authorization", "Bearer abc").want(200)
		if got := <-tokens; got != want {
			t.Errorf("auth %s sends %q, want %q", auth, got, want)
		}
	}
}

// The contract, Apps section 3: internal handlers.
func TestAppInternal(t *testing.T) {
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","name":[{"family":"Kin"}]}`).want(201)
	s.put("/Observation/o", `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p"}}`).want(201)
	for kind, names := range map[string][]string{"read": {"everything", "fhirpath"}, "write": {"validate"}, "execute": {"fhirpath", "validate"}} {
		for _, name := range names {
			id := kind + "-" + name
			s.put("/App/"+id, remoteApp(id, kind, id, `{"type":"internal","url":"internal:`+name+`"}`)).want(201)
		}
	}
	s.get("/Patient/p/$read-everything").want(200).equal("resourceType", "Bundle").equal("total", "2")
	s.get("/Patient/p/$read-fhirpath?expression=name.family").want(200).equal("0", "Kin")
	s.post("/Patient/p/$execute-fhirpath", `{"parameters":{"expression":"name.exists()"}}`).want(200).equal("0", "true")
	s.post("/Patient/p/$execute-fhirpath", "").issue(400, "required", "expression")
	s.post("/Patient/$execute-fhirpath", `{"parameters":{"expression":"id"}}`).issue(400, "required", "resource")
	s.post("/Patient/p/$execute-validate", "").want(200).equal("resourceType", "OperationOutcome")
	s.post("/Patient/$write-validate", `{"resourceType":"Patient"}`).want(200).equal("resourceType", "OperationOutcome")
	s.put("/App/none", remoteApp("none", "execute", "none", `{"type":"internal","url":"internal:nothing"}`)).issue(422, "invalid", "internal:everything")
	s.get("/admin/apps/handlers").want(200).equal("handlers.0.name", "everything").equal("handlers.1.name", "fhirpath").equal("handlers.2.name", "notify").
		equal("handlers.3.name", "summary").equal("handlers.4.name", "validate")
}

// The contract, Apps section 3: "Same address rules as webhooks". They change at run time, on every server, for
// writes and for calls.
func TestAppHTTPRulesAtRunTime(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"a":1}`) }))
	t.Cleanup(web.Close)
	database := storetest.New(t)
	strict := func(c *server.Config) { c.Notifications.Webhook.AllowPrivateNetworks = "false" }
	a, b := startOn(t, database, strict), startOn(t, database, strict)
	local, plain := remoteApp("local", "execute", "local", `{"type":"http","url":"`+web.URL+`"}`), remoteApp("plain", "execute", "plain", `{"type":"http","url":"http://receiver.example/"}`)
	a.put("/App/local", local).want(422)
	a.put("/App/plain", plain).want(422)
	a.set("config/notifications/webhook.allow_private_networks", `{"value":"true"}`)
	a.set("config/notifications/webhook.allow_http", `{"value":true}`)
	a.put("/App/local", local).want(201)
	a.put("/App/plain", plain).want(201)
	soon(t, "both servers call it", func() bool {
		return a.post("/Patient/$local", "").status == 200 && b.post("/Patient/$local", "").status == 200
	})
	b.set("config/notifications/webhook.allow_http", `{"value":false}`)
	b.set("config/notifications/webhook.allow_private_networks", `{"value":"false"}`)
	for _, s := range []*service{a, b} {
		soon(t, "neither server calls it", func() bool { return s.post("/Patient/$local", "").status == 502 })
		soon(t, "http is refused", func() bool {
			c := s.post("/Patient/$plain", "")
			return c.status == 502 && strings.Contains(string(c.body), "allow_http")
		})
	}
	b.put("/App/local", local).want(422)
	b.set("config/notifications/webhook.allow_private_networks", `{"value":"true"}`)
	soon(t, "it is called again", func() bool { return b.post("/Patient/$local", "").status == 200 })
}
