package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// historyPage is the data of the page of a history.
type historyPage struct {
	Tabs           []navItem
	Here           string
	Versions       []historyVersion
	From, To       string // chosen
	Changes        *table
	Previous, Next string
	Restore        *button
	Elements       table
	JSON           string
}

// historyVersion is a row of the table Versions.
type historyVersion struct {
	ID, Date, Interaction, Link string
	From, To, Deleted           bool
}

// historyBundle is the part of a history that a page reads.
type historyBundle struct {
	Total *int64
	Link  []struct{ Relation, URL string }
	Entry []struct {
		Resource json.RawMessage
		FullURL  string `json:"fullUrl"`
		Request  struct{ Method, URL string }
		Response struct{ Status, Etag, LastModified string }
	}
}

// versionsShown is how many versions a page has.
const versionsShown = 50

// history shows the versions of a resource, and the changes between two of them.
func (v *visit) history(typ, id string) error {
	q := v.r.URL.Query()
	p := historyPage{Tabs: v.tabs(typ, id, "History"), Here: "/console/" + typ + "/" + id + "/history", From: q.Get("from"), To: q.Get("to")}
	target := "/" + typ + "/" + id + "/_history?_count=" + strconv.Itoa(versionsShown)
	if page := q.Get("page"); page != "" {
		query, ok := v.c.seal.open("history", page)
		if !ok {
			return errNoPage
		}
		target = "/" + typ + "/" + id + "/_history?" + query
	}
	var b historyBundle
	if err := v.get(target, &b); err != nil {
		return err
	}
	for _, e := range b.Entry {
		version := historyVersion{ID: strings.Trim(strings.TrimPrefix(e.Response.Etag, "W/"), `"`), Date: e.Response.LastModified}
		if n, err := parseTree(e.Resource); err == nil && version.ID == "" {
			version.ID = n.str("meta", "versionId")
		}
		switch e.Request.Method {
		case http.MethodPost:
			version.Interaction = "create"
		case http.MethodDelete:
			version.Interaction, version.Deleted = "delete", true
		case http.MethodPatch:
			version.Interaction = "patch"
		default:
			version.Interaction = "update"
			if version.ID == "1" {
				version.Interaction = "create"
			}
		}
		version.Link = p.Here + "/" + escape(version.ID)
		p.Versions = append(p.Versions, version)
	}
	if p.From == "" && p.To == "" && len(p.Versions) > 1 {
		p.From, p.To = p.Versions[1].ID, p.Versions[0].ID
	}
	for i := range p.Versions {
		p.Versions[i].From, p.Versions[i].To = p.Versions[i].ID == p.From, p.Versions[i].ID == p.To
	}
	for _, l := range b.Link {
		_, query, _ := strings.Cut(l.URL, "?")
		switch l.Relation {
		case "next":
			p.Next = p.Here + "?page=" + v.c.seal.seal("history", query)
		case "previous", "prev":
			p.Previous = p.Here + "?page=" + v.c.seal.seal("history", query)
		}
	}
	if q.Has("from") && q.Has("to") {
		changes, err := v.changes(typ, id, p.From, p.To)
		if err := v.refuse(err); err != nil {
			return err
		}
		p.Changes = changes
	}
	return v.show("history", v.T("History of %s", typ+"/"+id), "", p)
}

// readVersion reads a version of a resource.
func (v *visit) readVersion(typ, id, version string) (*node, []byte, error) {
	a := v.call(http.MethodGet, "/"+typ+"/"+id+"/_history/"+url.PathEscape(version), nil)
	if err := a.err(); err != nil {
		return nil, nil, err
	}
	n, err := parseTree(a.Bytes())
	return n, a.Bytes(), err
}

// changes are the elements that differ between two versions.
func (v *visit) changes(typ, id, from, to string) (*table, error) {
	before, _, err := v.readVersion(typ, id, from)
	if err != nil {
		return nil, err
	}
	after, _, err := v.readVersion(typ, id, to)
	if err != nil {
		return nil, err
	}
	t := &table{Name: v.T("Changes"), Head: columns(v.T("Element"), v.T("Before"), v.T("After")), Empty: v.T("The versions have the same content.")}
	values := func(n *node) (order []string, byPath map[string]string) {
		byPath = make(map[string]string)
		for _, e := range n.flatten(typ) {
			if e.Path == typ+".meta.versionId" || e.Path == typ+".meta.lastUpdated" {
				continue
			}
			order = append(order, e.Path)
			byPath[e.Path] = e.Node.text
		}
		return order, byPath
	}
	order, was := values(before)
	orderAfter, is := values(after)
	for _, path := range orderAfter {
		if _, ok := was[path]; !ok {
			order = append(order, path)
		}
	}
	slices.SortStableFunc(order, strings.Compare)
	for _, path := range order {
		old, had := was[path]
		now, has := is[path]
		if had && has && old == now {
			continue
		}
		if len(t.Rows) == maxRows {
			t.More = v.T("There are more changes.")
			break
		}
		row := []cell{{Text: path, Head: true, Class: "code"}, {Text: clipText(old)}, {Text: clipText(now)}}
		if had {
			row[1].Class = "was"
		}
		if has {
			row[2].Class = "is"
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// version shows one version, with a button that restores it where it is not the current one.
func (v *visit) version(typ, id, version string) error {
	n, body, err := v.readVersion(typ, id, version)
	if err != nil {
		return err
	}
	p := historyPage{Tabs: v.tabs(typ, id, "History"), Elements: v.elementsTable(n, typ)}
	if len(body) <= maxJSON {
		p.JSON = indentJSON(body)
	}
	if _, current, err := v.read(typ, id); err != nil || current != version {
		b := v.post(v.T("Restore version %s", version), "/console/"+typ+"/"+id+"/history/"+escape(version)+"/restore", "current", current)
		p.Restore = &b
	}
	return v.show("version", v.T("%s, version %s", typ+"/"+id, version), "", p)
}

// restore makes an earlier version the current one: an update with its content.
func (v *visit) restore(typ, id, version string) error {
	_, body, err := v.readVersion(typ, id, version)
	if err != nil {
		return err
	}
	headers := []string{}
	if current := v.form.Get("current"); current != "" {
		headers = append(headers, "If-Match", `W/"`+current+`"`)
	}
	if err := v.call(http.MethodPut, "/"+typ+"/"+id, body, headers...).err(); err != nil {
		return err
	}
	return v.done("/console/"+typ+"/"+id, v.T("Version %s is restored.", version))
}
