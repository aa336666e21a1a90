package remembered

import (
	"time"

	"kiln/server/search/match"

	"github.com/RoaringBitmap/roaring/v2"
)

// Terms are what a question asks of the terms of a resource: all of All, one of each list
// of Any, none of None. There is at least one in All or Any.
type Terms struct {
	All  []int64
	Any  [][]int64
	None []int64
}

// A TypeKey names the common terms of a resource type.
type TypeKey int16

// termKey names the resources of a type that have a term.
type termKey struct {
	typ  int16
	term int64
}

// termSet is the resources of a type that have a term.
type termSet struct {
	term    int64
	members *roaring.Bitmap
}

func (s *termSet) apply(n uint32, r *match.Resource) bool {
	if r != nil && r.HasTerm(s.term) {
		s.members.Add(n)
	} else if s.members.Contains(n) { // removing looks further
		s.members.Remove(n)
	}
	return true
}

func (s *termSet) bytes() int64 { return int64(s.members.GetSizeInBytes()) + 256 }

// A TermsBuilder makes the sets of some terms of a type from its resources.
type TermsBuilder struct {
	sets map[int64]*roaring.Bitmap
}

// NewTerms returns a builder for terms, with no resource yet.
func NewTerms(terms []int64) *TermsBuilder {
	b := &TermsBuilder{sets: make(map[int64]*roaring.Bitmap, len(terms))}
	for _, t := range terms {
		b.sets[t] = roaring.New()
	}
	return b
}

// Add adds a resource to the set of one of its terms, if there is one; false for a
// surrogate that sets do not hold.
func (b *TermsBuilder) Add(rid, term int64) bool {
	s := b.sets[term]
	if s == nil {
		return true
	}
	n, ok := number(rid)
	if ok {
		s.Add(n)
	}
	return ok
}

// byTerms is the resources for which the terms of the question hold; nil where they are
// not remembered. It may be a set that is remembered and must not be changed.
func (m *Memory) byTerms(q *Question) *roaring.Bitmap {
	t := q.Terms
	if t == nil {
		return nil
	}
	all, ok := m.membersOf(q.Type, t.All)
	if !ok {
		return nil
	}
	for _, any := range t.Any {
		sets, ok := m.membersOf(q.Type, any)
		if !ok {
			return nil
		}
		all = append(all, roaring.FastOr(sets...))
	}
	none, ok := m.membersOf(q.Type, t.None)
	if !ok {
		return nil
	}
	if len(all) == 1 && len(none) == 0 {
		return all[0]
	}
	begin := time.Now()
	out := roaring.FastAnd(all...)
	for _, s := range none {
		out.AndNot(s)
	}
	if len(q.Columns) == 0 {
		m.keepDear(q, out, time.Since(begin))
	}
	return out
}

// membersOf is the sets of terms; false where one is not remembered.
func (m *Memory) membersOf(typ int16, terms []int64) (sets []*roaring.Bitmap, ok bool) {
	for _, t := range terms {
		i := m.use(m.terms[termKey{typ, t}])
		if i == nil {
			return nil, false
		}
		sets = append(sets, i.term.members)
	}
	return sets, true
}
