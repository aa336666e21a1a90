package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// signInBrowser signs a person in with a real browser.
func (c *chromium) signIn(name string) {
	c.t.Helper()
	c.open("/console")
	c.run(chromedp.WaitVisible(chromedp.CSS("#username")))
	c.run(chromedp.Focus(chromedp.CSS("#username")), chromedp.KeyEvent(name), chromedp.Focus(chromedp.CSS("#password")), chromedp.KeyEvent(password))
	c.press("button", "Sign in")
}

// The screens of administrators, in a real browser: the names of the page, axe-core, and no complaint of the browser.
func TestAdministratorsScreensInABrowser(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t)
	v := s.visitor()
	v.signIn("admin", "/console").want(200)
	token := v.get("/console/fhirpath").hidden("csrf_token")
	send := func(method, path, body string) {
		t.Helper()
		p := v.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {token}, "method": {method}, "path": {path}, "body": {body}, "headers": {"Content-Type: application/json"}}).want(303)
		if got := v.get(p.location).want(200); !strings.Contains(got.body, "<strong>20") {
			t.Fatalf("%s %s: %s", method, path, got.body)
		}
	}
	send("PUT", "/Subscription/s1", `{"resourceType":"Subscription","id":"s1","status":"off","reason":"x","criteria":"Patient?name=x","channel":{"type":"rest-hook","endpoint":"https://app.example.org/hook"}}`)
	send("PUT", "/App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"1","status":"draft","operations":[{"name":"count","type":"read","resourceType":"Patient","handler":{"type":"internal","url":"internal:summary"}}]}`)
	send("PUT", "/App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"2","status":"draft","operations":[{"name":"count","type":"read","resourceType":"Patient","handler":{"type":"internal","url":"internal:summary"}}]}`)
	send("POST", "/admin/policies", `{"name":"night","active":true,"priority":1,"dryRun":true,"matcher":{},"effect":"deny"}`)
	send("POST", "/admin/apikeys", `{"name":"loader","scope":"system/*.rs"}`)
	send("PUT", "/ViewDefinition/names", namesView("names"))
	send("POST", "/admin/views", `{"view":"ViewDefinition/names","indexes":[["family"]]}`)
	tested := v.post("/console/Subscription/s1/deliveries", url.Values{"action": {"test"}}).want(http.StatusSeeOther)
	v.get(tested.location).want(200).has(`<p class="said failed" role="status">The test was not delivered: `)
	c := openChromium(t, s.base)
	c.signIn("admin")
	c.must("button", "Sign out")
	c.must("link", "Account", "Subscriptions", "Apps", "Jobs", "Definitions", "Access", "Settings", "Searches", "Audit", "Views")
	if got := script[[]string](c, `[...document.querySelectorAll("nav.main a")].map(e => e.innerText)`); strings.Join(got[len(got)-2:], " ") != "Audit Views" {
		t.Errorf("the navigation is %v", got)
	}
	// On a phone the longer German words fit too.
	c.fill("Language", "de")
	c.press("button", "Apply")
	c.run(chromedp.EmulateViewport(390, 844))
	if got := script[[]float64](c, `[...document.querySelectorAll(".who > *")].map(e => { const r = e.getBoundingClientRect(); return (r.top + r.bottom) / 2; })`); len(got) != 3 || got[0] != got[1] || got[1] != got[2] {
		t.Errorf("the banner breaks its line: %v", got)
	}
	c.run(chromedp.EmulateViewport(320, 640))
	if got := script[float64](c, `document.querySelector("footer button").getBoundingClientRect().height - document.querySelector("footer select").getBoundingClientRect().height`); got > 1 {
		t.Errorf("the button of the footer breaks its word: it is %v higher than the field", got)
	}
	c.run(chromedp.EmulateViewport(1280, 844))
	c.fill("Sprache", "en")
	c.press("button", "Anwenden")
	c.forget()
	for _, tt := range []struct {
		name, path, heading string
		names               map[string][]string
	}{
		{"subscriptions", "/console/subscriptions", "Subscriptions", map[string][]string{"table": {"Subscriptions"}, "link": {"s1"}}},
		{"deliveries", "/console/Subscription/s1/deliveries", "Deliveries", map[string][]string{"table": {"Deliveries"}, "button": {"Send a test", "Try again", "Redeliver dead letters"}}},
		{"live", "/console/live", "Live events", map[string][]string{"log": {"Events"}}},
		{"apps", "/console/apps", "Apps", map[string][]string{"table": {"Apps"}, "link": {"Dose check"}}},
		{"app-run", "/console/App/dose/run", "Dose check", map[string][]string{"navigation": {"App"}, "link": {"Run", "Code", "Log", "Deliveries", "Versions", "Grants"}, "field": {"Operation", "Instance", "Parameters"}, "button": {"Run"}}},
		{"app-log", "/console/App/dose/log", "Dose check", map[string][]string{"table": {"Invocations"}}},
		{"app-versions", "/console/App/dose/versions", "Dose check", map[string][]string{"button": {"Roll back to version 1"}}},
		{"app-grants", "/console/App/dose/grants", "Dose check", map[string][]string{"field": {"Scopes"}, "button": {"Save"}}},
		{"jobs", "/console/jobs", "Jobs", map[string][]string{"table": {"Jobs"}, "field": {"Types"}, "button": {"Export"}}},
		{"definitions", "/console/definitions", "Definitions", map[string][]string{"field": {"Package file", "Dry run"}, "button": {"Install"}, "table": {"Packages", "Search parameters"}}},
		{"users", "/console/access/users", "Users", map[string][]string{"table": {"Users"}, "link": {"New user", "doctor"}}},
		{"new-user", "/console/access/users/new", "New user", map[string][]string{"field": {"User name", "Password", "Name", "FHIR user", "Administrator", "Active"}, "button": {"Save"}}},
		{"clients", "/console/access/clients", "Clients", map[string][]string{"table": {"Clients"}, "link": {"New client", "kiln-console"}}},
		{"new-client", "/console/access/clients/new", "New client", map[string][]string{"field": {"Client id", "Confidential", "Redirect URIs", "Scopes"}, "button": {"Save"}}},
		{"keys", "/console/access/keys", "API keys", map[string][]string{"table": {"API keys"}, "link": {"New key"}, "button": {"Revoke loader"}}},
		{"grants", "/console/access/grants", "Grants", map[string][]string{"table": {"Grants"}}},
		{"policies", "/console/access/policies", "Policies", map[string][]string{"table": {"Policies"}, "link": {"New policy", "night"}}},
		{"policy", "/console/access/policies/night", "night", map[string][]string{"field": {"Policy", "Dry run"}, "button": {"Save"}}},
		{"explain", "/console/access/explain", "Explain a token", map[string][]string{"field": {"Token", "Method", "Path"}, "button": {"Explain"}}},
		{"settings", "/console/settings", "Settings", map[string][]string{"table": {"Features", "search"}, "link": {"search.default_count"}, "button": {"Turn on search.explain"}}},
		{"setting", "/console/settings/search.default_count", "search.default_count", map[string][]string{"field": {"Value"}, "button": {"Save", "Use the default"}}},
		{"searches", "/console/searches", "Searches", map[string][]string{"table": {"Searches", "Index suggestions"}}},
		{"views", "/console/views", "Views", map[string][]string{"field": {"View", "Indexes"}, "button": {"Build table", "Remove names"}, "table": {"Views"}, "link": {"names", "New ViewDefinition"}}},
		{"view", "/console/views/names", "names", map[string][]string{"button": {"Remove names"}, "table": {"Columns", "Problems"}, "link": {"Views", "ViewDefinition/names"}}},
		{"remove-view", "/console/views/names/remove", "Remove names?", map[string][]string{"button": {"Remove names"}, "link": {"Cancel"}}},
		{"audit", "/console/audit", "Audit", map[string][]string{"field": {"From", "To", "User", "Patient"}, "button": {"Search"}, "table": {"Events"}}},
		{"account", "/console/account", "Account", map[string][]string{"table": {"Apps with access to my data", "Sessions"}, "button": {"Sign out everywhere", "Change password"}, "field": {"Current password", "New password"}}},
	} {
		c.open(tt.path)
		if got := c.text("h1"); got != tt.heading {
			t.Errorf("%s: h1 %q, want %q", tt.name, got, tt.heading)
		}
		for role, names := range tt.names {
			c.must(role, names...)
		}
		c.survey(tt.name)
	}
}

// Administrators act by forms; everybody else is refused, and nothing is done.
func TestAdministratorsActions(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t)
	admin, doctor := s.visitor(), s.visitor()
	admin.signIn("admin", "/console").want(200)
	doctor.signIn("doctor", "/console").want(200)
	for _, tt := range []struct {
		path string
		form url.Values
	}{
		{"/console/access/users/new", url.Values{"username": {"x"}, "active": {"true"}}}, {"/console/access/clients/new", url.Values{"clientid": {"x"}}}, {"/console/access/keys/new", url.Values{"name": {"x"}, "scopes": {"system/*.rs"}}},
		{"/console/access/policies/new", url.Values{"policy": {`{"name":"x"}`}}}, {"/console/settings", url.Values{"flag": {"search.explain"}, "on": {"false"}}}, {"/console/settings/search.default_count", url.Values{"value": {"7"}}},
		{"/console/jobs", url.Values{"id": {"x"}}}, {"/console/searches", url.Values{"id": {"x"}}}, {"/console/definitions", url.Values{}}, {"/console/audit", url.Values{}}, {"/console/App/x/run", url.Values{}}, {"/console/Subscription/x/deliveries", url.Values{"action": {"test"}}},
	} {
		doctor.post(tt.path, tt.form).want(http.StatusForbidden)
	}

	// Settings.
	admin.get(admin.post("/console/settings/search.default_count", url.Values{"action": {"save"}, "value": {"7"}}).want(303).location).want(200).has("search.default_count is stored.", `value="7"`)
	admin.post("/console/settings/search.default_count", url.Values{"action": {"save"}, "value": {"none"}}).want(400).has(`role="alert"`)
	admin.get(admin.post("/console/settings/search.default_count", url.Values{"action": {"default"}}).want(303).location).want(200).has(`value="20"`)
	admin.get(admin.post("/console/settings", url.Values{"flag": {"search.explain"}, "on": {"false"}}).want(303).location).want(200).has("Turn on search.explain")

	// Access.
	admin.get(admin.post("/console/access/users/new", url.Values{"username": {"nurse"}, "name": {"Nurse"}, "active": {"true"}}).want(303).location).want(200).has("Secret", `id="secret"`, "nurse is stored.")
	admin.get("/console/access/users").want(200).has("nurse").lacks(`id="secret"`)
	admin.get(admin.post("/console/access/keys/new", url.Values{"name": {"loader"}, "scopes": {"system/*.rs"}}).want(303).location).want(200).has(`value="kiln_`)
	list := admin.get("/console/access/keys").want(200).has("Revoke loader").lacks(`"kiln_`)
	at := strings.Index(list.body, `action="/console/access/keys/`)
	path := list.body[at+len(`action="`):]
	path = path[:strings.IndexByte(path, '"')]
	admin.get(path).want(200).has("Revoke loader", "Cancel")
	admin.get(admin.post(path, url.Values{}).want(303).location).want(200).has("loader is revoked.")
	admin.get(admin.post("/console/access/policies/new", url.Values{"policy": {`{"name":"night","active":true,"priority":1,"matcher":{},"effect":"deny"}`}, "dry": {"true"}}).want(303).location).want(200).has("Would have denied: ")

	// The sessions, by REST and here.
	sent := admin.post("/console/requests", url.Values{"method": {"GET"}, "path": {"/admin/sessions"}}).want(303)
	admin.get(sent.location).want(200).has("200 OK", "lastActive", "doctor")
	doctor.post("/console/account", url.Values{"action": {"password"}, "current": {"wrong"}, "chosen": {"another long password"}}).want(http.StatusForbidden)
	doctor.post("/console/account", url.Values{"action": {"password"}, "current": {password}, "chosen": {"another long password"}}).want(303)
	for deadline := time.Now().Add(time.Second); doctor.get("/console").status != 303; {
		if time.Now().After(deadline) {
			t.Fatal("a session outlives a new password")
		}
	}
	everywhere := admin.post("/console/account", url.Values{"action": {"everywhere"}}).want(303)
	if everywhere.location != "/auth/logout" {
		t.Errorf("sign out everywhere leads to %s", everywhere.location)
	}
	admin.get("/console").want(303)
}
