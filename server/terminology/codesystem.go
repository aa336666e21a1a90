package terminology

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// codeSystem is a CodeSystem ready to be asked. It is not changed once made.
type codeSystem struct {
	id, url, version, name string
	// valueSet is the canonical of the value set of all its codes, or "".
	valueSet string
	// complete says that concepts are all there are; content is CodeSystem.content.
	complete bool
	content  string
	// supplements is the code system that this one is a supplement of, language that
	// of its displays; used are the supplements whose content is in concepts.
	supplements, language string
	used                  []canonical
	// fold says that codes are compared without case.
	fold       bool
	meaning    string // hierarchyMeaning
	properties map[string]propertyDef
	// concepts are in the order of the resource, a parent before its children.
	concepts []concept
	byCode   map[string]int32
	size     int // bytes, roughly

	// parents and children are the hierarchy: nesting, and the properties parent,
	// child and subsumedBy. Made at first use.
	once     sync.Once
	parents  map[int32][]int32
	children map[int32][]int32
}

type concept struct {
	code, display, definition string
	// parent is the concept it is nested in, -1 at the top.
	parent             int32
	abstract, inactive bool
	designation        []Designation
	property           []property
}

type property struct {
	code, element, text string
	coding              *Coding
}

// maxNesting bounds how deep concepts may be nested.
const maxNesting = 200

// parseCodeSystem reads a CodeSystem.
func parseCodeSystem(data []byte) (*codeSystem, error) {
	var in codeSystemJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("read CodeSystem: %w", err)
	}
	cs := &codeSystem{
		id: in.ID, url: in.URL, version: in.Version, name: cmp.Or(in.Title, in.Name), valueSet: in.ValueSet,
		complete: in.Content == "complete", content: in.Content, supplements: in.Supplements, language: in.Language, fold: in.CaseSensitive != nil && !*in.CaseSensitive,
		meaning: in.HierarchyMeaning, properties: make(map[string]propertyDef, len(in.Property)),
		byCode: make(map[string]int32),
	}
	for _, p := range in.Property {
		cs.properties[p.Code] = p
	}
	if err := cs.add(in.Concept, -1, 0); err != nil {
		return nil, err
	}
	cs.size += len(cs.concepts)*200 + 1000
	return cs, nil
}

func (cs *codeSystem) add(list []conceptJSON, parent int32, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("read CodeSystem %s: concepts are nested deeper than %d", cs.url, maxNesting)
	}
	for i := range list {
		in := &list[i]
		c := concept{code: in.Code, display: in.Display, definition: in.Definition, parent: parent, designation: in.Designation}
		for _, p := range in.Property {
			element, text := p.value()
			if element == "" {
				continue
			}
			c.property = append(c.property, property{p.Code, element, text, p.ValueCoding})
			switch cs.standardProperty(p.Code) {
			case "notSelectable", "abstract":
				c.abstract = c.abstract || text == "true"
			case "inactive":
				c.inactive = c.inactive || text == "true"
			case "status":
				c.inactive = c.inactive || inactiveStatus[text]
			}
		}
		at := int32(len(cs.concepts))
		cs.concepts = append(cs.concepts, c)
		cs.size += len(c.code) + len(c.display) + len(c.definition) + 64*(len(c.property)+len(c.designation))
		if _, ok := cs.byCode[c.code]; !ok {
			cs.byCode[c.code] = at
		}
		if cs.fold {
			if low := strings.ToLower(c.code); low != c.code {
				if _, ok := cs.byCode[low]; !ok {
					cs.byCode[low] = at
				}
			}
		}
		if err := cs.add(in.Concept, at, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// conceptProperties is the namespace of the URIs of the standard concept properties.
// Spec: https://hl7.org/fhir/R4/codesystem-concept-properties.html.
const conceptProperties = "http://hl7.org/fhir/concept-properties#"

// standardProperty returns the standard code of the property that the code system calls
// code: by its URI where it declares one, else by its code. It returns "" for a property
// whose URI is another one.
func (cs *codeSystem) standardProperty(code string) string {
	uri := cs.properties[code].URI
	if uri == "" {
		return code
	}
	standard, _ := strings.CutPrefix(uri, conceptProperties)
	if standard == uri {
		return ""
	}
	return standard
}

// inactiveStatus are the values of the property status that say a concept should
// no longer be used. Spec: https://hl7.org/fhir/R4/codesystem-concept-properties.html.
var inactiveStatus = map[string]bool{"inactive": true, "retired": true}

// findConcept returns the index of a code.
func (cs *codeSystem) findConcept(code string) (int32, bool) {
	i, ok := cs.byCode[code]
	if !ok && cs.fold {
		i, ok = cs.byCode[strings.ToLower(code)]
	}
	return i, ok
}

func (cs *codeSystem) linkConcepts() {
	cs.once.Do(func() {
		cs.parents, cs.children = make(map[int32][]int32), make(map[int32][]int32)
		edge := func(parent, child int32) {
			if parent == child || slices.Contains(cs.parents[child], parent) {
				return
			}
			cs.parents[child] = append(cs.parents[child], parent)
			cs.children[parent] = append(cs.children[parent], child)
		}
		for i := range cs.concepts {
			c, at := &cs.concepts[i], int32(i)
			if c.parent >= 0 {
				edge(c.parent, at)
			}
			for _, p := range c.property {
				if p.element != "valueCode" && p.element != "valueCoding" {
					continue
				}
				other, ok := cs.findConcept(p.text)
				if !ok {
					continue
				}
				switch cs.standardProperty(p.code) {
				case "parent", "subsumedBy":
					edge(other, at)
				case "child":
					edge(at, other)
				}
			}
		}
	})
}

// addBelow adds i and everything beneath it to set. A hierarchy that runs in a
// circle ends where it began.
func (cs *codeSystem) addBelow(i int32, set map[int32]bool) {
	cs.linkConcepts()
	walk(cs.children, i, set)
}

// addAbove adds i and everything it is under to set.
func (cs *codeSystem) addAbove(i int32, set map[int32]bool) {
	cs.linkConcepts()
	walk(cs.parents, i, set)
}

func walk(edges map[int32][]int32, from int32, set map[int32]bool) {
	todo := []int32{from}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if set[i] {
			continue
		}
		set[i] = true
		todo = append(todo, edges[i]...)
	}
}

// subsumes reports whether a is b or above b.
func (cs *codeSystem) subsumes(a, b int32) bool {
	set := make(map[int32]bool)
	cs.addAbove(b, set)
	return set[a]
}
