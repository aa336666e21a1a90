package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"kiln/server/outcome"
)

// editPage is the form of a resource.
type editPage struct {
	Tabs                  []navItem
	Action, Text, Version string
	Compare               string
	Cancel                string
}

// editNew is the form of a resource that is not stored yet.
func (v *visit) editNew(typ string) error {
	p := editPage{Action: "/console/" + typ + "/new", Cancel: "/console/resources/" + typ}
	heading := v.T("New %s", typ)
	if v.r.Method != http.MethodPost {
		p.Text = newText(typ)
		return v.show("edit", heading, "", p)
	}
	p.Text = v.form.Get("resource")
	if v.form.Get("action") == "validate" {
		return v.validateText(typ, heading, p)
	}
	a := v.call(http.MethodPost, "/"+typ, []byte(p.Text))
	if !a.ok() {
		return v.editRefused(a, heading, p)
	}
	id := idOfLocation(a.header.Get("Location"), typ)
	return v.done("/console/"+typ+"/"+id, v.T("%s is stored.", typ+"/"+id))
}

// newTexts are beginnings of resources that administrators write by hand.
var newTexts = map[string]string{
	"Subscription": `{
  "resourceType": "Subscription",
  "status": "requested",
  "reason": "new patients",
  "criteria": "Patient?",
  "channel": {
    "type": "rest-hook",
    "endpoint": "https://example.org/hook",
    "payload": "application/fhir+json"
  }
}
`,
	"App": `{
  "resourceType": "App",
  "name": "Example",
  "version": "1",
  "status": "draft",
  "operations": [
    {
      "type": "execute",
      "resourceType": "Patient",
      "name": "example",
      "handler": {
        "type": "javascript",
        "code": "async (c) => ({ parameters: c.parameters })"
      }
    }
  ]
}
`,
	"ViewDefinition": `{
  "resourceType": "ViewDefinition",
  "name": "patients",
  "status": "active",
  "resource": "Patient",
  "select": [
    {
      "column": [
        { "name": "id", "path": "getResourceKey()" },
        { "name": "birth_date", "path": "birthDate" }
      ]
    }
  ]
}
`,
}

// newText is the text that a new resource of a type begins with.
func newText(typ string) string {
	if text := newTexts[typ]; text != "" {
		return text
	}
	return "{\n  \"resourceType\": \"" + typ + "\"\n}\n"
}

// idOfLocation is the id in the header Location of a create.
func idOfLocation(location, typ string) string {
	_, rest, _ := strings.Cut(location, "/"+typ+"/")
	id, _, _ := strings.Cut(rest, "/")
	return id
}

// edit is the form of a stored resource.
func (v *visit) edit(typ, id string) error {
	name := typ + "/" + id
	p := editPage{Tabs: v.tabs(typ, id, "Edit"), Action: "/console/" + name + "/edit", Cancel: "/console/" + name}
	heading := v.T("Edit %s", name)
	if v.r.Method != http.MethodPost {
		body, version, err := v.read(typ, id)
		if err != nil {
			return err
		}
		p.Text, p.Version = indentJSON(body), version
		return v.show("edit", heading, "", p)
	}
	p.Text, p.Version = v.form.Get("resource"), v.form.Get("version")
	if v.form.Get("action") == "validate" {
		return v.validateText(typ, heading, p)
	}
	a := v.call(http.MethodPut, "/"+name, []byte(p.Text), "If-Match", `W/"`+p.Version+`"`)
	if !a.ok() {
		if a.status == http.StatusConflict || a.status == http.StatusPreconditionFailed {
			if _, current, err := v.read(typ, id); err == nil && current != p.Version {
				p.Compare = "/console/" + name + "/history?from=" + escape(p.Version) + "&to=" + escape(current)
			}
		}
		return v.editRefused(a, heading, p)
	}
	return v.done("/console/"+name, v.T("%s is stored.", name))
}

// editRefused shows the form again with the issues of the refusal. The text stays.
func (v *visit) editRefused(a *answer, heading string, p editPage) error {
	err := a.err()
	if err := v.refuse(err); err != nil {
		return err
	}
	var e *refusal
	if errors.As(err, &e) {
		v.Alerts = v.issueLines(e.issues, p.Text)
	}
	return v.show("edit", heading, "", p)
}

// issueLines writes issues as "Line N: words", with the line of the element in the text.
func (v *visit) issueLines(issues []outcome.Issue, text string) []string {
	n, err := parseTree([]byte(text))
	type lineIssue struct {
		line  int
		words string
	}
	var list []lineIssue
	for _, i := range issues {
		if i.Severity == "information" {
			continue
		}
		line := 1
		var wrong *json.SyntaxError
		switch {
		case errors.As(err, &wrong):
			line = 1 + strings.Count(text[:min(int(wrong.Offset), len(text))], "\n")
		case err != nil:
			line = 1 + strings.Count(strings.TrimRight(text, "\n"), "\n")
		case i.Expression != "":
			line = n.lineOf(i.Expression)
		}
		list = append(list, lineIssue{line, i.Diagnostics})
	}
	slices.SortStableFunc(list, func(a, b lineIssue) int { return cmp.Compare(a.line, b.line) })
	var out []string
	for _, i := range list {
		out = append(out, v.T("Line %d: %s", i.line, i.words))
	}
	return out
}

// validateText asks the server about the text and stores nothing.
func (v *visit) validateText(typ, heading string, p editPage) error {
	a := v.call(http.MethodPost, "/"+typ+"/$validate", []byte(p.Text))
	lines := v.issueLines(issuesOf(a.Bytes()), p.Text)
	switch {
	case !a.ok():
		if err := v.refuse(a.err()); err != nil {
			return err
		}
		v.Alerts = lines
	case len(lines) > 0:
		v.Alerts = lines
	default:
		v.Said = v.T("No problems found")
	}
	if a.ok() && len(lines) > 0 {
		v.status = http.StatusOK
	}
	return v.show("edit", heading, "", p)
}
