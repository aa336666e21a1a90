package strategy

import (
	"testing"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/session"
)

// TestNewResult lays a page of two of seven matches at each place of the result, forwards and backwards.
func TestNewResult(t *testing.T) {
	t.Parallel()
	rows := func(ids ...string) (out []session.Row) {
		for i, id := range ids {
			out = append(out, session.Row{RID: int64(10 + i), Version: fhir.Version{ID: id}})
		}
		return out
	}
	after, before := &search.Cursor{RID: 9}, &search.Cursor{RID: 99, Before: true}
	end := func(size int) *search.Cursor { return &search.Cursor{Before: true, Size: size} }
	for _, tt := range []struct {
		name   string
		offset int
		cursor *search.Cursor
		rows   []session.Row
		want   string // ids of the matches
		next   bool   // HasNext, and a cursor of the next page
		first  bool   // a cursor of the previous page
		at     int    // Offset
	}{
		{"the first page", 0, nil, rows("a", "b", "c"), "ab", true, false, 0},
		{"the only page", 0, nil, rows("a", "b"), "ab", false, false, 0},
		{"a page at an offset", 2, nil, rows("c", "d", "e"), "cd", true, true, 2},
		{"a page after a cursor", 2, after, rows("c", "d", "e"), "cd", true, true, 2},
		{"the last page after a cursor", 6, after, rows("g"), "g", false, true, 6},
		{"a page before a cursor", 2, before, rows("d", "c", "b"), "cd", true, true, 2},
		{"the first page before a cursor", 2, before, rows("b", "a"), "ab", true, false, 0},
		{"the last page", 0, end(1), rows("g", "f"), "g", false, true, 6},
		{"no match", 0, nil, nil, "", false, false, 0},
	} {
		q := &search.Query{Count: 2, Offset: tt.offset, Cursor: tt.cursor}
		r := newResult(q, &session.Page{Total: 7, Rows: tt.rows}, true)
		got := ""
		for _, m := range r.Matches {
			got += m.ID
		}
		if got != tt.want || r.HasNext != tt.next || (r.Last != "") != tt.next || (r.First != "") != tt.first || r.Offset != tt.at {
			t.Errorf("%s: matches %q, next %v %q, first %q, offset %d; want %q, %v, %v, %d",
				tt.name, got, r.HasNext, r.Last, r.First, r.Offset, tt.want, tt.next, tt.first, tt.at)
		}
		if r.Total == nil || *r.Total != 7 || r.EndOffset != 6 || r.End != end(1).String() {
			t.Errorf("%s: total %v, end %d %q", tt.name, r.Total, r.EndOffset, r.End)
		}
	}
}

// The total is left out if the client does not ask for it, or if it is neither exact nor an estimate. An estimate does not
// tell where the last page begins.
func TestNewResultTotal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		total     search.TotalMode
		exact     bool
		estimated bool
		want, end bool
	}{
		{"exact", search.TotalAccurate, true, false, true, true},
		{"unknown", search.TotalAccurate, false, false, false, false},
		{"estimated", search.TotalEstimate, false, true, true, false},
		{"not asked for", search.TotalNone, true, false, false, true},
	} {
		r := newResult(&search.Query{Count: 2, Total: tt.total}, &session.Page{Total: 7, Estimated: tt.estimated}, tt.exact)
		if (r.Total != nil) != tt.want || (r.End != "") != tt.end {
			t.Errorf("%s: total %v, end %q", tt.name, r.Total, r.End)
		}
	}
}
