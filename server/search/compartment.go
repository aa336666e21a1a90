package search

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// Inside narrows the query to resources of types in the compartment code/id,
// "Patient/123": to that resource, and those that refer to it under one of the
// parameters that the compartment is defined by. Like And it is not part of Applied.
// Spec: https://hl7.org/fhir/R4/http.html#vsearch, compartmentdefinition.html.
func (q *Query) Inside(r *Registry, types []string, code, id string) {
	c := match.Clause{Name: "compartment", Value: code + "/" + id}
	v := fhir.ValueReference(code, id)
	var keys []fhir.Key
	for _, t := range types {
		q.Warn(r.CompartmentNotice(t))
		for _, by := range r.compartments[code].By[t] {
			if by == "{def}" {
				c.Any = append(c.Any, match.IDs{Refs: []int64{int64(v)}})
			} else if param, ok := r.compiled[t][by]; ok {
				keys = append(keys, param.Keys...)
			}
		}
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > 0 {
		c.Any = append(c.Any, match.TermsOf(keys, v))
	}
	q.And(c)
}

// CompartmentNotice returns the warning for a search in a compartment for resources of typ, "" for none.
func (r *Registry) CompartmentNotice(typ string) string { return r.notices[typ] }

// CompartmentKeys are the keys of the references that put resources of typ into a compartment, as
// CompartmentMatches reads them. self says that a resource named by the compartment is in it.
func (r *Registry) CompartmentKeys(typ, code string) (keys []fhir.Key, self bool) {
	for _, m := range r.CompartmentMatches(typ, code, "") {
		switch m := m.(type) {
		case match.IDs:
			self = true
		case match.Terms:
			for _, term := range m.Values {
				keys = append(keys, fhir.Key(uint64(term)^uint64(fhir.ValueReference(code, ""))))
			}
		}
	}
	return keys, self
}

// CompartmentMatches are the matches of which one holds for every resource of typ in
// one of the compartments code/id: by R4's definition of the compartment, and for a
// type that it forgets (Device, Task, …) by a search parameter named like the
// compartment. nil says that the type has no part in it. Search parameters that
// arrived at run time make no difference.
// Spec: https://hl7.org/fhir/R4/compartmentdefinition.html.
func (r *Registry) CompartmentMatches(typ, code string, ids ...string) []match.Match {
	def := r.compartments[code]
	if def == nil {
		return nil
	}
	by := def.By[typ]
	if len(by) == 0 {
		if p, ok := r.compiled[typ][strings.ToLower(code)]; !ok || p.Type != fhir.SearchReference {
			return nil
		}
		by = []string{strings.ToLower(code)}
	}
	return r.matchesBy(typ, code, by, ids)
}

// SubjectMatches is CompartmentMatches for resources whose subject is code/id: by the search
// parameter named like the compartment, if the type has one. An Observation that Patient/1
// has performed on somebody else is in the compartment of Patient/1, but its subject is not.
// The type of the compartment matches by its id alone.
func (r *Registry) SubjectMatches(typ, code string, ids ...string) []match.Match {
	if typ == code {
		return r.matchesBy(typ, code, []string{"{def}"}, ids)
	}
	name := strings.ToLower(code)
	if p, ok := r.compiled[typ][name]; !ok || p.Type != fhir.SearchReference {
		return r.CompartmentMatches(typ, code, ids...)
	}
	return r.matchesBy(typ, code, []string{name}, ids)
}

// matchesBy are the matches of references to code/id by parameters, "{def}" for the id itself.
func (r *Registry) matchesBy(typ, code string, by, ids []string) []match.Match {
	values := make([]fhir.Value, len(ids))
	refs := make([]int64, len(ids))
	for i, id := range ids {
		values[i] = fhir.ValueReference(code, id)
		refs[i] = int64(values[i])
	}
	var keys []fhir.Key
	var out []match.Match
	for _, name := range by {
		if name == "{def}" {
			out = append(out, match.IDs{Refs: refs})
		} else if p, ok := r.compiled[typ][name]; ok {
			keys = append(keys, p.Keys...)
		}
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > 0 {
		out = append(out, match.TermsOf(keys, values...))
	}
	return out
}
