package fhirpath

import "regexp"

// The engine's =, <, distinct() and matches(), for code that was compiled from FHIRPath
// (gen/invariant).

// Equal reports whether a = b is true.
func Equal(a, b Value) bool { return equal(a, b) == yes }

// Compare orders two items as < and > do; known is false where the data leave it
// open or the types have no common order.
func Compare(a, b Value) (result int, known bool) {
	result, known, ok := order(a, b)
	return result, known && ok
}

// Set is a set of values that are told apart by =. The zero value is empty.
type Set struct {
	set     set
	machine machine
	err     error
}

// Add puts v into the set and reports whether it was new. Once comparing has taken
// DefaultMaxSteps every value counts as new, and Err says so.
func (s *Set) Add(v Value) bool {
	if s.machine.ctx == nil {
		s.machine.ctx, s.machine.program, s.machine.steps = &s.machine.empty, &Program{}, DefaultMaxSteps
	}
	if s.err != nil {
		return true
	}
	var added bool
	added, s.err = s.set.insert(&s.machine, v, 0)
	return added || s.err != nil
}

// Err is why the set stopped comparing, nil when it did not.
func (s *Set) Err() error { return s.err }

// Pattern compiles the regular expression of matches(). It fails, in words for an
// Error, for what Go's regular expressions cannot do.
func Pattern(expression string) (*regexp.Regexp, error) { return compilePattern(expression, false) }
