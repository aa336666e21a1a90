package validate

import (
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// slicing says how the items of a list are assigned to slices.
// Spec: https://hl7.org/fhir/R4/profiling.html#slicing.
type slicing struct {
	closed         bool
	openAtEnd      bool
	ordered        bool
	discriminators []discriminator
}

// group validates all values of one element of n: u.nodes from base to end.
func (u *run) group(n fhir.Node, c *element, base, end int) {
	u.cardinality(c.name, c.min, c.max, end-base)
	repeats := true
	if f := n.T.Field(c.name); f != nil {
		repeats = f.Repeats()
	}
	at := func(i int) int {
		if !repeats {
			return -1
		}
		return i - base
	}
	var sorted map[*element]*sorting
	if len(c.slices) > 0 {
		sorted = map[*element]*sorting{}
	}
	for i := base; i < end; i++ {
		item := u.nodes[i]
		u.path = append(u.path, segment{c.name, at(i), item.T})
		if n.T.Name == "Bundle" {
			u.inEntry(c.name, i-base)
		}
		u.item(item, c)
		u.sort(item, c, sorted)
		u.pop()
	}
	u.counted(c, sorted, end > base || c.min > 0)
}

// sorting is what is known of an element or slice while its values are put into its
// slices.
type sorting struct {
	count   int // values of it
	last    int // the slice that the last one went to
	outside bool
}

// sort finds the slice of c that an item is in, and of that slice the one that it is
// in again. Spec: https://hl7.org/fhir/R4/profiling.html#reslicing.
func (u *run) sort(item fhir.Node, c *element, sorted map[*element]*sorting) {
	if len(c.slices) == 0 {
		return
	}
	if sorted[c] == nil {
		sorted[c] = &sorting{}
	}
	of := sorted[c]
	for j, s := range c.slices {
		if !u.matches(item, c.slicing, s) {
			continue
		}
		if sorted[s] == nil {
			sorted[s] = &sorting{}
		}
		sorted[s].count++
		switch {
		case c.slicing != nil && c.slicing.ordered && j < of.last:
			u.report(outcome.Failure, "slice %s is out of order", s.slice)
		case c.slicing != nil && c.slicing.openAtEnd && of.outside:
			u.report(outcome.Failure, "expected slice %s before what is in no slice", s.slice)
		}
		of.last = j
		u.item(item, s)
		u.sort(item, s, sorted)
		return
	}
	of.outside = true
	if c.slicing != nil && c.slicing.closed {
		u.report(outcome.Failure, "expected one of the slices %s, found none of them", sliceNames(c.slices))
	}
}

// counted checks how many values the slices of c have; there says whether there are
// values, or have to be.
func (u *run) counted(c *element, sorted map[*element]*sorting, there bool) {
	for _, s := range c.slices {
		count := 0
		if of := sorted[s]; of != nil {
			count = of.count
		}
		if there || s.min > 0 {
			u.cardinality(s.name+":"+s.slice, s.min, s.max, count)
			u.counted(s, sorted, count > 0)
		}
	}
}

func sliceNames(list []*element) string {
	var names []string
	for _, s := range list {
		names = append(names, s.slice)
	}
	return strings.Join(names, ", ")
}

// matches reports whether n belongs to slice s.
func (u *run) matches(n fhir.Node, s *slicing, e *element) bool {
	if s == nil || len(s.discriminators) == 0 {
		// Type slices need no discriminator: value[x]:valueQuantity.
		return len(e.types) > 0 && u.allowed(n, e) != nil && !u.anyType(e)
	}
	for i := range s.discriminators {
		if !u.discriminates(n, &s.discriminators[i], e) {
			return false
		}
	}
	return true
}

// anyType reports whether the slice has no type of its own.
func (u *run) anyType(e *element) bool { return len(e.types) > 1 }
