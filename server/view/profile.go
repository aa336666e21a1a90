package view

import (
	"fmt"
	"strings"

	"kiln/gen/r4"
)

// profileBases are the canonicals of SQL on FHIR 3.0 and 2.0 in front of the profiles' names.
var profileBases = []string{"http://hl7.org/fhir/uv/sql-on-fhir/StructureDefinition/", "https://sql-on-fhir.org/ig/StructureDefinition/"}

// shareableFunctions are the functions of a ShareableViewDefinition.
// Spec: SQL on FHIR 3.0.0-ballot, ShareableViewDefinition.
var shareableFunctions = []string{"where", "exists", "empty", "extension", "ofType", "first", "join", "lowBoundary", "highBoundary", "getResourceKey", "getReferenceKey", "not"}

// hasProfile reports whether a view names one of the profiles of SQL on FHIR.
func hasProfile(d *r4.ViewDefinition, name string) bool {
	if d.Meta == nil {
		return false
	}
	for i := range d.Meta.Profile {
		url, _, _ := strings.Cut(d.Meta.Profile[i].Text, "|")
		for _, base := range profileBases {
			if url == base+name {
				return true
			}
		}
	}
	return false
}

// profiles checks the rules of the profiles of SQL on FHIR, but for columns.
func (c *compiler) profiles(d *r4.ViewDefinition) {
	if !hasProfile(d, "ShareableViewDefinition") {
		return
	}
	c.functions = make(map[string]bool)
	for _, name := range shareableFunctions {
		c.functions[name] = true
	}
	for _, e := range []struct{ name, text string }{{"url", d.URL.Text}, {"name", d.Name.Text}} {
		if e.text == "" {
			c.fault("ViewDefinition."+e.name, "a ShareableViewDefinition has %s", e.name)
		}
	}
	if len(d.FHIRVersion) == 0 {
		c.fault("ViewDefinition.fhirVersion", "a ShareableViewDefinition has fhirVersion")
	}
}

// requireColumns checks the profiles' rules for columns.
func (c *compiler) requireColumns(d *r4.ViewDefinition) {
	shareable, tabular := hasProfile(d, "ShareableViewDefinition"), hasProfile(d, "TabularViewDefinition")
	if !shareable && !tabular {
		return
	}
	var walk func(at string, list []r4.ViewDefinitionSelect)
	walk = func(at string, list []r4.ViewDefinitionSelect) {
		for i := range list {
			here := fmt.Sprintf("%s[%d]", at, i)
			for j := range list[i].Column {
				column := &list[i].Column[j]
				place := fmt.Sprintf("%s.column[%d]", here, j)
				if shareable && column.Type_.Text == "" {
					c.fault(place+".type", "a column of a ShareableViewDefinition has a type")
				}
				if !tabular {
					continue
				}
				if column.Collection.Text == "true" {
					c.fault(place+".collection", "a column of a TabularViewDefinition has one value, no collection")
				}
				if typ, ok := columnType(c.model, column.Type_.Text); column.Type_.Text != "" && ok && primitiveKind(typ) == Complex {
					c.fault(place+".type", "a column of a TabularViewDefinition has a primitive type")
				}
			}
			walk(here+".select", list[i].Select)
			walk(here+".unionAll", list[i].UnionAll)
		}
	}
	walk("ViewDefinition.select", d.Select)
}
