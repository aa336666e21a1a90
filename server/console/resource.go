package console

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"kiln/server/fhir"
)

// resourceRoute is a page below /Type/id by the segment that follows.
type resourceRoute struct {
	below      string
	parts      int    // segments of the path
	typ        string // the only type that has the page, "" for all types
	post, both bool   // the page takes forms only; the page takes forms too
	show       func(v *visit, typ, id string, parts []string) error
}

// resourceRoutes are the pages of a resource, but for its Overview.
func resourceRoutes() []resourceRoute {
	// plain is a page that needs no more than the resource.
	plain := func(show func(v *visit, typ, id string) error) func(v *visit, typ, id string, _ []string) error {
		return func(v *visit, typ, id string, _ []string) error { return show(v, typ, id) }
	}
	// last is a page of a part of the resource, which the fourth segment names.
	last := func(show func(v *visit, typ, id, part string) error) func(v *visit, typ, id string, parts []string) error {
		return func(v *visit, typ, id string, parts []string) error { return show(v, typ, id, parts[3]) }
	}
	list := []resourceRoute{
		{below: "json", parts: 3, show: plain((*visit).resourceJSON)},
		{below: "download", parts: 3, show: plain((*visit).resourceDownload)},
		{below: "attachment", parts: 4, show: last((*visit).attachment)},
		{below: "references", parts: 3, show: plain((*visit).resourceReferences)},
		{below: "delete", parts: 3, both: true, show: plain((*visit).resourceDelete)},
		{below: "edit", parts: 3, both: true, show: plain((*visit).edit)},
		{below: "history", parts: 3, show: plain((*visit).history)},
		{below: "history", parts: 4, show: last((*visit).version)},
		{below: "history", parts: 5, post: true, show: func(v *visit, typ, id string, parts []string) error {
			if parts[4] != "restore" {
				return errNoPage
			}
			return v.restore(typ, id, parts[3])
		}},
		{below: "deliveries", parts: 3, typ: "Subscription", both: true, show: func(v *visit, _, id string, _ []string) error { return v.subscriptionDeliveries(id) }},
		{below: "view", parts: 3, typ: "Patient", show: func(v *visit, _, id string, _ []string) error { return v.patientView(id) }},
	}
	for _, page := range []string{"run", "code", "log", "deliveries", "versions", "grants"} {
		list = append(list, resourceRoute{below: page, parts: 3, typ: "App", both: true, show: func(v *visit, _, id string, _ []string) error { return v.app(id, page) }})
	}
	return list
}

// resource shows the pages of a resource: /Type/id and the paths below it.
func (v *visit) resource(parts []string) error {
	typ := parts[0]
	if len(parts) == 1 {
		v.redirect("/console/resources/" + typ)
		return nil
	}
	if len(parts) == 2 && parts[1] == "new" {
		return v.editNew(typ)
	}
	id := parts[1]
	if !fhir.ValidID(id) {
		return errNoPage
	}
	post := v.r.Method == http.MethodPost
	if len(parts) == 2 && !post {
		return v.resourceOverview(typ, id)
	}
	for _, page := range v.c.resourceRoutes {
		if len(parts) != page.parts || parts[2] != page.below || page.typ != "" && page.typ != typ {
			continue
		}
		if page.post == post || page.both {
			return page.show(v, typ, id, parts)
		}
	}
	return errNoPage
}

// read reads a resource. version is its version id.
func (v *visit) read(typ, id string) (body []byte, version string, err error) {
	a := v.call(http.MethodGet, "/"+typ+"/"+id, nil)
	if err := a.err(); err != nil {
		return nil, "", err
	}
	return a.Bytes(), strings.Trim(strings.TrimPrefix(a.header.Get("ETag"), "W/"), `"`), nil
}

// tabs is the navigation Resource.
func (v *visit) tabs(typ, id, current string) []navItem {
	at := "/console/" + typ + "/" + id
	list := []navItem{{"Overview", at, false}}
	if typ == "Patient" {
		list = append(list, navItem{"Patient view", at + "/view", false})
	}
	list = append(list, navItem{"JSON", at + "/json", false}, navItem{"References", at + "/references", false},
		navItem{"History", at + "/history", false}, navItem{"Edit", at + "/edit", false})
	list = append(list, v.moreTabs(typ, at)...)
	list = append(list, navItem{"Delete", at + "/delete", false})
	for i := range list {
		list[i].Current = list[i].Name == current
	}
	return list
}

// resourcePage is the data of the pages of a resource.
type resourcePage struct {
	Tabs        []navItem
	Narrative   template.HTML
	Elements    table
	JSON        string
	Download    string
	TooLong     string
	Tables      []table
	Attachments []attached
	Buttons     []button
	Gone        string // the history of a deleted resource
}

// attached is a file in a resource.
type attached struct {
	Name, Link, Type string
	Picture          bool
}

// resourceOverview shows narrative and elements.
func (v *visit) resourceOverview(typ, id string) error {
	p := resourcePage{Tabs: v.tabs(typ, id, "Overview")}
	name := typ + "/" + id
	body, _, err := v.read(typ, id)
	var refused *refusal
	if errors.As(err, &refused) && refused.status == http.StatusGone {
		if err := v.refuse(err); err != nil {
			return err
		}
		p.Gone = "/console/" + name + "/history"
		return v.show("resource", name, "", p)
	}
	if err != nil {
		return err
	}
	n, err := parseTree(body)
	if err != nil {
		return err
	}
	if div := n.str("text", "div"); div != "" {
		p.Narrative = cleanNarrative(div)
	}
	p.Elements = v.elementsTable(n, typ)
	p.Attachments = attachmentsOf(n, typ, id)
	return v.show("resource", name, "", p)
}

// maxRows bounds a table of elements.
const maxRows = 2000

// elementsTable is the table Elements.
func (v *visit) elementsTable(n *node, typ string) table {
	t := table{Name: v.T("Elements"), Class: "keys", Head: columns(v.T("Element"), v.T("Value"))}
	list := n.flatten(typ)
	for i, e := range list {
		if i == maxRows {
			t.More = v.plural(int64(len(list)-i), "1 more element is in the JSON.", "%s more elements are in the JSON.")
			break
		}
		value := cell{Text: e.Node.text, Class: "wrap"}
		switch {
		case e.Path == typ+".text.div":
			value = cell{Text: v.T("See the narrative."), Class: "quiet"}
		case strings.HasSuffix(e.Path, ".reference"):
			value = referenceCell(e.Node.text, "")
		case strings.HasSuffix(e.Path, ".data") && len(e.Node.text) > 200:
			value = cell{Text: v.bytes(int64(len(e.Node.text) * 3 / 4)), Class: "quiet"}
		case strings.HasSuffix(e.Path, ".url"):
			if link := safeLink(e.Node.text); link != "" {
				value.Link, value.Outside = link, true
			}
		}
		if len(value.Text) > 4000 {
			value.Text = strings.ToValidUTF8(value.Text[:4000], "") + "…"
		}
		t.Rows = append(t.Rows, []cell{{Text: strings.TrimPrefix(e.Path, typ+"."), Head: true, Class: "code"}, value})
	}
	return t
}

// attachmentPaths finds the files in a resource: elements with data and contentType.
func attachmentNodes(n *node) []*node {
	var out []*node
	var walk func(n *node)
	walk = func(n *node) {
		if n.kind == '{' && n.get("data") != nil && n.get("contentType") != nil && n.get("data").isString {
			out = append(out, n)
		}
		for _, c := range n.children {
			walk(c)
		}
	}
	walk(n)
	return out
}

// pictures are the types that are shown.
func isPicture(typ string) bool {
	switch strings.ToLower(typ) {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return true
	}
	return false
}

func attachmentsOf(n *node, typ, id string) []attached {
	var out []attached
	for i, a := range attachmentNodes(n) {
		name := a.str("title")
		if name == "" {
			name = fmt.Sprintf("%s %d", a.str("contentType"), i+1)
		}
		out = append(out, attached{clipText(name), "/console/" + typ + "/" + id + "/attachment/" + strconv.Itoa(i), a.str("contentType"), isPicture(a.str("contentType"))})
	}
	return out
}

// attachment answers with a file. Only pictures of four types are shown; everything else is a download.
func (v *visit) attachment(typ, id, at string) error {
	body, _, err := v.read(typ, id)
	if err != nil {
		return err
	}
	n, err := parseTree(body)
	if err != nil {
		return err
	}
	list := attachmentNodes(n)
	i, err := strconv.Atoi(at)
	if err != nil || i < 0 || i >= len(list) {
		return errNoPage
	}
	data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(list[i].str("data")), ""))
	if err != nil {
		return v.problem(http.StatusUnprocessableEntity, "The attachment is not base64.")
	}
	h := v.x.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	contentType := "application/octet-stream"
	if claimed := list[i].str("contentType"); isPicture(claimed) && http.DetectContentType(data) == strings.ToLower(claimed) {
		contentType = strings.ToLower(claimed)
		h.Set("Content-Disposition", "inline")
	} else {
		h.Set("Content-Disposition", `attachment; filename="attachment"`)
	}
	v.screen = "attachment"
	v.x.SendContent(v.r, http.StatusOK, contentType, data)
	return nil
}

// maxJSON is the longest JSON that a page shows, in bytes.
const maxJSON = 256 << 10

// resourceJSON shows the JSON of a resource.
func (v *visit) resourceJSON(typ, id string) error {
	body, _, err := v.read(typ, id)
	if err != nil {
		return err
	}
	p := resourcePage{Tabs: v.tabs(typ, id, "JSON"), JSON: indentJSON(body), Download: "/console/" + typ + "/" + id + "/download"}
	if len(p.JSON) > maxJSON {
		p.TooLong, p.JSON = v.T("The resource has %s and is not shown here.", v.bytes(int64(len(body)))), ""
	}
	return v.show("json", typ+"/"+id, "", p)
}

// resourceDownload answers with the JSON as a file.
func (v *visit) resourceDownload(typ, id string) error {
	body, _, err := v.read(typ, id)
	if err != nil {
		return err
	}
	v.screen = "download"
	v.x.Header().Set("Content-Disposition", `attachment; filename="`+typ+`.json"`)
	v.x.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	v.x.SendContent(v.r, http.StatusOK, "application/fhir+json; charset=utf-8", body)
	return nil
}

// resourceReferences shows the references of a resource, and the references to it.
func (v *visit) resourceReferences(typ, id string) error {
	body, _, err := v.read(typ, id)
	if err != nil {
		return err
	}
	n, err := parseTree(body)
	if err != nil {
		return err
	}
	to := table{Name: v.T("Refers to"), Head: columns(v.T("Element"), v.T("Resource"))}
	for _, e := range n.flatten(typ) {
		if strings.HasSuffix(e.Path, ".reference") && len(to.Rows) < maxRows {
			to.Rows = append(to.Rows, []cell{{Text: strings.TrimPrefix(strings.TrimSuffix(e.Path, ".reference"), typ+"."), Head: true, Class: "code"}, referenceCell(e.Node.text, "")})
		}
	}
	by, err := v.referredBy(typ, id)
	if err != nil {
		return err
	}
	p := resourcePage{Tabs: v.tabs(typ, id, "References"), Tables: []table{to, by}}
	return v.show("references", typ+"/"+id, "", p)
}

// referredBy counts the resources that refer to one, by type and search parameter.
func (v *visit) referredBy(typ, id string) (table, error) {
	t := table{Name: v.T("Referred to by"), Head: columns(v.T("Type"), v.T("Parameter"), "#"+v.T("Resources"))}
	var list []counted
	for source := range v.c.Service.Model.Resources {
		for _, p := range v.c.Registry().Parameters(source) {
			if p.Type == fhir.SearchReference && p.Unsupported == "" && p.Code != "" && p.Code[0] != '_' && (slices.Contains(p.Targets, typ) || len(p.Targets) == 0) {
				list = append(list, counted{typ: source, values: url.Values{p.Code: {typ + "/" + id}}})
			}
		}
	}
	if err := v.countAll(list); err != nil {
		return t, err
	}
	type row struct {
		typ, code string
		n         int64
	}
	var found []row
	for _, x := range list {
		for code := range x.values {
			if x.n > 0 {
				found = append(found, row{x.typ, code, x.n})
			}
		}
	}
	slices.SortFunc(found, func(a, b row) int { return cmp.Or(strings.Compare(a.typ, b.typ), strings.Compare(a.code, b.code)) })
	for _, f := range found {
		link := v.searchAddress(searchState{Type: f.typ, Query: joinQuery([]pair{{f.code, typ + "/" + id}})})
		t.Rows = append(t.Rows, []cell{linkCell(f.typ, link), textCell(f.code), v.numberCell(f.n)})
	}
	return t, nil
}

// resourceDelete asks, and deletes.
func (v *visit) resourceDelete(typ, id string) error {
	name := typ + "/" + id
	if v.r.Method != http.MethodPost {
		if _, _, err := v.read(typ, id); err != nil {
			return err
		}
		return v.confirm("", v.T("Delete %s?", name), v.T("Earlier versions stay in the history, from which it can be restored."), v.T("Delete"), "/console/"+name+"/delete", "/console/"+name)
	}
	if err := v.call(http.MethodDelete, "/"+name, nil).err(); err != nil {
		return err
	}
	return v.done("/console/resources/"+typ, v.T("%s is deleted.", name))
}

// confirmation is a page that asks before something is removed.
type confirmation struct {
	Words, Label, Action, Cancel string
}

// confirm shows a page with a button that acts, and a link that does not. title is of the document, "" for the heading.
func (v *visit) confirm(title, heading, words, label, action, cancel string) error {
	return v.show("confirm", cmp.Or(title, heading), heading, confirmation{words, label, action, cancel})
}
