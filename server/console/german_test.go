package console_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kiln/server/console"
)

// pageWords are the elements whose text is the page's own.
var pageWords = regexp.MustCompile(`(?s)<(h1|h2|label|button|th scope="col"|caption|legend|dt|summary|small|title|a class="button|p class="quiet")[^>]*>(.*?)</`)

// words are the texts of a page that are not data.
func (p *page) words() (out []string) {
	for _, m := range pageWords.FindAllStringSubmatch(p.body, -1) {
		text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(m[2], "")
		if text = strings.TrimSpace(html.UnescapeString(text)); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// dataWord is a text that is data, an example or a name of software: it has no translation.
var dataWord = regexp.MustCompile(`^(PostgreSQL|P9[59]|Dose check|Dr\. Grace Doctor|Growth Viewer|admin|[a-z][a-z_.-]*|[^ ]*[/@:=$][^ ]*|\.tgz|2026-01-31)$|^Kiln|^vm |127\.0\.0\.1|^[A-Z][A-Za-z]+/[A-Za-z0-9.-]+( · Kiln)?$`)

// blockInParagraph returns an element in a paragraph that HTML has no place for there. A browser ends the paragraph before it.
func blockInParagraph(body string) string {
	for _, m := range regexp.MustCompile(`(?s)<p[ >].*?</p>`).FindAllString(body, -1) {
		if block := regexp.MustCompile(`<(form|div|ul|table|section|fieldset|p|pre)[ >][^>]*`).FindString(m[2:]); block != "" {
			return block
		}
	}
	return ""
}

// Each text of each screen that is not data is German where the language is, but for words that German has too. Titles
// name a screen, at most with a type and an id.
func TestGermanPages(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t, withRESTClient)
	s.token("admin")
	v := s.visitor()
	v.signIn("admin", "/console").want(200)
	csrf := v.get("/console/fhirpath").hidden("csrf_token")
	for _, x := range [][3]string{
		{"PUT", "/Subscription/s1", `{"resourceType":"Subscription","id":"s1","status":"off","reason":"x","criteria":"Patient?name=x","channel":{"type":"rest-hook","endpoint":"https://app.example.org/hook"}}`},
		{"PUT", "/App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"1","status":"draft"}`},
		{"PUT", "/App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"2","status":"draft"}`},
		{"POST", "/admin/policies", `{"name":"night","active":true,"priority":1,"dryRun":true,"matcher":{},"effect":"deny"}`},
		{"POST", "/admin/apikeys", `{"name":"loader","scope":"system/*.rs"}`},
		{"PUT", "/ViewDefinition/names", namesView("names")},
		{"POST", "/admin/views", `{"view":"ViewDefinition/names"}`},
	} {
		v.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {csrf}, "method": {x[0]}, "path": {x[1]}, "body": {x[2]}, "headers": {"Content-Type: application/json"}}).want(http.StatusSeeOther)
	}
	search := v.post("/console/search", url.Values{"type": {"Observation"}, "query": {"code=8302-2&_count=2"}}).want(http.StatusSeeOther).location
	sent := v.post("/console/requests", url.Values{"method": {"GET"}, "path": {"/Patient?_count=1"}}).want(http.StatusSeeOther).location
	title := regexp.MustCompile(`<title>(.*?) · Kiln</title>`)
	for _, path := range []string{
		"/?_format=html", "/console/capabilities", "/console", "/console/resources", search, sent, "/console/Patient/a", "/console/Patient/a/json", "/console/Patient/a/references", "/console/Patient/a/history?from=1&to=2", "/console/Patient/a/history/1",
		"/console/Patient/a/edit", "/console/Patient/new", "/console/Patient/a/delete", "/console/Patient/a/view", "/console/fhirpath", "/console/requests", "/console/terminology?set=http://hl7.org/fhir/ValueSet/administrative-gender",
		"/console/terminology?system=http://hl7.org/fhir/observation-status&code=amended", "/console/subscriptions", "/console/Subscription/s1/deliveries", "/console/live", "/console/apps", "/console/App/dose/run", "/console/App/dose/code", "/console/App/dose/log",
		"/console/App/dose/deliveries", "/console/App/dose/versions", "/console/App/dose/grants", "/console/jobs", "/console/definitions", "/console/definitions/remove/x/1", "/console/access/users", "/console/access/users/new", "/console/access/users/doctor", "/console/access/clients",
		"/console/access/clients/new", "/console/access/clients/rest", "/console/access/keys", "/console/access/keys/new", "/console/access/grants", "/console/access/policies", "/console/access/policies/new", "/console/access/policies/night", "/console/access/explain",
		"/console/settings", "/console/settings/search.default_count", "/console/searches", "/console/audit", "/console/views", "/console/views/names", "/console/views/names/remove", "/console/account", "/console/account/revoke/rest",
		"/console/Patient/none",
	} {
		english, german := v.get(path, "Accept-Language", "en"), v.get(path, "Accept-Language", "de")
		if german.status != english.status || !strings.Contains(german.body, `<html lang="de">`) {
			t.Errorf("%s: %d, in German %d", path, english.status, german.status)
		}
		if block := blockInParagraph(german.body); block != "" {
			t.Errorf("%s: a paragraph has %q, which ends it", path, block)
		}
		own := english.words()
		if len(own) < 3 {
			t.Errorf("%s has the words %q", path, own)
		}
		for _, text := range german.words() {
			if slices.Contains(own, text) && console.GermanTexts[text] != text && console.GermanTexts[strings.TrimSuffix(text, " · Kiln")] != strings.TrimSuffix(text, " · Kiln") && !dataWord.MatchString(text) {
				t.Errorf("%s: %q is not German", path, text)
			}
		}
		m := title.FindStringSubmatch(english.body)
		if m == nil && path != "/?_format=html" {
			t.Errorf("%s has no title", path)
		} else if m != nil {
			for _, name := range []string{"Dose", "doctor", "night", "rest", "Growth", "Ashford", "Anna"} {
				if strings.Contains(m[1], name) {
					t.Errorf("%s: the title %q has a name", path, m[1])
				}
			}
		}
	}
}
