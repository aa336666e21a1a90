package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// Kind is how the values of a column are written.
type Kind uint8

// The kinds of columns.
const (
	Text Kind = iota
	Boolean
	Integer
	Decimal
	Instant
	Base64
	Complex // JSON text
)

// Column is one column of a view.
type Column struct {
	Name string
	// Type is the FHIR type: the declared one, else the one of the path, else "string".
	Type       string
	Kind       Kind
	Collection bool
	SQL        *SQLType // of the tag ansi/type; nil without one
	// Expression is the place of the column in the ViewDefinition.
	Expression string
}

// textTypes can stand for each other.
var textTypes = []string{"string", "code", "id", "markdown", "uri", "url", "canonical", "oid", "uuid", "http://hl7.org/fhirpath/System.String"}

var wholeTypes = []string{"integer", "positiveInt", "unsignedInt"}

// fits reports whether a value of type have can be in a column of type want.
func fits(have, want string) bool {
	switch {
	case have == want:
		return true
	case slices.Contains(textTypes, want):
		return slices.Contains(textTypes, have) || want == "string" && primitiveKind(have) != Complex
	case slices.Contains(wholeTypes, want):
		return slices.Contains(wholeTypes, have)
	case want == "decimal":
		return slices.Contains(wholeTypes, have)
	case want == "dateTime":
		return have == "date" || have == "instant"
	}
	return false
}

// primitiveKind is the kind of a FHIR type, Complex for every type that is not primitive.
func primitiveKind(typ string) Kind {
	switch typ {
	case "boolean":
		return Boolean
	case "integer", "positiveInt", "unsignedInt":
		return Integer
	case "decimal":
		return Decimal
	case "instant":
		return Instant
	case "base64Binary":
		return Base64
	case "date", "dateTime", "time", "xhtml":
		return Text
	}
	if slices.Contains(textTypes, typ) {
		return Text
	}
	return Complex
}

// typeURLs are prefixes of the name of a type.
var typeURLs = []string{"http://hl7.org/fhir/StructureDefinition/", "FHIR."}

// systemTypes are FHIRPath's types and the FHIR types that a column of them has.
var systemTypes = map[string]string{"Boolean": "boolean", "String": "string", "Integer": "integer", "Decimal": "decimal", "Date": "date", "DateTime": "dateTime",
	"Time": "time", "Quantity": "Quantity"}

// columnType returns the FHIR type that a column declares.
func columnType(model *fhir.Model, text string) (string, bool) {
	if name, ok := strings.CutPrefix(text, "http://hl7.org/fhirpath/System."); ok {
		typ, ok := systemTypes[name]
		return typ, ok
	}
	for _, prefix := range typeURLs {
		text = strings.TrimPrefix(text, prefix)
	}
	_, datatype := model.Datatypes[text]
	_, resource := model.Resources[text]
	switch text {
	case "Extension", "BackboneElement", "Element", "Resource", "DomainResource":
		return text, true
	}
	return text, datatype || resource
}

// typesOf returns the FHIR types of a shape, by name.
func typesOf(s fhirpath.Shape) []string {
	var out []string
	for _, t := range s.Types() {
		out = append(out, t.Name)
	}
	for _, k := range s.Kinds() {
		if typ := systemTypes[k.String()]; typ != "" {
			out = append(out, typ)
		}
	}
	return out
}

// inferType returns the type of a column without a declared one: ok is false where the path cannot
// yield a primitive.
func inferType(s fhirpath.Shape) (typ string, ok bool) {
	if !s.Known() || s.Empty() {
		return "string", true
	}
	var primitive []string
	for _, t := range typesOf(s) {
		if primitiveKind(t) != Complex {
			primitive = append(primitive, t)
		}
	}
	switch {
	case len(primitive) == 0:
		return "", false
	case len(primitive) == 1 && len(typesOf(s)) == 1:
		if primitive[0] == textTypes[len(textTypes)-1] {
			return "string", true
		}
		return primitive[0], true
	case !slices.ContainsFunc(primitive, func(t string) bool { return !slices.Contains(wholeTypes, t) }):
		return "integer", true
	}
	return "string", true
}

// canBe reports whether a shape can have an item that fits a column of a type.
func canBe(s fhirpath.Shape, want string) bool {
	if !s.Known() || s.Empty() {
		return true
	}
	for _, t := range s.Types() {
		if fits(t.Name, want) || want == "Element" || want == t.Base || want == "BackboneElement" && strings.Contains(t.Name, ".") ||
			t.Kind == fhir.ResourceKind && (want == "Resource" || want == "DomainResource") {
			return true
		}
	}
	for _, k := range s.Kinds() {
		if k == fhirpath.DateTimeKind && want == "instant" || fits(systemTypes[k.String()], want) {
			return true
		}
	}
	return false
}

// checkValue reports why a value cannot be in the column; "" where it can.
func (c *Column) checkValue(v fhirpath.Value) string {
	have := v.JSONType()
	if v.Kind() == fhirpath.TypeInfoKind {
		return fmt.Sprintf("the value is a type, found %s", v)
	}
	if n, ok := v.Node(); ok {
		if c.Kind == Complex {
			if have == c.Type || n.T.Base == c.Type || c.Type == "Element" || !n.T.Kind.Primitive() && (c.Type == "BackboneElement" || c.Type == "Resource" || c.Type == "DomainResource") {
				return ""
			}
			return fmt.Sprintf("the column has the type %s, the value has %s", c.Type, have)
		}
	}
	switch {
	case c.Kind == Complex && have == c.Type && v.Kind() == fhirpath.QuantityKind:
		return ""
	case c.Type == "instant" && v.Kind() == fhirpath.DateTimeKind:
		if fhir.InstantKind.Valid(v.String()) {
			return ""
		}
		return fmt.Sprintf("%s is no instant", v)
	case fits(have, c.Type):
		return ""
	}
	return fmt.Sprintf("the column has the type %s, the value has %s", c.Type, have)
}

// SQLType is the type of a column in Parquet and in tables, as ansi/type names it.
type SQLType struct {
	Name             string // "DECIMAL"
	Precision, Scale int    // of DECIMAL; Precision is the length of CHARACTER VARYING, 0 for any
}

// sqlTypes are the types that ansi/type knows, with their other names.
var sqlTypes = map[string]string{
	"BOOLEAN": "BOOLEAN", "CHARACTER VARYING": "CHARACTER VARYING", "VARCHAR": "CHARACTER VARYING", "SMALLINT": "SMALLINT", "INTEGER": "INTEGER", "INT": "INTEGER",
	"BIGINT": "BIGINT", "DECIMAL": "DECIMAL", "NUMERIC": "DECIMAL", "REAL": "REAL", "DOUBLE PRECISION": "DOUBLE PRECISION", "DATE": "DATE",
	"TIMESTAMP WITH TIME ZONE": "TIMESTAMP WITH TIME ZONE",
}

// parseSQLType reads the value of ansi/type.
func parseSQLType(text string) (*SQLType, error) {
	name, arguments, bracket := strings.Cut(strings.ToUpper(strings.Join(strings.Fields(text), " ")), "(")
	t := &SQLType{Name: sqlTypes[strings.TrimSpace(name)]}
	if t.Name == "" {
		return nil, fmt.Errorf("ansi/type is %q, which is no type of a column", text)
	}
	if !bracket {
		if t.Name == "DECIMAL" {
			return nil, fmt.Errorf("ansi/type is %q: DECIMAL needs precision and scale, such as DECIMAL(18,6)", text)
		}
		return t, nil
	}
	arguments, rest, closed := strings.Cut(arguments, ")")
	var numbers []int
	for part := range strings.SplitSeq(arguments, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 {
			return nil, fmt.Errorf("ansi/type is %q, which is no type of a column", text)
		}
		numbers = append(numbers, n)
	}
	switch {
	case !closed || strings.TrimSpace(rest) != "":
	case t.Name == "DECIMAL" && len(numbers) <= 2 && numbers[0] >= 1 && numbers[0] <= 38:
		t.Precision = numbers[0]
		if len(numbers) == 2 {
			t.Scale = numbers[1]
		}
		if t.Scale <= t.Precision {
			return t, nil
		}
	case t.Name == "CHARACTER VARYING" && len(numbers) == 1 && numbers[0] > 0:
		t.Precision = numbers[0]
		return t, nil
	}
	return nil, fmt.Errorf("ansi/type is %q: expected DECIMAL(p,s) with p up to 38 and s up to p, or a type without arguments", text)
}

// tagType is the type that a column's tag ansi/type names, with the index of the tag.
func tagType(c *r4.ViewDefinitionSelectColumn) (t *SQLType, at int, err error) {
	for i := range c.Tag {
		if c.Tag[i].Name.Text == "ansi/type" {
			if t, err = parseSQLType(c.Tag[i].Value.Text); err != nil {
				return nil, i, err
			}
		}
	}
	return t, 0, nil
}
