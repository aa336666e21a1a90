package console_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"kiln/server"
)

// withRESTClient adds the client of token.
func withRESTClient(c *server.Config) {
	c.Auth.Bootstrap.Clients = append(c.Auth.Bootstrap.Clients, map[string]any{"clientId": "rest", "name": "Growth Viewer", "redirectUris": []any{"https://rest.example.org/cb"}, "scopes": []any{"openid fhirUser user/*.cruds"}})
}

// await loads a page again until a text is there.
func (c *chromium) await(path, text string) {
	c.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(50 * time.Millisecond) {
		if c.open(path); strings.Contains(c.text("main"), text) {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s has no %q: %s", path, text, c.text("main"))
		}
	}
}

// packageFile writes a package with one CodeSystem.
func packageFile(t *testing.T) string {
	t.Helper()
	return packageOf(t, [][2]string{
		{"package/package.json", `{"name":"org.example.colours","version":"1.0.0","fhirVersions":["4.0.1"]}`},
		{"package/CodeSystem-colours.json", `{"resourceType":"CodeSystem","id":"colours","url":"https://example.org/colours","version":"1","status":"active","content":"complete","concept":[{"code":"red"}]}`},
	})
}

// packageOf writes a package with files, each a name and a text.
func packageOf(t *testing.T, files [][2]string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Typeflag: tar.TypeReg, Size: int64(len(f[1])), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "package.tgz")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The work of an administrator in a real browser, with the promised clicks from the Overview.
func TestClicksOfAdministrators(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			http.Error(w, "the ward is closed", http.StatusInternalServerError)
		}
	}))
	t.Cleanup(receiver.Close)
	s, _ := signedUp(t, withRESTClient, func(c *server.Config) {
		c.Notifications.Webhook.AllowPrivateNetworks = "true"
		c.Notifications.Webhook.MaxRetries, c.Notifications.Webhook.RetryBackoffSeconds = 1, []int{0}
	})
	s.token("doctor")
	s.token("admin")
	c := openChromium(t, s.base)
	c.signIn("admin")
	clicks := 0
	from := func() { c.open("/console"); clicks = 0 }
	click := func(role, name string) { t.Helper(); c.press(role, name); clicks++ }
	atMost := func(n int, what string) {
		t.Helper()
		t.Logf("%s: %d clicks", what, clicks)
		if clicks > n {
			t.Errorf("%s takes %d clicks, more than %d", what, clicks, n)
		}
	}
	status := func(want string) {
		t.Helper()
		if got := c.text("[role=status]"); got != want {
			t.Errorf("status %q, want %q", got, want)
		}
	}

	// A Subscription by the editor, with an endpoint that fails.
	c.open("/console/Subscription/new")
	c.fill("Resource", `{"resourceType":"Subscription","status":"requested","reason":"test","criteria":"Patient?name=ashford","channel":{"type":"rest-hook","endpoint":"`+receiver.URL+`","payload":"application/fhir+json"}}`)
	c.press("button", "Save")
	id := strings.TrimPrefix(script[string](c, "location.pathname"), "/console/Subscription/")
	c.await("/console/Subscription/"+id, "active")
	broken.Store(true)
	c.open("/console/Patient/b/edit")
	c.press("button", "Save")
	c.await("/console/Subscription/"+id+"/deliveries", "failed")

	// Why a webhook failed: 3, and redelivery: 4.
	from()
	c.must("region", "Attention")
	c.must("link", "Subscription/"+id+" fails", "Subscription/"+id+" has 1 dead letter")
	c.press("link", "Subscription/"+id+" fails")
	if got := script[string](c, "location.pathname"); got != "/console/Subscription/"+id+"/deliveries" {
		t.Errorf("Attention leads to %s", got)
	}
	from()
	click("link", "Subscriptions")
	if row := c.text("tbody tr"); !strings.Contains(row, "Patient?name=ashford") || !strings.HasSuffix(strings.TrimSpace(row), "1") {
		t.Errorf("the row of the Subscription is %q", row)
	}
	click("link", id)
	c.must("button", "Send a test", "Try again", "Redeliver dead letters")
	click("link", script[string](c, `document.querySelector("tbody tr th a, tbody tr td a").innerText`))
	if h1 := c.text("h1"); h1 != "Delivery" || !strings.Contains(c.text("main"), "500") {
		t.Errorf("the page %q does not say why the webhook failed: %s", h1, c.text("main"))
	}
	c.must("table", "Attempts")
	c.must("region", "Message")
	atMost(3, "why a webhook failed")
	broken.Store(false)
	click("button", "Redeliver")
	status("The delivery is due again.")
	atMost(4, "redelivery")
	c.await("/console/Subscription/"+id+"/deliveries", "delivered")
	c.press("button", "Send a test")
	status("The test was delivered.")
	c.press("button", "Redeliver dead letters")
	status("0 dead letters are delivered again.")
	c.press("button", "Try again")
	status("Subscription/" + id + " is requested again.")

	// Revoking an app: 3, its own page asks first.
	from()
	click("link", "Account")
	c.must("table", "Apps with access to my data", "Sessions")
	click("button", "Revoke access for Growth Viewer")
	c.must("link", "Cancel")
	click("button", "Revoke access for Growth Viewer")
	status("Growth Viewer has no access any more.")
	atMost(3, "revoking an app")
	c.open("/console/access/grants")
	c.must("table", "Grants")
	c.press("button", "Revoke rest")
	c.press("button", "Revoke rest")
	status("rest is revoked.")

	// Installing a package: 2, and its removal.
	from()
	click("link", "Definitions")
	install := func(button string) {
		t.Helper()
		c.run(chromedp.SetUploadFiles(chromedp.CSS("input[type=file]"), []string{packageFile(t)}))
		click("button", button)
	}
	install("Install")
	status("The package is installed.")
	atMost(2, "installing a package")
	c.must("table", "Result", "Packages", "Search parameters")
	if got := script[string](c, "location.search"); !strings.HasPrefix(got, "?answer=") {
		t.Errorf("loading the page again would install the package again: %q", got)
	}
	if text := c.text("main"); !strings.Contains(text, "https://example.org/colours") || !strings.Contains(text, "org.example.colours") {
		t.Errorf("the result is %s", text)
	}
	c.press("button", "Remove org.example.colours@1.0.0")
	c.must("link", "Cancel")
	c.press("button", "Remove org.example.colours@1.0.0")
	status("org.example.colours@1.0.0 is removed.")
	script[bool](c, `document.querySelector("input[name=dry]").checked = true`)
	install("Install")
	status("This was a dry run: nothing is stored.")
	c.must("table", "Result")
	if c.found("button", "Remove org.example.colours@1.0.0") != 0 {
		t.Error("a dry run has installed the package")
	}

	// A policy that only counts.
	c.open("/console/access/policies")
	c.press("link", "New policy")
	c.fill("Policy", `{"name":"night","active":true,"priority":1,"matcher":{},"effect":"deny"}`)
	script[bool](c, `document.querySelector("input[name=dry]").checked = true`)
	c.press("button", "Save")
	status("The policy is stored.")
	if text := c.text("table"); !strings.Contains(text, "Would have denied: ") {
		t.Errorf("the policies are %s", text)
	}

	// A key is shown once.
	c.open("/console/access/keys")
	c.press("link", "New key")
	c.fill("Name", "loader")
	c.fill("Scopes", "system/*.rs")
	c.press("button", "Save")
	c.must("field", "Secret")
	if secret := script[string](c, `document.getElementById("secret").value`); !strings.HasPrefix(secret, "kiln_") {
		t.Errorf("the secret is %q", secret)
	}
	c.open("/console/access/keys")
	if c.found("field", "Secret") != 0 || strings.Contains(c.text("body"), "kiln_") {
		t.Error("the key is shown twice")
	}
	c.press("button", "Revoke loader")
	c.must("link", "Cancel")
	c.press("button", "Revoke loader")
	status("loader is revoked.")

	// A user and a client.
	c.open("/console/access/users/new")
	c.fill("User name", "nurse")
	c.fill("Password", "a long password of hers")
	c.press("button", "Save")
	status("nurse is stored.")
	c.must("link", "nurse")
	c.open("/console/access/clients/new")
	c.fill("Client id", "loader")
	script[bool](c, `document.querySelector("input[name=confidential]").checked = true`)
	c.fill("Scopes", "system/Patient.rs\nsystem/Observation.rs")
	c.press("button", "Save")
	c.must("field", "Secret")

	// The rights of a token.
	c.open("/console/access/explain")
	c.fill("Token", s.token("doctor"))
	c.fill("Path", "/Patient/a")
	c.press("button", "Explain")
	c.must("region", "Decision")

	// A request, with its answer and the command line.
	c.open("/console/requests")
	c.fill("Path", "/Patient?_count=1")
	c.press("button", "Send")
	c.must("region", "Answer", "curl")
	c.must("table", "Entries", "Sent requests")
	if text := c.text("main"); !strings.Contains(text, "200 OK") || !strings.Contains(text, "Content-Type: application/fhir+json") || !strings.Contains(text, "$TOKEN") {
		t.Errorf("the answer is %s", text)
	}

	// FHIRPath and terminology.
	c.open("/console/fhirpath")
	c.fill("Address", "Patient/a")
	c.fill("Expression", "name.given")
	c.press("button", "Evaluate")
	c.must("table", "Result")
	c.open("/console/terminology?" + url.Values{"system": {"http://hl7.org/fhir/observation-status"}, "code": {"amended"}}.Encode())
	c.must("table", "Concept")
	c.must("list", "Hierarchy")

	// A switch, and the conditions of a search.
	c.open("/console/settings")
	on := "Turn off search.explain"
	if c.found("button", on) == 0 {
		c.press("button", "Turn on search.explain")
		status("search.explain is on.")
	}
	c.must("button", on)
	c.open("/console/resources/Patient")
	c.fill("Value", "true")
	c.press("button", "Add condition")
	c.must("list", "Conditions")
	c.must("button", "Remove active=true")
	if c.found("link", "Explain") != 0 {
		t.Error("the page offers an explanation, which the server does not give where there are rights")
	}
	c.quiet("clicks of an administrator")
}

// The promised clicks from the Overview, in a real browser; and the stops of the keyboard.
func TestClicks(t *testing.T) {
	t.Parallel()
	s := start(t, "", func(c *server.Config) { c.Search.Explain = true })
	s.records()
	s.put("App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"1","status":"draft"}`)
	s.put("App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"2","status":"draft"}`)
	c := openChromium(t, s.base)
	at := func(heading string) {
		t.Helper()
		if got := c.text("h1"); got != heading {
			t.Errorf("h1 %q, want %q", got, heading)
		}
	}

	// A known resource: 1.
	c.open("/console")
	c.fill("Go to", "Patient/b")
	c.press("button", "Go to")
	at("Patient/b")

	// The highest value of a code and that patient's curve: 4, of 5.
	c.open("/console")
	c.fill("Go to", "Observation?code=8302-2")
	c.press("button", "Go to")
	c.press("link", "Value")
	if got := c.text("tbody tr td:nth-of-type(2)"); got != "155 cm" {
		t.Errorf("the first value is %q", got)
	}
	if got := script[string](c, `document.querySelector("th[aria-sort]").getAttribute("aria-sort")`); got != "descending" {
		t.Errorf("aria-sort is %q", got)
	}
	script[bool](c, `document.querySelector("tbody tr td a[href^='/console/Patient/']").id = "subject"; true`)
	subject := c.text("#subject")
	c.press("link", subject)
	at(subject)
	c.press("link", "Patient view")
	c.must("image", "Body height: 8 values, 2020-03-04 to 2027-03-04")

	// An App's rollback: 4.
	c.open("/console")
	for _, name := range []string{"Apps", "Dose check", "Versions"} {
		c.press("link", name)
	}
	c.press("button", "Roll back to version 1")
	if got := c.text("[role=status]"); got != "Version 1 is restored." {
		t.Errorf("status %q", got)
	}

	// The builder suggests codes that the person can see, and comparisons that the parameter has.
	c.open("/console/resources/Observation")
	c.fill("Parameter", "code")
	c.run(chromedp.Focus(chromedp.CSS("#value")), chromedp.KeyEvent("8302"))
	for deadline := time.Now().Add(10 * time.Second); script[int](c, `document.querySelectorAll("#values option[value='8302-2']").length`) == 0; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no code is suggested")
		}
	}
	if script[bool](c, `[...document.querySelectorAll("#comparison option")].some(o => o.value == "ge" && !o.disabled)`) {
		t.Error("a token has the comparison ge")
	}

	// How a search is run.
	c.press("link", "Explain")
	c.must("region", "Explanation")

	// By keyboard: the first stop skips to the content, and the menu of a narrow screen opens.
	c.open("/console")
	c.run(chromedp.KeyEvent(kb.Tab))
	if got := script[string](c, "document.activeElement.textContent"); got != "Skip to content" {
		t.Errorf("the first stop is %q", got)
	}
	c.run(chromedp.KeyEvent(kb.Enter))
	if got := script[string](c, "document.activeElement.id"); got != "main" {
		t.Errorf("the link leads to %q", got)
	}
	c.run(chromedp.EmulateViewport(390, 844))
	if script[bool](c, `document.getElementById("nav").checkVisibility()`) {
		t.Error("the navigation covers a narrow screen")
	}
	c.run(chromedp.Focus(chromedp.CSS(".menu")), chromedp.KeyEvent(kb.Enter))
	if !script[bool](c, `document.getElementById("nav").checkVisibility()`) {
		t.Error("the menu does not open")
	}
	c.quiet("clicks")
}
