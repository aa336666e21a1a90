package console

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// viewTable is a view that is kept as a table, as /admin/views answers it.
type viewTable struct {
	Name, Table, View, VersionID, State, Reason string
	Rows, Bytes, Problems                       int64
	CurrentTo                                   *time.Time
	Columns                                     []struct{ Name, Type, SQLType string }
	Indexes                                     [][]string
}

// viewProblem is a resource that has no rows in a table.
type viewProblem struct{ Resource, Column, Reason string }

// problemsShown is how many problems a page has.
const problemsShown = 500

// views lists the tables of views, and builds one for a view.
func (v *visit) views(_ []string) error {
	if v.r.Method == http.MethodPost {
		made, err := v.buildView()
		if err == nil {
			return v.done("/console/views", v.T("The table %s is built.", made.Table))
		}
		if err := v.refuse(err); err != nil {
			return err
		}
	}
	var answer struct{ Views []viewTable }
	p := panel{Refresh: 3}
	err := v.get("/admin/views", &answer)
	if err != nil && len(v.Alerts) > 0 {
		err = nil // the form was refused for the same reason
	} else if err == nil {
		p.Tables = []table{v.viewsTable(answer.Views)}
	}
	if err := v.refuse(err); err != nil {
		return err
	}
	if len(p.Tables) > 0 {
		stored, err := v.storedViews()
		if err != nil {
			return err
		}
		p.Forms = []panelForm{v.newForm("/console/views", v.T("Build table"), field{Label: v.T("View"), Name: "view", Value: v.form.Get("view"), Wide: true, List: stored, Hint: "ViewDefinition/patients", Required: true},
			field{Label: v.T("Indexes"), Name: "indexes", Kind: "textarea", Wide: true, Value: v.form.Get("indexes"), Hint: v.T("One a line: the columns of an index, with commas between them. May be empty.")})}
		p.Links = []navItem{{Name: v.T("New %s", "ViewDefinition"), Path: "/console/ViewDefinition/new"}}
	}
	return v.showPanel("views", v.T("Views"), p)
}

// viewsSuggested is how many views the form suggests.
const viewsSuggested = 100

// storedViews are references to the views that the form suggests.
func (v *visit) storedViews() (list []string, err error) {
	var b searchBundle
	if err := v.get("/ViewDefinition?_elements=id&_total=none&_count="+strconv.Itoa(viewsSuggested), &b); err != nil {
		return nil, err
	}
	for _, e := range b.Entry {
		if n, err := parseTree(e.Resource); err == nil && e.Search.Mode == "match" {
			list = append(list, "ViewDefinition/"+n.str("id"))
		}
	}
	return list, nil
}

// viewsTable is the table Views.
func (v *visit) viewsTable(list []viewTable) table {
	t := table{Name: v.T("Views"), Head: columns(v.T("Name"), v.T("Table"), v.T("View"), v.T("State"), v.T("Reason"), "#"+v.T("Rows"), v.T("Current to"), "#"+v.T("Problems"), v.T("Action"))}
	for _, x := range list {
		at := "/console/views/" + escape(x.Name)
		t.Rows = append(t.Rows, []cell{linkCell(x.Name, at), textCell(x.Table), referenceCell(x.View, ""), {Tag: x.State}, {Text: clipText(x.Reason), Class: "wrap"}, v.numberCell(x.Rows), timeCell(x.CurrentTo), v.numberCell(x.Problems),
			{Buttons: []button{ask(v.T("Remove %s", x.Name), at+"/remove")}}})
	}
	return t
}

// buildView asks for the table of the form.
func (v *visit) buildView() (made viewTable, err error) {
	view := strings.TrimSpace(v.form.Get("view"))
	if view != "" && !strings.Contains(view, "/") {
		view = "ViewDefinition/" + view
	}
	indexes := [][]string{}
	for _, line := range linesOf(v.form.Get("indexes")) {
		indexes = append(indexes, strings.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }))
	}
	err = v.send(http.MethodPost, "/admin/views", map[string]any{"view": view, "indexes": indexes}, &made)
	return made, err
}

// view shows the table of a view, and removes it.
func (v *visit) view(parts []string) error {
	name := parts[0]
	path, here := "/admin/views/"+escape(name), "/console/views/"+escape(name)
	post := v.r.Method == http.MethodPost
	if len(parts) == 2 && parts[1] != "remove" || len(parts) == 1 && post {
		return errNoPage
	}
	if post {
		if err := v.send(http.MethodDelete, path, nil, nil); err != nil {
			return err
		}
		return v.done("/console/views", v.T("%s is removed.", name))
	}
	var x viewTable
	if err := v.get(path, &x); err != nil {
		return err
	}
	if len(parts) == 2 {
		return v.confirm(v.T("Views"), v.T("Remove %s?", name), v.T("The table is dropped. The view stays."), v.T("Remove %s", name), here+"/remove", here)
	}
	var answer struct{ Problems []viewProblem }
	if err := v.get(path+"/problems", &answer); err != nil {
		return err
	}
	kept := table{Name: v.T("Columns"), Head: columns(v.T("Column"), v.T("Type"), v.T("Type in SQL"))}
	for _, c := range x.Columns {
		kept.Rows = append(kept.Rows, []cell{{Text: c.Name, Head: true, Class: "code"}, textCell(c.Type), textCell(c.SQLType)})
	}
	problems := table{Name: v.T("Problems"), Head: columns(v.T("Resource"), v.T("Column"), v.T("Reason"))}
	for i, q := range answer.Problems {
		if i == problemsShown {
			problems.More = v.T("The first %d are shown.", problemsShown)
			break
		}
		resource := referenceCell(q.Resource, "")
		resource.Head = true
		problems.Rows = append(problems.Rows, []cell{resource, textCell(q.Column), {Text: clipText(q.Reason), Class: "wrap"}})
	}
	var indexes []string
	for _, i := range x.Indexes {
		indexes = append(indexes, strings.Join(i, ", "))
	}
	return v.showPanel("views", name, panel{Title: v.T("Views"), Links: []navItem{{Name: v.T("Views"), Path: "/console/views"}, {Name: x.View, Path: "/console/" + x.View}}, Buttons: []button{ask(v.T("Remove %s", name), here+"/remove")},
		Facts: [][2]string{{v.T("Table"), x.Table}, {v.T("Version"), x.VersionID}, {v.T("State"), strings.TrimSpace(v.T(x.State) + " " + x.Reason)}, {v.T("Rows"), formatNumber(v.Language, x.Rows)}, {v.T("Size"), v.bytes(x.Bytes)},
			{v.T("Current to"), timeCell(x.CurrentTo).Text}, {v.T("Indexes"), strings.Join(indexes, "; ")}},
		Tables: []table{kept, problems}})
}
