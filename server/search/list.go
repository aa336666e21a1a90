package search

import (
	"maps"
	"slices"
	"strings"

	"kiln/server/outcome"
	"kiln/server/search/match"
)

// functionalLists are the lists that R4 names and Kiln derives from the data. For each resource type they contain
// search parameters that select the members. Resources entered in error or refuted are on no list.
// Spec: https://hl7.org/fhir/R4/lifecycle.html#current, search.html#list.
var functionalLists = map[string]map[string][][2]string{
	"$current-problems": {
		"Condition": {{"clinical-status", "active,recurrence,relapse"}, {"verification-status:not", "refuted,entered-in-error"}},
	},
	"$current-medications": {
		"MedicationRequest":   {{"status", "active"}},
		"MedicationStatement": {{"status", "active"}},
	},
	"$current-allergies": {
		"AllergyIntolerance": {{"clinical-status", "active"}, {"verification-status:not", "refuted,entered-in-error"}},
	},
	"$current-drug-allergies": {
		"AllergyIntolerance": {{"clinical-status", "active"}, {"verification-status:not", "refuted,entered-in-error"}, {"category", "medication"}},
	},
}

// functionalList reads `_list=$current-problems` and its like; another list, and a
// list of other types than those searched, is refused by name.
func (p *parser) functionalList(types []string, c match.Clause) (match.Clause, error) {
	of, ok := functionalLists[c.Value]
	if !ok {
		return c, outcome.RefusedParameter("parameter %s: the functional list %q is not supported; %s are", outcome.Clip(c.Name), outcome.Clip(c.Value),
			strings.Join(slices.Sorted(maps.Keys(functionalLists)), ", "))
	}
	var all match.All
	if len(types) == 1 {
		for _, by := range of[types[0]] {
			clause, err := p.clause(types, by[0], by[1], 0)
			if err != nil {
				return c, err
			}
			all.Clauses = append(all.Clauses, clause)
		}
	}
	if all.Clauses == nil {
		return c, outcome.RefusedParameter("parameter %s: %s is a list of %s, and the search is for %s", outcome.Clip(c.Name), c.Value,
			strings.Join(slices.Sorted(maps.Keys(of)), " or "), orEvery(types))
	}
	c.Any = []match.Match{all}
	return c, nil
}

func orEvery(types []string) string {
	if len(types) == 0 {
		return "every type"
	}
	return strings.Join(types, ", ")
}
