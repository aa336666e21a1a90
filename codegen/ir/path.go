package ir

import (
	"fmt"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// StepKind is the kind of a Step.
type StepKind uint8

// The kinds of steps.
const (
	StepChild        StepKind = iota // into Field, each value of it
	StepFirst                        // into the first value of Field
	StepCast                         // from a choice to the datatype To
	StepWhere                        // values whose primitive element Field is Text
	StepExtension                    // into the extensions with the URL Text
	StepHasExtension                 // values that have an extension with the URL Text
)

// Step is one step of a compiled FHIRPath expression.
type Step struct {
	Kind  StepKind
	Field *Field
	To    Ref
	Text  string
}

// on is the expression of the step behind left.
func (s Step) on(left fhirpath.Node) fhirpath.Node {
	text := &fhirpath.Literal{Kind: fhirpath.StringLiteral, Text: s.Text}
	call := func(name string, arg fhirpath.Node) fhirpath.Node {
		return &fhirpath.Call{Left: left, Name: name, Args: []fhirpath.Node{arg}}
	}
	switch s.Kind {
	case StepFirst:
		return &fhirpath.Indexer{
			Left:  &fhirpath.Member{Left: left, Name: s.Field.Name},
			Index: &fhirpath.Literal{Kind: fhirpath.IntegerLiteral, Text: "0"},
		}
	case StepCast:
		return call("ofType", &fhirpath.Member{Name: s.To.Name})
	case StepWhere:
		return call("where", &fhirpath.Binary{Op: "=", Left: &fhirpath.Member{Name: s.Field.Name}, Right: text})
	case StepExtension:
		return call("extension", text)
	case StepHasExtension:
		return call("where", &fhirpath.Call{Name: "hasExtension", Args: []fhirpath.Node{text}})
	}
	return &fhirpath.Member{Left: left, Name: s.Field.Name}
}

// Path is a compiled expression: from a resource type down to values of one
// type, of a choice, or to resources.
type Path struct {
	Steps []Step
	At    Ref    // type of the values; zero for a choice and for any resource
	Open  *Field // the choice or any-resource field that the path ends in
	// Targets are what resolve() is asked for, see fhir.Parameter.
	Targets []string
	// InName says that the path ends in an element of a HumanName.
	InName bool
	// NotFalse is `path.exists() and path != false` instead of the values.
	NotFalse bool
}

// String returns the canonical text of the steps after the resource type.
func (p Path) String() string {
	p.NotFalse = false
	return strings.TrimPrefix(p.text("Resource"), "Resource")
}

// text is the canonical text of the path from the resource type root.
func (p Path) text(root string) string {
	var n fhirpath.Node = &fhirpath.Member{Name: root}
	for _, s := range p.Steps {
		n = s.on(n)
	}
	if p.NotFalse {
		n = &fhirpath.Binary{
			Op:    "and",
			Left:  &fhirpath.Call{Left: n, Name: "exists"},
			Right: &fhirpath.Binary{Op: "!=", Left: n, Right: &fhirpath.Literal{Kind: fhirpath.BooleanLiteral, Text: "false"}},
		}
	}
	return fhirpath.CanonicalPath(n)
}

// Repeats reports whether the path can give several values.
func (p Path) Repeats() bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool {
		return s.Kind == StepExtension || s.Kind == StepChild && s.Field.Repeats()
	})
}

// compiler turns FHIRPath expressions into paths.
type compiler struct {
	model *Model
	root  *Type
}

// compile returns the paths of the expression n, starting at start. A member of a choice that several
// datatypes have gives a path for each. The error names the part that only the engine supports.
func (c *compiler) compile(n fhirpath.Node, start []Path) ([]Path, error) {
	switch n := n.(type) {
	case *fhirpath.Member:
		if n.Left == nil {
			if n.Name == c.root.Name || n.Name == "Resource" || n.Name == "DomainResource" {
				return []Path{{At: Ref{Name: c.root.Name, Go: c.root.Go}}}, nil
			}
			return c.member(start, n.Name)
		}
		left, err := c.compile(n.Left, start)
		if err != nil {
			return nil, err
		}
		return c.member(left, n.Name)

	case *fhirpath.Variable:
		if n.Name == "resource" {
			return []Path{{At: Ref{Name: c.root.Name, Go: c.root.Go}}}, nil
		}

	case *fhirpath.Special:
		if n.Name == "this" {
			return start, nil
		}

	case *fhirpath.TypeOp:
		if n.Op == "as" {
			left, err := c.compile(n.X, start)
			if err != nil {
				return nil, err
			}
			return c.cast(left, n.Type.Name)
		}

	case *fhirpath.Indexer:
		if lit, ok := n.Index.(*fhirpath.Literal); ok && lit.Text == "0" {
			left, err := c.compile(n.Left, start)
			if err != nil {
				return nil, err
			}
			return first(left)
		}

	case *fhirpath.Call:
		left := start
		if n.Left != nil {
			var err error
			if left, err = c.compile(n.Left, start); err != nil {
				return nil, err
			}
		}
		return c.call(n, left)

	case *fhirpath.Binary:
		if n.Op == "and" {
			return c.notFalse(n, start)
		}
	}
	return nil, fmt.Errorf("%s is not compiled", n)
}

// member goes into a named element.
func (c *compiler) member(from []Path, name string) ([]Path, error) {
	var out []Path
	for _, p := range from {
		for _, p := range c.open(p, name) {
			t := c.model.Lookup(p.At.Name)
			if t == nil {
				return nil, fmt.Errorf("%s has no elements", at(p))
			}
			f := t.Field(name)
			if f == nil {
				return nil, fmt.Errorf("%s has no element %s", t.Name, name)
			}
			q := p.with(Step{Kind: StepChild, Field: f})
			q.InName = t.Name == humanName
			if f.Choice() || f.AnyResource {
				q.At, q.Open = Ref{}, f
			} else {
				q.At, q.Open = f.Type, nil
			}
			out = append(out, q)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("nothing has an element %s", name)
	}
	return out, nil
}

// open resolves a path that ends in a choice to the datatypes of the choice that have the element.
func (c *compiler) open(p Path, name string) []Path {
	if p.Open == nil || p.Open.AnyResource {
		return []Path{p}
	}
	var out []Path
	for _, r := range c.choices(p.Open) {
		if t := c.model.Lookup(r.Name); t != nil && t.Field(name) != nil {
			q := p.with(Step{Kind: StepCast, To: r})
			q.At, q.Open = r, nil
			out = append(out, q)
		}
	}
	return out
}

// choices are the datatypes of a choice element.
func (c *compiler) choices(f *Field) []Ref {
	if f.Open {
		return c.model.DatatypeRefs()
	}
	return f.Choices
}

// cast is `as`, as() and ofType(). R4's own parameters write some primitive types
// with a capital letter.
func (c *compiler) cast(from []Path, typ string) ([]Path, error) {
	var out []Path
	for _, p := range from {
		if p.Open == nil {
			if !strings.EqualFold(p.At.Name, typ) {
				return nil, fmt.Errorf("%s is never %s", at(p), typ)
			}
			out = append(out, p)
			continue
		}
		i := slices.IndexFunc(c.choices(p.Open), func(r Ref) bool { return strings.EqualFold(r.Name, typ) })
		if i < 0 || p.Open.AnyResource {
			return nil, fmt.Errorf("%s is never %s", at(p), typ)
		}
		to := c.choices(p.Open)[i]
		q := p.with(Step{Kind: StepCast, To: to})
		q.At, q.Open = to, nil
		out = append(out, q)
	}
	return out, nil
}

// first is [0].
func first(from []Path) ([]Path, error) {
	if len(from) != 1 || len(from[0].Steps) == 0 || from[0].Repeats() && repeatsBeforeLast(from[0]) {
		return nil, fmt.Errorf("[0] of several elements is not compiled")
	}
	p := from[0].with()
	last := &p.Steps[len(p.Steps)-1]
	if last.Kind != StepChild {
		return nil, fmt.Errorf("[0] of a condition is not compiled")
	}
	if last.Field.Repeats() {
		last.Kind = StepFirst
	}
	return []Path{p}, nil
}

func repeatsBeforeLast(p Path) bool {
	p.Steps = p.Steps[:len(p.Steps)-1]
	return p.Repeats()
}

// call compiles a function call on the paths left.
func (c *compiler) call(n *fhirpath.Call, left []Path) ([]Path, error) {
	switch n.Name {
	case "as", "ofType":
		if len(n.Args) == 1 {
			if m, ok := n.Args[0].(*fhirpath.Member); ok {
				return c.cast(left, m.Name)
			}
		}
	case "first":
		return first(left)
	case "extension":
		if url, ok := stringArg(n); ok {
			return c.extension(left, url)
		}
	case "where":
		if len(n.Args) == 1 {
			return c.where(left, n.Args[0])
		}
	}
	return nil, fmt.Errorf("%s() is not compiled", n.Name)
}

func stringArg(n *fhirpath.Call) (string, bool) {
	if len(n.Args) != 1 {
		return "", false
	}
	lit, ok := n.Args[0].(*fhirpath.Literal)
	return text(&lit.Text), ok && lit.Kind == fhirpath.StringLiteral
}

func (c *compiler) extension(from []Path, url string) ([]Path, error) {
	var out []Path
	for _, p := range from {
		if t := c.model.Lookup(p.At.Name); t == nil || t.Field("extension") == nil {
			return nil, fmt.Errorf("%s.extension() is not compiled", at(p))
		}
		q := p.with(Step{Kind: StepExtension, Text: url})
		q.At, q.Open, q.InName = shared["Extension"], nil, false
		out = append(out, q)
	}
	return out, nil
}

// where compiles a condition: an element compared with a literal, an extension
// that must be there, the type of a reference's target, or several of these.
func (c *compiler) where(from []Path, cond fhirpath.Node) ([]Path, error) {
	switch n := cond.(type) {
	case *fhirpath.Binary:
		if n.Op == "and" {
			left, err := c.where(from, n.Left)
			if err != nil {
				return nil, err
			}
			return c.where(left, n.Right)
		}
		m, isMember := n.Left.(*fhirpath.Member)
		lit, isLiteral := n.Right.(*fhirpath.Literal)
		if n.Op == "=" && isMember && m.Left == nil && isLiteral && (lit.Kind == fhirpath.StringLiteral || lit.Kind == fhirpath.BooleanLiteral) {
			return c.whereEqual(from, m.Name, lit.Text)
		}
	case *fhirpath.Call:
		if url, ok := stringArg(n); ok && n.Left == nil && n.Name == "hasExtension" {
			var out []Path
			for _, p := range from {
				if t := c.model.Lookup(p.At.Name); t == nil || t.Field("extension") == nil {
					return nil, fmt.Errorf("%s.hasExtension() is not compiled", at(p))
				}
				out = append(out, p.with(Step{Kind: StepHasExtension, Text: url}))
			}
			return out, nil
		}
	case *fhirpath.TypeOp:
		call, ok := n.X.(*fhirpath.Call)
		if n.Op == "is" && ok && call.Name == "resolve" && (call.Left == nil || call.Left.String() == "$this") {
			out := slices.Clone(from)
			for i := range out {
				out[i].Targets = []string{n.Type.Name}
			}
			return out, nil
		}
	}
	return nil, fmt.Errorf("where(%s) is not compiled", cond)
}

func (c *compiler) whereEqual(from []Path, name, text string) ([]Path, error) {
	var out []Path
	for _, p := range from {
		t := c.model.Lookup(p.At.Name)
		if t == nil || t.Field(name) == nil || !t.Field(name).Type.Primitive || t.Field(name).Repeats() {
			return nil, fmt.Errorf("where(%s = …) on %s is not compiled", name, at(p))
		}
		q := p.with(Step{Kind: StepWhere, Field: t.Field(name), Text: text})
		// extension.where(url = 'x') is extension('x').
		if n := len(q.Steps); name == "url" && p.At.Name == "Extension" && n > 1 &&
			q.Steps[n-2].Kind == StepChild && q.Steps[n-2].Field.Name == "extension" {
			q.Steps = append(q.Steps[:n-2], Step{Kind: StepExtension, Text: text})
		}
		out = append(out, q)
	}
	return out, nil
}

// notFalse compiles `path.exists() and path != false`.
func (c *compiler) notFalse(n *fhirpath.Binary, start []Path) ([]Path, error) {
	exists, ok1 := n.Left.(*fhirpath.Call)
	differs, ok2 := n.Right.(*fhirpath.Binary)
	if !ok1 || !ok2 || exists.Name != "exists" || len(exists.Args) != 0 || exists.Left == nil || differs.Op != "!=" ||
		differs.Right.String() != "false" || differs.Left.String() != exists.Left.String() {
		return nil, fmt.Errorf("%s is not compiled", n)
	}
	paths, err := c.compile(exists.Left, start)
	if err != nil {
		return nil, err
	}
	if len(paths) != 1 || paths[0].Open == nil || paths[0].Repeats() {
		return nil, fmt.Errorf("%s is not compiled", n)
	}
	p := paths[0]
	p.NotFalse, p.At, p.Open = true, shared["boolean"], nil
	return []Path{p}, nil
}

// with is a copy of the path with further steps.
func (p Path) with(more ...Step) Path {
	p.Steps = append(slices.Clone(p.Steps), more...)
	return p
}

// at returns the name of the last step of a path, for messages.
func at(p Path) string {
	if p.Open != nil {
		return p.Open.Name + "[x]"
	}
	return p.At.Name
}

// nameMethod is the method of fhir.Index for a part of a HumanName.
const nameMethod = "Name"

// conversions names, for each search type, how a datatype is indexed: a method
// of fhir.Index for primitives, a function of the generated package for the
// rest.
var conversions = map[fhir.SearchType]map[string]string{
	fhir.SearchToken: {
		"boolean": "Boolean", "code": "Code", "string": "Code", "markdown": "Code", "id": "Code", "uri": "Code",
		"url": "Code", "oid": "Code", "uuid": "Code", "canonical": "Code", "integer": "Code", "positiveInt": "Code",
		"unsignedInt": "Code", systemString: "Code",
		"Coding": "tokenCoding", "CodeableConcept": "tokenCodeableConcept", "Identifier": "tokenIdentifier",
		"ContactPoint": "tokenContactPoint", "Extension": "tokenExtension",
	},
	fhir.SearchDate: {
		"date": "Date", "dateTime": "Date", "instant": "Date",
		"Period": "datePeriod", "Timing": "dateTiming", "Extension": "dateExtension",
	},
	fhir.SearchNumber: {
		"integer": "Number", "positiveInt": "Number", "unsignedInt": "Number", "decimal": "Number",
		"Range": "numberRange", "Extension": "numberExtension",
	},
	fhir.SearchQuantity: {
		"Quantity": "quantityQuantity", "Age": "quantityAge", "Count": "quantityCount", "Distance": "quantityDistance",
		"Duration": "quantityDuration", "Money": "quantityMoney", "Range": "quantityRange",
		"SampledData": "quantitySampledData", "Extension": "quantityExtension",
	},
	fhir.SearchString: {
		"string": "String", "markdown": "String", "code": "String", "id": "String", "uri": "String", "url": "String",
		"canonical": "String", systemString: "String",
		"HumanName": "stringHumanName", "Address": "stringAddress", "Annotation": "stringAnnotation",
		"CodeableConcept": "stringCodeableConcept", "Coding": "stringCoding", "Extension": "stringExtension",
	},
	fhir.SearchReference: {
		"uri": "Canonical", "url": "Canonical", "canonical": "Canonical", "oid": "Canonical", "uuid": "Canonical",
		"Reference": "referenceReference", "Extension": "referenceExtension",
	},
	fhir.SearchURI: {
		"uri": "URI", "url": "URI", "canonical": "CanonicalURI", "oid": "URI", "uuid": "URI", systemString: "URI",
		"Extension": "uriExtension",
	},
}

// severalRows are the datatypes of which one value leaves several entries.
var severalRows = map[string]bool{"HumanName": true, "Address": true, "CodeableConcept": true, "Extension": true}

// humanName is the datatype whose parts are found by each of their words.
const humanName = "HumanName"

// hasWords reports whether a path can give parts of names: Index.Name.
func hasWords(p Path) bool {
	gives := func(r Ref) bool { return r.Name == humanName || r.Name == "Extension" }
	return Conversion(fhir.SearchString, p) == nameMethod || gives(p.At) || p.Open != nil && (p.Open.Open || slices.ContainsFunc(p.Open.Choices, gives))
}

// divisible are the datatypes whose parts may have search parameters of their own: their functions skip
// the given parts.
var divisible = map[string]bool{"HumanName": true, "Address": true}

// Conversion returns how a path's values are indexed for a search type, and ""
// where they cannot be. Values of a choice go through the function of the search
// type that looks at the datatype.
func Conversion(t fhir.SearchType, p Path) string {
	switch {
	case p.Open != nil && p.Open.AnyResource:
		if t == fhir.SearchReference {
			return "referenceResource"
		}
		return ""
	case p.Open != nil:
		if !p.Open.Open && !slices.ContainsFunc(p.Open.Choices, func(r Ref) bool { return conversions[t][r.Name] != "" }) {
			return ""
		}
		return string(t) + "Of"
	}
	if t == fhir.SearchString && p.InName && p.At.Name == "string" {
		return nameMethod
	}
	return conversions[t][p.At.Name]
}
