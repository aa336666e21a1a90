package validate

import (
	"fmt"
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

// groupSlices validates all values of one element of n: u.nodes from base to end.
func (u *run) groupSlices(n fhir.Node, c *element, base, end int) {
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
		u.checkItem(item, c)
		u.sort(item, c, sorted)
		u.popPath()
	}
	u.countSlices(c, sorted, end > base || c.min > 0, 0)
}

// sorting counts the values of an element or slice while they are put into its slices.
type sorting struct {
	count   int // values of it
	last    int // the slice that the last one is in
	outside bool
	unsure  int    // values that may be of it
	why     string // the reason why that cannot be decided
	near    string // the value that comes nearest to the slice's profile, and how it fails
	fails   int    // how many rules of the profile near fails
}

// sort finds the slice of c that an item is in, and of that slice the one that it is
// in again. An item that may be in a slice, and is in no other, is counted as unsure.
// Spec: https://hl7.org/fhir/R4/profiling.html#reslicing.
func (u *run) sort(item fhir.Node, c *element, sorted map[*element]*sorting) {
	if len(c.slices) == 0 {
		return
	}
	of := sortingOf(sorted, c)
	var buffer [8]match
	verdicts := buffer[:0]
	for j, s := range c.slices {
		m := u.matches(item, c, s)
		verdicts = append(verdicts, m)
		if m.verdict != in {
			continue
		}
		sortingOf(sorted, s).count++
		switch {
		case c.slicing != nil && c.slicing.ordered && j < of.last:
			u.report(outcome.Failure, "slice %s is out of order", s.slice)
		case c.slicing != nil && c.slicing.openAtEnd && of.outside:
			u.report(outcome.Failure, "expected slice %s before items in no slice", s.slice)
		}
		of.last = j
		u.checkItem(item, s)
		u.sort(item, s, sorted)
		return
	}
	closed := c.slicing != nil && c.slicing.closed
	near, decided := match{}, true
	for j, m := range verdicts {
		s := c.slices[j]
		switch {
		case m.verdict == unsure:
			decided = false
			may := sortingOf(sorted, s)
			may.unsure++
			may.why = m.why
			if closed && u.options.Warnings {
				u.reportAs(outcome.Warning, outcome.CodeIncomplete, "whether this is in slice %s was not checked: %s", s.slice, m.why)
			}
		case m.why != "":
			if of := sortingOf(sorted, s); of.near == "" || m.fails < of.fails {
				of.near, of.fails = u.expression()+" ("+m.why+")", m.fails
			}
			near = nearestMatch(near, m)
		}
	}
	if !decided {
		return
	}
	of.outside = true
	if closed {
		text := fmt.Sprintf("expected one of the slices %s, found none of them", sliceNames(c.slices))
		if near.why != "" {
			text += "; the nearest profile fails: " + near.why
		}
		u.report(outcome.Failure, "%s", text)
	}
}

func sortingOf(sorted map[*element]*sorting, e *element) *sorting {
	if sorted[e] == nil {
		sorted[e] = &sorting{}
	}
	return sorted[e]
}

// countSlices checks how many values the slices of c have. there says whether there are
// values, or have to be; unsure is the number of values that may be of c. A slice that
// reaches its minimum with the values that may be in it is not missing.
func (u *run) countSlices(c *element, sorted map[*element]*sorting, there bool, unsure int) {
	for _, s := range c.slices {
		of := sorted[s]
		if of == nil {
			of = &sorting{}
		}
		may := of.unsure + unsure
		if !there && s.min == 0 {
			continue
		}
		if of.count < s.min && of.count+may >= s.min {
			if u.options.Warnings {
				u.reportAs(outcome.Warning, outcome.CodeIncomplete, "slice %s of %s was not checked: expected at least %d, found %d and %d that may be in it%s",
					s.slice, s.name, s.min, of.count, may, because(of.why))
			}
		} else {
			name := s.name + ":" + s.slice
			if of.count == 0 && s.min > 0 && of.near != "" {
				u.reportOnce("%s is required: expected at least %d, found none; the nearest is %s", name, s.min, of.near)
			} else {
				u.cardinality(name, s.min, s.max, of.count)
			}
		}
		u.countSlices(s, sorted, of.count > 0, may)
	}
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

func sliceNames(list []*element) string {
	var names []string
	for _, s := range list {
		names = append(names, s.slice)
	}
	return strings.Join(names, ", ")
}
