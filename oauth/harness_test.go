package oauth_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kiln/oauth"
	"kiln/server/access"
	"kiln/server/smart"
	"kiln/server/store/storetest"
	"kiln/server/web"
)

const (
	password = "correct horse battery"
	callback = "https://app.example.org/cb"
	verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk-0123"
	state    = "b2c1f3c4-9b1e-4a57-8d35-6f0c6d3f2a11" // a v4 UUID: 122 bits
)

func challenge(v string) string {
	sum := sha256.Sum256([]byte(v))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// records is a FHIR service with two patients; the user of Practitioner/2 sees none. Acts
// is the patient whom each RelatedPerson acts for.
type records struct{ acts *sync.Map }

// actsFor returns the patient of a RelatedPerson, "" for none.
func (r records) actsFor(relatedPerson string) string {
	if r.acts == nil {
		return ""
	}
	v, _ := r.acts.Load(relatedPerson)
	patient, _ := v.(string)
	return patient
}

func (r records) ActsFor(_ context.Context, relatedPerson, patient string) (bool, error) {
	return r.actsFor(relatedPerson) == patient, nil
}

func (records) Exists(_ context.Context, ref string) (bool, error) {
	return strings.HasPrefix(ref, "Practitioner/") || strings.HasPrefix(ref, "RelatedPerson/") || ref == "Patient/p1" || ref == "Patient/p2" || ref == "Encounter/e1", nil
}

var patients = []oauth.Patient{{ID: "p1", Name: "Ada Lovelace", BirthDate: "1815-12-10"}, {ID: "p2", Name: "Alan <Turing>", BirthDate: "1912-06-23"}}

func (records) Patients(_ context.Context, p *access.Principal, text, birthDate string) ([]oauth.Patient, error) {
	var out []oauth.Patient
	for _, x := range patients {
		if p.FHIRUser != "Practitioner/2" && strings.Contains(x.Name, text) && (birthDate == "" || birthDate == x.BirthDate) {
			out = append(out, x)
		}
	}
	return out, nil
}

func (records) Encounters(_ context.Context, _ *access.Principal, patient string) ([]oauth.Encounter, error) {
	if patient == "p1" {
		return []oauth.Encounter{{ID: "e1", Description: "Check-up", Period: "2024-01-01", Status: "finished"}}, nil
	}
	return nil, nil
}

func (records) Means(_ context.Context, scope smart.Scope) bool { return scope.Type != "Nothing" }

func (records) PatientOf(context.Context, string) (string, error) { return "p1", nil }

func (records) Patient(_ context.Context, _ *access.Principal, id string) (oauth.Patient, error) {
	for _, x := range patients {
		if x.ID == id {
			return x, nil
		}
	}
	return oauth.Patient{ID: id}, nil
}

func (r records) Sees(_ context.Context, p *access.Principal, _, id string) (bool, error) {
	if of, ok := strings.CutPrefix(p.FHIRUser, "RelatedPerson/"); ok {
		return id == r.actsFor(of), nil
	}
	if of, ok := strings.CutPrefix(p.FHIRUser, "Patient/"); ok {
		return id == of, nil
	}
	return p.FHIRUser != "Practitioner/2" && (id == "p1" || id == "p2"), nil
}

// service is an authorization server of its own; clock is added to the time.
type service struct {
	t      testing.TB
	server *oauth.Server
	web    *httptest.Server
	mux    *web.Mux
	url    string // of the database
	base   string
	clock  *atomic.Int64
	events chan oauth.Event
}

// start runs a server on a new database.
func start(t testing.TB, change ...func(*oauth.Options)) *service {
	t.Helper()
	return startOn(t, storetest.New(t), "", change...)
}

// startOn runs a server on a database; issuer "" is its own address.
func startOn(t testing.TB, database, issuer string, change ...func(*oauth.Options)) *service {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, url: database, base: "http://" + l.Addr().String(), clock: new(atomic.Int64), events: make(chan oauth.Event, 1000)}
	c := oauth.DefaultConfig()
	c.Enabled, c.Issuer = true, issuer
	c.Signing.Algorithm = "ES384" // made in no time
	c.AllowPrivateNetworks = true
	o := oauth.Options{
		Config: c, Listen: l.Addr().String(), URL: database, MaxConns: 6, Records: records{}, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
		Audit: func(e oauth.Event) { s.events <- e },
		Now:   func() time.Time { return time.Now().Add(time.Duration(s.clock.Load())) },
	}
	for _, f := range change {
		f(&o)
	}
	if s.server, err = oauth.New(context.Background(), o); err != nil {
		t.Fatalf("start: %v", err)
	}
	mux := &web.Mux{Verifier: s.server, Logger: o.Logger, Settings: func() *web.Settings { return &web.Settings{CORS: web.CORS{Origins: []string{"*"}}} }}
	s.mux = mux
	s.server.Mount(mux)
	mux.HandleRest(web.FHIR, whoami{})
	s.web = &httptest.Server{Listener: l, Config: &http.Server{Handler: mux}}
	s.web.Start()
	t.Cleanup(func() {
		s.web.Close()
		s.server.Close()
	})
	return s
}

// whoami stands for FHIR: it says on whose behalf a request runs.
type whoami struct{}

func (whoami) ServeExchange(x *web.Exchange, r *http.Request) {
	p := access.PrincipalFrom(x.Context())
	_ = json.NewEncoder(x).Encode(map[string]any{"sub": p.Subject, "client": p.ClientID, "scope": p.Scopes.String(), "patient": p.Patient, "fhirUser": p.FHIRUser, "admin": p.Admin, "roles": p.Roles})
}

// pass moves the server's clock.
func (s *service) pass(d time.Duration) { s.clock.Add(int64(d)) }

// client registers a client.
func (s *service) client(fields map[string]any) *oauth.ClientAnswer {
	s.t.Helper()
	b, _ := json.Marshal(fields)
	c, err := s.server.CreateClient(context.Background(), b)
	if err != nil {
		s.t.Fatalf("register %v: %v", fields, err)
	}
	return c
}

func (s *service) user(fields map[string]any) {
	s.t.Helper()
	if fields["password"] == nil {
		fields["password"] = password
	}
	b, _ := json.Marshal(fields)
	if _, err := s.server.CreateUser(context.Background(), b); err != nil {
		s.t.Fatalf("make user %v: %v", fields, err)
	}
}

const appScopes = "openid fhirUser profile launch launch/patient launch/encounter offline_access online_access patient/*.cruds user/*.cruds admin"

// app registers a public client and a user to sign in.
func (s *service) app() {
	s.t.Helper()
	s.client(map[string]any{"clientId": "app", "name": "Growth <Chart>", "redirectUris": []string{callback, "http://127.0.0.1/cb"}, "scopes": []string{appScopes}})
	s.user(map[string]any{"username": "doctor", "name": "Dr. Grace Hopper", "email": "grace@example.org", "fhirUser": "Practitioner/1"})
}

// answer is a response with its body read.
type answer struct {
	status int
	header http.Header
	body   []byte
	json   map[string]any
}

func (a *answer) text(name string) string { v, _ := a.json[name].(string); return v }

// browser is a user agent: it keeps cookies, and follows no redirect.
type browser struct {
	t       testing.TB
	cookies map[string]string
	header  http.Header
}

func newBrowser(t testing.TB) *browser {
	return &browser{t: t, cookies: make(map[string]string), header: make(http.Header)}
}

func (b *browser) do(method, target string, form url.Values) *answer {
	b.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequest(method, target, body)
	if err != nil {
		b.t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, v := range b.header {
		req.Header[name] = v
	}
	for name, value := range b.cookies {
		req.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, c := range resp.Cookies() {
		if c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		} else {
			b.cookies[c.Name] = c.Value
		}
	}
	a := &answer{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		b.t.Fatal(err)
	}
	_ = json.Unmarshal(a.body, &a.json)
	return a
}

var (
	inputTag = regexp.MustCompile(`<(input|button)[^>]*>`)
	attrTag  = regexp.MustCompile(`([a-z_-]+)="([^"]*)"`)
)

// field is every value of a form field on a page.
func (a *answer) field(name string) []string {
	var out []string
	for _, tag := range inputTag.FindAllString(string(a.body), -1) {
		attrs := map[string]string{}
		for _, m := range attrTag.FindAllStringSubmatch(tag, -1) {
			attrs[m[1]] = html.UnescapeString(m[2])
		}
		if attrs["name"] == name {
			out = append(out, attrs["value"])
		}
	}
	return out
}

// form is the fields that every form of a page has.
func (a *answer) form(t testing.TB, action string, more ...string) url.Values {
	t.Helper()
	if len(a.field("session_id")) == 0 {
		t.Fatalf("no form: status %d, Location %s, %s", a.status, a.header.Get("Location"), a.body)
	}
	v := url.Values{"session_id": {a.field("session_id")[0]}, "csrf_token": {a.field("csrf_token")[0]}, "action": {action}}
	for i := 0; i+1 < len(more); i += 2 {
		v.Add(more[i], more[i+1])
	}
	return v
}

// request is a good authorization request; changes replace parameters, "" takes
// them out.
func (s *service) request(changes ...string) url.Values {
	v := url.Values{
		"response_type": {"code"}, "client_id": {"app"}, "redirect_uri": {callback}, "state": {state}, "aud": {s.base + "/fhir"},
		"scope": {"openid fhirUser patient/*.rs launch/patient offline_access"}, "code_challenge": {challenge(verifier)}, "code_challenge_method": {"S256"},
		"nonce": {"n-0S6_WzA2Mj"},
	}
	for i := 0; i+1 < len(changes); i += 2 {
		if v.Set(changes[i], changes[i+1]); changes[i+1] == "" {
			v.Del(changes[i])
		}
	}
	return v
}

func (s *service) authorize(b *browser, v url.Values) *answer {
	b.t.Helper()
	return b.do("GET", s.base+"/auth/authorize?"+v.Encode(), nil)
}

func (s *service) submit(b *browser, v url.Values) *answer {
	b.t.Helper()
	return b.do("POST", s.base+"/auth/authorize", v)
}

// consent takes the first offer of each picker and returns the consent page.
func (s *service) consent(b *browser, a *answer) *answer {
	b.t.Helper()
	for _, kind := range []string{"patient", "encounter"} {
		if offered := a.field(kind); len(offered) > 0 {
			a = s.submit(b, a.form(b.t, "select_"+kind, kind, offered[0]))
		}
	}
	return a
}

// walk signs in and submits the pages as they are, until the browser is sent to the client;
// it returns the redirect's parameters.
func (s *service) walk(b *browser, a *answer, username string) url.Values {
	b.t.Helper()
	for range 8 {
		if to := a.header.Get("Location"); to != "" {
			u, err := url.Parse(to)
			if err != nil {
				b.t.Fatal(err)
			}
			return u.Query()
		}
		actions := strings.Join(a.field("action"), " ")
		switch {
		case strings.Contains(actions, "login"):
			a = s.submit(b, a.form(b.t, "login", "username", username, "password", password))
		case strings.Contains(actions, "authorize"):
			v := a.form(b.t, "authorize")
			v["scope"] = a.field("scope")
			a = s.submit(b, v)
		case strings.Contains(actions, "select_patient"):
			a = s.submit(b, a.form(b.t, "select_patient", "patient", a.field("patient")[0]))
		case strings.Contains(actions, "select_encounter"):
			a = s.submit(b, a.form(b.t, "select_encounter", "encounter", a.field("encounter")[0]))
		default:
			b.t.Fatalf("no way on: %d %s", a.status, a.body)
		}
	}
	b.t.Fatal("the pages do not end")
	return nil
}

// code walks through the pages to a code.
func (s *service) code(changes ...string) string {
	s.t.Helper()
	b := newBrowser(s.t)
	q := s.walk(b, s.authorize(b, s.request(changes...)), "doctor")
	if q.Get("code") == "" {
		s.t.Fatalf("no code: %v", q)
	}
	return q.Get("code")
}

// post is a form to the service; header are names and values in turn.
func (s *service) post(path string, form url.Values, header ...string) *answer {
	s.t.Helper()
	b := newBrowser(s.t)
	for i := 0; i+1 < len(header); i += 2 {
		b.header.Add(header[i], header[i+1])
	}
	return b.do("POST", s.base+path, form)
}

func (s *service) exchange(code string, changes ...string) *answer {
	s.t.Helper()
	v := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {callback}, "client_id": {"app"}, "code_verifier": {verifier}}
	for i := 0; i+1 < len(changes); i += 2 {
		if v.Set(changes[i], changes[i+1]); changes[i+1] == "" {
			v.Del(changes[i])
		}
	}
	return s.post("/auth/token", v)
}

func (s *service) refresh(token string, changes ...string) *answer {
	s.t.Helper()
	v := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "client_id": {"app"}}
	for i := 0; i+1 < len(changes); i += 2 {
		if v.Set(changes[i], changes[i+1]); changes[i+1] == "" {
			v.Del(changes[i])
		}
	}
	return s.post("/auth/token", v)
}

// tokens are the answer to a whole flow.
func (s *service) tokens(changes ...string) *answer {
	s.t.Helper()
	a := s.exchange(s.code(changes...))
	if a.status != 200 {
		s.t.Fatalf("exchange: %d %s", a.status, a.body)
	}
	return a
}

// use calls a FHIR path with a token and returns the status.
func (s *service) use(token string) int {
	s.t.Helper()
	return s.call("GET", "/Patient", token, "").status
}

func (s *service) call(method, path, token, body string) *answer {
	s.t.Helper()
	req, err := http.NewRequest(method, s.base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	a.body, _ = io.ReadAll(resp.Body)
	_ = json.Unmarshal(a.body, &a.json)
	return a
}

// claims reads the payload of a JWT, unverified.
func claims(t testing.TB, token string) (header, payload map[string]any) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("no JWT: %q", token)
	}
	for i, to := range []*map[string]any{&header, &payload} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(b, to) != nil {
			t.Fatalf("no JWT: %q", token)
		}
	}
	return header, payload
}
