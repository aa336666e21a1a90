package fhir

import (
	"strings"
	"unsafe"
)

// Node is a place in a model: what FHIRPath and validation walk over. It is two
// words, made without allocation, and valid as long as the model is not changed.
type Node struct {
	T *Type
	p unsafe.Pointer
}

// NodeOf returns the node of e. A nil interface gives the zero Node.
func NodeOf(e Element) Node {
	if e == nil {
		return Node{}
	}
	return Node{T: e.Type(), p: dataOf(e)}
}

// Element returns the typed model value at the node: *r4.HumanName, *fhir.Code.
func (n Node) Element() Element {
	if n.T == nil {
		return nil
	}
	return n.T.At(n.p)
}

// Text is the value of a primitive as written, "" for every other node.
func (n Node) Text() string {
	if n.T == nil || !n.T.Kind.Primitive() {
		return ""
	}
	return (*Primitive)(n.p).Text
}

// Extra is the id and extensions of a primitive, or nil.
func (n Node) Extra() *Extra {
	if n.T == nil || !n.T.Kind.Primitive() {
		return nil
	}
	return (*Primitive)(n.p).Extra
}

// Same reports whether both nodes are the same place.
func (n Node) Same(m Node) bool { return n.p == m.p && n.T == m.T }

// Field returns the field with the given element name ("value" for value[x]),
// or nil.
func (t *Type) Field(name string) *Field {
	for i := range t.Fields {
		if t.Fields[i].Name == name {
			return &t.Fields[i]
		}
	}
	return nil
}

// FieldOf is Field for a name as it may also stand in JSON or in a definition:
// valueString and value[x] are value, _status is status.
func (t *Type) FieldOf(name string) *Field {
	name = strings.TrimPrefix(strings.TrimSuffix(name, "[x]"), "_")
	if f := t.Field(name); f != nil {
		return f
	}
	for i := range t.Fields {
		if f := &t.Fields[i]; f.Choice() {
			if rest, ok := strings.CutPrefix(name, f.Name); ok && rest != "" && rest[0] >= 'A' && rest[0] <= 'Z' {
				return f
			}
		}
	}
	return nil
}

// AppendChild appends the values of the named element to dst, in order. A
// primitive has "id" and "extension".
func (n Node) AppendChild(dst []Node, name string) []Node {
	if n.T == nil {
		return dst
	}
	if n.T.Kind.Primitive() {
		return n.appendExtra(dst, name)
	}
	if f := n.T.Field(name); f != nil {
		return n.AppendField(dst, f)
	}
	return dst
}

// childText is the text of the first child of a name, or "".
func (n Node) childText(name string) string {
	for _, c := range n.AppendChild(nil, name) {
		return c.Text()
	}
	return ""
}

// AppendChildren appends the values of every element to dst, in definition
// order.
func (n Node) AppendChildren(dst []Node) []Node {
	if n.T == nil {
		return dst
	}
	if n.T.Kind.Primitive() {
		return n.appendExtra(n.appendExtra(dst, "id"), "extension")
	}
	for i := range n.T.Fields {
		dst = n.AppendField(dst, &n.T.Fields[i])
	}
	return dst
}

// AppendField appends the values of field f, which must be of n's Type.
func (n Node) AppendField(dst []Node, f *Field) []Node {
	p := unsafe.Add(n.p, f.Offset)
	switch {
	case f.AnyResource && f.Repeats():
		for _, r := range *(*[]Resource)(p) {
			dst = append(dst, NodeOf(r))
		}
	case f.AnyResource:
		if r := *(*Resource)(p); r != nil {
			dst = append(dst, NodeOf(r))
		}
	case f.Choice():
		if e := *(*Element)(p); e != nil {
			dst = append(dst, NodeOf(e))
		}
	case f.Repeats():
		t := f.Of.Type()
		s := (*sliceHeader)(p)
		for i := range s.len {
			dst = append(dst, Node{T: t, p: unsafe.Add(s.data, uintptr(i)*t.Size)})
		}
	default:
		t := f.Of.Type()
		if t.Kind.Primitive() {
			if (*Primitive)(p).Present() {
				dst = append(dst, Node{T: t, p: p})
			}
		} else if q := *(*unsafe.Pointer)(p); q != nil {
			dst = append(dst, Node{T: t, p: q})
		}
	}
	return dst
}

func (n Node) appendExtra(dst []Node, name string) []Node {
	x := (*Primitive)(n.p).Extra
	if x == nil {
		return dst
	}
	switch name {
	case "id":
		if x.ID.Text != "" {
			dst = append(dst, NodeOf(&x.ID))
		}
	case "extension":
		for i := range x.Extension {
			dst = append(dst, NodeOf(&x.Extension[i]))
		}
	}
	return dst
}

// Primitive is the value at a primitive's node, nil at every other node.
func (n Node) Primitive() *Primitive {
	if n.T == nil || !n.T.Kind.Primitive() {
		return nil
	}
	return (*Primitive)(n.p)
}
