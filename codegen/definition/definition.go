// Package definition reads the FHIR definitions that the server is compiled
// from, through samply's typed models, so that the generator does not depend on
// its own output.
//
// Load opens the packages of definitions/ and returns a Set: structures, search
// parameters, compartments and operations, sorted, each with a Rank. Of two definitions
// of one code the one with the lower rank wins: first definitions of the server, then R4, then
// added packages. Faulty definitions of an added package are listed as Unread, with the
// reason; in R4's package they are errors.
package definition

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/samply/golang-fhir-models/fhir-models/fhir"

	"kiln/definitions"
)

// Set is every definition of a folder, by canonical URL.
type Set struct {
	Structures   map[string]*fhir.StructureDefinition
	Parameters   map[string]*SearchParameter
	Compartments map[string]*CompartmentDefinition
	Operations   map[string]*OperationDefinition
	ValueSets    map[string]*fhir.ValueSet
	// Unread are the definitions of added packages that samply's models refuse,
	// with the reason. HL7's own and the local ones must be read.
	Unread []Unread
}

// Unread is a definition that could not be read.
type Unread struct {
	Type, URL, Reason string
}

// SearchParameter is samply's model, but for the resource types: samply knows
// R4's by name and refuses our own.
type SearchParameter struct {
	fhir.SearchParameter
	Base   []string `json:"base"`
	Target []string `json:"target"`
	Rank   Rank     `json:"-"`
}

// CompartmentDefinition is samply's model, but for the resource types.
type CompartmentDefinition struct {
	fhir.CompartmentDefinition
	Resource []struct {
		Code  string   `json:"code"`
		Param []string `json:"param"`
	} `json:"resource"`
}

// OperationDefinition is samply's model, but for the resource types.
type OperationDefinition struct {
	fhir.OperationDefinition
	Resource []string `json:"resource"`
}

// Load reads the definitions of a folder; see definitions.Library for what wins
// where two have one URL.
func Load(dir fs.FS) (*Set, error) {
	s := &Set{
		Structures:   map[string]*fhir.StructureDefinition{},
		Parameters:   map[string]*SearchParameter{},
		Compartments: map[string]*CompartmentDefinition{},
		Operations:   map[string]*OperationDefinition{},
		ValueSets:    map[string]*fhir.ValueSet{},
	}
	l, err := definitions.Open(dir)
	if err != nil {
		return nil, err
	}
	for e, b := range l.All("") {
		err := s.add(e, b)
		if err != nil && rank(e) == Added {
			s.Unread = append(s.Unread, Unread{e.Type, e.URL, err.Error()})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s/%s: %w", e.Package, e.Type, e.ID, err)
		}
	}
	return s, nil
}

// Rank is the origin of a definition. A lower rank wins.
type Rank uint8

// The ranks.
const (
	Local Rank = iota // definitions/local
	Core              // HL7's package of R4
	Added             // any other package
)

func rank(e definitions.Entry) Rank {
	switch {
	case e.Package == "local":
		return Local
	case strings.HasPrefix(e.Package, "hl7.fhir.r4."):
		return Core
	}
	return Added
}

// add reads one definition. Types that codegen has no use for are passed over.
func (s *Set) add(e definitions.Entry, b []byte) error {
	switch e.Type {
	case "StructureDefinition":
		return read(e, b, s.Structures)
	case "SearchParameter":
		if err := read(e, b, s.Parameters); err != nil {
			return err
		}
		if d := s.Parameters[e.URL]; d != nil {
			d.Rank = rank(e)
		}
	case "CompartmentDefinition":
		return read(e, b, s.Compartments)
	case "OperationDefinition":
		return read(e, b, s.Operations)
	case "ValueSet":
		return read(e, b, s.ValueSets)
	}
	return nil
}

// read decodes a definition into the map. Nothing can refer to one without URL.
func read[T any](e definitions.Entry, b []byte, into map[string]*T) error {
	if e.URL == "" {
		return nil
	}
	d := new(T)
	if err := json.Unmarshal(b, d); err != nil {
		return err
	}
	into[e.URL] = d
	return nil
}

// Sorted returns the values of m by key.
func Sorted[T any](m map[string]T) []T {
	var out []T
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// System returns the only code system that the value set draws on, or "" when
// it has several, filters another value set that does, or is not known.
func (s *Set) System(valueSet string) string {
	systems := map[string]bool{}
	if !s.systems(valueSet, systems, 0) || len(systems) != 1 {
		return ""
	}
	for u := range systems {
		return u
	}
	return ""
}

func (s *Set) systems(valueSet string, into map[string]bool, depth int) bool {
	valueSet, _, _ = strings.Cut(valueSet, "|")
	vs := s.ValueSets[valueSet]
	if vs == nil || vs.Compose == nil || depth > 8 {
		return false
	}
	for _, inc := range vs.Compose.Include {
		if inc.System != nil {
			into[*inc.System] = true
			continue
		}
		for _, v := range inc.ValueSet {
			if !s.systems(v, into, depth+1) {
				return false
			}
		}
	}
	return true
}
