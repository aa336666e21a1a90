package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"kiln/server/fhir"
)

// apps lists the Apps.
func (v *visit) apps(_ []string) error {
	var b searchBundle
	if err := v.get("/App?_count=500", &b); err != nil {
		return err
	}
	t := table{Name: v.T("Apps"), Head: columns(v.T("Name"), v.T("Version"), v.T("Status"))}
	for _, e := range b.Entry {
		n, err := parseTree(e.Resource)
		if err != nil || e.Search.Mode != "match" {
			continue
		}
		name := n.str("name")
		if name == "" {
			name = n.str("id")
		}
		t.Rows = append(t.Rows, []cell{linkCell(clipText(name), "/console/App/"+escape(n.str("id"))+"/run"), textCell(n.str("version")), {Tag: n.str("status")}})
	}
	return v.showPanel("apps", v.T("Apps"), panel{Tables: []table{t}, Links: []navItem{{Name: v.T("New %s", "App"), Path: "/console/App/new"}}})
}

// app shows a page of an App: run, code, log, deliveries, versions, grants.
func (v *visit) app(id, page string) error {
	if !v.Admin() {
		return v.notAllowed()
	}
	at := "/console/App/" + id
	body, version, err := v.read("App", id)
	if err != nil {
		return err
	}
	n, err := parseTree(body)
	if err != nil {
		return err
	}
	name := n.str("name")
	if name == "" {
		name = "App/" + id
	}
	p := panel{Title: "App/" + id, TabsName: v.T("App")}
	for _, tab := range []struct{ name, path string }{{"Run", "run"}, {"Code", "code"}, {"Log", "log"}, {"Deliveries", "deliveries"}, {"Versions", "versions"}, {"Grants", "grants"}} {
		p.Tabs = append(p.Tabs, navItem{v.T(tab.name), at + "/" + tab.path, tab.path == page})
	}
	post := v.r.Method == http.MethodPost
	switch page {
	case "run":
		if post {
			return v.runApp(id, n)
		}
		err = v.appRun(&p, at, n)
	case "code":
		appCode(&p, n)
		if len(p.Regions) == 0 {
			p.Note = v.T("The App has no code.")
		}
	case "log":
		err = v.appLog(&p, id)
	case "deliveries":
		err = v.appDeliveries(&p, id, n)
	case "versions":
		if post {
			return v.rollBack(id, version)
		}
		err = v.appVersions(&p, id, version)
	case "grants":
		if post {
			return v.grantApp(id)
		}
		err = v.appGrants(&p, id)
	default:
		return errNoPage
	}
	if err != nil {
		return err
	}
	return v.showPanel("app", clipText(name), p)
}

// appOperation finds an operation of an App by its name and type.
func appOperation(n *node, key string) *node {
	for _, o := range n.get("operations").items() {
		if o.str("resourceType")+"/$"+o.str("name") == key {
			return o
		}
	}
	return nil
}

// appRun is the form that runs an operation, with the answer to the last one.
func (v *visit) appRun(p *panel, at string, n *node) error {
	operations := field{Label: v.T("Operation"), Name: "operation", Kind: "select"}
	for _, o := range n.get("operations").items() {
		key := o.str("resourceType") + "/$" + o.str("name")
		operations.Options = append(operations.Options, option{Value: key, Label: key + " (" + o.str("type") + ")"})
	}
	p.Forms = []panelForm{v.newForm(at+"/run", v.T("Run"), operations, field{Label: v.T("Instance"), Name: "instance", Hint: v.T("The id of a resource, for operations on one.")},
		field{Label: v.T("Parameters"), Name: "parameters", Kind: "textarea", Wide: true, Hint: v.T("A JSON object.")})}
	if answer := v.r.URL.Query().Get("answer"); answer != "" {
		sent, err := v.findRequest(answer)
		if err != nil {
			return err
		}
		shown := v.showAnswer(*sent)
		p.Regions = append(p.Regions, region{v.T("Answer"), strconv.Itoa(shown.Status) + " " + shown.Text + "\n\n" + shown.Body})
	}
	return nil
}

// runApp runs an operation, and leads to its answer.
func (v *visit) runApp(id string, n *node) error {
	o := appOperation(n, v.form.Get("operation"))
	if o == nil {
		return bad(v.T("The App has no such operation."))
	}
	path, instance, body := "/"+o.str("resourceType"), strings.TrimSpace(v.form.Get("instance")), strings.TrimSpace(v.form.Get("parameters"))
	if instance != "" {
		if !fhir.ValidID(instance) {
			return bad(v.T("The instance is no id."))
		}
		path += "/" + instance
	}
	s := sentRequest{Method: http.MethodPost, Path: path + "/$" + o.str("name"), Headers: "Content-Type: application/json", Body: body}
	switch kind := o.str("type"); kind {
	case "read", "search":
		s.Method, s.Headers, s.Body = http.MethodGet, "", ""
		var values map[string]any
		if body != "" && decodeJSON([]byte(body), &values) != nil {
			return bad(v.T("The parameters are no JSON object."))
		}
		q := make(url.Values)
		for name, value := range values {
			text, ok := value.(string)
			if !ok {
				b, err := json.Marshal(value)
				if err != nil {
					return err
				}
				text = string(b)
			}
			q.Set(name, text)
		}
		s.Path += queryOf(q)
	case "execute":
		if body != "" && !strings.Contains(body, `"parameters"`) && !strings.Contains(body, `"resourceType"`) {
			s.Body = `{"parameters":` + body + `}`
		}
	}
	kept, err := v.keepRequest(v.sendRequest(s, []byte(s.Body)))
	if err != nil {
		return err
	}
	v.redirect("/console/App/" + id + "/run?answer=" + kept)
	return nil
}

// appCode shows the handlers.
func appCode(p *panel, n *node) {
	for _, list := range []string{"operations", "subscriptions"} {
		for _, o := range n.get(list).items() {
			handler := o.get("handler")
			name, text := o.str("resourceType")+"/$"+o.str("name"), handler.str("code")
			if list == "subscriptions" {
				name = o.str("resourceType") + " " + o.str("name")
			}
			if text == "" {
				text = strings.TrimSpace(handler.str("type") + " " + handler.str("method") + " " + handler.str("url"))
			}
			p.Regions = append(p.Regions, region{name, text})
		}
	}
}

// appLog shows the invocations.
func (v *visit) appLog(p *panel, id string) error {
	var answer struct {
		Invocations []struct {
			At, Operation, Subscription, ResourceType, ResourceID, Outcome string
			DurationMS                                                     json.Number `json:"durationMs"`
			Status                                                         int
			Lines                                                          []struct{ Level, Text string }
		}
	}
	if err := v.get("/App/"+id+"/$log?_count=100", &answer); err != nil {
		return err
	}
	t := table{Name: v.T("Invocations"), Head: columns(v.T("At"), v.T("Operation"), v.T("Outcome"), "#"+v.T("Status"), "#"+v.T("Duration"), v.T("Lines"))}
	for _, x := range answer.Invocations {
		var lines []string
		for _, l := range x.Lines {
			lines = append(lines, l.Level+": "+l.Text)
		}
		t.Rows = append(t.Rows, []cell{{Text: x.At, Head: true, Class: "date"}, textCell(x.Operation + x.Subscription), {Tag: x.Outcome}, {Text: strconv.Itoa(x.Status), Class: "number"}, {Text: x.DurationMS.String() + " ms", Class: "number"}, {Text: clipLong(strings.Join(lines, "\n")), Class: "wrap"}})
	}
	p.Tables, p.Refresh = []table{t}, 3
	return nil
}

// appDeliveries shows the deliveries of the subscriptions of an App.
func (v *visit) appDeliveries(p *panel, id string, n *node) error {
	all := table{Name: v.T("Deliveries"), Head: columns(v.T("Delivery"), v.T("Event"), v.T("Resource"), v.T("Status"), "#"+v.T("Attempts"))}
	for i := range n.get("subscriptions").items() {
		t, err := v.deliveriesTable("App/" + id + "/" + strconv.Itoa(i))
		if err != nil {
			return err
		}
		all.Rows = append(all.Rows, t.Rows...)
	}
	p.Tables = []table{all}
	return nil
}

// appVersions lists the versions with a button for each earlier one.
func (v *visit) appVersions(p *panel, id, current string) error {
	var b historyBundle
	if err := v.get("/App/"+id+"/_history?_count=100", &b); err != nil {
		return err
	}
	t := table{Name: v.T("Versions"), Head: columns(v.T("Version"), v.T("Date"), v.T("Status"), v.T("Action"))}
	for _, e := range b.Entry {
		n, err := parseTree(e.Resource)
		if err != nil {
			continue // a deletion has no content
		}
		version := n.str("meta", "versionId")
		row := []cell{linkCell(version, "/console/App/"+id+"/history/"+escape(version)), {Text: n.str("meta", "lastUpdated"), Class: "date"}, {Tag: n.str("status")}, {}}
		if version != current {
			row[3].Buttons = []button{v.post(v.T("Roll back to version %s", version), "/console/App/"+id+"/versions", "version", version)}
		}
		t.Rows = append(t.Rows, row)
	}
	p.Tables = []table{t}
	return nil
}

// rollBack makes an earlier version of an App the current one.
func (v *visit) rollBack(id, current string) error {
	version := v.form.Get("version")
	_, body, err := v.readVersion("App", id, version)
	if err != nil {
		return err
	}
	if err := v.call(http.MethodPut, "/App/"+id, body, "If-Match", `W/"`+current+`"`).err(); err != nil {
		return err
	}
	return v.done("/console/App/"+id+"/versions", v.T("Version %s is restored.", version))
}

// appGrants adds the form with the scopes of an App.
func (v *visit) appGrants(p *panel, id string) error {
	var answer struct{ Scopes []string }
	if v.Open() {
		p.Facts = [][2]string{{v.T("Scopes"), v.T("Authorization is off")}}
		return nil
	}
	if err := v.get("/admin/apps/"+id+"/grants", &answer); err != nil {
		return err
	}
	slices.Sort(answer.Scopes)
	p.Forms = []panelForm{v.newForm("/console/App/"+id+"/grants", v.T("Save"), field{Label: v.T("Scopes"), Name: "scopes", Kind: "textarea", Wide: true, Value: strings.Join(answer.Scopes, "\n"), Hint: v.T("One a line, such as system/Observation.rs.")})}
	return nil
}

func (v *visit) grantApp(id string) error {
	if err := v.send(http.MethodPost, "/admin/apps/"+id+"/grants", map[string]any{"scopes": linesOf(v.form.Get("scopes"))}, nil); err != nil {
		return err
	}
	return v.done("/console/App/"+id+"/grants", v.T("The grant is stored."))
}

// linesOf are the lines of a text without empty ones.
func linesOf(text string) []string {
	out := []string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
