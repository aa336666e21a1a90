package console_test

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// The screens that anybody may open, in a real browser: the names of the page, axe-core, and no complaint of the browser.
func TestScreensInABrowser(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	c := openChromium(t, s.base)
	for _, tt := range []struct {
		name, path, heading string
		names               map[string][]string
	}{
		{"home", "/", "Kiln", map[string][]string{"status": {"Ready"}, "link": {"Open the console", "Capabilities"}}},
		{"capabilities", "/console/capabilities", "Capabilities", map[string][]string{"table": {"Resource types"}}},
		{"overview", "/console", "Overview", map[string][]string{"region": {"Health", "Traffic", "Storage", "Attention", "Backups"}, "image": {"Requests per second", "95th percentile"},
			"navigation": {"Main"}, "link": {"Skip to content", "Overview", "Resources", "Terminology", "FHIRPath", "Requests"}, "button": {"Go to", "Apply"}, "field": {"Go to", "Language"}}},
		{"resources", "/console/resources", "Resources", map[string][]string{"table": {"Resource types"}, "link": {"Patient", "Observation"}}},
		{"search", "/console/resources/Patient", "Search Patient", map[string][]string{"field": {"Query", "Parameter", "Comparison", "Value"}, "button": {"Search", "Add condition", "Show columns"},
			"status": {"2 results"}, "table": {"Results"}, "link": {"a", "b", "Name", "Birth date", "Last updated", "New Patient"}, "group": {"Columns"}}},
		{"resource", "/console/Patient/a", "Patient/a", map[string][]string{"navigation": {"Resource"}, "link": {"Overview", "Patient view", "JSON", "References", "History", "Edit", "Delete", "Practitioner/dr"},
			"region": {"Narrative"}, "table": {"Elements"}}},
		{"json", "/console/Patient/a/json", "Patient/a", map[string][]string{"region": {"JSON"}, "link": {"Download"}}},
		{"references", "/console/Patient/a/references", "Patient/a", map[string][]string{"table": {"Refers to", "Referred to by"}, "link": {"Practitioner/dr", "Observation"}}},
		{"history", "/console/Patient/a/history?from=1&to=2", "History of Patient/a", map[string][]string{"table": {"Versions", "Changes"}, "field": {"From version 1", "To version 2"}, "button": {"Compare"}}},
		{"version", "/console/Patient/a/history/1", "Patient/a, version 1", map[string][]string{"button": {"Restore version 1"}}},
		{"edit", "/console/Patient/a/edit", "Edit Patient/a", map[string][]string{"field": {"Resource"}, "button": {"Save", "Validate"}}},
		{"new", "/console/Patient/new", "New Patient", map[string][]string{"field": {"Resource"}, "button": {"Save", "Validate"}}},
		{"delete", "/console/Patient/b/delete", "Delete Patient/b?", map[string][]string{"button": {"Delete"}, "link": {"Cancel"}}},
		{"patient", "/console/Patient/a/view", "Patient view", map[string][]string{"region": {"Patient", "Measurements", "Timeline"}, "image": {"Body height: 8 values, 2020-03-04 to 2027-03-04"},
			"table": {"Values of Body height", "Conditions", "Allergies", "Medications", "Encounters", "Documents"}, "list": {"Timeline"}, "link": {"Practitioner/dr"}}},
		{"fhirpath", "/console/fhirpath", "FHIRPath", map[string][]string{"field": {"Address", "Resource", "Expression"}, "button": {"Evaluate"}}},
		{"requests", "/console/requests", "Requests", map[string][]string{"field": {"Method", "Path", "Headers", "Body", "Body file"}, "button": {"Send"}}},
		{"terminology", "/console/terminology?set=http://hl7.org/fhir/ValueSet/administrative-gender", "Terminology",
			map[string][]string{"field": {"Value set", "Filter", "System", "Code", "Concept map", "Source system", "Source code"}, "button": {"Expand", "Look up", "Translate"}, "table": {"Concepts"}}},
		{"not-found", "/console/Patient/none", "Not found", map[string][]string{}},
	} {
		c.open(tt.path)
		if tt.name == "not-found" {
			c.forget() // the browser reports the status
		}
		if got := c.text("h1"); got != tt.heading {
			t.Errorf("%s: h1 %q, want %q", tt.name, got, tt.heading)
		}
		for role, names := range tt.names {
			c.must(role, names...)
		}
		c.survey(tt.name)
	}
}

// A first visit transfers at most 60 kB, all files, gzipped.
func TestWeight(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	v := s.visitor()
	size := func(path string) int {
		r, err := http.NewRequest(http.MethodGet, s.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", "gzip")
		r.Header.Set("Accept", "text/html")
		w, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		b, err := io.ReadAll(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	asset := regexp.MustCompile(`"(/console/assets/[^"]+)"`)
	for _, path := range []string{"/console", "/console/resources", "/console/resources/Patient", "/console/Patient/a", "/console/Patient/a/view", "/console/capabilities", "/console/requests"} {
		p := v.get(path).want(200)
		page, all := size(path), 0
		for _, m := range asset.FindAllStringSubmatch(p.body, -1) {
			all += size(m[1])
			if got := v.get(m[1]).want(200).header.Get("Cache-Control"); !strings.Contains(got, "immutable") {
				t.Errorf("%s: Cache-Control %q", m[1], got)
			}
		}
		t.Logf("%s: %d bytes of the page, %d of a first visit", path, page, page+all)
		if page+all > 60_000 {
			t.Errorf("%s: a first visit transfers %d bytes", path, page+all)
		}
	}
}

// A search is built, changed and sorted by forms and links alone; its address tells nothing and cannot be changed.
func TestSearchWithoutScript(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	v := s.visitor()
	first := v.post("/console/search", url.Values{"type": {"Patient"}, "query": {""}, "action": {"add"}, "parameter": {"name"}, "comparison": {":exact"}, "value": {"Anna"}}).want(http.StatusSeeOther)
	if !strings.HasPrefix(first.location, "/console/search/") || strings.Contains(first.location, "Anna") || strings.Contains(first.location, "name") {
		t.Fatalf("the address is %s", first.location)
	}
	v.get(first.location).want(200).has("1 result", "Remove name:exact=Anna", `href="/console/Patient/a"`).lacks(`href="/console/Patient/b"`, "<title>Anna")
	same := v.post("/console/search", url.Values{"type": {"Patient"}, "query": {"name:exact=Anna"}}).want(http.StatusSeeOther)
	if same.location != first.location {
		t.Errorf("one query has the addresses %s and %s", first.location, same.location)
	}
	damaged := first.location[:len(first.location)-3] + "AAA"
	v.get(damaged).want(404)
	v.get("/console/search/none").want(404)
	removed := v.post("/console/search", url.Values{"type": {"Patient"}, "query": {"name:exact=Anna"}, "action": {"remove"}, "name": {"name:exact"}, "condition": {"Anna"}}).want(http.StatusSeeOther)
	v.get(removed.location).want(200).has("2 results")
	columns := v.post("/console/search", url.Values{"type": {"Patient"}, "query": {""}, "action": {"columns"}, "columns": {"Gender"}}).want(http.StatusSeeOther)
	v.get(columns.location).want(200).has("Gender").lacks(">Birth date</a>")
	v.get(v.post("/console/search", url.Values{"type": {"Patient"}, "query": {"nonsense=1"}}).want(303).location).want(400).has("nonsense", `role="alert"`)
	for text, want := range map[string]string{"Patient/a": "Patient/a", "Observation?code=8302-2": "16 results", "Patient": "Search Patient", "mrn-b": "1 result", "anna ashford": "1 result"} {
		v.get(v.post("/console/go", url.Values{"goto": {text}}).want(303).location).want(200).has(want)
	}
}
