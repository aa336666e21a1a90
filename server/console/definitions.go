package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// definitions installs packages, and lists those that are installed and the search parameters that were added.
func (v *visit) definitions(_ []string) error {
	p := panel{Forms: []panelForm{{Action: "/console/definitions", CSRF: v.CSRF(), File: true,
		Fields:  []field{{Label: v.T("Package file"), Name: "package", Kind: "file", Hint: ".tgz"}, {Label: v.T("Dry run"), Name: "dry", Kind: "checkbox"}},
		Buttons: []formButton{{Label: v.T("Install"), Class: "first"}}}}}
	if v.r.Method == http.MethodPost {
		result, err := v.install()
		if err == nil && result == nil {
			return nil
		}
		if err := v.refuse(err); err != nil {
			return err
		}
		if err == nil {
			p.Tables = append(p.Tables, *result)
		}
	} else if id := v.r.URL.Query().Get("answer"); id != "" {
		sent, err := v.findRequest(id)
		if err != nil {
			return err
		}
		result, err := v.installResult([]byte(sent.Answer))
		if err != nil {
			return errNoPage // the answer to another request
		}
		p.Tables = append(p.Tables, *result)
	}
	installed := table{Name: v.T("Packages"), Head: columns(v.T("Package"), v.T("Version"), v.T("Installed"), "#"+v.T("Resources"), v.T("Status"), v.T("Action"))}
	var packages parameters
	if err := v.get("/$packages", &packages); err != nil {
		return err
	}
	for _, x := range packages.Parameter {
		name, version := x.part("name"), x.part("version")
		remove := "/console/definitions/remove/" + escape(name) + "/" + escape(version)
		installed.Rows = append(installed.Rows, []cell{{Text: name, Head: true}, textCell(version), {Text: x.part("installed"), Class: "date"}, {Text: x.part("resources"), Class: "number"}, textCell(x.part("status")),
			{Buttons: []button{ask(v.T("Remove %s", name+"@"+version), remove)}}})
	}
	own, err := v.searchParameters()
	if err != nil {
		return err
	}
	p.Tables = append(p.Tables, installed, own)
	return v.showPanel("definitions", v.T("Definitions"), p)
}

// maxInstallation bounds the answer to an installation that is kept, in bytes: some 5,000 definitions.
const maxInstallation = 2 << 20

// install installs the package of the form, and leads to the result. It returns the result where that is too long to be kept.
func (v *visit) install() (*table, error) {
	file, err := v.fileOf("package")
	if err != nil {
		return nil, err
	}
	if len(file) == 0 {
		return nil, bad(v.T("Choose a package file."))
	}
	target, said := "/$install-package", v.T("The package is installed.")
	if v.form.Get("dry") == "true" {
		target, said = target+"?dry-run=true", v.T("This was a dry run: nothing is stored.")
	}
	a := v.call(http.MethodPost, target, file, "Content-Type", "application/gzip")
	if err := a.err(); err != nil {
		return nil, err
	}
	if len(a.Bytes()) > maxInstallation {
		v.Said = said
		return v.installResult(a.Bytes())
	}
	kept, err := v.keepRequest(sentRequest{Method: http.MethodPost, Path: target, Headers: "Content-Type: application/gzip", Status: a.status, Answer: a.String()})
	if err != nil {
		return nil, err
	}
	return nil, v.done("/console/definitions?answer="+kept, said)
}

// installResult is a row for each definition of a package, of the answer to its installation.
func (v *visit) installResult(body []byte) (*table, error) {
	var answer parameters
	if err := decodeJSON(body, &answer); err != nil {
		return nil, err
	}
	t := &table{Name: v.T("Result"), Head: columns(v.T("Definition"), v.T("Result"), v.T("Description"))}
	for _, x := range answer.Parameter {
		if len(x.Part) == 0 {
			t.Rows = append(t.Rows, []cell{{Text: x.Name, Head: true}, textCell(x.value), {}})
			continue
		}
		name, result, words := "", "", []string{}
		for _, q := range x.Part {
			switch q.Name {
			case "url", "canonical":
				name = q.value
			case "file", "reference", "resource":
				if name == "" {
					name = q.value
				}
			case "result", "outcome", "action", "status":
				result = q.value
			default:
				if q.value != "" {
					words = append(words, q.value)
				}
			}
		}
		if result == "" {
			result = x.Name
		}
		t.Rows = append(t.Rows, []cell{{Text: clipText(name), Head: true}, textCell(result), {Text: clipText(strings.Join(words, "; ")), Class: "wrap"}})
	}
	return t, nil
}

// removePackage asks, and removes a package.
func (v *visit) removePackage(parts []string) error {
	if len(parts) != 3 || parts[0] != "remove" {
		return errNoPage
	}
	name, version := parts[1], parts[2]
	here := "/console/definitions/remove/" + escape(name) + "/" + escape(version)
	if v.r.Method != http.MethodPost {
		return v.confirm(v.T("Definitions"), v.T("Remove %s?", name+"@"+version), v.T("Resources that were changed since stay."), v.T("Remove %s", name+"@"+version), here, "/console/definitions")
	}
	body := map[string]any{"resourceType": "Parameters", "parameter": []map[string]any{{"name": "name", "valueString": name}, {"name": "version", "valueString": version}}}
	if err := v.send(http.MethodPost, "/$remove-package", body, nil); err != nil {
		return err
	}
	return v.done("/console/definitions", v.T("%s is removed.", name+"@"+version))
}

// searchParameters lists the search parameters that are stored, with the state of their index.
func (v *visit) searchParameters() (table, error) {
	t := table{Name: v.T("Search parameters"), Head: columns(v.T("Code"), v.T("Types"), v.T("State"))}
	var b searchBundle
	if err := v.get("/SearchParameter?_count=500", &b); err != nil {
		return t, err
	}
	var jobs []job
	if err := v.get("/admin/jobs?type=reindex", &jobs); err != nil {
		return t, err
	}
	for _, e := range b.Entry {
		n, err := parseTree(e.Resource)
		if err != nil || e.Search.Mode != "match" {
			continue
		}
		var types []string
		for _, x := range n.get("base").items() {
			types = append(types, x.text)
		}
		state := n.str("status")
		for _, j := range jobs {
			if (j.State == "running" || j.State == "waiting") && slices.Contains(types, j.ResourceType) {
				state = v.T("indexing %d%%", 100*j.Done/max(j.Total, 1))
			}
		}
		t.Rows = append(t.Rows, []cell{linkCell(n.str("code"), "/console/SearchParameter/"+escape(n.str("id"))), textCell(strings.Join(types, ", ")), textCell(state)})
	}
	slices.SortFunc(t.Rows, func(a, b []cell) int { return strings.Compare(a[0].Text, b[0].Text) })
	return t, nil
}

// searches lists the shapes of searches, and the indexes that they would gain by.
func (v *visit) searches(_ []string) error {
	if v.r.Method == http.MethodPost {
		if err := v.send(http.MethodPost, "/admin/indexes/suggestions/"+escape(v.form.Get("id"))+"/apply", nil, nil); err != nil {
			return err
		}
		return v.done("/console/searches", v.T("The index is built by a job."))
	}
	var shapes []struct {
		ResourceType string `json:"resource_type"`
		Parameters   []string
		Calls, Rows  int64
		Mean         float64 `json:"mean_ms"`
		P95          float64 `json:"p95_ms"`
		P99          float64 `json:"p99_ms"`
	}
	if err := v.get("/admin/searches", &shapes); err != nil {
		return err
	}
	number := func(f float64) cell { return cell{Text: v.decimal(short(f)) + " ms", Class: "number"} }
	list := table{Name: v.T("Searches"), Head: columns(v.T("Query"), "#"+v.T("Calls"), "#"+v.T("Mean"), "#P95", "#P99", "#"+v.T("Rows"))}
	for i, s := range shapes {
		if i == jobsShown {
			list.More = v.T("The first %d are shown.", jobsShown)
			break
		}
		list.Rows = append(list.Rows, []cell{{Text: s.ResourceType + "?" + strings.Join(s.Parameters, "&"), Head: true}, v.numberCell(s.Calls), number(s.Mean), number(s.P95), number(s.P99), v.numberCell(s.Rows)})
	}
	var answer struct {
		Suggestions []struct {
			ID           string
			ResourceType string `json:"resource_type"`
			Parameters   []string
			Reason       string
			Improvement  float64 `json:"estimated_improvement"`
			Applied      bool
		}
	}
	if err := v.get("/admin/indexes/suggestions", &answer); err != nil {
		return err
	}
	suggestions := table{Name: v.T("Index suggestions"), Head: columns(v.T("Query"), v.T("Reason"), "#"+v.T("Saving"), v.T("Action"))}
	for _, s := range answer.Suggestions {
		action := cell{Text: v.T("applied")}
		if !s.Applied {
			action = cell{Buttons: []button{v.post(v.T("Apply"), "/console/searches", "id", s.ID)}}
		}
		suggestions.Rows = append(suggestions.Rows, []cell{{Text: s.ResourceType + "?" + strings.Join(s.Parameters, "&"), Head: true}, {Text: s.Reason, Class: "wrap"}, {Text: v.decimal(short(100*s.Improvement)) + "%", Class: "number"}, action})
	}
	return v.showPanel("searches", v.T("Searches"), panel{Tables: []table{list, suggestions}})
}

// audit searches AuditEvents. The form is a POST, since it may name a patient.
func (v *visit) audit(parts []string) error {
	var query string
	if v.r.Method == http.MethodPost {
		q := url.Values{"_sort": {"-date"}, "_count": {"100"}}
		for name, parameter := range map[string]string{"from": "ge", "to": "le"} {
			if text := strings.TrimSpace(v.form.Get(name)); text != "" {
				q.Add("date", parameter+text)
			}
		}
		if text := strings.TrimSpace(v.form.Get("user")); text != "" {
			q.Set("altid", text)
		}
		if text := strings.TrimSpace(v.form.Get("patient")); text != "" {
			q.Set("patient", "Patient/"+strings.TrimPrefix(text, "Patient/"))
		}
		v.redirect("/console/audit/" + v.c.seal.seal("audit", q.Encode()))
		return nil
	}
	if len(parts) == 0 {
		query = url.Values{"_sort": {"-date"}, "_count": {"100"}}.Encode()
	} else {
		var ok bool
		if query, ok = v.c.seal.open("audit", parts[0]); !ok {
			return errNoPage
		}
	}
	was, err := url.ParseQuery(query)
	if err != nil {
		return errNoPage
	}
	dates := map[string]string{}
	for _, d := range was["date"] {
		dates[d[:min(2, len(d))]] = d[min(2, len(d)):]
	}
	p := panel{Forms: []panelForm{v.newForm("/console/audit", v.T("Search"), field{Label: v.T("From"), Name: "from", Value: dates["ge"], Hint: "2026-01-31"}, field{Label: v.T("To"), Name: "to", Value: dates["le"]},
		field{Label: v.T("User"), Name: "user", Value: was.Get("altid")}, field{Label: v.T("Patient"), Name: "patient", Value: was.Get("patient")})}}
	a := v.call(http.MethodGet, "/AuditEvent?"+query, nil)
	if err := v.refuse(a.err()); err != nil {
		return err
	}
	t := table{Name: v.T("Events"), Head: columns(v.T("At"), v.T("Interaction"), v.T("User"), v.T("Client"), v.T("Resource"), v.T("Outcome"))}
	if a.ok() {
		var b searchBundle
		if err := decodeJSON(a.Bytes(), &b); err != nil {
			return err
		}
		for _, e := range b.Entry {
			n, err := parseTree(e.Resource)
			if err != nil || e.Search.Mode != "match" {
				continue
			}
			user, client := "", ""
			for _, x := range n.get("agent").items() {
				if u := x.str("altId"); u != "" {
					user = u
				} else if c := x.str("name"); c != "" {
					client = c
				}
			}
			resource := cell{}
			for _, x := range n.get("entity").items() {
				if ref := x.str("what", "reference"); ref != "" {
					resource = referenceCell(ref, "")
				}
			}
			at := linkCell(n.str("recorded"), "/console/AuditEvent/"+escape(n.str("id")))
			at.Class = "date"
			t.Rows = append(t.Rows, []cell{at, textCell(cmp.Or(n.str("subtype", "display"), n.str("subtype", "code"))), textCell(user), textCell(client), resource, textCell(strings.TrimSpace(n.str("outcome") + " " + n.str("outcomeDesc")))})
		}
		t.More = ""
	}
	p.Tables = []table{t}
	return v.showPanel("audit", v.T("Audit"), p)
}
