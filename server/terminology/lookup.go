package terminology

import (
	"context"
	"encoding/json"
	"slices"

	"kiln/server/outcome"
)

// LookupParams are the inputs of $lookup.
type LookupParams struct {
	System, Version, Code string
	// Property names the properties wanted; nil is all of them.
	Property        []string
	DisplayLanguage string
}

// Lookup returns what is known of a code, as Parameters: name and version of the
// code system, display, designations, properties with parents and children. It
// fails with not-found where the system or the code is not known.
// Spec: https://hl7.org/fhir/R4/codesystem-operation-lookup.html.
func (s *Service) Lookup(ctx context.Context, p LookupParams) ([]byte, error) {
	if err := s.enabled(); err != nil {
		return nil, err
	}
	if p.System == "" || p.Code == "" {
		return nil, outcome.New(outcome.CodeRequired, "$lookup needs system and code, or coding")
	}
	g, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	at := canonical{p.System, p.Version}
	cs, err := g.codeSystem(ctx, at)
	if err != nil {
		return nil, err
	}
	var i int32
	found := false
	if cs != nil {
		i, found = cs.find(p.Code)
	}
	check := grammars[p.System]
	switch {
	case found:
		return writeParameters(cs.describe(i, &p))
	case (cs == nil || !cs.complete) && s.server != nil:
		return s.askLookup(ctx, &p)
	case check != nil && check(p.Code):
		return writeParameters([]Parameter{textParameter("name", p.System), textParameter("display", p.Code)})
	case cs == nil && check == nil:
		return nil, notFound(typeCodeSystem, at)
	case cs == nil:
		return nil, outcome.New(outcome.CodeNotFound, "CodeSystem %s has no code %q", p.System, clip(p.Code))
	}
	return nil, noCode(cs, p.Code)
}

// describe is everything about one concept.
func (cs *codeSystem) describe(i int32, p *LookupParams) []Parameter {
	c := &cs.concepts[i]
	name := cs.name
	if name == "" {
		name = cs.url
	}
	list := []Parameter{textParameter("name", name)}
	if cs.version != "" {
		list = append(list, textParameter("version", cs.version))
	}
	display := displayIn(c.display, c.designation, p.DisplayLanguage)
	if display == "" {
		display = c.code
	}
	list = append(list, textParameter("display", display))
	wants := func(code string) bool { return len(p.Property) == 0 || slices.Contains(p.Property, code) }
	if wants("designation") {
		for _, d := range c.designation {
			out := Parameter{Name: "designation"}
			if d.Language != "" {
				out.Part = append(out.Part, codeParameter("language", d.Language))
			}
			if d.Use != nil {
				out.Part = append(out.Part, Parameter{Name: "use", ValueCoding: d.Use})
			}
			out.Part = append(out.Part, textParameter("value", d.Value))
			list = append(list, out)
		}
	}
	add := func(code string, value Parameter) {
		if wants(code) {
			value.Name = "value"
			list = append(list, Parameter{Name: "property", Part: []Parameter{codeParameter("code", code), value}})
		}
	}
	if c.definition != "" {
		add("definition", Parameter{ValueString: c.definition})
	}
	if c.inactive {
		add("inactive", boolParameter("", true))
	}
	if c.abstract {
		add("notSelectable", boolParameter("", true))
	}
	cs.link()
	for _, up := range cs.parents[i] {
		add("parent", Parameter{ValueCode: cs.concepts[up].code})
	}
	for _, down := range cs.children[i] {
		add("child", Parameter{ValueCode: cs.concepts[down].code})
	}
	for _, q := range c.property {
		switch q.code {
		case "inactive", "notSelectable", "parent", "child", "subsumedBy":
			continue // said above
		}
		add(q.code, q.parameter())
	}
	return list
}

func (q property) parameter() Parameter {
	switch q.element {
	case "valueCode":
		return Parameter{ValueCode: q.text}
	case "valueBoolean":
		return boolParameter("", q.text == "true")
	case "valueInteger":
		n := json.Number(q.text)
		return Parameter{ValueInteger: &n}
	case "valueDecimal":
		n := json.Number(q.text)
		return Parameter{ValueDecimal: &n}
	case "valueDateTime":
		return Parameter{ValueDateTime: q.text}
	case "valueCoding":
		return Parameter{ValueCoding: q.coding}
	}
	return Parameter{ValueString: q.text}
}

func (s *Service) askLookup(ctx context.Context, p *LookupParams) ([]byte, error) {
	var in parametersIn
	in.text("system", "valueUri", p.System)
	in.text("version", "valueString", p.Version)
	in.text("code", "valueCode", p.Code)
	in.text("displayLanguage", "valueCode", p.DisplayLanguage)
	for _, q := range p.Property {
		in.text("property", "valueCode", q)
	}
	out, warning, err := s.server.operation(ctx, "CodeSystem/$lookup", in)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		out.Parameter = append(out.Parameter, textParameter("warning", warning))
	}
	return writeParameters(out.Parameter)
}
