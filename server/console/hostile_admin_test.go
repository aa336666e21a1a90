package console_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// Users, clients, keys, policies, Apps, Subscriptions and packages with markup in every text: nothing runs, nothing leaves the
// origin, and no violation of the policy is reported.
func TestHostileAdministration(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t, withRESTClient)
	s.token("doctor") // a grant
	v := s.visitor()
	v.signIn("admin", "/console").want(200)
	csrf := v.get("/console/fhirpath").hidden("csrf_token")
	stored := make(map[string]int)
	// send makes a request, and counts those that the server takes.
	send := func(what, method, path string, body any) {
		t.Helper()
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		p := v.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {csrf}, "method": {method}, "path": {path}, "body": {string(b)}, "headers": {"Content-Type: application/json"}}).want(http.StatusSeeOther)
		if got := v.get(p.location).want(200); strings.Contains(got.body, "<strong>20") {
			stored[what]++
		} else if stored[what] == 0 {
			_, words, _ := strings.Cut(got.body, "diagnostics")
			t.Logf("%s: %.300s", what, words)
		}
	}
	type object = map[string]any
	for i, text := range hostileTexts {
		line := strings.Join(strings.Fields(text), " ")
		send("users", "POST", "/admin/users", object{"username": fmt.Sprintf("user%d", i), "name": line, "password": password, "email": "a@example.org", "active": true})
		send("clients", "POST", "/admin/clients", object{"clientId": fmt.Sprintf("client%d", i), "name": line, "confidential": true, "redirectUris": []string{"https://x.example.org/?" + url.QueryEscape(text)}, "scopes": []string{"user/*.rs"}})
		send("keys", "POST", "/admin/apikeys", object{"name": line, "scope": "system/*.rs"})
		send("policies", "POST", "/admin/policies", object{"name": fmt.Sprintf("policy%d", i), "active": true, "priority": i + 1, "dryRun": true, "matcher": object{"interactions": []string{"read"}, "users": []string{text}}, "effect": "deny", "message": text})
		code := "async () => { console.log(" + quoted(text) + "); return {answer: " + quoted(text) + "} }"
		send("apps", "PUT", fmt.Sprintf("/App/app%d", i), object{"resourceType": "App", "id": fmt.Sprintf("app%d", i), "name": line, "version": line, "status": "active",
			"operations": []object{{"type": "execute", "resourceType": "Patient", "name": fmt.Sprintf("op%d", i), "handler": object{"type": "javascript", "code": code}}}})
		send("subscriptions", "PUT", fmt.Sprintf("/Subscription/s%d", i), object{"resourceType": "Subscription", "id": fmt.Sprintf("s%d", i), "status": "off", "reason": text, "criteria": "Patient?name=" + url.QueryEscape(text),
			"error": text, "channel": object{"type": "rest-hook", "endpoint": "https://x.example.org/?" + url.QueryEscape(text)}})
	}
	for _, what := range []string{"users", "clients", "keys", "policies", "apps", "subscriptions"} {
		if t.Logf("%s: %d of %d are stored", what, stored[what], len(hostileTexts)); stored[what] == 0 {
			t.Errorf("no hostile %s are stored", what)
		}
	}

	c := openChromium(t, s.base)
	c.signIn("admin")
	c.forget()
	paths := []string{"/console", "/console/access/users", "/console/access/clients", "/console/access/keys", "/console/access/grants", "/console/access/policies", "/console/apps", "/console/subscriptions", "/console/live", "/console/jobs",
		"/console/settings", "/console/searches", "/console/audit", "/console/views", "/console/account", "/console/definitions"}
	for i := range hostileTexts {
		for _, form := range []string{"/console/access/users/user%d", "/console/access/clients/client%d", "/console/access/policies/policy%d", "/console/App/app%d/run", "/console/App/app%d/code", "/console/App/app%d/versions", "/console/Subscription/s%d/deliveries"} {
			paths = append(paths, fmt.Sprintf(form, i))
		}
	}
	for _, path := range paths {
		c.harmless(path)
	}
	// An App that says markup, and its log.
	for i := range 3 {
		c.open(fmt.Sprintf("/console/App/app%d/run", i))
		c.press("button", "Run")
		c.must("region", "Answer")
		c.harmless(script[string](c, "location.pathname + location.search"))
		c.harmless(fmt.Sprintf("/console/App/app%d/log", i))
	}
	// A package: its name and its definitions.
	c.open("/console/definitions")
	file := hostilePackage(t)
	c.run(chromedp.SetUploadFiles(chromedp.CSS("input[type=file]"), []string{file}))
	c.press("button", "Install")
	c.harmless(script[string](c, "location.pathname + location.search"))
	if text := c.text("main"); !strings.Contains(text, "onerror=alert") {
		t.Errorf("no hostile package is shown: %s", text)
	}
	// A key: the page that asks, and the page that says that it is revoked.
	c.open("/console/access/keys")
	if !script[bool](c, `(() => { const b = document.querySelector("td button"); b.click(); return !!b; })()`) {
		t.Error("there is no key")
	}
	c.run(chromedp.WaitVisible(chromedp.CSS("button.danger")))
	c.harmless(script[string](c, "location.pathname"))
	c.ignoreStatuses()
	c.quiet("hostile administration")
}

// quoted is a text in a script.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // texts have JSON
	}
	return string(b)
}

// hostilePackage writes a package with markup in its texts.
func hostilePackage(t *testing.T) string {
	t.Helper()
	path := packageOf(t, [][2]string{
		{"package/package.json", `{"name":"org.example.hostile","version":"1.0.0","fhirVersions":["4.0.1"],"title":` + quoted(markup) + `,"description":` + quoted(markup) + `}`},
		{"package/CodeSystem-" + `"><img src=x onerror=alert(1)>` + ".json", `{"resourceType":"CodeSystem","id":"hostile","url":` + quoted(`https://example.org/"><img/src=x/onerror=alert(1)>`) + `,"version":` + quoted(markup) + `,"name":` + quoted(markup) + `,"status":"active","content":"complete","concept":[{"code":"red","display":` + quoted(markup) + `}]}`},
	})
	b, err := os.ReadFile(path)
	if err != nil || !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		t.Fatalf("the package is no gzip file: %v", err)
	}
	return path
}
