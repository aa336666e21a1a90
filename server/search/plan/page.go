package plan

import (
	"slices"
	"strconv"
	"strings"

	"kiln/server/search"
	"kiln/server/search/match"
)

// Every page statement returns these columns:
//
//	seen, total  rows that the driver found, and matches; null from SelectWalk
//	rid          null when the page is empty
//	a text for each sort key, null where the match has no value
//	id, version, last_updated, method, typ, body

// page is where the page lies in the order.
type page struct {
	cols    []sortColumn
	cursor  *search.Cursor
	args    []any // of the cursor's keys, nil where it has no value
	reverse bool
	limit   int
	offset  int
}

func (p *Plan) page() (page, error) {
	q := p.q
	g := page{cols: columns(q), cursor: q.Cursor, limit: q.Count + 1, offset: q.Offset}
	if c := q.Cursor; c != nil {
		g.offset, g.reverse = 0, c.Before
		if c.Size > 0 {
			g.limit = min(c.Size, q.Count) + 1
		}
		if c.RID == 0 {
			g.cursor = nil
			return g, nil
		}
		if len(c.Keys) != len(g.cols) {
			return g, badCursor()
		}
		for i, k := range c.Keys {
			if k == nil {
				g.args = append(g.args, nil)
				continue
			}
			v, err := g.cols[i].bind(*k)
			if err != nil {
				return g, err
			}
			g.args = append(g.args, v)
		}
	}
	return g, nil
}

// sortNames are the names of the sort columns in a CTE.
func sortNames(alias string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = alias + ".k" + strconv.Itoa(i+1)
	}
	return names
}

// order writes ORDER BY over the columns, missing values last.
func (w *writer) order(g *page, cols []string, rid string) {
	w.Write(" ORDER BY ")
	for i, c := range cols {
		if g.cols[i].key.Descending != g.reverse {
			w.Write(c, " DESC ")
		} else {
			w.Write(c, " ")
		}
		if g.reverse {
			w.Write("NULLS FIRST, ")
		} else {
			w.Write("NULLS LAST, ")
		}
	}
	w.Write(rid)
	if g.reverse {
		w.Write(" DESC")
	}
}

// further is the operator for later values of an order.
func further(descending bool) string {
	if descending {
		return " < "
	}
	return " > "
}

// keyset writes the condition that a row lies on the page's side of the cursor.
func (w *writer) keyset(g *page, cols []string, rid string) {
	for i, col := range cols {
		v := ""
		if g.args[i] != nil {
			v = w.Param(g.args[i]) + "::" + g.cols[i].cast
		}
		beyond := col + further(g.cols[i].key.Descending != g.reverse) + v
		switch {
		case v == "" && g.reverse: // everything with a value lies before
			w.Write("(", col, " IS NOT NULL OR ", col, " IS NULL AND ")
		case v == "":
			w.Write("(", col, " IS NULL AND ")
		case g.reverse:
			w.Write("(", beyond, " OR ", col, " = ", v, " AND ")
		default:
			w.Write("(", beyond, " OR ", col, " IS NULL OR ", col, " = ", v, " AND ")
		}
	}
	w.Write(rid, further(g.reverse))
	w.Bind(g.cursor.RID)
	w.Write("::bigint")
	for range cols {
		w.Write(")")
	}
}

// limit writes LIMIT and OFFSET as parameters.
func (w *writer) limit(g *page) {
	w.Write(" LIMIT ")
	w.Bind(int64(g.limit))
	w.Write("::bigint")
	if g.offset > 0 {
		w.Write(" OFFSET ")
		w.Bind(int64(g.offset))
		w.Write("::bigint")
	}
}

const rowColumns = "r.id, r.version, r.last_updated, r.method, r.typ, r.body"

// tail writes the rest of a statement that has made m: the page of it, with the
// rows of the resources.
func (p *Plan) tail(w *writer, g *page, totals func()) {
	names := sortNames("p", len(g.cols))
	for i := range g.cols {
		w.Write(g.cols[i].asText(names[i]), ", ")
	}
	w.Write(rowColumns, " FROM (")
	totals()
	w.Write(") t LEFT JOIN ((SELECT m.* FROM m")
	if g.cursor != nil {
		w.Write(" WHERE ")
		w.keyset(g, sortNames("m", len(g.cols)), "m.rid")
	}
	w.order(g, sortNames("m", len(g.cols)), "m.rid")
	w.limit(g)
	w.Write(") p CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = p.rid OFFSET 0) r) ON true")
	w.order(g, names, "p.rid")
}

// needsResource reports whether a sort value is a column of resource.
func (g *page) needsResource() bool {
	for i := range g.cols {
		if g.cols[i].table == "" {
			return true
		}
	}
	return false
}

// SelectRows returns the statement that fetches the resources of a page: the columns of a page statement, in no order.
func (p *Plan) SelectRows(rids []int64) match.Statement {
	w := newWriter(p.env)
	w.Write("SELECT ")
	p.rowsOf(w, rids)
	return w.Statement()
}

// SelectRowsIfUnchanged is SelectRows with the expressions of CheckUnchanged before the columns of each row.
func (p *Plan) SelectRowsIfUnchanged(rids []int64, since string) match.Statement {
	if len(rids) == 0 {
		return p.SelectRows(rids).Beside(p.CheckUnchanged(since))
	}
	w := newWriter(p.env)
	w.Write("SELECT ")
	p.unchanged(w, since)
	w.Write(", ")
	p.rowsOf(w, rids)
	return w.Statement()
}

// rowsOf writes the columns of a page statement for resources of one type. The rows of a page without conditions
// are adjacent in the index: they are read as a range, not looked up one by one. The range
// contains more rows if other resources lie between them.
func (p *Plan) rowsOf(w *writer, rids []int64) {
	w.Write("NULL::bigint, NULL::bigint, r.rid, ", strings.Repeat("NULL::text, ", len(p.q.Sort)), rowColumns, " FROM resource r WHERE r.rid ")
	if len(rids) > 1 && p.where.Empty() && len(p.q.Sort) == 0 {
		w.Write("BETWEEN ")
		w.Bind(slices.Min(rids))
		w.Write("::bigint AND ")
		w.Bind(slices.Max(rids))
		w.Write("::bigint")
		return
	}
	w.Write("= ANY (")
	w.Terms(rids)
	w.Write(")")
}

// sortValues joins the values of later sort keys to each row.
func (w *writer) sortValues(g *page, later []int, r string) {
	if len(later) == 0 {
		return
	}
	w.Write(" CROSS JOIN LATERAL (SELECT ")
	for n, i := range later {
		if n > 0 {
			w.Write(", ")
		}
		w.value(&g.cols[i], r)
		w.Write(" AS k", strconv.Itoa(i+1))
	}
	w.Write(" OFFSET 0) s")
}

// bound writes the part of the keyset that an index on the first column can use.
func (w *writer) bound(g *page, col string) {
	w.Write(col)
	if g.cols[0].key.Descending != g.reverse {
		w.Write(" <= ")
	} else {
		w.Write(" >= ")
	}
	w.Bind(g.args[0])
	w.Write("::", g.cols[0].cast)
}
