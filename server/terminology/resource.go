package terminology

import (
	"bytes"
	"encoding/json"
	"fmt"
	"kiln/server/parameters"
	"slices"
	"strconv"
	"strings"
)

// The structs of this file contain only the elements of terminology resources that this package needs, so that faults in
// other elements do no harm. Spec: https://hl7.org/fhir/R4/terminology-module.html.

// ValueSet is a set of codes, by rule or enumerated.
// Spec: https://hl7.org/fhir/R4/valueset.html.
type ValueSet struct {
	ID           string     `json:"id,omitempty"`
	URL          string     `json:"url,omitempty"`
	Version      string     `json:"version,omitempty"`
	Name         string     `json:"name,omitempty"`
	Title        string     `json:"title,omitempty"`
	Status       string     `json:"status,omitempty"`
	Experimental *bool      `json:"experimental,omitempty"`
	Date         string     `json:"date,omitempty"`
	Description  string     `json:"description,omitempty"`
	Immutable    *bool      `json:"immutable,omitempty"`
	Compose      *Compose   `json:"compose,omitempty"`
	Expansion    *Expansion `json:"expansion,omitempty"`

	contained map[string]*ValueSet // of the resource, by "#id"
	needs     []string             // canonicals of the supplements it is not to be used without
}

// Compose is ValueSet.compose.
type Compose struct {
	Inactive *bool     `json:"inactive,omitempty"`
	Include  []Include `json:"include,omitempty"`
	Exclude  []Include `json:"exclude,omitempty"`
}

// Include is one include or exclude of a value set.
type Include struct {
	System   string             `json:"system,omitempty"`
	Version  string             `json:"version,omitempty"`
	Concept  []ConceptReference `json:"concept,omitempty"`
	Filter   []Filter           `json:"filter,omitempty"`
	ValueSet []string           `json:"valueSet,omitempty"`
}

// ConceptReference is a concept that a value set names.
type ConceptReference struct {
	Code        string        `json:"code"`
	Display     string        `json:"display,omitempty"`
	Designation []Designation `json:"designation,omitempty"`
}

// Designation is another name of a concept.
type Designation struct {
	Language string  `json:"language,omitempty"`
	Use      *Coding `json:"use,omitempty"`
	Value    string  `json:"value"`
}

// Coding is a code in a system.
type Coding struct {
	System  string `json:"system,omitempty"`
	Version string `json:"version,omitempty"`
	Code    string `json:"code,omitempty"`
	Display string `json:"display,omitempty"`
}

// Filter selects concepts of a system by a property.
// Spec: https://hl7.org/fhir/R4/valueset-filter-operator.html.
type Filter struct {
	Property string `json:"property"`
	Op       string `json:"op"`
	Value    string `json:"value"`
}

// Expansion is ValueSet.expansion.
type Expansion struct {
	Extension  []Extension            `json:"extension,omitempty"`
	Identifier string                 `json:"identifier,omitempty"`
	Timestamp  string                 `json:"timestamp,omitempty"`
	Total      *int                   `json:"total,omitempty"`
	Offset     *int                   `json:"offset,omitempty"`
	Parameter  []parameters.Parameter `json:"parameter,omitempty"`
	Contains   []Contained            `json:"contains,omitempty"`
}

// Extension is an extension with a simple value.
type Extension struct {
	URL          string `json:"url"`
	ValueBoolean *bool  `json:"valueBoolean,omitempty"`
}

// unclosedURL marks an expansion that does not list all codes of its value set,
// costlyURL one that was cut because it would be too large.
// Spec: https://hl7.org/fhir/R4/extension-valueset-unclosed.html,
// extension-valueset-toocostly.html.
const (
	unclosedURL = "http://hl7.org/fhir/StructureDefinition/valueset-unclosed"
	costlyURL   = "http://hl7.org/fhir/StructureDefinition/valueset-toocostly"
)

// isMarked reports whether the expansion has an extension that is not false.
func (x *Expansion) isMarked(url string) bool {
	return slices.ContainsFunc(x.Extension, func(e Extension) bool {
		return e.URL == url && (e.ValueBoolean == nil || *e.ValueBoolean)
	})
}

// isLimited reports whether the server says that it has left codes out to keep the
// expansion small.
func (x *Expansion) isLimited() bool {
	return x.isMarked(costlyURL) || slices.ContainsFunc(x.Parameter, func(p parameters.Parameter) bool {
		return p.Name == "limitedExpansion" && p.True()
	})
}

// cutAt reports whether the expansion names n as the most codes that it may have.
func (x *Expansion) cutAt(n int) bool {
	return slices.ContainsFunc(x.Parameter, func(p parameters.Parameter) bool {
		return p.Name == "count" && p.Type == "Integer" && p.Text() == strconv.Itoa(n)
	})
}

// Contained is one concept of an expansion, with those below it.
type Contained struct {
	System      string        `json:"system,omitempty"`
	Abstract    bool          `json:"abstract,omitempty"`
	Inactive    bool          `json:"inactive,omitempty"`
	Version     string        `json:"version,omitempty"`
	Code        string        `json:"code,omitempty"`
	Display     string        `json:"display,omitempty"`
	Designation []Designation `json:"designation,omitempty"`
	Contains    []Contained   `json:"contains,omitempty"`
}

// codeSystemJSON is a CodeSystem as it is written.
// Spec: https://hl7.org/fhir/R4/codesystem.html.
type codeSystemJSON struct {
	ID               string        `json:"id"`
	URL              string        `json:"url"`
	Version          string        `json:"version"`
	Name             string        `json:"name"`
	Title            string        `json:"title"`
	CaseSensitive    *bool         `json:"caseSensitive"`
	ValueSet         string        `json:"valueSet"`
	HierarchyMeaning string        `json:"hierarchyMeaning"`
	Content          string        `json:"content"`
	Supplements      string        `json:"supplements"`
	Language         string        `json:"language"`
	Property         []propertyDef `json:"property"`
	Concept          []conceptJSON `json:"concept"`
}

type propertyDef struct {
	Code string `json:"code"`
	URI  string `json:"uri"`
	Type string `json:"type"`
}

type conceptJSON struct {
	Code        string         `json:"code"`
	Display     string         `json:"display"`
	Definition  string         `json:"definition"`
	Designation []Designation  `json:"designation"`
	Property    []propertyJSON `json:"property"`
	Concept     []conceptJSON  `json:"concept"`
}

type propertyJSON struct {
	Code          string       `json:"code"`
	ValueCode     *string      `json:"valueCode"`
	ValueString   *string      `json:"valueString"`
	ValueBoolean  *bool        `json:"valueBoolean"`
	ValueInteger  *json.Number `json:"valueInteger"`
	ValueDecimal  *json.Number `json:"valueDecimal"`
	ValueDateTime *string      `json:"valueDateTime"`
	ValueCoding   *Coding      `json:"valueCoding"`
}

// value returns the property as text, and the name of its element.
func (p propertyJSON) value() (element, text string) {
	switch {
	case p.ValueCode != nil:
		return "valueCode", *p.ValueCode
	case p.ValueString != nil:
		return "valueString", *p.ValueString
	case p.ValueBoolean != nil:
		if *p.ValueBoolean {
			return "valueBoolean", "true"
		}
		return "valueBoolean", "false"
	case p.ValueInteger != nil:
		return "valueInteger", p.ValueInteger.String()
	case p.ValueDecimal != nil:
		return "valueDecimal", p.ValueDecimal.String()
	case p.ValueDateTime != nil:
		return "valueDateTime", *p.ValueDateTime
	case p.ValueCoding != nil:
		return "valueCoding", p.ValueCoding.Code
	}
	return "", ""
}

// conceptMap is a ConceptMap. Spec: https://hl7.org/fhir/R4/conceptmap.html.
type conceptMap struct {
	ID              string     `json:"id"`
	URL             string     `json:"url"`
	Version         string     `json:"version"`
	SourceURI       string     `json:"sourceUri"`
	SourceCanonical string     `json:"sourceCanonical"`
	TargetURI       string     `json:"targetUri"`
	TargetCanonical string     `json:"targetCanonical"`
	Group           []mapGroup `json:"group"`
}

type mapGroup struct {
	Source        string       `json:"source"`
	SourceVersion string       `json:"sourceVersion"`
	Target        string       `json:"target"`
	TargetVersion string       `json:"targetVersion"`
	Element       []mapElement `json:"element"`
	Unmapped      *struct {
		Mode    string `json:"mode"`
		Code    string `json:"code"`
		Display string `json:"display"`
		URL     string `json:"url"`
	} `json:"unmapped"`
}

type mapElement struct {
	Code    string      `json:"code"`
	Display string      `json:"display"`
	Target  []mapTarget `json:"target"`
}

type mapTarget struct {
	Code        string `json:"code"`
	Display     string `json:"display"`
	Equivalence string `json:"equivalence"`
	Comment     string `json:"comment"`
	DependsOn   []struct {
		Property string `json:"property"`
	} `json:"dependsOn"`
	Product []mapProduct `json:"product"`
}

type mapProduct struct {
	Property string `json:"property"`
	System   string `json:"system"`
	Value    string `json:"value"`
	Display  string `json:"display"`
}

// ParseValueSet reads a ValueSet.
func ParseValueSet(data []byte) (*ValueSet, error) {
	var vs struct {
		ResourceType string `json:"resourceType"`
		ValueSet
		Contained []json.RawMessage `json:"contained"`
		Extension []struct {
			URL            string `json:"url"`
			ValueCanonical string `json:"valueCanonical"`
		} `json:"extension"`
	}
	if err := json.Unmarshal(data, &vs); err != nil {
		return nil, fmt.Errorf("read ValueSet: %w", err)
	}
	if vs.ResourceType != "ValueSet" {
		return nil, fmt.Errorf("read ValueSet: it is a resource of type %q", vs.ResourceType)
	}
	for _, x := range vs.Extension {
		if x.URL == requiresSupplement {
			vs.needs = append(vs.needs, x.ValueCanonical)
		}
	}
	for _, c := range vs.Contained {
		inner, err := ParseValueSet(c)
		if err != nil || inner.ID == "" {
			continue // another type of resource
		}
		if vs.contained == nil {
			vs.contained = make(map[string]*ValueSet)
		}
		vs.contained["#"+inner.ID] = inner
	}
	return &vs.ValueSet, nil
}

// canonical is a URL with an optional version: "url|version".
type canonical struct{ url, version string }

func parseCanonical(s string) canonical {
	url, version, _ := strings.Cut(s, "|")
	return canonical{url, version}
}

func (c canonical) String() string {
	if c.version == "" {
		return c.url
	}
	return c.url + "|" + c.version
}

func parseConceptMap(data []byte) (*conceptMap, error) {
	cm := new(conceptMap)
	if err := json.Unmarshal(data, cm); err != nil {
		return nil, fmt.Errorf("read ConceptMap: %w", err)
	}
	return cm, nil
}

// topStrings returns the string values of top-level properties of a JSON object,
// "" for those it does not have. It passes over the rest without reading it.
func topStrings(object []byte, names ...string) []string {
	out := make([]string, len(names))
	depth, key, i := 0, "", 0
	for i < len(object) {
		switch object[i] {
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case '"':
			end := i + 1
			for end < len(object) && object[end] != '"' {
				if object[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(object) {
				return out
			}
			if depth == 1 {
				text := string(object[i+1 : end])
				if rest := bytes.TrimLeft(object[end+1:], " \t\r\n"); len(rest) > 0 && rest[0] == ':' {
					key = text
				} else if at := slices.Index(names, key); at >= 0 {
					out[at] = strings.ReplaceAll(text, `\/`, `/`)
				}
			}
			i = end + 1
		default:
			i++
		}
	}
	return out
}
