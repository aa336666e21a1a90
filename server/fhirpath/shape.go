package fhirpath

import (
	"slices"

	"kiln/server/fhir"
)

// Shape is what is known of a collection before evaluation: the types that its items can have,
// and whether there can be several. The zero Shape is the empty collection.
type Shape struct{ static static }

// ShapeOf is the shape of one item of a type.
func ShapeOf(t *fhir.Type) Shape { return Shape{typeStatic(t)} }

// Shape returns what is known of the program's result.
func (p *Program) Shape() Shape { return Shape{p.result} }

// Known reports whether all possible types are known.
func (s Shape) Known() bool { return !s.static.any }

// Empty reports whether the collection never has an item.
func (s Shape) Empty() bool { return s.static.nothing() }

// Many reports whether there can be several items.
func (s Shape) Many() bool { return s.static.many }

// Item is the shape of one item of the collection.
func (s Shape) Item() Shape { return Shape{s.static.single()} }

// Or is the shape of a collection with items of both.
func (s Shape) Or(t Shape) Shape { return Shape{s.static.or(t.static)} }

// Same reports whether both shapes know the same.
func (s Shape) Same(t Shape) bool {
	return s.static.any == t.static.any && s.static.kinds == t.static.kinds && len(s.static.types) == len(t.static.types) &&
		!slices.ContainsFunc(s.static.types, func(x *fhir.Type) bool { return !slices.Contains(t.static.types, x) })
}

// Types returns the FHIR types that items can have; nil where they are unknown.
func (s Shape) Types() []*fhir.Type {
	if s.static.any {
		return nil
	}
	return s.static.types
}

// Kinds returns the System types that items can have; nil where they are unknown.
func (s Shape) Kinds() []Kind {
	var out []Kind
	for k := BooleanKind; k <= TypeInfoKind && !s.static.any; k++ {
		if s.static.kinds&(1<<k) != 0 {
			out = append(out, k)
		}
	}
	return out
}

// Describe names the types in an error message.
func (s Shape) Describe() string {
	if s.static.any {
		return "an unknown type"
	}
	return s.static.describe()
}

// AppendEval appends the result of the program with input as focus to dst. An input of
// the zero Value is the empty collection. It fails as Eval does.
func (p *Program) AppendEval(dst []Value, ctx *Context, input Value) ([]Value, error) {
	m := newMachine(p, ctx, fhir.Node{})
	defer m.release()
	m.input, m.this = input, input
	if err := p.root.expr.eval(m); err != nil {
		return dst, err
	}
	return append(dst, m.stack...), nil
}
