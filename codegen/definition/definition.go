// Package definition reads the FHIR definitions that the server is compiled
// from, through samply's typed models, so that the generator does not depend on
// its own output.
package definition

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
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
	CodeSystems  map[string]bool
}

// SearchParameter is samply's model, but for the resource types: samply knows
// those of R4 by name and refuses our own.
type SearchParameter struct {
	fhir.SearchParameter
	Base   []string `json:"base"`
	Target []string `json:"target"`
	// Rank orders where it was found: 0 local, 1 HL7's core package, 2 another.
	Rank int `json:"-"`
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

// Load reads the condensed packages and the local definitions of a folder. A
// definition of local/ replaces one of a package, and one of HL7's core package
// is never replaced by another package's.
func Load(dir fs.FS) (*Set, error) {
	s := &Set{
		Structures:   map[string]*fhir.StructureDefinition{},
		Parameters:   map[string]*SearchParameter{},
		Compartments: map[string]*CompartmentDefinition{},
		Operations:   map[string]*OperationDefinition{},
		ValueSets:    map[string]*fhir.ValueSet{},
		CodeSystems:  map[string]bool{},
	}
	packages, err := definitions.List(dir)
	if err != nil {
		return nil, err
	}
	// The core package first: what is there already stays.
	slices.SortStableFunc(packages, func(a, b definitions.Package) int {
		return cmp.Compare(rank(a), rank(b))
	})
	local, err := fs.Glob(dir, "local/*.json")
	if err != nil {
		return nil, err
	}
	for _, name := range local {
		b, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		if err := s.add(0, b); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, p := range packages {
		if err := s.loadPackage(dir, p); err != nil {
			return nil, fmt.Errorf("%s: %w", p.File(), err)
		}
	}
	return s, nil
}

func rank(p definitions.Package) int {
	if strings.HasPrefix(p.Name, "hl7.fhir.r4.") {
		return 1
	}
	return 2
}

func (s *Set) loadPackage(dir fs.FS, p definitions.Package) error {
	f, err := dir.Open(p.File())
	if err != nil {
		return err
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	r := bufio.NewReader(zr)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		if err != nil && err != io.EOF {
			return err
		}
		if err := s.add(rank(p), line); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}

// add reads one resource. Types that codegen has no use for are passed over.
func (s *Set) add(rank int, b []byte) error {
	var head struct{ ResourceType, ID string }
	if err := json.Unmarshal(b, &head); err != nil {
		return err
	}
	err := func() error {
		switch head.ResourceType {
		case "StructureDefinition":
			return read(b, s.Structures, func(d *fhir.StructureDefinition) string { return d.Url })
		case "SearchParameter":
			return read(b, s.Parameters, func(d *SearchParameter) string {
				d.Rank = rank
				return d.Url
			})
		case "CompartmentDefinition":
			return read(b, s.Compartments, func(d *CompartmentDefinition) string { return d.Url })
		case "OperationDefinition":
			return read(b, s.Operations, func(d *OperationDefinition) string { return str(d.Url) })
		case "ValueSet":
			return read(b, s.ValueSets, func(d *fhir.ValueSet) string { return str(d.Url) })
		case "CodeSystem":
			var d struct{ URL string }
			if err := json.Unmarshal(b, &d); err != nil {
				return err
			}
			s.CodeSystems[d.URL] = true
		}
		return nil
	}()
	if err != nil {
		return fmt.Errorf("%s/%s: %w", head.ResourceType, head.ID, err)
	}
	return nil
}

// read decodes a definition into the map unless its URL is there.
func read[T any](b []byte, into map[string]*T, url func(*T) string) error {
	d := new(T)
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(d); err != nil {
		return err
	}
	u := url(d)
	if u == "" {
		return nil // nothing can refer to it
	}
	if _, ok := into[u]; !ok {
		into[u] = d
	}
	return nil
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
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
