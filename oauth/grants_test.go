package oauth_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kiln/oauth"
	"kiln/server/ratelimit"
	"kiln/server/web"
)

// Contract, Authorization 3: a user lists and withdraws grants on `/auth/grants`; a withdrawal ends tokens
// and the stored consent, on every server.
func TestGrantsPage(t *testing.T) {
	t.Parallel()
	s := start(t)
	other := startOn(t, s.url, s.base)
	s.app()
	s.client(map[string]any{"clientId": "second", "name": "Second", "redirectUris": []string{callback}, "scopes": []string{appScopes}})
	tokens := s.tokens()
	kept := s.exchange(s.code("client_id", "second"), "client_id", "second")
	unused := s.code()
	if tokens.status != 200 || kept.status != 200 || other.use(tokens.text("access_token")) != 200 {
		t.Fatalf("tokens: %s, %s", tokens.body, kept.body)
	}

	b := newBrowser(t)
	page := b.do("GET", s.base+"/auth/", nil)
	if page.status != 302 || page.header.Get("Location") != "/auth/grants" {
		t.Fatalf("/auth/: %d %s", page.status, page.header.Get("Location"))
	}
	page = b.do("GET", s.base+"/auth/grants", nil)
	page = s.submit(b, page.form(t, "login", "username", "doctor", "password", password))
	if page.status != 303 || page.header.Get("Location") != "/auth/grants" {
		t.Fatalf("signed in: %d %s", page.status, page.body)
	}
	page = b.do("GET", s.base+"/auth/grants", nil)
	for _, want := range []string{"<h1>Apps with access to my data</h1>", "Revoke access for Growth &lt;Chart&gt;", "Revoke access for Second", "Dr. Grace Hopper", "app.example.org"} {
		if !strings.Contains(string(page.body), want) {
			t.Errorf("the page lacks %q: %s", want, page.body)
		}
	}
	v := url.Values{"csrf_token": {page.field("csrf_token")[0]}, "client": {"app"}}
	for name, bad := range map[string]func() *answer{
		"no csrf_token":   func() *answer { return b.do("POST", s.base+"/auth/grants", url.Values{"client": {"app"}}) },
		"another browser": func() *answer { return newBrowser(t).do("POST", s.base+"/auth/grants", v) },
		"another site": func() *answer {
			return (&browser{t: t, cookies: b.cookies, header: map[string][]string{"Sec-Fetch-Site": {"cross-site"}}}).do("POST", s.base+"/auth/grants", v)
		},
	} {
		if a := bad(); a.status == 303 || s.use(tokens.text("access_token")) != 200 {
			t.Errorf("%s: %d, and the token: %d", name, a.status, s.use(tokens.text("access_token")))
		}
	}
	done := b.do("POST", s.base+"/auth/grants", v)
	if done.status != 303 || done.header.Get("Location") != "/auth/grants" {
		t.Fatalf("revoke: %d %s", done.status, done.body)
	}
	page = b.do("GET", s.base+"/auth/grants", nil)
	if text := string(page.body); !strings.Contains(text, "no longer has access") || strings.Contains(text, "Revoke access for Growth") || !strings.Contains(text, "Revoke access for Second") {
		t.Errorf("after it: %s", text)
	}
	if s.use(tokens.text("access_token")) != 401 || s.use(kept.text("access_token")) != 200 {
		t.Errorf("the token: %d, that of another app: %d", s.use(tokens.text("access_token")), s.use(kept.text("access_token")))
	}
	eventually(t, time.Second, func() bool { return other.use(tokens.text("access_token")) == 401 })
	if a := s.refresh(tokens.text("refresh_token")); a.text("error") != "invalid_grant" {
		t.Errorf("the refresh token: %s", a.body)
	}
	if a := s.exchange(unused); a.text("error") != "invalid_grant" {
		t.Errorf("an unused code: %s", a.body)
	}
	if a := s.consent(b, s.authorize(b, s.request())); len(a.field("scope")) == 0 {
		t.Errorf("the consent is not asked for again: %d %s", a.status, a.header.Get("Location"))
	}
}

// Contract, Authorization 3: administrators list and withdraw grants by `/admin/grants`.
func TestAdminGrants(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.user(map[string]any{"username": "root", "roles": []string{"admin"}})
	s.client(map[string]any{"clientId": "second", "redirectUris": []string{callback}, "scopes": []string{appScopes}})
	key, err := s.server.CreateAPIKey(t.Context(), "admin", "admin", "")
	if err != nil {
		t.Fatal(err)
	}
	tokens := s.tokens()
	s.exchange(s.code("client_id", "second"), "client_id", "second")
	if a := s.call("GET", "/admin/grants", tokens.text("access_token"), ""); a.status != 403 {
		t.Errorf("without admin: %d", a.status)
	}
	a := s.call("GET", "/admin/grants?count=1", key.Key, "")
	list, _ := a.json["grants"].([]any)
	if a.status != 200 || len(list) != 1 || a.text("next") == "" {
		t.Fatalf("the first page: %d %s", a.status, a.body)
	}
	first, _ := list[0].(map[string]any)
	scopes, _ := first["scopes"].([]any)
	if first["user"] != "doctor" || first["client"] != "app" || len(scopes) != 5 || first["since"] == nil || first["lastUsed"] == nil {
		t.Errorf("a grant: %v", first)
	}
	a = s.call("GET", a.text("next"), key.Key, "")
	if list, _ := a.json["grants"].([]any); len(list) != 1 || a.json["next"] != nil || !strings.Contains(string(a.body), `"second"`) {
		t.Errorf("the second page: %d %s", a.status, a.body)
	}
	if a := s.call("GET", "/admin/grants?client=none", key.Key, ""); a.status != 200 || !strings.Contains(string(a.body), `"grants":[]`) {
		t.Errorf("of a client without any: %d %s", a.status, a.body)
	}
	id, _ := first["id"].(string)
	if a := s.call("DELETE", "/admin/grants/"+id, key.Key, ""); a.status != 204 || s.use(tokens.text("access_token")) != 401 {
		t.Errorf("revoked: %d %s, and the token: %d", a.status, a.body, s.use(tokens.text("access_token")))
	}
	for _, id := range []string{id, "none", "*"} {
		if a := s.call("DELETE", "/admin/grants/"+id, key.Key, ""); a.status != 404 {
			t.Errorf("%s: %d %s", id, a.status, a.body)
		}
	}
}

// Contract, Authorization 3: with an S256 challenge a shorter state is accepted;
// `auth.oauth.strict_state`; a launch without the scope `launch` is honoured, the scope without a launch is
// left out.
func TestShortStateAndOneLaunchPage(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	key, err := s.server.CreateAPIKey(t.Context(), "admin", "admin", "")
	if err != nil {
		t.Fatal(err)
	}
	short := s.tokens("state", "0123456789abcdef")
	explained := s.call("POST", "/admin/token/explain", key.Key, `{"token": "`+short.text("access_token")+`"}`)
	if warnings, _ := explained.json["warnings"].([]any); len(warnings) != 1 || !strings.Contains(string(explained.body), "122 bits") {
		t.Errorf("explained: %s", explained.body)
	}
	long := s.tokens()
	if a := s.call("POST", "/admin/token/explain", key.Key, `{"token": "`+long.text("access_token")+`"}`); a.json["warnings"] != nil {
		t.Errorf("explained: %s", a.body)
	}
	if a := s.tokens("scope", "launch launch/patient patient/*.rs"); a.text("scope") != "launch/patient patient/*.rs" || a.text("patient") != "p1" || a.json["need_patient_banner"] != nil {
		t.Errorf("the scope launch without a launch: %s", a.body)
	}
	launch, err := s.server.NewLaunch(t.Context(), oauth.LaunchRequest{Patient: "p2", Encounter: "", Intent: "review"})
	if err != nil {
		t.Fatal(err)
	}
	a := s.tokens("scope", "patient/*.rs", "launch", launch)
	if a.text("patient") != "p2" || a.text("intent") != "review" || a.json["need_patient_banner"] != true || a.text("smart_style_url") != s.base+"/auth/smart-style.json" {
		t.Errorf("a launch without the scope: %s", a.body)
	}
	style := s.call("GET", "/auth/smart-style.json", "", "")
	if style.status != 200 || style.text("color_background") == "" {
		t.Errorf("the style: %d %s", style.status, style.body)
	}

	strict := start(t, func(o *oauth.Options) { o.Config.OAuth.StrictState = true })
	strict.app()
	if a := strict.authorize(newBrowser(t), strict.request("state", "0123456789abcdef")); !strings.Contains(a.header.Get("Location"), "error=invalid_request") {
		t.Errorf("strict_state: %d %s", a.status, a.header.Get("Location"))
	}
}

// Contract, Authorization 3: the consent page offers parts of Condition and Observation; the type stays
// ticked unless parts are chosen.
func TestPartsAtConsent(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	const (
		condition   = "patient/Condition.rs"
		problems    = condition + "?category=http://terminology.hl7.org/CodeSystem/condition-category|problem-list-item"
		observation = "patient/Observation.rs"
	)
	for name, tt := range map[string]struct {
		tick func(scope string) bool
		want string
	}{
		"nothing changed":           {func(x string) bool { return !strings.Contains(x, "?") }, "openid " + condition + " " + observation},
		"a part, the type unticked": {func(x string) bool { return x != condition && (x == problems || !strings.Contains(x, "?")) }, "openid " + observation + " " + problems},
		"a part beside the type":    {func(x string) bool { return x == problems || !strings.Contains(x, "?") }, "openid " + observation + " " + problems},
		"everything":                {func(string) bool { return true }, "openid " + condition + " " + observation},
	} {
		b := newBrowser(t)
		page := s.consent(b, s.submit(b, s.authorize(b, s.request("prompt", "consent", "scope", "openid "+condition+" "+observation)).form(t, "login", "username", "doctor", "password", password)))
		if n := len(page.field("scope")); n != 3+3+6 {
			t.Fatalf("%s: %d checkboxes: %v", name, n, page.field("scope"))
		}
		v := page.form(t, "authorize")
		for _, scope := range page.field("scope") {
			if tt.tick(scope) {
				v.Add("scope", scope)
			}
		}
		u, _ := url.Parse(s.submit(b, v).header.Get("Location"))
		if got := s.exchange(u.Query().Get("code")); !sameWords(got.text("scope"), tt.want) {
			t.Errorf("%s: granted %q, want %q", name, got.text("scope"), tt.want)
		}
	}
}

func sameWords(a, b string) bool {
	words := func(text string) map[string]bool {
		out := map[string]bool{}
		for _, w := range strings.Fields(text) {
			out[w] = true
		}
		return out
	}
	x, y := words(a), words(b)
	for w := range x {
		if !y[w] {
			return false
		}
	}
	return len(x) == len(y)
}

// Contract, Authorization 3: a browser that signs out gets a page, others JSON.
func TestSignOutEndsInAPage(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	for accept, page := range map[string]bool{
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": true, "text/html,*/*": true,
		"": false, "*/*": false, "application/json": false, "application/json, text/html;q=0.5": false,
	} {
		b := newBrowser(t)
		b.header.Set("Accept", accept)
		a := b.do("POST", s.base+"/auth/logout", url.Values{"token": {"x"}})
		if html := strings.Contains(a.header.Get("Content-Type"), "text/html"); a.status != 200 || html != page || !page && a.json["success"] != true {
			t.Errorf("Accept %q: %d %s %s", accept, a.status, a.header.Get("Content-Type"), a.body)
		}
		if page && (!strings.Contains(string(a.body), "<h1>Signed out</h1>") || !strings.Contains(string(a.body), ">Sign in again</a>")) {
			t.Errorf("the page: %s", a.body)
		}
	}
}

// Contract, Authorization 3: the pages have name, logo, favicon and colour of the configuration, English and
// German; they say who is signed in, and offer another account; an error page has a way back and the request id.
func TestLookOfPages(t *testing.T) {
	t.Parallel()
	logo := filepath.Join(t.TempDir(), "logo.svg")
	if err := os.WriteFile(logo, []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *oauth.Options) {
		o.Config.Pages.Name, o.Config.Pages.Logo, o.Config.Pages.Colour = "St. Mary", logo, "#ffff00"
	})
	s.app()
	b := newBrowser(t)
	login := s.authorize(b, s.request())
	for _, want := range []string{"<title>Sign in · St. Mary</title>", `href="/auth/favicon.svg"`, `src="/auth/logo"`, "app.example.org", "90 days"} {
		if !strings.Contains(string(login.body), want) {
			t.Errorf("the sign-in page lacks %q: %s", want, login.body)
		}
	}
	if csp := login.header.Get("Content-Security-Policy"); !strings.Contains(csp, "img-src 'self'") || login.header.Get("Cross-Origin-Opener-Policy") != "" {
		t.Errorf("headers %v", login.header)
	}
	for path, typ := range map[string]string{"/auth/favicon.svg": "image/svg+xml", "/auth/logo": "image/svg+xml", "/auth/style.css": "text/css; charset=utf-8"} {
		if a := b.do("GET", s.base+path, nil); a.status != 200 || a.header.Get("Content-Type") != typ {
			t.Errorf("%s: %d %s", path, a.status, a.header.Get("Content-Type"))
		}
	}
	if css := b.do("GET", s.base+"/auth/style.css", nil); strings.Contains(string(css.body), "--first: #ffff00; }\n@media") {
		t.Error("yellow on white cannot be read")
	}
	picker := s.submit(b, login.form(t, "login", "username", "doctor", "password", password))
	for _, page := range []*answer{picker, s.consent(b, picker)} {
		for _, want := range []string{"Signed in as <strong><bdi>Dr. Grace Hopper</bdi></strong>", ">Use another account</button>", "Not you?", ">Sign out</a>", "app.example.org", "90 days"} {
			if !strings.Contains(string(page.body), want) {
				t.Errorf("a page lacks %q: %s", want, page.body)
			}
		}
	}
	s.user(map[string]any{"username": "nurse", "name": "Nurse", "fhirUser": "Practitioner/1"})
	again := s.submit(b, picker.form(t, "switch"))
	again = s.submit(b, again.form(t, "login", "username", "nurse", "password", password))
	if text := string(again.body); !strings.Contains(text, "<bdi>Nurse</bdi>") || strings.Contains(text, "Grace") {
		t.Errorf("another account: %s", text)
	}

	problem := s.authorize(b, url.Values{"client_id": {"nobody"}, "redirect_uri": {callback}})
	id := problem.header.Get("X-Request-Id")
	if text := string(problem.body); problem.status != 400 || id == "" || !strings.Contains(text, id) || !strings.Contains(text, ">Home</a>") {
		t.Errorf("an error page: %d %s %s", problem.status, id, text)
	}
	german := newBrowser(t)
	german.header.Set("Accept-Language", "fr, de-AT;q=0.8, en;q=0.5")
	if text := string(s.authorize(german, s.request()).body); !strings.Contains(text, `<html lang="de">`) || !strings.Contains(text, "Anmelden") || strings.Contains(text, "Sign in") {
		t.Errorf("in German: %s", text)
	}
}

// Every text of the pages has its German.
// Contract, Authorization 3: English and German by Accept-Language.
func TestTextsInGerman(t *testing.T) {
	t.Parallel()
	texts := regexp.MustCompile(`(?:\.[TH] |\.[TH]\(|newPage\(r, |errorPage\(w, r, [\w.()]+, |again\((?:http\.\w+, )?)"((?:[^"\\]|\\.)*)"`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("pages/*.html")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range append(files, pages...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range texts.FindAllStringSubmatch(string(b), -1) {
			if n++; !oauth.HasGerman(m[1]) {
				t.Errorf("%s: %q has no German", file, m[1])
			}
		}
	}
	if n < 80 {
		t.Errorf("%d texts were found, fewer than there are", n)
	}
}

// Contract, Authorization 3: until the consent the user may go back and choose another patient.
func TestAnotherPatientBeforeConsent(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	b := newBrowser(t)
	picker := s.submit(b, s.authorize(b, s.request()).form(t, "login", "username", "doctor", "password", password))
	s.submit(b, picker.form(t, "select_patient", "patient", "p1"))
	consent := s.submit(b, picker.form(t, "select_patient", "patient", "p2"))
	if !strings.Contains(string(consent.body), "Alan &lt;Turing&gt;") || strings.Contains(string(consent.body), "Ada") {
		t.Fatalf("the second choice: %s", consent.body)
	}
	if q := s.walk(b, consent, ""); s.exchange(q.Get("code")).text("patient") != "p2" {
		t.Error("the token is of another patient than the page")
	}
}

// 200 people of one address sign in within a minute: each loads the page with its style sheet, signs in,
// picks a patient and consents. One more than the bound is refused, with a page.
// Contract, Operations: `auth_requests_per_minute` 300 for each address; style sheets are not counted;
// `/auth/authorize` and the other pages answer with a page.
func TestManySignInsOfOneAddress(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.mux.Limiter = &ratelimit.Limiter{
		Limits: func() ratelimit.Limits {
			return ratelimit.Limits{Authorization: oauth.DefaultConfig().RateLimiting.Auth}
		},
		Proxies: func() web.Proxies { return web.Proxies{} }, Now: time.Now,
	}
	s.app()
	get := func(path string, header ...string) *answer {
		b := newBrowser(t)
		for i := 0; i+1 < len(header); i += 2 {
			b.header.Set(header[i], header[i+1])
		}
		return b.do("GET", s.base+path, nil)
	}
	signIn := func() bool {
		b := newBrowser(t)
		page := s.authorize(b, s.request())
		if page.status != 200 || get("/auth/style.css").status != 200 || get("/auth/favicon.svg").status != 200 {
			t.Errorf("the sign-in page: %d", page.status)
			return false
		}
		return s.walk(b, page, "doctor").Get("code") != ""
	}
	const people, lanes = 200, 4
	var passed atomic.Int64
	var all sync.WaitGroup
	for range lanes {
		all.Go(func() {
			for range people / lanes {
				if signIn() {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if passed.Load() != people {
		t.Fatalf("%d of %d people have signed in", passed.Load(), people)
	}
	path := "/auth/authorize?" + s.request().Encode()
	a := get(path, "Accept-Language", "de")
	for n := 0; a.status == 200 && n < 1000; n++ {
		a = get(path, "Accept-Language", "de")
	}
	text := string(a.body)
	sheet := regexp.MustCompile(`<link rel="stylesheet" href="([^"]+)">`).FindStringSubmatch(text)
	if a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(text, `<html lang="de">`) || !strings.Contains(text, "Warten Sie "+a.header.Get("Retry-After")+" Sekunden") || sheet == nil {
		t.Fatalf("more than the bound: %d %v %s", a.status, a.header, text)
	}
	if style := get(sheet[1]); style.status != 200 || !strings.Contains(style.header.Get("Content-Type"), "text/css") {
		t.Errorf("the style of the 429 page: %d %s", style.status, style.header.Get("Content-Type"))
	}
}

// Contract, Operations: `/auth/authorize` and the other pages answer with a page, other endpoints with JSON.
func TestThrottledPages(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, tt := range []struct {
		method, path, accept string
		page                 bool
	}{
		{"GET", "/auth/authorize", "", true}, {"POST", "/auth/authorize", "", true}, {"GET", "/auth/callback", "", true}, {"GET", "/auth", "", true},
		{"GET", "/auth/grants", "", true}, {"POST", "/auth/grants", "", true}, {"GET", "/auth/logout", "", true},
		{"POST", "/auth/logout", "text/html,*/*", true}, {"POST", "/auth/logout", "*/*", false}, {"POST", "/auth/token", "text/html", false},
		{"POST", "/auth/revoke", "", false}, {"POST", "/auth/introspect", "", false},
	} {
		s.mux.Limiter = refuseAll(tt.path)
		b := newBrowser(t)
		b.header.Set("Accept", tt.accept)
		a := b.do(tt.method, s.base+tt.path, nil)
		page := strings.Contains(a.header.Get("Content-Type"), "text/html") && strings.Contains(string(a.body), "Wait 42 seconds")
		if a.status != 429 || page != tt.page || !tt.page && a.text("error") != "temporarily_unavailable" {
			t.Errorf("%s %s, Accept %q: %d %s %s", tt.method, tt.path, tt.accept, a.status, a.header.Get("Content-Type"), a.body)
		}
	}
}

// A short state is logged as a warning that names the client.
// Contract, Authorization 3: with an S256 challenge a shorter state is accepted, and logged with the client's name.
func TestShortStateIsLogged(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	s := start(t, func(o *oauth.Options) { o.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	s.app()
	if s.tokens(); strings.Contains(log.String(), "122 bits") {
		t.Errorf("a long state is logged: %s", log.String())
	}
	s.tokens("state", "0123456789abcdef")
	line := ""
	for l := range strings.SplitSeq(log.String(), "\n") {
		if strings.Contains(l, "122 bits") {
			line += l
		}
	}
	var said struct{ Level, Client, Name string }
	if err := json.Unmarshal([]byte(line), &said); err != nil || said.Level != "WARN" || said.Client != "app" || said.Name != "Growth <Chart>" {
		t.Errorf("the warning is %q, %v", line, err)
	}
}

// lockedBuffer is a buffer that goroutines write to.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Contract, Operations: failed sign-ins of an address have a third of `auth_requests_per_minute`; many people
// sign in from one address.
func TestManyPeopleOfOneAddress(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *oauth.Options) {
		o.Config.RateLimiting.Auth = 6
		now := time.Now().Truncate(time.Minute)
		began := time.Now()
		o.Now = func() time.Time { return now.Add(time.Since(began) / 10) } // one minute
	})
	s.app()
	fail := func(name string) int {
		b := newBrowser(t)
		return s.submit(b, s.authorize(b, s.request()).form(t, "login", "username", name, "password", "not the password")).status
	}
	b := newBrowser(t)
	signIn := func() int {
		return s.submit(b, s.authorize(b, s.request("prompt", "login")).form(t, "login", "username", "doctor", "password", password)).status
	}
	for range 5 {
		if got := signIn(); got != 200 {
			t.Fatalf("a sign-in that does not fail: %d", got)
		}
	}
	if one, two, three := fail("a"), fail("b"), fail("c"); one != 401 || two != 401 || three != 429 {
		t.Errorf("failures of three names: %d, %d, %d", one, two, three)
	}
}
