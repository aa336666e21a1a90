package console

import (
	"encoding/json"
	"net/url"
	"strings"
)

// terminologyPage is the three forms with one answer.
type terminologyPage struct {
	Set, Filter          string
	System, Code         string
	Map, Source, Concept string
	Concepts             *table
	Looked               *table
	Hierarchy            []string
	Matches              *table
}

// conceptsShown is how many concepts of a value set a page has.
const conceptsShown = 200

// parameters are FHIR Parameters.
type parameters struct {
	Parameter []parameter
}

type parameter struct {
	Name  string
	Part  []parameter
	value string
	text  map[string]string
}

// UnmarshalJSON reads a parameter of any type.
func (p *parameter) UnmarshalJSON(b []byte) error {
	n, err := parseTree(b)
	if err != nil {
		return err
	}
	var in struct {
		Name string
		Part []parameter
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	p.Name, p.Part = in.Name, in.Part
	for _, c := range n.children {
		if strings.HasPrefix(c.name, "value") {
			p.value = valueText(c)
			p.text = map[string]string{"system": c.str("system"), "code": c.str("code"), "display": c.str("display")}
		}
	}
	return nil
}

// part is the value of a part.
func (p *parameter) part(name string) string {
	for i := range p.Part {
		if p.Part[i].Name == name {
			return p.Part[i].value
		}
	}
	return ""
}

// terminology answers about codes. Codes are no data of patients: they may stand in the address.
func (v *visit) terminology(_ []string) error {
	q := v.r.URL.Query()
	get := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	p := terminologyPage{Set: get("set"), Filter: get("filter"), System: get("system"), Code: get("code"), Map: get("map"), Source: get("source"), Concept: get("concept")}
	var err error
	switch {
	case p.Set != "":
		p.Concepts, err = v.expand(p.Set, p.Filter)
	case p.Code != "":
		p.Looked, p.Hierarchy, err = v.lookUp(p.System, p.Code)
	case p.Concept != "":
		p.Matches, err = v.translateCode(p.Map, p.Source, p.Concept)
	}
	if err := v.refuse(err); err != nil {
		return err
	}
	return v.show("terminology", v.T("Terminology"), "", p)
}

// expand lists the concepts of a value set.
func (v *visit) expand(set, filter string) (*table, error) {
	values := url.Values{"url": {set}, "count": {"200"}}
	if filter != "" {
		values.Set("filter", filter)
	}
	var answer struct {
		Expansion struct {
			Total    *int64
			Contains []contained
		}
	}
	if err := v.get("/ValueSet/$expand?"+values.Encode(), &answer); err != nil {
		return nil, err
	}
	t := &table{Name: v.T("Concepts"), Head: columns(v.T("Code"), v.T("Display"), v.T("System"))}
	var add func(list []contained)
	add = func(list []contained) {
		for _, c := range list {
			if c.Code != "" && len(t.Rows) < conceptsShown {
				t.Rows = append(t.Rows, []cell{linkCell(c.Code, codeAddress(c.System, c.Code)), textCell(c.Display), textCell(c.System)})
			}
			add(c.Contains)
		}
	}
	add(answer.Expansion.Contains)
	if total := answer.Expansion.Total; total != nil && *total > int64(len(t.Rows)) {
		t.More = v.T("%s more: a filter narrows them.", formatNumber(v.Language, *total-int64(len(t.Rows))))
	}
	return t, nil
}

// codeAddress is the address of the page that looks a code up.
func codeAddress(system, code string) string {
	return "/console/terminology?" + url.Values{"system": {system}, "code": {code}}.Encode()
}

// contained is a concept of an expansion.
type contained struct {
	System, Code, Display string
	Contains              []contained
}

// lookUp describes a code, and names the codes above and below it.
func (v *visit) lookUp(system, code string) (*table, []string, error) {
	var answer parameters
	if err := v.get("/CodeSystem/$lookup?"+url.Values{"system": {system}, "code": {code}}.Encode(), &answer); err != nil {
		return nil, nil, err
	}
	t := &table{Name: v.T("Concept"), Head: columns(v.T("Property"), v.T("Value"))}
	t.Rows = append(t.Rows, []cell{{Text: v.T("Code"), Head: true}, textCell(code)})
	var hierarchy []string
	for i := range answer.Parameter {
		p := &answer.Parameter[i]
		name, value := p.Name, p.value
		switch p.Name {
		case "property":
			name, value = p.part("code"), p.part("value")
			if name == "parent" || name == "child" {
				text := v.T("Parent: %s", value)
				if name == "child" {
					text = v.T("Child: %s", value)
				}
				if d := p.part("description"); d != "" {
					text += " (" + d + ")"
				}
				hierarchy = append(hierarchy, text)
				continue
			}
		case "designation":
			value = strings.TrimSpace(p.part("language") + " " + p.part("value"))
		}
		if value != "" && len(t.Rows) < maxRows {
			t.Rows = append(t.Rows, []cell{{Text: name, Head: true}, {Text: clipText(value), Class: "wrap"}})
		}
	}
	return t, hierarchy, nil
}

// translateCode lists the matches of a code in another system.
func (v *visit) translateCode(conceptMap, system, code string) (*table, error) {
	values := url.Values{"system": {system}, "code": {code}}
	if conceptMap != "" {
		values.Set("url", conceptMap)
	}
	var answer parameters
	if err := v.get("/ConceptMap/$translate?"+values.Encode(), &answer); err != nil {
		return nil, err
	}
	t := &table{Name: v.T("Matches"), Head: columns(v.T("Code"), v.T("Display"), v.T("System"), v.T("Equivalence"))}
	for i := range answer.Parameter {
		p := &answer.Parameter[i]
		switch p.Name {
		case "match":
			for j := range p.Part {
				if c := &p.Part[j]; c.Name == "concept" {
					t.Rows = append(t.Rows, []cell{linkCell(c.text["code"], codeAddress(c.text["system"], c.text["code"])), textCell(c.text["display"]), textCell(c.text["system"]), textCell(p.part("equivalence"))})
				}
			}
		case "message":
			t.More = p.value
		}
	}
	return t, nil
}
