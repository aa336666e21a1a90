package console_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/store/storetest"
)

// heading fails the test where the page has another h1.
func (c *chromium) heading(want string) {
	c.t.Helper()
	if got := c.text("h1"); got != want {
		c.t.Errorf("%s: h1 %q, want %q", script[string](c, "location.pathname"), got, want)
	}
}

// status fails the test where the page has another status message.
func (c *chromium) status(want string) {
	c.t.Helper()
	if got := c.text("[role=status]"); got != want {
		c.t.Errorf("%s: status %q, want %q", script[string](c, "location.pathname"), got, want)
	}
}

// An App is run, read and given scopes by clicks.
func TestAppByClicks(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t)
	c := openChromium(t, s.base)
	c.signIn("admin")
	c.forget()
	c.open("/console")
	c.press("link", "Apps")
	c.press("link", "New App")
	c.heading("New App")
	c.fill("Resource", `{"resourceType":"App","name":"Dose check","version":"1","status":"active","operations":[{"type":"execute","resourceType":"Patient","name":"dose","handler":{"type":"javascript","code":"async (c) => { console.log('weighed'); return {dose: 40 + 2} }"}}]}`)
	c.press("button", "Save")
	c.press("link", "Run")
	c.heading("Dose check")
	if got := script[string](c, "document.title"); strings.Contains(got, "Dose") {
		t.Errorf("the title is %q", got)
	}
	c.must("navigation", "App")
	c.must("field", "Operation", "Instance", "Parameters")
	c.fill("Instance", "a")
	c.fill("Parameters", `{"weight": 70}`)
	c.press("button", "Run")
	c.must("region", "Answer")
	if text := c.text("main"); !strings.Contains(text, "200 OK") || !strings.Contains(text, "42") {
		t.Errorf("the answer is %s", text)
	}
	c.press("link", "Log")
	c.must("table", "Invocations")
	if text := c.text("tbody"); !strings.Contains(text, "dose") || !strings.Contains(text, "weighed") {
		t.Errorf("the log is %s", text)
	}
	c.press("link", "Code")
	c.must("region", "Patient/$dose")
	if text := c.text("main"); !strings.Contains(text, "console.log('weighed')") {
		t.Errorf("the code is %s", text)
	}
	c.press("link", "Grants")
	c.fill("Scopes", "system/Observation.rs\nsystem/Patient.r")
	c.press("button", "Save")
	c.status("The grant is stored.")
	if got := script[string](c, `document.querySelector("textarea").value`); got != "system/Observation.rs\nsystem/Patient.r" {
		t.Errorf("the scopes are %q", got)
	}
	c.press("link", "Deliveries")
	c.must("table", "Deliveries")
	c.quiet("an App")
}

// A resource is made, checked, saved, compared, restored and deleted by clicks.
func TestEditorByClicks(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	c := openChromium(t, s.base)
	c.open("/console")
	c.press("link", "Resources")
	c.open("/console/resources/Patient")
	c.press("link", "New Patient")
	c.heading("New Patient")
	wrong := "{\n  \"resourceType\": \"Patient\",\n  \"gender\": \"unknownn\",\n  \"birthDate\": \"tomorrow\"\n}"
	c.fill("Resource", wrong)
	c.press("button", "Validate")
	if alert := c.text("[role=alert]"); !regexp.MustCompile(`(?m)^Line 4: .*tomorrow`).MatchString(alert) {
		t.Errorf("the alert is %q", alert)
	}
	if got := script[string](c, `document.querySelector("textarea").value`); got != wrong {
		t.Errorf("the text is %q", got)
	}
	c.fill("Resource", "{\n  \"resourceType\": \"Patient\",\n  \"gender\": \"female\"\n}")
	c.press("button", "Validate")
	c.status("No problems found")
	c.press("button", "Save")
	name := strings.TrimPrefix(script[string](c, "location.pathname"), "/console/")
	c.heading(name)
	c.status(name + " is stored.")
	c.press("link", "Edit")
	c.heading("Edit " + name)
	stale := openTab(c)
	c.fill("Resource", strings.Replace(script[string](c, `document.querySelector("textarea").value`), "female", "male", 1))
	c.press("button", "Save")
	stale()
	c.press("link", "Compare")
	c.must("table", "Versions", "Changes")
	if text := c.text("main"); !strings.Contains(text, "Patient.gender") || !strings.Contains(text, "female") {
		t.Errorf("the changes are %s", text)
	}
	c.must("field", "From version 1", "To version 2")
	c.must("button", "Compare")
	c.press("link", "1")
	c.press("button", "Restore version 1")
	c.status("Version 1 is restored.")
	c.press("link", "History")
	if text := c.text("tbody"); !strings.Contains(text, "create") || strings.Count(text, "update") != 2 {
		t.Errorf("the versions are %s", text)
	}
	c.press("link", "Delete")
	c.heading("Delete " + name + "?")
	c.press("link", "Cancel")
	c.heading(name)
	c.press("link", "Delete")
	c.press("button", "Delete")
	c.status(name + " is deleted.")
	c.ignoreStatuses()
	c.quiet("the editor")
}

// openTab keeps the form of the page. The function that it returns sends it, as a tab that was open all the time would.
func openTab(c *chromium) func() {
	form := script[string](c, `(() => { const f = document.querySelector("textarea").form; return JSON.stringify({action: f.getAttribute("action"), fields: [...new FormData(f)]}); })()`)
	return func() {
		c.t.Helper()
		script[bool](c, `(() => { const old = `+form+`; const f = document.createElement("form"); f.method = "post"; f.action = old.action;
			for (const [name, value] of old.fields) { const i = document.createElement("input"); i.type = "hidden"; i.name = name; i.value = value; f.append(i); }
			const b = document.createElement("button"); b.textContent = "Send the old form"; f.append(b); document.body.append(f); return true; })()`)
		c.press("button", "Send the old form")
		if c.text("[role=alert]") == "" {
			c.t.Error("a stale form is saved")
		}
	}
}

// A search has pages, columns, conditions and an order by clicks; its address has none of it.
func TestSearchByClicks(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	for i := range 25 {
		s.put(fmt.Sprintf("Patient/p%02d", i), fmt.Sprintf(`{"resourceType":"Patient","id":"p%02d","name":[{"family":"Family%02d"}],"birthDate":"19%02d-01-01"}`, i, i, 50+i))
	}
	c := openChromium(t, s.base)
	c.open("/console/resources")
	c.press("link", "Patient")
	c.status("27 results")
	c.must("navigation", "Pages")
	c.press("link", "Birth date")
	if got := script[string](c, `document.querySelector("th[aria-sort]").getAttribute("aria-sort")`); got != "ascending" {
		t.Errorf("aria-sort is %q", got)
	}
	c.press("link", "Next page")
	if n := script[int](c, `document.querySelectorAll("tbody tr").length`); n != 7 {
		t.Errorf("the second page has %d rows", n)
	}
	c.press("link", "Previous page")
	c.must("link", "p00", "Next page")
	c.fill("Parameter", "family")
	c.fill("Comparison", ":exact")
	c.fill("Value", "Family07")
	c.press("button", "Add condition")
	c.status("1 result")
	if got := script[string](c, "location.pathname + document.title"); strings.Contains(got, "Family") || !strings.HasPrefix(got, "/console/search/") {
		t.Errorf("the address and the title are %s", got)
	}
	script[bool](c, `(() => { for (const e of document.querySelectorAll("input[name=columns]")) e.checked = e.value == "Gender"; return true; })()`)
	c.press("button", "Show columns")
	if head := c.text("thead"); strings.Contains(head, "Birth date") || !strings.Contains(head, "Gender") {
		t.Errorf("the columns are %s", head)
	}
	c.press("button", "Remove family:exact=Family07")
	c.status("27 results")
	c.fill("Query", "birthdate=ge1970-01-01&_sort=-birthdate")
	c.press("button", "Search")
	c.must("list", "Conditions")
	c.must("button", "Remove birthdate=ge1970-01-01")
	c.press("link", "p24")
	c.heading("Patient/p24")
	c.quiet("a search")
}

// Terminology, FHIRPath and a request with a file, by clicks.
func TestToolsByClicks(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	s.put("CodeSystem/tree", `{"resourceType":"CodeSystem","id":"tree","url":"https://example.org/tree","status":"active","content":"complete","hierarchyMeaning":"is-a","concept":[{"code":"plant","display":"Plant","concept":[{"code":"oak","display":"Oak"}]}]}`)
	s.put("ConceptMap/map", `{"resourceType":"ConceptMap","id":"map","url":"https://example.org/map","status":"active","group":[{"source":"https://example.org/tree","target":"http://hl7.org/fhir/administrative-gender","element":[{"code":"oak","target":[{"code":"female","display":"Female","equivalence":"equivalent"}]}]}]}`)
	c := openChromium(t, s.base)
	c.open("/console")
	c.press("link", "Terminology")
	c.fill("Value set", "http://hl7.org/fhir/ValueSet/administrative-gender")
	c.fill("Filter", "fem")
	c.press("button", "Expand")
	if head, text := c.text("thead"), c.text("tbody"); strings.Join(strings.Fields(head), " ") != "Code Display System" || !strings.Contains(text, "female") || strings.Contains(text, "unknown") {
		t.Errorf("the concepts are %s %s", head, text)
	}
	c.fill("System", "https://example.org/tree")
	c.fill("Code", "oak")
	c.press("button", "Look up")
	c.must("table", "Concept")
	c.must("list", "Hierarchy")
	if text := c.text("main"); !strings.Contains(text, "Oak") || !strings.Contains(text, "Parent: plant") {
		t.Errorf("the concept is %s", text)
	}
	c.fill("Concept map", "https://example.org/map")
	c.fill("Source system", "https://example.org/tree")
	c.fill("Source code", "oak")
	c.press("button", "Translate")
	c.must("table", "Matches")
	c.press("link", "female")
	c.must("table", "Concept")

	c.press("link", "FHIRPath")
	c.fill("Resource", `{"resourceType":"Patient","name":[{"given":["Ada","Grace"]}]}`)
	c.fill("Expression", "name.given")
	c.press("button", "Evaluate")
	if head, text := strings.Join(strings.Fields(c.text("thead")), " "), strings.Join(strings.Fields(c.text("tbody")), " "); head != "Type Value" || !strings.HasSuffix(text, "Grace") {
		t.Errorf("the result is %s %s", head, text)
	}

	file := filepath.Join(t.TempDir(), "patient.json")
	if err := os.WriteFile(file, []byte(`{"resourceType":"Patient","name":[{"family":"Filed"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c.press("link", "Requests")
	c.fill("Method", "POST")
	c.fill("Path", "/Patient")
	c.fill("Headers", "Prefer: return=representation")
	c.run(chromedp.SetUploadFiles(chromedp.CSS("#file"), []string{file}))
	c.press("button", "Send")
	c.must("region", "Answer", "curl")
	if text := c.text("main"); !strings.Contains(text, "201 Created") || !strings.Contains(text, "Filed") || !strings.Contains(text, "Prefer: return=representation") {
		t.Errorf("the answer is %s", text)
	}
	c.press("link", "POST /Patient")
	c.must("region", "Answer")
	c.quiet("tools")
}

// Jobs have a progress, and end by a click; settings, switches and the audit work by clicks; a session ends everywhere.
func TestServerByClicks(t *testing.T) {
	t.Parallel()
	s, database := signedUp(t)
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	if _, err := db.Exec(t.Context(), `INSERT INTO job (id, type, state, client, username, principal, request, base, spec, reason, created, started, total, done)
		VALUES ('held', 'retention', 'running', '', 'admin', '{}', '', '', '{}', 'a test', now(), now(), 200, 0)`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO job_part (job, number, stage, spec, state, holder, lease, leased_until, done) VALUES ('held', 1, 0, '{}', 'running', 'another server', 1, now() + interval '1 hour', 50)`); err != nil {
		t.Fatal(err)
	}
	c := openChromium(t, s.base)
	c.signIn("admin")
	c.forget()
	if _, err := db.Exec(t.Context(), `INSERT INTO job (id, type, state, client, username, principal, request, base, spec, reason, created, started, finished, failure)
		VALUES ('broken', 'retention', 'failed', '', 'admin', '{}', '', '', '{}', 'a test', now(), now(), now(), 'the disk is full')`); err != nil {
		t.Fatal(err)
	}
	c.open("/console")
	c.press("link", "The job broken has failed: the disk is full")
	c.heading("Jobs")
	c.must("progressbar", "Progress of held")
	c.axe("jobs with a job")
	if text := c.text("tbody"); !strings.Contains(text, "50 / 200") || !strings.Contains(text, "the disk is full") {
		t.Errorf("the jobs are %s", text)
	}
	c.press("button", "Cancel job")
	c.status("The job is cancelled.")

	c.press("link", "Settings")
	c.press("link", "search.default_count")
	c.heading("search.default_count")
	c.fill("Value", "7")
	c.press("button", "Save")
	c.status("search.default_count is stored.")
	c.fill("Value", "none")
	c.press("button", "Save")
	if c.text("[role=alert]") == "" || script[string](c, `document.querySelector("main input[name=value]").value`) != "none" {
		t.Errorf("a wrong value: %s", c.text("main"))
	}
	c.press("button", "Use the default")
	if got := script[string](c, `document.querySelector("main input[name=value]").value`); got != "20" {
		t.Errorf("the default is %q", got)
	}
	c.press("link", "Settings")
	on, off := "Turn on search.explain", "Turn off search.explain"
	if c.found("button", on) == 0 {
		on, off = off, on
	}
	c.press("button", on)
	c.must("button", off)

	c.press("link", "Audit")
	c.fill("From", "2020-01-01")
	c.fill("User", "admin")
	c.press("button", "Search")
	c.must("table", "Events")
	if n := script[int](c, `document.querySelectorAll("tbody tr").length`); n == 0 {
		t.Error("the audit has no events of the administrator")
	}
	c.fill("User", "")
	c.fill("Patient", "a")
	c.press("button", "Search")
	if got := script[string](c, "location.href + document.title"); strings.Contains(got, "Patient") || strings.Contains(got, "patient") {
		t.Errorf("the address of the audit is %s", got)
	}

	c.press("link", "Account")
	c.fill("Current password", "wrong")
	c.fill("New password", "another long password")
	c.press("button", "Change password")
	if c.text("[role=alert]") == "" {
		t.Error("a wrong password is no alert")
	}
	c.press("link", "Account")
	c.press("button", "Sign out everywhere")
	c.heading("Signed out")
	c.press("link", "Sign in again")
	c.must("field", "User name", "Password")
	c.ignoreStatuses()
	c.quiet("the server")
}

// JSON above 256 kB is a download, of a resource and of an answer.
func TestLongJSON(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.put("Basic/long", `{"resourceType":"Basic","id":"long","code":{"text":"x"},"extension":[{"url":"https://example.org/x","valueString":"`+strings.Repeat("long text ", 40_000)+`"}]}`)
	v := s.visitor()
	v.get("/console/Basic/long/json").want(200).lacks("long text").has("Download", "/console/Basic/long/download")
	p := v.get("/console/Basic/long/download").want(200).has("long text")
	if got := p.header.Get("Content-Disposition"); got != `attachment; filename="Basic.json"` {
		t.Errorf("Content-Disposition: %s", got)
	}
	v.get("/console/Basic/long").want(200)
}

// A database that does not answer gives 503 with a link that tries again; a database that is back gives the page.
func TestDatabaseDown(t *testing.T) {
	t.Parallel()
	postgresql := storetest.NewCluster(t)
	for _, rights := range []bool{false, true} {
		t.Run(fmt.Sprintf("authorization %v", rights), func(t *testing.T) {
			s := start(t, postgresql.URL(), func(c *server.Config) {
				if rights {
					withAuthorization(c)
				}
			})
			c := openChromium(t, s.base)
			if c.open("/console"); rights {
				c.run(chromedp.WaitVisible(chromedp.CSS("#username")))
				c.signIn("admin")
			}
			c.heading("Overview")
			postgresql.Stop()
			c.open("/?_format=html")
			c.must("status", "Not ready")
			for _, path := range []string{"/console", "/console/resources/Patient", "/console/jobs", "/console/Patient/a", "/console/access/policies"} {
				c.open(path)
				if got := script[int](c, `performance.getEntriesByType("navigation")[0].responseStatus`); got != http.StatusServiceUnavailable {
					t.Errorf("%s: %d: %s", path, got, c.text("main"))
				}
				c.must("link", "Try again")
			}
			c.axe("a database that does not answer")
			postgresql.Start()
			for deadline := time.Now().Add(20 * time.Second); ; <-time.After(50 * time.Millisecond) {
				if c.press("link", "Try again"); c.found("link", "Try again") == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the page does not come back")
				}
			}
			c.heading("Policies")
			if rights {
				c.must("button", "Sign out")
			}
			c.ignoreStatuses()
			c.quiet("a database that does not answer")
			s.stop()
		})
	}
}
