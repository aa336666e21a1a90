package cache

import (
	"math"
	"slices"

	"kiln/server/search/cache/bitmap"
)

// Terms are conditions on the terms of a resource: all of All, one of each list of Any, none of None. All or Any
// contains at least one term, if only Every.
type Terms struct {
	All  []int64
	Any  [][]int64
	None []int64
}

// MatchesAll reports whether every resource satisfies the conditions.
func (t *Terms) MatchesAll() bool {
	return len(t.All) == 1 && t.All[0] == Every && len(t.Any)+len(t.None) == 0
}

// Every is a term of each resource and sorts before all others. It stands for no condition, and is the base for
// conditions with None alone.
const Every = math.MinInt64

// A TypeKey names the common terms of a resource type.
type TypeKey int16

// termKey names the resources of a type that have a term.
type termKey struct {
	typ  int16
	term int64
}

// termSet is the resources of a type that have some terms, all of them: a coding leaves
// several terms, which have the same resources as long as its system and code come together.
type termSet struct {
	terms   []int64
	members *bitmap.Set
}

// split takes the terms away that leave the set, to a set of their own.
func (s *termSet) split(leave func(term int64) bool) *termSet {
	out := &termSet{members: s.members.Clone()}
	var left []int64
	for _, t := range s.terms {
		if leave(t) {
			out.terms = append(out.terms, t)
		} else {
			left = append(left, t)
		}
	}
	s.terms = left
	return out
}

func (s *termSet) bytes() int64 {
	return s.members.Bytes() + 256 + 64*int64(len(s.terms))
}

// A TermsBuilder makes the sets of some terms of a type from its resources.
type TermsBuilder struct {
	of   map[int64]*termsOfRow
	rows int
	some bool // and not those that are common
}

// termsOfRow is a set with its terms that the added resource has.
type termsOfRow struct {
	termSet
	row int
	has []int64
}

// NewTerms returns a builder for terms and Every, without resources. The terms of a list are expected to occur together.
func NewTerms(together [][]int64) *TermsBuilder {
	return newTerms(slices.Concat(together, [][]int64{{Every}}))
}

// NewSomeTerms returns a builder for terms that are not common, with no resource yet.
func NewSomeTerms(terms []int64) *TermsBuilder {
	b := newTerms(slices.Collect(slices.Chunk(terms, 1)))
	b.some = true
	return b
}

func newTerms(together [][]int64) *TermsBuilder {
	b := &TermsBuilder{of: make(map[int64]*termsOfRow)}
	for _, terms := range together {
		s := &termsOfRow{termSet: termSet{terms, new(bitmap.Set)}}
		for _, t := range terms {
			b.of[t] = s
		}
	}
	return b
}

// AddResource adds a resource to the sets of its terms, each once and Every among them. It returns false if sets cannot store the
// surrogate.
func (b *TermsBuilder) AddResource(rid int64, terms []int64) bool {
	n, ok := number(rid)
	if !ok {
		return false
	}
	b.rows++
	for _, t := range terms {
		s := b.of[t]
		if s == nil {
			continue
		}
		if s.row != b.rows {
			s.row, s.has = b.rows, s.has[:0]
		}
		if s.has = append(s.has, t); len(s.has) == len(s.terms) {
			s.members.Add(n)
		}
	}
	for _, t := range terms {
		if s := b.of[t]; s != nil && s.row == b.rows && len(s.has) < len(s.terms) {
			split := &termsOfRow{termSet: *s.split(func(t int64) bool { return slices.Contains(s.has, t) }), row: b.rows}
			split.has = slices.Clone(split.terms)
			split.members.Add(n)
			for _, t := range split.terms {
				b.of[t] = split
			}
		}
	}
	return true
}

// DropTerm removes a term whose set has no other term.
func (b *TermsBuilder) DropTerm(term int64) { delete(b.of, term) }

// sets are all that were made.
func (b *TermsBuilder) sets() (all []*termSet) {
	for t, s := range b.of {
		if s.terms[0] == t {
			all = append(all, &s.termSet)
		}
	}
	return all
}
