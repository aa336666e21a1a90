package search

import (
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// id reads `_id`: logical ids of the types searched.
// Spec: https://hl7.org/fhir/R4/search.html#id.
func (p *parser) id(types []string, c match.Clause, modifier string) (match.Clause, error) {
	switch modifier {
	case "":
	case "not":
		c.Not = true
	case "missing": // every resource has an id
		switch c.Value {
		case "true":
		case "false":
			c.Not = true
		default:
			return c, badValue(c.Name, c.Value, `expected "true" or "false"`)
		}
		c.Any = []match.Match{match.Terms{}}
		return c, nil
	default:
		return c, badModifier(c.Name, modifier, "token", "missing", "not")
	}
	values, err := p.splitValues(fhir.SearchToken, c)
	if err != nil {
		return c, err
	}
	if len(types) == 0 {
		types = p.reg.Types()
	}
	if err := p.checkBounds(c, len(values), len(values)*len(types)); err != nil {
		return c, err
	}
	var ids match.IDs
	for _, v := range values {
		id := strings.TrimPrefix(unescapeValue(v), "|")
		if !fhir.ValidID(id) {
			return c, badValue(c.Name, v, "expected a logical id: up to 64 of A-Z a-z 0-9 - .")
		}
		for _, t := range types {
			ids.Refs = append(ids.Refs, int64(fhir.ValueReference(t, id)))
		}
	}
	c.Any = []match.Match{ids}
	return c, nil
}

// updated reads `_lastUpdated`.
// Spec: https://hl7.org/fhir/R4/search.html#lastUpdated.
func (p *parser) updated(c match.Clause, modifier string) (match.Clause, error) {
	if modifier == "missing" {
		return p.id(nil, c, modifier)
	}
	if modifier != "" {
		return c, badModifier(c.Name, modifier, "date", "missing")
	}
	values, err := p.splitValues(fhir.SearchDate, c)
	if err != nil {
		return c, err
	}
	for _, v := range values {
		op, low, high, err := p.dateRange(c.Name, v)
		if err != nil {
			return c, err
		}
		c.Any = append(c.Any, match.Updated{Op: op, Low: low, High: high})
	}
	return c, nil
}

// list reads `_list`: the members of a List.
// Spec: https://hl7.org/fhir/R4/search.html#list.
func (p *parser) list(types []string, c match.Clause, modifier string) (match.Clause, error) {
	if modifier != "" {
		return c, outcome.Invalid("parameter %s: _list takes no modifier", outcome.Clip(c.Name))
	}
	param, ok := p.reg.Lookup("List", "item")
	if !ok {
		return c, p.unknown("", c.Name, "_list")
	}
	p.addNotice(param)
	if c.Value[0] == '$' {
		return p.functionalList(types, c)
	}
	values, err := p.splitValues(fhir.SearchToken, c)
	if err != nil {
		return c, err
	}
	var ids match.IDs
	for _, v := range values {
		id := strings.TrimPrefix(unescapeValue(v), "List/")
		if !fhir.ValidID(id) {
			return c, badValue(c.Name, v, "expected the logical id of a List, or one functional list")
		}
		ids.Refs = append(ids.Refs, int64(fhir.ValueReference("List", id)))
	}
	c.Any = []match.Match{match.Has{Source: "List", Keys: param.Keys, Clauses: []match.Clause{{Name: "_id", Value: c.Value, Any: []match.Match{ids}}}}}
	return c, nil
}
