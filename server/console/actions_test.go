package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// A resource is made, changed, compared, restored and deleted by forms alone.
func TestResourceActions(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	v := s.visitor()

	edit := v.get("/console/Patient/b/edit").want(200)
	changed := func(version string, text ...string) url.Values {
		body := `{
  "resourceType": "Patient",
  "id": "b",
  "gender": "female",
  "name": [
    {"family": "` + text[0] + `"}
  ]` + strings.Join(text[1:], "") + `
}`
		return url.Values{"csrf_token": {edit.hidden("csrf_token")}, "version": {version}, "resource": {body}}
	}
	saved := v.do(http.MethodPost, "/console/Patient/b/edit", changed("1", "Newname")).want(303)
	v.get(saved.location).want(200).has("Newname", "Patient/b is stored.", `role="status"`)
	v.get(saved.location).want(200).lacks("is stored.") // once
	stale := v.do(http.MethodPost, "/console/Patient/b/edit", changed("1", "Other")).want(409).has("Compare", "Other", `role="alert"`)
	if !strings.Contains(stale.body, "/console/Patient/b/history?from=1&amp;to=2") {
		t.Error("a stale save does not lead to the changes")
	}
	v.do(http.MethodPost, "/console/Patient/b/edit", changed("2", "X", `,
  "birthDate": "tomorrow"`)).want(422).has("Line 8: ", "tomorrow")
	v.do(http.MethodPost, "/console/Patient/b/edit", changed("2", "X", `, nonsense`)).want(400).has("Line 7: ")
	validate := changed("2", "X")
	validate.Set("action", "validate")
	v.do(http.MethodPost, "/console/Patient/b/edit", validate).want(200).has("No problems found")
	v.get("/console/Patient/b/history").want(200).lacks(">3</a>")
	v.get("/console/Patient/b/history?from=1&to=2").want(200).has("Patient.name[0].family", "Ashford", "Newname", "Changes")
	old := v.get("/console/Patient/b/history/1").want(200).has("Restore version 1")
	v.get("/console/Patient/b/history/2").want(200).lacks("Restore version")
	restored := v.do(http.MethodPost, "/console/Patient/b/history/1/restore", url.Values{"csrf_token": {old.hidden("csrf_token")}, "current": {"2"}}).want(303)
	v.get(restored.location).want(200).has("Ashford", "Version 1 is restored.")

	made := v.do(http.MethodPost, "/console/Basic/new", url.Values{"csrf_token": {edit.hidden("csrf_token")}, "resource": {`{"resourceType":"Basic","code":{"text":"x"}}`}}).want(303)
	v.get(made.location).want(200)
	name := strings.TrimPrefix(made.location, "/console/")
	v.get(made.location+"/delete").want(200).has("<h1>Delete "+name+"?</h1>", "Cancel")
	v.do(http.MethodPost, made.location+"/delete", url.Values{"csrf_token": {edit.hidden("csrf_token")}}).want(303)
	v.get(made.location).want(410).has("History")
	v.do(http.MethodPost, made.location+"/delete", url.Values{"csrf_token": {edit.hidden("csrf_token")}}).want(303) // a second click does no harm

	v.do(http.MethodPost, "/console/fhirpath", url.Values{"csrf_token": {edit.hidden("csrf_token")}, "address": {"Patient/a"}, "expression": {"name.given"}}).want(200).has("Result", "Anna")
	v.do(http.MethodPost, "/console/fhirpath", url.Values{"csrf_token": {edit.hidden("csrf_token")}, "resource": {`{"resourceType":"Patient","gender":"male"}`}, "expression": {"gender = 'male'"}}).want(200).has("true")
	v.do(http.MethodPost, "/console/fhirpath", url.Values{"csrf_token": {edit.hidden("csrf_token")}, "address": {"Patient/a"}, "expression": {"name.("}}).want(400).has(`role="alert"`)

	batch := `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"GET","url":"Patient/a"}},{"request":{"method":"GET","url":"Patient/none"}}]}`
	sent := v.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {edit.hidden("csrf_token")}, "method": {"POST"}, "path": {"/"}, "body": {batch}}).want(303)
	v.get(sent.location).want(200).has("200 OK", "Entries", "Patient/a", "404", "curl -X POST", "Sent requests")
	for _, path := range []string{"https://evil.example/", "//evil.example/", "/console", "/notifications/events", "/Patient/$events"} {
		sent := v.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {edit.hidden("csrf_token")}, "method": {"GET"}, "path": {path}}).want(303)
		v.get(sent.location).want(200).has("400 Bad Request")
	}
	v.get("/console/terminology?system=http://hl7.org/fhir/administrative-gender&code=male").want(200).has("Concept", "Male", "Hierarchy")
	v.get("/console", "Accept-Language", "de").want(200).has("Übersicht", "Ressourcen", "Zum Inhalt springen", "Gehe zu")
	german := v.do(http.MethodPost, "/console/language", url.Values{"csrf_token": {edit.hidden("csrf_token")}, "language": {"de"}, "to": {"/console/resources"}}).want(303)
	v.get(german.location).want(200).has("<h1>Ressourcen</h1>", `lang="de"`)
}

// The texts that new resources of administrators begin with are valid.
func TestNewTexts(t *testing.T) {
	t.Parallel()
	v := start(t, "").visitor()
	for _, typ := range []string{"Subscription", "App", "ViewDefinition"} {
		page := v.get("/console/" + typ + "/new").want(200)
		_, text, _ := strings.Cut(page.body, "<textarea")
		_, text, _ = strings.Cut(text, ">")
		text, _, _ = strings.Cut(text, "</textarea>")
		for _, action := range []string{"validate", ""} {
			p := v.post("/console/"+typ+"/new", url.Values{"resource": {html.UnescapeString(text)}, "action": {action}})
			if action == "validate" {
				p.want(200).has("No problems found")
			} else {
				v.get(p.want(303).location).want(200)
			}
		}
	}
}

// markup is hostile in every place that it may come to stand in.
const markup = `"><img src=x onerror=alert(1)><script>alert(1)</script>{{.}}' onmouseover='alert(1)`

// Nothing of stored text runs, leaves the origin or breaks the policy of the pages.
func TestHostileData(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	escaped := strings.NewReplacer(`"`, `\"`).Replace(markup)
	for i := range 40 {
		id := fmt.Sprintf("h%d", i)
		s.put("Patient/"+id, `{"resourceType":"Patient","id":"`+id+`","text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\"><h1 id=\"main\" class=\"alert\">Sign in</h1><a href=\"#nav\">x</a><a href=\"https://evil.example/\">y</a></div>"},`+
			`"identifier":[{"system":"urn:`+fmt.Sprint(i)+`","value":"`+escaped+`"}],"name":[{"family":"`+escaped+`","given":["`+escaped+`"],"text":"`+escaped+`"}],"telecom":[{"system":"url","value":"javascript:alert(1)"}],`+
			`"address":[{"line":["`+escaped+`"],"city":"`+escaped+`"}],"photo":[{"contentType":"image/svg+xml","title":"`+escaped+`","data":"PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+"},{"contentType":"image/png","data":"PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==","url":"javascript:alert(1)"}]}`)
	}
	s.put("Observation/o", `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"`+escaped+`"},"subject":{"reference":"Patient/h0"},"effectiveDateTime":"2024-01-01","valueQuantity":{"value":1,"unit":"`+escaped+`"}}`)
	s.put("Condition/c", `{"resourceType":"Condition","id":"c","code":{"text":"`+escaped+`"},"clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/condition-clinical","code":"active"}],"text":"`+escaped+`"},"subject":{"reference":"Patient/h0"}}`)
	c := openChromium(t, s.base)
	c.open("/console")
	c.forget()
	for _, path := range []string{"/console/resources/Patient", "/console/Patient/h0", "/console/Patient/h0/json", "/console/Patient/h0/references", "/console/Patient/h0/history", "/console/Patient/h0/edit", "/console/Patient/h0/view", "/console/Observation/o", "/console/Condition/c",
		"/console/terminology?" + url.Values{"system": {markup}, "code": {markup}}.Encode(), "/console/fhirpath?x=" + url.QueryEscape(markup)} {
		c.open(path)
		if n := script[int](c, `document.querySelectorAll("script").length`); n != 1 {
			t.Errorf("%s has %d scripts", path, n)
		}
		if n := script[int](c, `document.querySelectorAll("[onerror],[onmouseover],[onload],[style],iframe,object,embed,base").length`); n != 0 {
			t.Errorf("%s has %d elements that could run", path, n)
		}
		if got := script[[]string](c, `[...document.querySelectorAll("a[href]")].map(a => a.protocol).filter(p => !["http:","https:","mailto:","tel:"].includes(p))`); len(got) > 0 {
			t.Errorf("%s has links to %v", path, got)
		}
		if n := script[int](c, `document.querySelectorAll("h1").length`); n != 1 {
			t.Errorf("%s has %d h1", path, n)
		}
	}
	c.mu.Lock()
	var kept []string
	for _, p := range c.problems {
		if !strings.Contains(p, "Failed to load resource") { // the status of a page, and pictures that are none
			kept = append(kept, p)
		}
	}
	c.problems = kept
	c.mu.Unlock()
	c.quiet("hostile data")
	v := s.visitor()
	picture := v.get("/console/Patient/h0/attachment/1").want(200)
	if got := picture.header.Get("Content-Type"); got != "application/octet-stream" || !strings.Contains(picture.header.Get("Content-Security-Policy"), "sandbox") || !strings.HasPrefix(picture.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("a script that claims to be a picture is answered as %s: %v", got, picture.header)
	}
	if p := v.post("/console/search", url.Values{"type": {"Patient"}, "query": {"name=" + markup}}); p.status != 303 || strings.ContainsAny(p.location, "<>\"'") {
		t.Errorf("a hostile query leads to %d %q", p.status, p.location)
	}
}
