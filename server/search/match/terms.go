package match

import (
	"slices"

	"kiln/server/fhir"
)

// Terms holds for a resource that has one of these terms.
type Terms struct{ Values []int64 }

func int64s(keys []fhir.Key) []int64 {
	out := make([]int64, len(keys))
	for i, k := range keys {
		out[i] = int64(k)
	}
	return out
}

// TermsOf is every value under every key.
func TermsOf(keys []fhir.Key, values ...fhir.Value) Terms {
	t := Terms{Values: make([]int64, 0, len(keys)*len(values))}
	for _, k := range keys {
		for _, v := range values {
			t.Values = append(t.Values, k.Term(v))
		}
	}
	return t
}

// maxAny is the largest number of terms that one OR passes to the index: the cost of GIN is their number times
// the rows found. More terms are looked up one by one, like those of a chain.
const maxAny = 64

func (m Terms) join(c *Conjunction, not bool) bool {
	switch {
	case not:
		c.None = append(c.None, m.Values...)
	case len(m.Values) == 0:
		c.Never = true
	case len(m.Values) == 1:
		c.All = append(c.All, m.Values[0])
	case len(m.Values) > maxAny:
		return false
	default:
		c.Any = append(c.Any, m.Values)
	}
	return true
}

func (m Terms) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (m Terms) findTerms(w *Writer) {
	w.Write("SELECT unnest(")
	w.Terms(m.Values)
	w.Write(") AS term")
}

func (m Terms) test(w *Writer, r string) {
	w.Write("(", r, ".terms && ")
	w.Terms(m.Values)
	w.Write(") IS TRUE")
}

func (m Terms) merge(same []Match) Match {
	var values []int64
	for _, o := range same {
		values = append(values, o.(Terms).Values...)
	}
	slices.Sort(values)
	return Terms{slices.Compact(values)}
}

func (m Terms) byRows() bool { return true }

func (m Terms) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(m.Values, r.HasTerm))
}

func (m Terms) termTest(int64) (terms []int64, holds, ok bool) { return m.Values, false, true }

func (m Terms) describe() string { return "" }

func (m Terms) within(way []fhir.Key) Match {
	values, mask := slices.Clone(m.Values), int64(fhir.ContainedMask(way...))
	for i := range values {
		values[i] ^= mask
	}
	return Terms{values}
}
