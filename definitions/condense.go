package definitions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// kept are the resource types that a condensed package holds.
var kept = map[string]bool{
	"CodeSystem": true, "CompartmentDefinition": true, "ConceptMap": true,
	"NamingSystem": true, "OperationDefinition": true, "SearchParameter": true,
	"StructureDefinition": true, "ValueSet": true,
	"CapabilityStatement": true, "ImplementationGuide": true,
}

// guides are the resource types that a package of R4 itself leaves out: there they are examples.
var guides = []string{"CapabilityStatement", "ImplementationGuide"}

// dropped are the properties that are prose or serve only other programs,
// by resource type; those under "" go from every type.
var dropped = map[string][]string{
	"": {"text", "contact", "publisher", "copyright", "purpose", "useContext", "jurisdiction"},
	"StructureDefinition": {
		"differential", "mapping", "keyword", "description",
	},
	"SearchParameter":     {"xpath", "xpathUsage"},
	"ImplementationGuide": {"definition", "manifest"},
}

// droppedDeep are the properties that go at every depth, by resource type.
var droppedDeep = map[string][]string{
	"StructureDefinition": {
		"comment", "requirements", "alias", "example", "mapping", "xpath", "orderMeaning", "label",
	},
	"CodeSystem":            {"definition"},
	"OperationDefinition":   {"documentation", "comment"},
	"CompartmentDefinition": {"documentation"},
	"ConceptMap":            {"comment"},
	"CapabilityStatement":   {"documentation"},
}

// proseExtensions are extensions whose only reader is HL7's publisher.
var proseExtensions = []string{
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-wg",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-ballot-status",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-fmm",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-fmm-no-warnings",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-standards-status",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-normative-version",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-security-category",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-category",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-explicit-type-name",
	"http://hl7.org/fhir/StructureDefinition/structuredefinition-display-hint",
	"http://hl7.org/fhir/StructureDefinition/elementdefinition-translatable",
	"http://hl7.org/fhir/StructureDefinition/elementdefinition-bestpractice-explanation",
	"http://hl7.org/fhir/StructureDefinition/valueset-concept-comments",
	"http://hl7.org/fhir/StructureDefinition/codesystem-concept-comments",
	"http://hl7.org/fhir/build/StructureDefinition/committee-notes",
}

// Condense returns the resource without narrative, examples, mappings, designations in
// other languages and most prose (a snapshot needs the definition of each element), as compact JSON with resourceType, id, url
// and version first and the other properties sorted. It returns nil for a resource that a
// condensed package does not hold. Numbers keep their digits.
func Condense(resource []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(resource))
	dec.UseNumber()
	var r map[string]any
	if err := dec.Decode(&r); err != nil {
		return nil, err
	}
	typ, _ := r["resourceType"].(string)
	if !kept[typ] {
		return nil, nil
	}
	if id, _ := r["id"].(string); id == "" {
		return nil, fmt.Errorf("%s has no id", typ)
	}
	for _, k := range dropped[""] {
		delete(r, k)
	}
	for _, k := range dropped[typ] {
		if k == "differential" && r["snapshot"] == nil {
			continue // there is nothing else
		}
		delete(r, k)
	}
	strip(r, droppedDeep[typ], true)
	var out bytes.Buffer
	if err := writeObject(&out, r); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// strip removes the named properties, prose extensions and foreign designations
// below v. The properties of the resource itself stay when top is set.
func strip(v any, names []string, top bool) {
	switch v := v.(type) {
	case map[string]any:
		if !top {
			for _, n := range names {
				delete(v, n)
			}
		}
		if list, ok := v["designation"].([]any); ok {
			list = slices.DeleteFunc(list, foreign)
			v["designation"] = list
			if len(list) == 0 {
				delete(v, "designation")
			}
		}
		if ext, ok := v["extension"].([]any); ok {
			ext = slices.DeleteFunc(ext, func(e any) bool {
				m, _ := e.(map[string]any)
				url, _ := m["url"].(string)
				return slices.Contains(proseExtensions, url)
			})
			v["extension"] = ext
			if len(ext) == 0 {
				delete(v, "extension")
			}
		}
		for _, k := range v {
			strip(k, names, false)
		}
	case []any:
		for _, e := range v {
			strip(e, names, false)
		}
	}
}

// first are the properties that a condensed resource begins with.
var first = []string{"resourceType", "id", "url", "version"}

// foreign reports whether a designation is in a language other than English.
func foreign(designation any) bool {
	d, _ := designation.(map[string]any)
	language, _ := d["language"].(string)
	return language != "" && language != "en" && !strings.HasPrefix(language, "en-")
}

// writeObject writes a resource: its identifying members, then the rest sorted.
func writeObject(out *bytes.Buffer, r map[string]any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	value := func(v any) error {
		if err := enc.Encode(v); err != nil {
			return err
		}
		out.Truncate(out.Len() - 1) // the newline that Encode adds
		return nil
	}
	keys := make([]string, 0, len(r))
	for k := range r {
		if !slices.Contains(first, k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	out.WriteByte('{')
	for _, k := range append(slices.Clone(first), keys...) {
		if r[k] == nil {
			continue
		}
		if out.Bytes()[out.Len()-1] != '{' {
			out.WriteByte(',')
		}
		fmt.Fprintf(out, "%q:", k)
		if err := value(r[k]); err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}
