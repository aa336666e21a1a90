package cache

import (
	"slices"

	"kiln/server/search/cache/bitmap"
	"kiln/server/search/match"
)

// A set is the resources of one type for which all clauses hold, by the numbers in
// their surrogates.
type set struct {
	clauses []match.Clause
	members *bitmap.Set
}

func (s *set) apply(n uint32, r *match.Resource) bool {
	holds := false
	if r != nil {
		yes, ask := match.Hold(s.clauses, r)
		if len(ask) > 0 {
			return false
		}
		holds = yes
	}
	if holds {
		s.members.Add(n)
	} else {
		s.members.Remove(n)
	}
	return true
}

func (s *set) bytes() int64 { return s.members.Bytes() + setBytes }

// setBytes is the approximate size in bytes of a set without its members.
const setBytes = 512

// pageOf is the part of a set that a page has.
func pageOf(members *bitmap.Set, p Page) (out []uint32) {
	first, end := p.Offset, members.Len()
	switch {
	case p.Backwards && p.Bounded && p.Beyond.N == 0:
		return nil
	case p.Backwards:
		if p.Bounded {
			end = members.Rank(p.Beyond.N - 1)
		}
		end -= p.Offset
		first = max(0, end-p.Limit)
	case p.Bounded:
		first += members.Rank(p.Beyond.N)
	}
	if end = min(end, first+p.Limit); first >= end {
		return nil
	}
	out = make([]uint32, 0, end-first)
	for n := range members.All(members.Select(first)) {
		if out = append(out, n); len(out) == cap(out) {
			break
		}
	}
	if p.Backwards {
		slices.Reverse(out)
	}
	return out
}
