// Package eventfilter compiles the filters of the subscriptions of Apps, and tests resources by them.
package eventfilter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/ucum"
)

// A Filter is the filter of an App's subscription: every condition holds of a resource that
// passes. docs/contract.md, Apps, section 5.
type Filter []condition

// condition compares what lies under a path. Of several values one is enough; ne asks
// that none is equal.
type condition struct {
	path       []step
	comparator string
	test       func(value any, t *fhir.Type) bool // nil for exists
	negate     bool                               // ne, and exists: false
}

// step goes from an element to one below it.
type step struct {
	keys  []property
	index int // -1 for all of a repeating element
}

// property is a JSON property that an element may stand under.
type property struct {
	name string
	of   *fhir.Type
}

// The bounds of filters.
const (
	maxConditions = 50
	maxPath       = 200 // bytes
	maxOperands   = 1000
)

var comparators = []string{"contains", "eq", "exists", "ge", "gt", "in", "le", "lt", "ne", "startsWith"}

// CompileFilter reads a filter of resources of a type. An empty text is no filter.
func CompileFilter(model *fhir.Model, typ, text string) (Filter, error) {
	if text == "" {
		return nil, nil
	}
	root := model.Resources[typ]
	if root == nil {
		return nil, fmt.Errorf("%q is no resource type", outcome.Clip(typ))
	}
	var conditions map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &conditions); err != nil {
		return nil, fmt.Errorf("a filter is an object of values or comparators by element path")
	}
	if len(conditions) > maxConditions {
		return nil, fmt.Errorf("the filter has %d paths: at most %d", len(conditions), maxConditions)
	}
	var out Filter
	for _, path := range slices.Sorted(maps.Keys(conditions)) {
		steps, leaves, err := compilePath(model, root.Type(), typ, path)
		if err != nil {
			return nil, err
		}
		operand, err := number(conditions[path])
		if err != nil {
			return nil, err
		}
		tests, ok := operand.(map[string]any)
		if _, quantity := tests["value"]; !ok || quantity {
			tests = map[string]any{"eq": operand}
		} else if len(tests) == 0 {
			return nil, fmt.Errorf("%s: the object has no comparator: expected one of %s", outcome.Clip(path), strings.Join(comparators, ", "))
		}
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			c, err := compileComparator(leaves, name, tests[name])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", outcome.Clip(path), err)
			}
			c.path = steps
			out = append(out, c)
		}
	}
	return out, nil
}

// number decodes JSON, and keeps numbers as they are written.
func number(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return v, d.Decode(&v)
}

// compilePath reads dotted names with [n], behind the resource type or not. leaves are the
// types that the last element may have.
func compilePath(model *fhir.Model, root *fhir.Type, typ, path string) (steps []step, leaves []*fhir.Type, err error) {
	if len(path) > maxPath {
		return nil, nil, fmt.Errorf("a path is longer than %d bytes", maxPath)
	}
	types := []*fhir.Type{root}
	for i, part := range strings.Split(path, ".") {
		name, index, err := splitIndex(part)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", outcome.Clip(path), err)
		}
		if i == 0 && name == typ && index < 0 && strings.Contains(path, ".") {
			continue
		}
		s := step{index: index}
		var next []*fhir.Type
		for _, t := range types {
			for _, p := range properties(model, t, name) {
				if !slices.Contains(s.keys, p) {
					s.keys, next = append(s.keys, p), append(next, p.of)
				}
			}
		}
		if len(s.keys) == 0 {
			return nil, nil, fmt.Errorf("%s: %s has no element %q", outcome.Clip(path), types[0].Name, outcome.Clip(name))
		}
		steps, types = append(steps, s), next
	}
	return steps, types, nil
}

// splitIndex cuts [n] off a name.
func splitIndex(part string) (name string, index int, err error) {
	name, rest, ok := strings.Cut(part, "[")
	if !ok {
		return name, -1, nil
	}
	index, err = strconv.Atoi(strings.TrimSuffix(rest, "]"))
	if err != nil || index < 0 || !strings.HasSuffix(rest, "]") {
		return "", 0, fmt.Errorf("%q is no element: expected a name, and a number in brackets", outcome.Clip(part))
	}
	return name, index, nil
}

// properties are those that an element by a name may stand under: value and valueQuantity
// both name a choice element.
func properties(model *fhir.Model, t *fhir.Type, name string) []property {
	if t.Kind == fhir.ResourceKind && name == "id" {
		return []property{{"id", &fhir.Type{Name: "id", Kind: fhir.IDKind}}}
	}
	var out []property
	for i := range t.Fields {
		f := &t.Fields[i]
		switch {
		case f.AnyResource:
		case !f.Choice():
			if f.Name == name && f.Of != nil {
				out = append(out, property{name, f.Of.Type()})
			}
		case strings.HasPrefix(name, f.Name):
			choices := f.Choices
			if f.Open {
				choices = slices.Collect(maps.Values(model.Datatypes))
			}
			for _, c := range choices {
				if key := f.Name + title(c.Type().Name); name == f.Name || name == key {
					out = append(out, property{key, c.Type()})
				}
			}
		}
	}
	return out
}

func title(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[n:]
}

// compileComparator reads one comparator with its operand.
func compileComparator(leaves []*fhir.Type, name string, operand any) (condition, error) {
	c := condition{comparator: name}
	switch name {
	case "exists":
		want, ok := operand.(bool)
		if !ok {
			return c, fmt.Errorf("exists is true or false")
		}
		c.negate = !want
		return c, nil
	case "in":
		list, ok := operand.([]any)
		if !ok || len(list) == 0 || len(list) > maxOperands {
			return c, fmt.Errorf("in takes an array of 1 to %d values", maxOperands)
		}
		var tests []func(any, *fhir.Type) bool
		for _, one := range list {
			test, err := comparison(leaves, "eq", one)
			if err != nil {
				return c, err
			}
			tests = append(tests, test)
		}
		c.test = func(v any, t *fhir.Type) bool {
			return slices.ContainsFunc(tests, func(test func(any, *fhir.Type) bool) bool { return test(v, t) })
		}
		return c, nil
	case "contains", "startsWith":
		text, ok := operand.(string)
		if !ok {
			return c, fmt.Errorf("%s takes a text", name)
		}
		if !slices.ContainsFunc(leaves, func(t *fhir.Type) bool { return textual(t) }) {
			return c, fmt.Errorf("%s is for texts, not for %s", name, leaves[0].Name)
		}
		has := strings.Contains
		if name == "startsWith" {
			has = strings.HasPrefix
		}
		c.test = func(v any, t *fhir.Type) bool {
			s, ok := v.(string)
			return ok && textual(t) && has(s, text)
		}
		return c, nil
	case "ne":
		c.negate = true
		name = "eq"
		fallthrough
	case "eq", "gt", "ge", "lt", "le":
		test, err := comparison(leaves, name, operand)
		c.test = test
		return c, err
	}
	return c, fmt.Errorf("%q is no comparator: expected one of %s", outcome.Clip(name), strings.Join(comparators, ", "))
}

// comparison compares with an operand. It fails where none of the types can be compared
// with it.
func comparison(leaves []*fhir.Type, op string, operand any) (func(any, *fhir.Type) bool, error) {
	type one struct {
		t    *fhir.Type
		test func(any) bool
	}
	var tests []one
	var failed error
	for _, t := range leaves {
		test, err := comparisonWith(t, op, operand)
		if err != nil {
			if _, object := operand.(map[string]any); object && quantity(t) || failed == nil {
				failed = err
			}
			continue
		}
		tests = append(tests, one{t, test})
	}
	if len(tests) == 0 {
		return nil, failed
	}
	return func(v any, t *fhir.Type) bool {
		for i := range tests {
			if tests[i].t == t {
				return tests[i].test(v)
			}
		}
		return false
	}, nil
}

// comparisonWith compares a value of one type.
func comparisonWith(t *fhir.Type, op string, operand any) (func(any) bool, error) {
	switch {
	case t.Kind == fhir.DateKind || t.Kind == fhir.DateTimeKind || t.Kind == fhir.InstantKind || t.Name == "Period":
		return dateComparison(t, op, operand)
	case t.Kind.Number():
		want, err := rational(operand)
		if err != nil {
			return nil, fmt.Errorf("expected a number for %s", t.Name)
		}
		return func(v any) bool {
			got, err := rational(v)
			return err == nil && holds(op, got.Cmp(want))
		}, nil
	case t.Kind == fhir.BooleanKind:
		want, ok := operand.(bool)
		if !ok || op != "eq" {
			return nil, fmt.Errorf("a boolean is equal to true or false, or not")
		}
		return func(v any) bool { return v == want }, nil
	case quantity(t):
		return quantityComparison(t, op, operand)
	case t.Kind.Primitive():
		want, ok := operand.(string)
		if !ok {
			return nil, fmt.Errorf("expected a text for %s", t.Name)
		}
		return func(v any) bool {
			got, ok := v.(string)
			return ok && holds(op, strings.Compare(got, want))
		}, nil
	}
	return nil, fmt.Errorf("%s cannot be compared: name an element of it", t.Name)
}

// holds reports whether a comparison's result is one that op asks for.
func holds(op string, c int) bool {
	switch op {
	case "eq":
		return c == 0
	case "gt":
		return c > 0
	case "ge":
		return c >= 0
	case "lt":
		return c < 0
	}
	return c <= 0
}

func textual(t *fhir.Type) bool {
	return t.Kind.Primitive() && !t.Kind.Number() && t.Kind != fhir.BooleanKind
}

func quantity(t *fhir.Type) bool { return t.Name == "Quantity" || t.Base == "Quantity" }

// rational is the exact value of a JSON number, of bounded size.
func rational(v any) (*big.Rat, error) {
	n, ok := v.(json.Number)
	if !ok {
		return nil, fmt.Errorf("no number")
	}
	text := string(n)
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		if e, err := strconv.Atoi(strings.TrimPrefix(text[i+1:], "+")); err != nil || e > 400 || e < -400 {
			return nil, fmt.Errorf("the number is too large")
		}
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok || len(text) > 1000 {
		return nil, fmt.Errorf("no number")
	}
	return r, nil
}

// dateComparison compares as search does: both sides are ranges, as wide as they are
// precise. Spec: https://hl7.org/fhir/R4/search.html#prefix.
func dateComparison(t *fhir.Type, op string, operand any) (func(any) bool, error) {
	text, ok := operand.(string)
	if !ok {
		return nil, fmt.Errorf("expected a date for %s", t.Name)
	}
	low, high, err := fhir.ParseDate(text)
	if err != nil {
		return nil, fmt.Errorf("%q is no date: %w", outcome.Clip(text), err)
	}
	return func(v any) bool {
		l, h, ok := span(v)
		if !ok {
			return false
		}
		within := low <= l && h <= high
		switch op {
		case "eq":
			return within
		case "gt":
			return h > high
		case "ge":
			return h > high || within
		case "lt":
			return l < low
		}
		return l < low || within
	}, nil
}

// span is the range of a date or a Period; an open end of a Period is without limit.
func span(v any) (low, high int64, ok bool) {
	switch v := v.(type) {
	case string:
		l, h, err := fhir.ParseDate(v)
		return l, h, err == nil
	case map[string]any:
		low, high = math.MinInt64, math.MaxInt64
		if s, has := v["start"].(string); has {
			l, _, err := fhir.ParseDate(s)
			if err != nil {
				return 0, 0, false
			}
			low, ok = l, true
		}
		if s, has := v["end"].(string); has {
			_, h, err := fhir.ParseDate(s)
			if err != nil {
				return 0, 0, false
			}
			high, ok = h, true
		}
	}
	return low, high, ok
}

// quantityComparison compares with a number, or with {value, code} by UCUM.
func quantityComparison(t *fhir.Type, op string, operand any) (func(any) bool, error) {
	want, err := rational(operand)
	var unit *ucum.Unit
	code := ""
	if o, ok := operand.(map[string]any); ok {
		for name := range o {
			if name != "value" && name != "code" && name != "system" && name != "unit" {
				return nil, fmt.Errorf("a quantity is {value, code}, without %q", outcome.Clip(name))
			}
		}
		want, err = rational(o["value"])
		var isText bool
		if code, isText = o["code"].(string); !isText && o["code"] != nil {
			return nil, fmt.Errorf("the code of a quantity is a text")
		}
		if code != "" {
			u, failed := ucum.Parse(code)
			if failed != nil {
				return nil, fmt.Errorf("%q is no unit of UCUM: %w", outcome.Clip(code), failed)
			}
			unit = &u
		}
	}
	if err != nil {
		return nil, fmt.Errorf("expected a number or {value, code} for %s", t.Name)
	}
	base := want
	if unit != nil {
		base = unit.Base(want)
	}
	return func(v any) bool {
		q, ok := v.(map[string]any)
		if !ok {
			return false
		}
		got, err := rational(q["value"])
		if err != nil || q["comparator"] != nil { // <5 is no value
			return false
		}
		if unit == nil {
			return holds(op, got.Cmp(want))
		}
		its, _ := q["code"].(string)
		if its == code {
			return holds(op, got.Cmp(want))
		}
		u, err := ucum.Parse(its)
		return its != "" && err == nil && u.Comparable(*unit) && holds(op, u.Base(got).Cmp(base))
	}, nil
}

// MatchesResource reports whether every condition holds of a resource.
func (f Filter) MatchesResource(resource []byte) bool {
	if len(f) == 0 {
		return true
	}
	v, err := number(resource)
	if err != nil {
		return false
	}
	for i := range f {
		if !f[i].holds(v) {
			return false
		}
	}
	return true
}

func (c *condition) holds(resource any) bool {
	found := c.any(resource, nil, c.path)
	return found != c.negate
}

// any reports whether a value under the path passes the test.
func (c *condition) any(v any, t *fhir.Type, path []step) bool {
	if len(path) == 0 {
		return v != nil && (c.test == nil || c.test(v, t))
	}
	object, ok := v.(map[string]any)
	if !ok {
		return false
	}
	s := path[0]
	for _, k := range s.keys {
		below, ok := object[k.name]
		if !ok {
			continue
		}
		list, repeats := below.([]any)
		if !repeats {
			list = []any{below}
		}
		for i, one := range list {
			if (s.index < 0 || s.index == i) && c.any(one, k.of, path[1:]) {
				return true
			}
		}
	}
	return false
}
