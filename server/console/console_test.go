package console_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// site is a server with its console.
type site struct {
	t    *testing.T
	base string
	stop func()
}

const password = "correct horse battery"

// start runs a server on a database, "" for a new one.
func start(t *testing.T, database string, change ...func(*server.Config)) *site {
	t.Helper()
	if database == "" {
		database = storetest.New(t)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.Default()
	cfg.Database.URL, cfg.Server.Listen, cfg.Bulk.Directory = database, l.Addr().String(), t.TempDir()
	for _, c := range change {
		c(&cfg)
	}
	s, err := server.New(context.Background(), cfg, server.Options{Version: "test", Sandbox: []string{os.Args[0], "sandbox-worker"}, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		t.Fatalf("start the server: %v", err)
	}
	web := &httptest.Server{Listener: l, Config: &http.Server{Handler: s.Handler}}
	web.Start()
	stop := sync.OnceFunc(func() {
		web.Close()
		s.Close()
	})
	t.Cleanup(stop)
	return &site{t, web.URL, stop}
}

// withAuthorization makes a server ask people to sign in: an administrator, a doctor, and a patient.
func withAuthorization(c *server.Config) {
	c.Auth.Enabled = true
	c.Auth.Signing.Algorithm = "ES384" // made in no time
	c.Auth.RateLimiting.Auth, c.Auth.RateLimiting.Token = 0, 0
	c.Auth.Bootstrap.Users = []map[string]any{
		{"username": "admin", "password": password, "name": "Ada Admin", "roles": []any{"admin"}},
		{"username": "doctor", "password": password, "name": "Dr. Grace Doctor", "fhirUser": "Practitioner/dr"},
		{"username": "anna", "password": password, "name": "Anna", "fhirUser": "Patient/a"},
	}
	c.Auth.Bootstrap.Clients = []map[string]any{
		{"clientId": "app", "name": "Growth Chart", "redirectUris": []any{"https://app.example.org/cb"}, "scopes": []any{"launch/patient patient/*.rs"}},
	}
}

// put stores a resource.
func (s *site) put(name, body string) {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodPut, s.base+"/"+name, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/fhir+json")
	w, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Body.Close()
	if b, _ := io.ReadAll(w.Body); w.StatusCode >= 300 {
		s.t.Fatalf("PUT %s: %d %s", name, w.StatusCode, b)
	}
}

// records stores the records of two patients.
func (s *site) records() {
	s.t.Helper()
	s.put("Practitioner/dr", `{"resourceType":"Practitioner","id":"dr","name":[{"family":"Doctor","given":["Grace"]}]}`)
	for _, p := range []string{"a", "b"} {
		s.put("Patient/"+p, `{"resourceType":"Patient","id":"`+p+`","text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\"><p id=\"x\" class=\"y\">Record of `+p+`</p></div>"},"identifier":[{"system":"urn:mrn","value":"mrn-`+p+`"}],"name":[{"family":"Ashford","given":["`+p+`na"]}],"gender":"female","birthDate":"2001-04-05","generalPractitioner":[{"reference":"Practitioner/dr"}]}`)
		s.put("Encounter/enc-"+p, `{"resourceType":"Encounter","id":"enc-`+p+`","status":"finished","class":{"code":"AMB"},"type":[{"text":"Check-up"}],"subject":{"reference":"Patient/`+p+`"},"period":{"start":"2024-01-01"}}`)
		s.put("Condition/cond-"+p, `{"resourceType":"Condition","id":"cond-`+p+`","code":{"text":"Asthma"},"clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/condition-clinical","code":"active"}]},"subject":{"reference":"Patient/`+p+`"},"onsetDateTime":"2020-01-01"}`)
		for i := range 8 {
			s.put(fmt.Sprintf("Observation/%s-%d", p, i), fmt.Sprintf(`{"resourceType":"Observation","id":"%s-%d","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"8302-2","display":"Body height"}]},"subject":{"reference":"Patient/%s"},"effectiveDateTime":"202%d-03-04","valueQuantity":{"value":%d,"unit":"cm","system":"http://unitsofmeasure.org","code":"cm"}}`, p, i, p, i, 120+i*5))
		}
	}
	s.put("Patient/a", `{"resourceType":"Patient","id":"a","text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\"><p>Record of a</p></div>"},"identifier":[{"system":"urn:mrn","value":"mrn-a"}],"name":[{"family":"Ashford","given":["Anna"]}],"gender":"female","birthDate":"2001-04-06","generalPractitioner":[{"reference":"Practitioner/dr"}]}`)
}

// visitor is a browser without script, for tests of addresses and forms.
type visitor struct {
	s      *site
	client *http.Client
}

func (s *site) visitor() *visitor {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &visitor{s, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Timeout: time.Minute}}
}

// on is the same browser at another server of the database.
func (v *visitor) on(to *site) *visitor {
	v.s.t.Helper()
	w := to.visitor()
	from, err := url.Parse(v.s.base + "/console")
	if err != nil {
		v.s.t.Fatal(err)
	}
	there, err := url.Parse(to.base + "/console")
	if err != nil {
		v.s.t.Fatal(err)
	}
	w.client.Jar.SetCookies(there, v.client.Jar.Cookies(from))
	return w
}

// page is an answer to a visitor.
type page struct {
	t        *testing.T
	what     string
	status   int
	header   http.Header
	location string
	body     string
}

func (v *visitor) do(method, path string, form url.Values, headers ...string) *page {
	v.s.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = v.s.base + path
	}
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequest(method, path, body)
	if err != nil {
		v.s.t.Fatal(err)
	}
	r.Header.Set("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", v.s.base)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		}
	}
	w, err := v.client.Do(r)
	if err != nil {
		v.s.t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		v.s.t.Fatal(err)
	}
	return &page{v.s.t, method + " " + path, w.StatusCode, w.Header, w.Header.Get("Location"), string(b)}
}

func (v *visitor) get(path string, headers ...string) *page {
	v.s.t.Helper()
	return v.do(http.MethodGet, path, nil, headers...)
}

// follow loads a page with the redirects before it.
func (v *visitor) follow(path string) *page {
	v.s.t.Helper()
	p := v.get(path)
	for range 10 {
		if p.location == "" {
			break
		}
		p = v.get(p.location)
	}
	return p
}

// want fails the test for another status.
func (p *page) want(status int) *page {
	p.t.Helper()
	if p.status != status {
		p.t.Fatalf("%s: %d, want %d: %.600s", p.what, p.status, status, p.body)
	}
	return p
}

// has fails the test where the page lacks a text.
func (p *page) has(texts ...string) *page {
	p.t.Helper()
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			p.t.Errorf("%s: the page has no %q", p.what, text)
		}
	}
	return p
}

// lacks fails the test where the page has a text.
func (p *page) lacks(texts ...string) *page {
	p.t.Helper()
	for _, text := range texts {
		if strings.Contains(p.body, text) {
			p.t.Errorf("%s: the page has %q", p.what, text)
		}
	}
	return p
}

var hiddenInput = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)

// hidden is the value of a hidden field of the page.
func (p *page) hidden(name string) string {
	p.t.Helper()
	for _, m := range hiddenInput.FindAllStringSubmatch(p.body, -1) {
		if m[1] == name {
			return strings.ReplaceAll(m[2], "&#43;", "+")
		}
	}
	p.t.Fatalf("%s: no hidden field %s", p.what, name)
	return ""
}

// post sends a form with the csrf_token of a page.
func (v *visitor) post(path string, form url.Values) *page {
	v.s.t.Helper()
	if !form.Has("csrf_token") {
		form.Set("csrf_token", v.get("/console/fhirpath").want(200).hidden("csrf_token"))
	}
	return v.do(http.MethodPost, path, form)
}

// signIn signs a person in, and returns the page that the sign-in leads to.
func (v *visitor) signIn(name, to string) *page {
	v.s.t.Helper()
	p := v.get(to).want(http.StatusSeeOther)
	p = v.get(p.location).want(200)
	p = v.do(http.MethodPost, "/auth/authorize", url.Values{"session_id": {p.hidden("session_id")}, "csrf_token": {p.hidden("csrf_token")}, "action": {"login"}, "username": {name}, "password": {password}}).want(http.StatusSeeOther)
	p = v.get(p.location).want(http.StatusSeeOther)
	return v.get(p.location)
}
