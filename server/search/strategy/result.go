package strategy

import (
	"slices"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/session"
)

// Result is one page of a search.
type Result struct {
	// Total is the number of matches on all pages; nil if the client does not ask for it. It is approximate if the client
	// asked for an estimate; EndOffset and End are then left out.
	Total   *int
	Matches []fhir.Version // in the order of the search
	// Includes are the resources that `_include` and `_revinclude` add. None occurs twice, and none is a match.
	Includes []fhir.Version

	// Offset is the index of the first match in the whole result, from 0.
	Offset int
	// First is the cursor of the previous page, Last of the next page, End of the last page; EndOffset is the index of the first
	// match on the last page. They are "" if there is no such page.
	First, Last, End string
	EndOffset        int
	HasNext          bool

	// Issues are messages for the client: a limit that was reached, a requested explanation.
	Issues []outcome.Issue

	bodies session.Bodies // of the matches and includes
}

// Release gives the memory of the bodies to other searches. A caller that has copied the bodies calls it, and uses none
// afterwards. Without it the garbage collector frees them as usual.
func (r *Result) Release() {
	if r.bodies != nil {
		r.bodies.Release()
	}
	r.bodies = nil
}

// newResult makes the result that the client sees, without includes. p has one row after the page if there is a next one;
// newResult removes it. exact reports whether the total is exact.
func newResult(q *search.Query, p *session.Page, exact bool) *Result {
	r := &Result{Offset: q.Offset}
	total := int(p.Total)
	if (exact || p.Estimated) && q.Total != search.TotalNone {
		r.Total = &total
	}
	size := pageSize(q)
	more := len(p.Rows) > size
	if more {
		p.Rows = p.Rows[:size]
	}
	backwards := q.Cursor != nil && q.Cursor.Before
	if backwards {
		slices.Reverse(p.Rows)
	}
	r.Matches = make([]fhir.Version, len(p.Rows))
	for i := range p.Rows {
		r.Matches[i] = p.Rows[i].Version
	}
	r.HasNext = more
	if backwards {
		r.placeBackwards(q, p, more, exact)
	}
	before := !backwards && (q.Offset > 0 || q.Cursor != nil) || backwards && more
	r.setCursors(p.Rows, before)
	if exact && q.Count > 0 && total > q.Count {
		r.EndOffset = (total - 1) / q.Count * q.Count
		r.End = (&search.Cursor{Before: true, Size: total - r.EndOffset}).String()
	}
	return r
}

// placeBackwards sets Offset and HasNext of a page that was read from its end: the last page, or the page before a cursor.
func (r *Result) placeBackwards(q *search.Query, p *session.Page, more, exact bool) {
	last := q.Cursor.RID == 0
	r.HasNext = !last && len(p.Rows) > 0
	switch {
	case !more:
		r.Offset = 0
	case last && exact:
		r.Offset = max(0, int(p.Total)-len(p.Rows))
	}
}

// setCursors sets the cursors of the next page, if there is one, and with before of the previous page.
func (r *Result) setCursors(rows []session.Row, before bool) {
	if len(rows) == 0 {
		return
	}
	if r.HasNext {
		last := rows[len(rows)-1]
		r.Last = (&search.Cursor{Keys: last.Keys, RID: last.RID}).String()
	}
	if before {
		r.First = (&search.Cursor{Keys: rows[0].Keys, RID: rows[0].RID, Before: true}).String()
	}
}
