package ir

// An invariant is compiled to a condition over Go values. This file has the tree, which codegen/emit prints.

// Value is a Go expression.
type Value interface{ value() }

type (
	// Receiver is the element that the invariant is about, ResourceValue the
	// resource that holds it.
	Receiver      struct{}
	ResourceValue struct{}
	// Variable is bound by Some or As.
	Variable struct{ Name string }
	// Select is an element of a struct.
	Select struct {
		Of    Value
		Field *Field
	}
	// TextValue is the text of a primitive, Literal a Go string.
	TextValue struct{ Of Value }
	Literal   struct{ Text string }
	// TextAt is the text of the primitive at a path into a resource of any type.
	TextAt struct {
		Of   Value
		Path []string
	}
	// Concat is the Go string of several, one after the other.
	Concat struct{ Parts []Value }
	// PatternValue is a regular expression.
	PatternValue struct{ Expression string }
)

func (Receiver) value()      {}
func (ResourceValue) value() {}
func (Variable) value()      {}
func (*Select) value()       {}
func (TextValue) value()     {}
func (Literal) value()       {}
func (TextAt) value()        {}
func (Concat) value()        {}
func (PatternValue) value()  {}

// Condition is a Go expression of type bool.
type Condition interface{ condition() }

type (
	// Constant is true or false.
	Constant bool
	// Not, All and Any are !, && and ||. Differ is != between two of them.
	Not    struct{ X Condition }
	All    []Condition
	Any    []Condition
	Differ struct{ X, Y Condition }
	// Present says that an element of a struct is there.
	Present struct{ X *Select }
	// Some says that the body is true of an item of a list: of all of it, or of
	// constraint.First or Tail.
	Some struct {
		List     *Select
		Part     string // "", "First" or "Tail"
		Variable string
		Body     Condition
	}
	// As says that a choice or resource is of a type, and the body true of it; with
	// the constant true as body nothing is bound.
	As struct {
		X        Value
		To       Ref
		Variable string
		Body     Condition
	}
	// TextIs says that the text of a primitive is one of some; Same that two
	// primitives have one text; HasText that there is a text.
	TextIs struct {
		X  Value
		In []string
	}
	Same    struct{ X, Y Value }
	HasText struct{ X Value }
	// Predicate is a function of strings: HasPrefix, HasSuffix, Contains, Matches.
	Predicate struct {
		Func   string
		X, Arg Value
	}
	// Order is a comparison by constraint.Certain or Possible, with Y or Number on
	// the right side.
	Order struct {
		Certain bool
		X, Y    Value // Y is nil for a number
		Op      string
		Number  int32
	}
	// Total compares how many items elements have with a number.
	Total struct {
		Of     []*Select
		Op     string
		Number int
	}
	// Share says that two lists have an item in common.
	Share struct{ X, Y *Select }
	// Distinct is isDistinct(): the body walks over the items and ends in Again.
	Distinct struct{ Body Condition }
	Again    struct{ X Value }
	// Has says that a path leads somewhere from an element of any type.
	Has struct{ Path []string }
)

func (Constant) condition()   {}
func (Not) condition()        {}
func (All) condition()        {}
func (Any) condition()        {}
func (Differ) condition()     {}
func (*Present) condition()   {}
func (*Some) condition()      {}
func (*As) condition()        {}
func (*TextIs) condition()    {}
func (*Same) condition()      {}
func (*HasText) condition()   {}
func (*Predicate) condition() {}
func (*Order) condition()     {}
func (*Total) condition()     {}
func (*Share) condition()     {}
func (*Distinct) condition()  {}
func (*Again) condition()     {}
func (*Has) condition()       {}

// not negates.
func not(x Condition) Condition {
	switch x := x.(type) {
	case Constant:
		return !x
	case Not:
		return x.X
	}
	return Not{x}
}

// all is the conjunction, without repeated conditions.
func all(list ...Condition) Condition {
	var out All
	for _, c := range list {
		switch c := c.(type) {
		case Constant:
			if !c {
				return c
			}
		case All:
			out = append(out, c...)
		default:
			out = append(out, c)
		}
	}
	for i := 0; i+1 < len(out); i++ {
		// A primitive that has a text is there.
		if p, ok := out[i].(*Present); ok && textOf(out[i+1]) == Value(p.X) {
			out = append(out[:i], out[i+1:]...)
		}
	}
	switch len(out) {
	case 0:
		return Constant(true)
	case 1:
		return out[0]
	}
	return out
}

// textOf is the primitive of which a condition says that it has a text, or nil.
func textOf(c Condition) Value {
	switch c := c.(type) {
	case *TextIs:
		return c.X
	case *HasText:
		return c.X
	}
	return nil
}

// anyOf is the disjunction.
func anyOf(list ...Condition) Condition {
	var out Any
	for _, c := range list {
		switch c := c.(type) {
		case Constant:
			if c {
				return c
			}
		case Any:
			out = append(out, c...)
		default:
			out = append(out, c)
		}
	}
	switch len(out) {
	case 0:
		return Constant(false)
	case 1:
		return out[0]
	}
	return out
}
