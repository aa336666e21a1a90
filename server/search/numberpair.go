package search

import (
	"kiln/server/fhir"
	"kiln/server/search/match"
)

// pairOfNumbers reads the two numbers of a composite. They are compared with what
// the resource says: a position counts from 0 or from 1 as its coordinateSystem
// has it. Spec: https://hl7.org/fhir/R4/molecularsequence.html#search.
func (p *parser) pairOfNumbers(keys []fhir.Key, name, first, second string) ([]match.Match, error) {
	a, err := numberRange(name, unescapeValue(first))
	if err != nil {
		return nil, err
	}
	b, err := numberRange(name, unescapeValue(second))
	if err != nil {
		return nil, err
	}
	return []match.Match{match.NumberPair{Keys: keys, First: a, Second: b}}, nil
}
