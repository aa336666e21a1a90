package constraint

import (
	"context"
	"errors"

	"kiln/server/fhir"
)

// Invariant is one constraint of a definition.
type Invariant struct {
	Key, Human string
	Warning    bool
	// Check reports whether the invariant holds for e, which is of the type that
	// it is listed under. It is nil for one that has to be interpreted: then
	// Expression is its FHIRPath, see Corrected.
	Check      func(c *Context, e fhir.Element) bool
	Expression string
}

// Element are the invariants of one element of a type, beside the invariants of the
// element's own type.
type Element struct {
	Name       string // without [x]
	Invariants []Invariant
}

// Type has the invariants of a type as a whole, and of its elements.
type Type struct {
	Name       string
	Invariants []Invariant
	Elements   []Element
}

// Context is the environment of an invariant beside its element.
type Context struct {
	Context context.Context
	// Resource is the resource that holds the element: %resource.
	Resource fhir.Node
	// Err is set when a Check gave up; its result means nothing then.
	Err error

	steps int
}

// maxSteps bounds the pairs of items that one Check compares: some tenths of a
// second.
const maxSteps = 5_000_000

var errTooLong = errors.New("stopped after 5,000,000 comparisons")

// spend counts one comparison and reports whether it may still be made.
func (c *Context) spend() bool {
	c.steps++
	switch {
	case c.Err != nil:
		return false
	case c.steps > maxSteps:
		c.Err = errTooLong
	case c.steps&0xfff == 0 && c.Context != nil:
		c.Err = c.Context.Err()
	}
	return c.Err == nil
}

// Reset makes c ready for the next Check.
func (c *Context) Reset() { c.Err, c.steps = nil, 0 }

// Walked are the invariants, by key, that are not evaluated as FHIRPath: they hold
// by construction, or validation checks them while it walks over a resource.
var Walked = map[string]string{
	"ele-1": "an element without anything is refused when JSON is read, one with an id only by the walk",
	"ext-1": "checked at every extension",
	"ref-1": "checked at every reference",
	"txt-1": "checked at every narrative",
	"txt-2": "checked at every narrative",
	"dom-3": "checked at every resource with contained resources",
	"dom-6": "best practice, true of hardly any resource that a program writes: the warning would stand in nearly every answer",
}

// Corrected are R4's expressions with an evident mistake, corrected, by key.
var Corrected = map[string]string{
	// An answer is a FHIR boolean, which is no System.Boolean; R4B writes it so.
	"que-7": "operator = 'exists' implies (answer is boolean)",
}
