package terminology

import (
	"context"
	"encoding/json"
	"slices"

	"kiln/server/outcome"
	"kiln/server/parameters"
)

// LookupParams are the inputs of $lookup.
type LookupParams struct {
	System, Version, Code string
	// Property names the properties wanted; nil is all of them.
	Property        []string
	DisplayLanguage string
}

// Lookup returns the properties of a code, as Parameters: name and version of the code system, display, designations,
// properties with parents and children. It fails with not-found if the system or the code is unknown.
// Spec: https://hl7.org/fhir/R4/codesystem-operation-lookup.html.
func (s *Service) Lookup(ctx context.Context, p LookupParams) ([]byte, error) {
	if err := s.enabled(); err != nil {
		return nil, err
	}
	if p.System == "" || p.Code == "" {
		return nil, outcome.New(outcome.CodeRequired, "$lookup needs system and code, or coding")
	}
	sn, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	at := canonical{p.System, p.Version}
	cs, err := sn.codeSystem(ctx, at)
	if err != nil {
		return nil, err
	}
	var i int32
	found := false
	if cs != nil {
		i, found = cs.findConcept(p.Code)
	}
	check := grammars[p.System]
	switch {
	case found:
		return parameters.Write(cs.describe(i, &p))
	case (cs == nil || !cs.complete) && s.server() != nil:
		return s.askLookup(ctx, &p)
	case check != nil && check(p.Code):
		return parameters.Write([]parameters.Parameter{parameters.String("name", p.System), parameters.String("display", p.Code)})
	case cs == nil && check == nil:
		return nil, notFound(typeCodeSystem, at)
	case cs == nil:
		return nil, outcome.New(outcome.CodeNotFound, "CodeSystem %s has no code %q", p.System, outcome.Clip(p.Code))
	}
	return nil, noCode(cs, p.Code)
}

// describe is everything about one concept.
func (cs *codeSystem) describe(i int32, p *LookupParams) []parameters.Parameter {
	c := &cs.concepts[i]
	name := cs.name
	if name == "" {
		name = cs.url
	}
	list := []parameters.Parameter{parameters.String("name", name)}
	if cs.version != "" {
		list = append(list, parameters.String("version", cs.version))
	}
	display := displayIn(c.display, c.designation, p.DisplayLanguage)
	if display == "" {
		display = c.code
	}
	list = append(list, parameters.String("display", display))
	wants := func(code string) bool { return len(p.Property) == 0 || slices.Contains(p.Property, code) }
	if wants("designation") {
		for _, d := range c.designation {
			out := parameters.Parameter{Name: "designation"}
			if d.Language != "" {
				out.Part = append(out.Part, parameters.Code("language", d.Language))
			}
			if d.Use != nil {
				out.Part = append(out.Part, parameters.Datatype("use", "Coding", d.Use))
			}
			out.Part = append(out.Part, parameters.String("value", d.Value))
			list = append(list, out)
		}
	}
	add := func(code string, value parameters.Parameter) {
		if wants(code) {
			value.Name = "value"
			list = append(list, parameters.Parameter{Name: "property", Part: []parameters.Parameter{parameters.Code("code", code), value}})
		}
	}
	if c.definition != "" {
		add("definition", parameters.String("", c.definition))
	}
	if c.inactive {
		add("inactive", parameters.Boolean("", true))
	}
	if c.abstract {
		add("notSelectable", parameters.Boolean("", true))
	}
	cs.linkConcepts()
	for _, up := range cs.parents[i] {
		add("parent", parameters.Code("", cs.concepts[up].code))
	}
	for _, down := range cs.children[i] {
		add("child", parameters.Code("", cs.concepts[down].code))
	}
	for _, q := range c.property {
		switch cs.standardProperty(q.code) {
		case "inactive", "notSelectable", "parent", "child", "subsumedBy":
			continue // said above
		}
		add(q.code, q.parameter())
	}
	return list
}

func (q property) parameter() parameters.Parameter {
	switch q.element {
	case "valueCode":
		return parameters.Code("", q.text)
	case "valueBoolean":
		return parameters.Boolean("", q.text == "true")
	case "valueInteger":
		return parameters.Parameter{Type: "Integer", Value: json.RawMessage(q.text)}
	case "valueDecimal":
		return parameters.Decimal("", json.Number(q.text))
	case "valueDateTime":
		return parameters.DateTime("", q.text)
	case "valueCoding":
		return parameters.Datatype("", "Coding", q.coding)
	}
	return parameters.String("", q.text)
}

func (s *Service) askLookup(ctx context.Context, p *LookupParams) ([]byte, error) {
	var in askedParameters
	in.add(parameters.URI("system", p.System))
	in.add(parameters.String("version", p.Version))
	in.add(parameters.Code("code", p.Code))
	in.add(parameters.Code("displayLanguage", p.DisplayLanguage))
	for _, q := range p.Property {
		in.add(parameters.Code("property", q))
	}
	out, warning, err := s.server().operation(ctx, "CodeSystem/$lookup", in)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		out = append(out, parameters.String("warning", warning))
	}
	return parameters.Write(out)
}
