package plan

import (
	"strconv"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// CanWalk reports whether an index has the order of the search, so that SelectWalk can follow it.
func (p *Plan) CanWalk() bool {
	if len(p.q.Sort) == 0 {
		return true
	}
	k := &p.q.Sort[0]
	switch k.Code {
	case "_id":
		return false
	case "_lastUpdated":
		return len(p.types) == 1 && len(p.q.Sort) == 1
	}
	// The entries of a quantity are sorted by unit first.
	return len(k.Keys) == 1 && k.Type != fhir.SearchQuantity || len(k.Keys) > 1 && k.Type == fhir.SearchString
}

// CountPhases returns the number of SelectWalk statements for a page: matches that have a value for the first sort key, then
// matches that have none. Along a SortIndex a page after a match begins with the matches of the same value: of a status these
// may be millions, and the statement begins among them.
func (p *Plan) CountPhases() int {
	switch {
	case len(p.q.Sort) == 0 || len(p.q.Sort[0].Keys) == 0:
		return 1
	case p.amongEqual():
		return 3
	}
	return 2
}

// amongEqual reports whether the cursor stands at a value of a SortIndex.
func (p *Plan) amongEqual() bool {
	c := p.q.Cursor
	return len(p.q.Sort) == 1 && p.q.Sort[0].Indexed && c != nil && c.RID != 0 && len(c.Keys) == 1 && c.Keys[0] != nil
}

// stretch is the part of an order that one statement goes along.
type stretch int

const (
	wholeOrder   stretch = iota
	equalValues          // those that have the value of the cursor
	furtherOrder         // those beyond it
)

// SelectWalk returns the statement that follows the order from the cursor and tests each resource until the page is full. have is the number of rows that the phases
// before gave, skipped how many matches they passed over for an offset; ok is
// false when this phase has nothing to do for this page. Backwards, phase 0 of two is
// the matches without a value. most, where it is not 0, is how many resources it tests at
// most: of a first page, those that have a value where there are two phases (CanStop).
func (p *Plan) SelectWalk(phase, have, skipped, most int) (st match.Statement, ok bool, err error) {
	g, err := p.page()
	if err != nil {
		return st, false, err
	}
	g.limit -= have
	if g.offset -= skipped; have > 0 || g.offset < 0 {
		g.offset = 0
	}
	if g.limit <= 0 {
		return st, false, nil
	}
	w := newWriter(p.env)
	missing := p.CountPhases() == 2 && (phase == 1) != g.reverse
	inMissing := g.cursor != nil && p.CountPhases() == 2 && g.args[0] == nil
	along := wholeOrder
	if p.CountPhases() == 3 {
		if along, missing = equalValues+stretch(phase), phase == 2; missing && g.reverse {
			return st, false, nil // the cursor is before them
		}
	}
	switch {
	case p.CountPhases() >= 2 && !missing:
		if inMissing && !g.reverse {
			return st, false, nil // the cursor is past every value
		}
		if inMissing {
			g.cursor = nil
		}
		p.walkIndex(w, &g, along, most)
	case missing:
		if g.cursor != nil && !inMissing {
			if g.reverse {
				return st, false, nil // the cursor is before them
			}
			g.cursor = nil
		}
		p.walkResources(w, &g, true, 0)
	default:
		p.walkResources(w, &g, false, most)
	}
	return w.Statement(), true, nil
}

// walkResources goes along resource by surrogate or by last update. With missing
// it takes only those without a value for the first sort key, with most only so many.
func (p *Plan) walkResources(w *writer, g *page, missing bool, most int) {
	w.Write("SELECT NULL::bigint, NULL::bigint, r.rid, ")
	cols := make([]string, len(g.cols))
	var later []int // sort keys that are read for each row
	for i := range g.cols {
		switch {
		case g.cols[i].key.Code == "_lastUpdated":
			cols[i] = "r.last_updated"
		case g.cols[i].key.Code == "_id":
			cols[i] = "r.id"
		case missing && i == 0:
			w.Write("NULL::text, ")
			continue
		default:
			cols[i] = "s.k" + strconv.Itoa(i+1)
			later = append(later, i)
		}
		w.Write(g.cols[i].asText(cols[i]), ", ")
	}
	w.Write(rowColumns, " FROM ")
	if most > 0 {
		w.Write("(SELECT * FROM ")
	}
	w.Write("resource r")
	w.sortValues(g, later, "r")
	order, sub := cols, *g
	if missing {
		order = cols[1:]
		sub.cols = g.cols[1:]
		if g.cursor != nil {
			sub.args = g.args[1:]
		}
	}
	w.Write(" WHERE ")
	and := &match.Conditions{W: w.Writer}
	byUpdate := len(cols) == 1 && !missing && cols[0] == "r.last_updated"
	switch {
	case len(p.types) == 1 && byUpdate:
		and.Next()
		w.Write("r.typ = ")
		w.Bind(p.types[0])
		w.Write("::smallint")
	case len(p.types) > 0:
		and.Next()
		w.Typed("r", p.types)
	}
	if sub.cursor != nil {
		and.Next()
		w.keyset(&sub, order, "r.rid")
		if byUpdate { // where the index begins
			and.Next()
			w.bound(&sub, "r.last_updated")
		}
	}
	if missing {
		and.Next()
		w.Write("NOT (r.terms && ")
		w.Terms(match.TermsOf(g.cols[0].key.Keys, fhir.ValuePresent()).Values)
		w.Write(")")
	}
	if most > 0 {
		if !and.Any {
			w.Write("true")
		}
		w.walkOrder(&sub, order, "r.rid")
		w.Write(" LIMIT ")
		w.Bind(int64(most))
		w.Write("::bigint) r WHERE ")
		and = &match.Conditions{W: w.Writer}
	}
	w.Tests("r", &p.where, and, -1)
	if !and.Any {
		w.Write("true")
	}
	if missing { // a later key may be missing too
		w.order(&sub, order, "r.rid")
	} else {
		w.walkOrder(&sub, order, "r.rid")
	}
	w.limit(g)
}

// walkOrder is order where the first column has no nulls: without NULLS LAST the
// index gives it.
func (w *writer) walkOrder(g *page, cols []string, rid string) {
	if len(cols) == 0 {
		w.order(g, cols, rid)
		return
	}
	w.Write(" ORDER BY ", cols[0])
	if g.cols[0].key.Descending != g.reverse {
		w.Write(" DESC")
	}
	rest := *g
	rest.cols = g.cols[1:]
	mark := w.Mark()
	w.order(&rest, cols[1:], rid)
	// Join both lists: " ORDER BY a" + " ORDER BY b" is ", b".
	w.Write(", ", w.Cut(mark)[len(" ORDER BY "):])
}

// walkIndex goes along the ordered table of the first sort key.
func (p *Plan) walkIndex(w *writer, g *page, along stretch, most int) {
	first := &g.cols[0]
	keys := w.entryKeys(first, p.types)
	merged := len(keys) > 1
	byRID := "r.rid"
	if first.key.Indexed && len(g.cols) == 1 {
		byRID = "o.rid" // as the index goes on
	}
	col := first.of("o")
	if merged && first.cast == "text" {
		col = "o.k"
	}
	w.Write("SELECT NULL::bigint, NULL::bigint, r.rid, ", first.asText(col), ", ")
	cols := []string{col}
	var later []int
	for i := 1; i < len(g.cols); i++ {
		switch g.cols[i].key.Code {
		case "_lastUpdated":
			cols = append(cols, "r.last_updated")
		case "_id":
			cols = append(cols, "r.id")
		default:
			cols = append(cols, "s.k"+strconv.Itoa(i+1))
			later = append(later, i)
		}
		w.Write(g.cols[i].asText(cols[i]), ", ")
	}
	w.Write(rowColumns, " FROM ")
	// A range that the index itself answers need not be tested on each row.
	skip := p.boundsOf(first)
	if most > 0 {
		w.Write("(SELECT o.*")
		if !merged && !first.key.Single {
			w.Write(", o.ctid")
		}
		w.Write(" FROM ")
		p.entriesInOrder(w, g, keys, skip)
		w.Write(", o.rid LIMIT ") // the order of the page, so that it ends among equal values as that does
		w.Bind(int64(most))
		w.Write("::bigint) o")
	} else {
		p.entries(w, g, keys)
	}
	w.Write(" CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = o.rid")
	and := &match.Conditions{W: w.Writer, Any: true}
	w.Tests("r", &p.where, and, skip)
	w.Write(" OFFSET 0) r")
	w.sortValues(g, later, "r")
	w.Write(" WHERE ")
	if most > 0 {
		w.Write("true")
	} else {
		p.ofEntries(w, first, keys, skip)
	}
	switch {
	case along == equalValues:
		w.Write(" AND ", col, " = ")
		w.Bind(g.args[0])
		w.Write("::", first.cast, " AND o.rid", further(g.reverse))
		w.Bind(g.cursor.RID)
		w.Write("::bigint")
	case along == furtherOrder:
		w.Write(" AND ", col, further(first.key.Descending != g.reverse))
		w.Bind(g.args[0])
		w.Write("::", first.cast)
	case g.cursor != nil:
		w.Write(" AND ")
		w.bound(g, col)
		w.Write(" AND ")
		w.keyset(g, cols, "r.rid")
	}
	if !first.key.Single {
		rid := "o.rid"
		if merged {
			rid = "r.rid" // tests the merged entries: one key alone may match none of many
		}
		w.Write(" AND NOT EXISTS (SELECT 1 FROM ", first.table, " e WHERE e.rid = ", rid, " AND ")
		w.testKeys(first, "e")
		w.Write(" AND (", first.of("e"), ", e.ctid)", further(!first.key.Descending), "(", col, ", o.ctid) OFFSET 0)")
	}
	if along == equalValues {
		w.order(g, nil, byRID)
	} else {
		w.walkOrder(g, cols, byRID)
	}
	w.limit(g)
}

// entries writes the entries of the first sort key, as o.
func (p *Plan) entries(w *writer, g *page, keys []fhir.Key) {
	if len(keys) > 1 {
		w.merged(g, keys)
	} else {
		w.Write(g.cols[0].table)
	}
	w.Write(" o")
}

// ofEntries writes the condition on the entries o of the walk: those of the keys, and in the range of clause skip
// if that is not below 0.
func (p *Plan) ofEntries(w *writer, first *sortColumn, keys []fhir.Key, skip int) {
	if len(keys) > 1 {
		w.Write("true") // they are asked for already
	} else {
		w.Keys("o", keys)
	}
	if skip >= 0 {
		w.indexBounds("o", p.where.Preds[skip].Any[0])
	}
	if first.descends() && len(keys) <= 1 {
		w.Write(" AND o.word IS NULL")
	}
}

// entriesInOrder writes the entries that a walk which CanStop goes along, by their value alone.
func (p *Plan) entriesInOrder(w *writer, g *page, keys []fhir.Key, skip int) {
	first := &g.cols[0]
	p.entries(w, g, keys)
	w.Write(" WHERE ")
	p.ofEntries(w, first, keys, skip)
	w.Write(" ORDER BY ", first.of("o"))
	if first.key.Descending {
		w.Write(" DESC")
	}
}

// CanStop reports whether SelectWalk can end after a number of resources: on the first page, where the order is that
// of surrogates, of last updates, or of a number that an index has.
func (p *Plan) CanStop() bool {
	return p.q.Cursor == nil && p.CountPhases() <= 2 && (p.CountPhases() == 1 || len(p.q.Sort) == 1 && columns(p.q)[0].cast != "text")
}

// CheckBeyond returns the statement that reads whether the first of two phases has more than so many resources to test.
func (p *Plan) CheckBeyond(most int) (match.Statement, error) {
	g, err := p.page()
	if err != nil {
		return match.Statement{}, err
	}
	w := newWriter(p.env)
	first := &g.cols[0]
	w.Write("SELECT EXISTS (SELECT FROM ")
	p.entriesInOrder(w, &g, w.entryKeys(first, p.types), p.boundsOf(first)) // an index has it: as many are read as are passed over
	w.Write(" OFFSET ")
	w.Bind(int64(most))
	w.Write("::bigint)")
	return w.Statement(), nil
}

// merged writes the entries of the first sort key if they are under several keys. The index has the entries of
// each key in order; UNION ALL in that order makes PostgreSQL merge them.
func (w *writer) merged(g *page, keys []fhir.Key) {
	first := &g.cols[0]
	between, order := "(", " ORDER BY 1"
	if first.key.Descending != g.reverse {
		order += " DESC"
	}
	if first.key.Indexed {
		if order += ", 2"; g.reverse {
			order += " DESC"
		}
	}
	columns := "x.low, x.high, x.rid"
	if first.cast == "text" {
		columns = first.of("x") + " AS k, x.rid"
	}
	if !first.key.Single { // no index has it
		columns += ", x.ctid"
	}
	for i := range keys {
		w.Write(between, "(SELECT ", columns, " FROM ", first.table, " x WHERE ")
		w.Keys("x", keys[i:i+1])
		if first.descends() {
			w.Write(" AND x.word IS NULL")
		}
		w.Write(order, ")")
		between = " UNION ALL "
	}
	w.Write(")")
}

// boundsOf returns the index of the clause that is about the entries of the first
// sort key itself, each resource having one at most, or -1.
func (p *Plan) boundsOf(first *sortColumn) int {
	if first.table != "index_date" || !first.key.Single {
		return -1
	}
	for i := range p.where.Preds {
		m := p.where.Preds[i].Only()
		if c, ok := match.ComparisonOf(m); ok && match.DateBoundsOf(m) != nil && len(c.Keys) == 1 && c.Keys[0] == first.key.Keys[0] {
			return i
		}
	}
	return -1
}

// indexBounds writes the bounds of a date clause on row o of the walk, with those
// on the low end first where the index can begin or end.
func (w *writer) indexBounds(o string, m match.Match) {
	bounds := match.DateBoundsOf(m)
	from, to := fhir.OpenLow-1, fhir.OpenHigh+1
	for _, b := range bounds {
		switch b.Op {
		case match.EQ:
			from, to = max(from, b.Low), min(to, b.High)
		case match.LT, match.EB:
			to = min(to, b.Low)
		case match.LE, match.AP:
			to = min(to, b.High)
		case match.SA:
			from = max(from, b.High)
		}
	}
	w.Write(" AND ", o, ".low >= ")
	w.Bind(from)
	w.Write("::bigint AND ", o, ".low < ")
	w.Bind(to)
	w.Write("::bigint")
	w.DateBounds(o, bounds)
}
