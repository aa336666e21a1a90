package match

import (
	"slices"

	"kiln/server/fhir"
)

// IDs holds for the resources with these ref values (fhir.ValueReference).
type IDs struct{ Refs []int64 }

func (m IDs) join(c *Conjunction, not bool) bool {
	if not {
		return false
	}
	if c.ByID {
		c.IDs = slices.DeleteFunc(c.IDs, func(ref int64) bool { return !slices.Contains(m.Refs, ref) })
	} else {
		c.IDs, c.ByID = slices.Clone(m.Refs), true
	}
	c.Never = c.Never || len(c.IDs) == 0
	return true
}

func (m IDs) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (m IDs) test(w *Writer, r string) {
	w.Write("(", r, ".ref = ANY (")
	w.Terms(m.Refs)
	w.Write(")) IS TRUE")
}

func (m IDs) merge(same []Match) Match {
	var refs []int64
	for _, o := range same {
		refs = append(refs, o.(IDs).Refs...)
	}
	slices.Sort(refs)
	return IDs{Refs: slices.Compact(refs)}
}

func (m IDs) byRows() bool { return true }

func (m IDs) holds(r *Resource) Answer {
	return of(slices.Contains(m.Refs, int64(fhir.ValueReference(r.Type, r.ID))))
}

func (m IDs) termTest(ref int64) (terms []int64, holds, ok bool) {
	return nil, slices.Contains(m.Refs, ref), true
}

func (m IDs) describe() string { return "" }
