package terminology

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kiln/server/outcome"
)

// filterMatcher returns the test that a filter makes of the concepts of cs. It fails
// with invalid where the filter cannot be applied.
// Spec: https://hl7.org/fhir/R4/valueset.html#compositions (filters).
func (cs *codeSystem) filterMatcher(f Filter) (func(i int32) bool, error) {
	switch f.Op {
	case "is-a", "descendent-of", "is-not-a", "generalizes":
		if f.Property != "concept" && f.Property != "code" && f.Property != "" {
			return nil, cs.badFilter(f, "it applies to the property concept")
		}
		set := make(map[int32]bool)
		i, ok := cs.findConcept(f.Value)
		if !ok {
			return nil, cs.badFilter(f, "the system has no such code")
		}
		switch f.Op {
		case "is-a", "is-not-a":
			cs.addBelow(i, set)
		case "descendent-of":
			cs.addBelow(i, set)
			delete(set, i)
		case "generalizes":
			cs.addAbove(i, set)
		}
		not := f.Op == "is-not-a"
		return func(i int32) bool { return set[i] != not }, nil
	}
	values, err := cs.valuesOf(f)
	if err != nil {
		return nil, err
	}
	anyOf := func(test func(string) bool) func(int32) bool {
		return func(i int32) bool { return slices.ContainsFunc(values(i), test) }
	}
	switch f.Op {
	case "=":
		return anyOf(func(v string) bool { return v == f.Value }), nil
	case "regex":
		// The whole value must match, as in the implementations of HL7's tools.
		re, err := regexp.Compile(`^(?:` + f.Value + `)$`)
		if err != nil {
			return nil, cs.badFilter(f, "the value is not a regular expression (RE2)")
		}
		return anyOf(re.MatchString), nil
	case "in", "not-in":
		list := strings.Split(f.Value, ",")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		in := anyOf(func(v string) bool { return slices.Contains(list, v) })
		if f.Op == "not-in" {
			return func(i int32) bool { return !in(i) }, nil
		}
		return in, nil
	case "exists":
		want, err := strconv.ParseBool(f.Value)
		if err != nil {
			return nil, cs.badFilter(f, `expected "true" or "false"`)
		}
		return func(i int32) bool { return (len(values(i)) > 0) == want }, nil
	}
	return nil, cs.badFilter(f, "expected one of =, is-a, descendent-of, is-not-a, regex, in, not-in, generalizes, exists")
}

// valuesOf returns the function that gives a concept's values of the property.
func (cs *codeSystem) valuesOf(f Filter) (func(i int32) []string, error) {
	related := func(edges func() map[int32][]int32) func(int32) []string {
		return func(i int32) []string {
			cs.linkConcepts()
			var codes []string
			for _, j := range edges()[i] {
				codes = append(codes, cs.concepts[j].code)
			}
			return codes
		}
	}
	name := f.Property
	if def, ok := cs.properties[name]; ok && def.URI != "" {
		name = cs.standardProperty(name)
	}
	switch name {
	case "code", "concept":
		return func(i int32) []string { return []string{cs.concepts[i].code} }, nil
	case "display":
		return func(i int32) []string { return present(cs.concepts[i].display) }, nil
	case "definition":
		return func(i int32) []string { return present(cs.concepts[i].definition) }, nil
	case "parent":
		return related(func() map[int32][]int32 { return cs.parents }), nil
	case "child":
		return related(func() map[int32][]int32 { return cs.children }), nil
	case "inactive":
		return func(i int32) []string { return []string{strconv.FormatBool(cs.concepts[i].inactive)} }, nil
	case "notSelectable":
		return func(i int32) []string { return []string{strconv.FormatBool(cs.concepts[i].abstract)} }, nil
	}
	if _, ok := cs.properties[f.Property]; !ok && !cs.uses(f.Property) {
		return nil, cs.badFilter(f, "the system has no such property")
	}
	return func(i int32) []string {
		var values []string
		for _, p := range cs.concepts[i].property {
			if p.code == f.Property {
				values = append(values, p.text)
			}
		}
		return values
	}, nil
}

// uses reports whether any concept has a property that the system does not
// declare.
func (cs *codeSystem) uses(code string) bool {
	for i := range cs.concepts {
		for _, p := range cs.concepts[i].property {
			if p.code == code {
				return true
			}
		}
	}
	return false
}

func (cs *codeSystem) badFilter(f Filter, why string) error {
	return outcome.UnprocessableContent(outcome.CodeInvalid, "filter %s %s %s on CodeSystem %s: %s", outcome.Clip(f.Property), outcome.Clip(f.Op), outcome.Clip(f.Value), cs.url, why)
}

func present(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}
