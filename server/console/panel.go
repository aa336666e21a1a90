package console

import (
	"cmp"
	"fmt"
	"strings"
)

// panel is a page of forms, tables and texts: most screens of administrators are one.
type panel struct {
	Title    string // of the document, "" for the heading of the page; names of people and apps are no titles
	TabsName string // of the navigation of its tabs
	Tabs     []navItem
	Buttons  []button
	Links    []navItem
	Forms    []panelForm
	Facts    [][2]string
	Secret   string // shown once
	Note     string // above the content
	Tables   []table
	Regions  []region
	Log      *liveLog
	Refresh  int // seconds after which a browser with script loads the tables again; 0 is never
}

// region is a named text.
type region struct{ Name, Text string }

// liveLog is a log that grows, with the address of its stream.
type liveLog struct {
	Name, Stream string
	Lines        []string
}

// panelForm is a form with one or more buttons.
type panelForm struct {
	Name   string // heading, "" for none
	Action string
	CSRF   string // "" makes it a GET
	File   bool
	// Username is whose password the form is about; browsers that store passwords need it.
	Username string
	Fields   []field
	Hidden   [][2]string
	Buttons  []formButton
}

type formButton struct{ Label, Name, Value, Class string }

// field is a labelled input.
type field struct {
	Label, Name, Kind, Value, Hint, Complete string
	Checked, Required, Wide                  bool
	Options                                  []option
	List                                     []string // suggested values
}

// ID is the id of the input in the page.
func (f field) ID() string { return "field-" + f.Name }

// Rows is the number of lines of a textarea: the lines of its text, within limits.
func (f field) Rows() int { return min(max(strings.Count(f.Value, "\n")+2, 5), 24) }

// showPanel answers with a panel. screen names it in the metrics and the navigation.
func (v *visit) showPanel(screen, heading string, p panel) error {
	seen := make(map[string]int)
	for i := range p.Forms {
		for j := range p.Forms[i].Fields {
			f := &p.Forms[i].Fields[j]
			if seen[f.Name]++; seen[f.Name] > 1 {
				return fmt.Errorf("panel %s has two fields %s", screen, f.Name)
			}
		}
	}
	return v.showScreen(screen, "panel", cmp.Or(p.Title, heading), heading, p)
}

// form is a form of this page that acts.
func (v *visit) newForm(action, label string, fields ...field) panelForm {
	return panelForm{Action: action, CSRF: v.CSRF(), Fields: fields, Buttons: []formButton{{Label: label, Class: "first"}}}
}
