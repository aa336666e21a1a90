package fhirpath

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// ChoiceName is a name of the JSON format in an expression. FHIRPath knows a choice
// element by its name without the type.
type ChoiceName struct {
	Name    string // "valueDateTime"
	Element string // "value"
	Type    string // "dateTime"
}

// ReplaceChoiceNames returns the expression with value.ofType(dateTime) for each
// valueDateTime, and the names that it replaced, each once. Published search
// parameters use these names, though FHIRPath has no such elements. Without such a name
// it returns e itself. The returned expression may still fail to compile.
// Spec: https://hl7.org/fhir/R4/fhirpath.html#polymorphism.
func ReplaceChoiceNames(e *Expr, opts Options) (*Expr, []ChoiceName) {
	p := &Program{source: e.Source, model: opts.Model, types: hierarchyOf(opts.Model)}
	c := compiler{program: p, opts: opts, input: unknownStatic(false), choices: make(map[*Member]ChoiceName)}
	if opts.Input != nil {
		c.input = typeStatic(opts.Input)
	}
	c.this = c.input
	_, _, _ = c.compile(e.Root) // the caller compiles the result, and finds its errors
	if len(c.choices) == 0 {
		return e, nil
	}
	var names []ChoiceName
	root := c.replaceChoices(e.Root, &names)
	return &Expr{Source: e.Source, Root: root}, names
}

// choiceName returns the choice element of a type, and the datatype, that a name of the
// JSON format means: value and dateTime for valueDateTime.
func (c *compiler) choiceName(t *fhir.Type, name string) (choice ChoiceName, of *fhir.Type, ok bool) {
	for i := range t.Fields {
		f := &t.Fields[i]
		rest, ok := strings.CutPrefix(name, f.Name)
		if !ok || !f.Choice() || !upper(rest) {
			continue
		}
		for _, typ := range []string{rest, strings.ToLower(rest[:1]) + rest[1:]} {
			e := c.program.model.Datatypes[typ]
			if e == nil {
				continue
			}
			if f.Open || slices.ContainsFunc(f.Choices, func(x fhir.Element) bool { return x.Type() == e.Type() }) {
				return ChoiceName{name, f.Name, typ}, e.Type(), true
			}
		}
	}
	return ChoiceName{}, nil, false
}

// replaceChoices returns a copy of n with the recorded names replaced, and adds them to
// names.
func (c *compiler) replaceChoices(n Node, names *[]ChoiceName) Node {
	switch x := n.(type) {
	case *Member:
		m := *x
		m.Left = c.replaceChoices(x.Left, names)
		choice, ok := c.choices[x]
		if !ok {
			return &m
		}
		if !slices.Contains(*names, choice) {
			*names = append(*names, choice)
		}
		m.Name = choice.Element
		return &Call{At: x.At, Left: &m, Name: "ofType", Args: []Node{&Member{At: x.At, Name: choice.Type}}}
	case *Call:
		m := *x
		m.Left, m.Args = c.replaceChoices(x.Left, names), make([]Node, len(x.Args))
		for i, a := range x.Args {
			m.Args[i] = c.replaceChoices(a, names)
		}
		return &m
	case *Indexer:
		m := *x
		m.Left, m.Index = c.replaceChoices(x.Left, names), c.replaceChoices(x.Index, names)
		return &m
	case *Polarity:
		m := *x
		m.X = c.replaceChoices(x.X, names)
		return &m
	case *Binary:
		m := *x
		m.Left, m.Right = c.replaceChoices(x.Left, names), c.replaceChoices(x.Right, names)
		return &m
	case *TypeOp:
		m := *x
		m.X = c.replaceChoices(x.X, names)
		return &m
	}
	return n
}
