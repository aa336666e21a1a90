package search

import (
	"strconv"
	"time"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// Every page statement returns these columns:
//
//	seen, total  rows that the driver found, and matches; null from Walk
//	rid          null when the page is empty
//	a text for each sort key, null where the match has no value
//	id, version, last_updated, method, typ, body

// sortColumn is how one sort key is read, compared and bound.
type sortColumn struct {
	key   SortKey
	cast  string // SQL type
	table string // ordered table, "" for a column of resource
}

func columns(q *Query) []sortColumn {
	out := make([]sortColumn, len(q.Sort))
	for i, k := range q.Sort {
		c := sortColumn{key: k}
		switch {
		case k.Code == "_lastUpdated":
			c.cast = "timestamptz"
		case k.Code == "_id", k.InMemory():
			c.cast = "text"
		case k.Type == fhir.SearchString:
			c.cast, c.table = "text", "index_string"
		case k.Type == fhir.SearchDate:
			c.cast, c.table = "bigint", "index_date"
		case k.Type == fhir.SearchNumber:
			c.cast, c.table = "numeric", "index_number"
		default:
			c.cast, c.table = "numeric", "index_quantity"
		}
		out[i] = c
	}
	return out
}

// of is the ordered value of row x of the column's table, as its index has it.
func (c *sortColumn) of(x string) string {
	if c.table == "index_string" {
		return "left(" + x + ".text, 128)"
	}
	return x + ".low"
}

// value writes the sort value of resource r: of several entries the first in the
// direction asked for. The neutral operation keeps the planner from looking for a
// minimum along the whole index.
func (w *writer) value(c *sortColumn, r string) {
	switch c.key.Code {
	case "_lastUpdated":
		w.s(r, ".last_updated")
		return
	case "_id":
		w.s(r, ".id")
		return
	}
	x := "x" + w.next()
	pick, neutral := "min(", " + 0"
	if c.key.Descending {
		pick = "max("
	}
	if c.cast == "text" {
		neutral = ` || '' COLLATE "C"`
	}
	w.s("(SELECT ", pick, c.of(x), neutral, ") FROM ", c.table, " ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.probeKeys(x, c.key.Keys)
	w.s(")")
}

// asText is the column as the text that a cursor keeps.
func (c *sortColumn) asText(col string) string {
	if c.cast == "timestamptz" {
		return "(extract(epoch FROM " + col + ") * 1000000)::bigint::text"
	}
	return col + "::text"
}

// bind turns the text of a cursor key into an argument.
func (c *sortColumn) bind(text string) (any, error) {
	switch c.cast {
	case "bigint", "timestamptz":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, badCursor()
		}
		if c.cast == "timestamptz" {
			return time.UnixMicro(n).UTC(), nil
		}
		return n, nil
	case "numeric":
		if text != "Infinity" && text != "-Infinity" {
			if _, err := fhir.ParseDecimal(text); err != nil {
				return nil, badCursor()
			}
		}
	}
	return text, nil
}

func badCursor() *outcome.Error {
	return outcome.Invalid("parameter _cursor does not fit this search: follow the links of a search result")
}

// page is where the page lies in the order.
type page struct {
	cols    []sortColumn
	cursor  *Cursor
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
	w.s(" ORDER BY ")
	for i, c := range cols {
		if g.cols[i].key.Descending != g.reverse {
			w.s(c, " DESC ")
		} else {
			w.s(c, " ")
		}
		if g.reverse {
			w.s("NULLS FIRST, ")
		} else {
			w.s("NULLS LAST, ")
		}
	}
	w.s(rid)
	if g.reverse {
		w.s(" DESC")
	}
}

// keyset writes the condition that a row lies on the page's side of the cursor.
func (w *writer) keyset(g *page, cols []string, rid string) {
	for i, col := range cols {
		v := ""
		if g.args[i] != nil {
			v = w.param(g.args[i]) + "::" + g.cols[i].cast
		}
		beyond := col + " > " + v
		if g.cols[i].key.Descending != g.reverse {
			beyond = col + " < " + v
		}
		switch {
		case v == "" && g.reverse: // everything with a value lies before
			w.s("(", col, " IS NOT NULL OR ", col, " IS NULL AND ")
		case v == "":
			w.s("(", col, " IS NULL AND ")
		case g.reverse:
			w.s("(", beyond, " OR ", col, " = ", v, " AND ")
		default:
			w.s("(", beyond, " OR ", col, " IS NULL OR ", col, " = ", v, " AND ")
		}
	}
	w.s(rid)
	if g.reverse {
		w.s(" < ")
	} else {
		w.s(" > ")
	}
	w.p(g.cursor.RID)
	w.s("::bigint")
	for range cols {
		w.s(")")
	}
}

// limit writes LIMIT and OFFSET as parameters.
func (w *writer) limit(g *page) {
	w.s(" LIMIT ")
	w.p(int64(g.limit))
	w.s("::bigint")
	if g.offset > 0 {
		w.s(" OFFSET ")
		w.p(int64(g.offset))
		w.s("::bigint")
	}
}

const rowColumns = "r.id, r.version, r.last_updated, r.method, r.typ, r.body"

// Candidates is the statement that finds the matches through driver i. Its answer
// holds when it has seen fewer rows than Plan.Limit; then total and page are exact.
func (p *Plan) Candidates(i int) (Statement, error) {
	g, err := p.page()
	if err != nil {
		return Statement{}, err
	}
	w := &writer{env: p.env}
	d := p.Drivers[i]
	plain := p.plain(d, &g)
	if !p.chain(d) && len(g.cols) == 0 && g.cursor == nil && !g.reverse && g.offset == 0 && (plain || p.onlyEntries(d)) {
		p.firstPage(w, d, &g, plain)
		return w.statement(), nil
	}
	w.s("WITH ")
	bounded := ""
	if p.chain(d) {
		bounded = p.chainDriver(w, d)
	} else {
		w.s("d AS MATERIALIZED (")
		p.driverRows(w, d)
		w.s(")")
	}
	if plain {
		w.s(", m AS NOT MATERIALIZED (SELECT ") // a second list would be the first again
	} else {
		w.s(", m AS MATERIALIZED (SELECT ")
	}
	p.candidates(w, d, &g)
	w.s(") ")
	w.s("SELECT t.seen, t.total, p.rid, ")
	p.tail(w, &g, func() {
		if bounded == "" {
			w.s("SELECT (SELECT count(*) FROM d)")
		} else {
			w.s("SELECT greatest((SELECT count(*) FROM d), (SELECT count(*) FROM ", bounded, "))")
		}
		w.s(" AS seen, (SELECT count(*) FROM m) AS total")
	})
	return w.statement(), nil
}

// firstPage is Candidates of a first page for which what a driver finds needs no
// test: short, as half of what a few rows cost is what surrounds them. Without
// matches there is no row. An entry may be there more than once unless plain.
func (p *Plan) firstPage(w *writer, d Driver, g *page, plain bool) {
	seen, total, group := "count(*) OVER ()", "p.seen", ""
	if !plain {
		seen, total, group = "sum(count(*)) OVER ()::bigint", "p.total", " GROUP BY o.rid"
	}
	w.s("SELECT p.seen, ", total, ", p.rid, ", rowColumns, " FROM (SELECT o.rid, ", seen, " AS seen")
	if !plain {
		w.s(", count(*) OVER () AS total")
	}
	w.s(" FROM (")
	p.driverRows(w, d)
	w.s(") o", group, " ORDER BY o.rid")
	w.limit(g)
	w.s(") p CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = p.rid OFFSET 0) r ORDER BY p.rid")
}

// onlyEntries reports whether the driver is the only clause, an ordered one, so that
// its entries are matches, though some more than once.
func (p *Plan) onlyEntries(d Driver) bool {
	return d.pred == 0 && len(p.where.preds) == 1 && p.Surrogates()
}

// plain reports whether what a driver finds needs neither test nor sort value.
func (p *Plan) plain(d Driver, g *page) bool {
	switch {
	case len(g.cols) > 0 || len(p.where.preds) > 1:
		return false
	case len(p.where.preds) == 0:
		return true
	}
	return d.pred == 0 && p.Surrogates() && single(p.where.preds[0].any)
}

// Driving is the part of Candidates that finds rows, as a statement of its own
// that is never run: what is learned of one search's driver holds for every search
// with the same one.
func (p *Plan) Driving(i int) Statement {
	w := &writer{env: p.env}
	d := p.Drivers[i]
	if p.chain(d) {
		p.chainDriver(w, d)
	} else {
		p.driverRows(w, d)
	}
	return w.statement()
}

// chain reports whether the driver is a chain or `_has`.
func (p *Plan) chain(d Driver) bool { return d.pred >= 0 && !p.where.preds[d.pred].isOrdered() }

// tail writes the rest of a statement that has made m: the page of it, with the
// rows of the resources.
func (p *Plan) tail(w *writer, g *page, totals func()) {
	names := sortNames("p", len(g.cols))
	for i := range g.cols {
		w.s(g.cols[i].asText(names[i]), ", ")
	}
	w.s(rowColumns, " FROM (")
	totals()
	w.s(") t LEFT JOIN ((SELECT m.* FROM m")
	if g.cursor != nil {
		w.s(" WHERE ")
		w.keyset(g, sortNames("m", len(g.cols)), "m.rid")
	}
	w.order(g, sortNames("m", len(g.cols)), "m.rid")
	w.limit(g)
	w.s(") p CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = p.rid OFFSET 0) r) ON true")
	w.order(g, names, "p.rid")
}

// driverRows writes what finds rows by an ordered table, or by resource_terms or
// resource_ref.
func (p *Plan) driverRows(w *writer, d Driver) {
	switch {
	case d.pred < 0:
		w.s("SELECT ", p.driverColumns(-1), " FROM resource r")
		w.found("r", &p.where, p.types, &conditions{w: w, lead: " WHERE "})
	case p.where.preds[d.pred].hasUpdated():
		w.s("SELECT r.rid FROM resource r WHERE ")
		w.everyType("r", p.types)
		w.s(" AND ")
		w.probe("r", p.where.preds[d.pred].any)
	default:
		w.s("SELECT o.rid FROM (")
		w.rids(p.where.preds[d.pred].any, p.types)
		w.s(") o")
	}
	w.s(" LIMIT ", strconv.Itoa(p.Limit))
}

// driverColumns are what the other clauses and the sort values need of a resource
// that clause driving (-1: terms and ids) has found.
func (p *Plan) driverColumns(driving int) string {
	for _, k := range p.q.Sort {
		if len(k.Keys) == 0 {
			driving = len(p.where.preds) // a column of resource
		}
	}
	rest := conj{}
	for i := range p.where.preds {
		if i != driving {
			rest.preds = append(rest.preds, p.where.preds[i])
		}
	}
	if rest.onlyOrdered() && driving < len(p.where.preds) {
		return "r.rid"
	}
	return "r.rid, r.ref, r.typ, r.last_updated, r.id, r.terms, r.targets"
}

// chainDriver writes h, the terms or refs that a chain gives, and d, the rows that
// they find; both are bounded. d may have a row more than once.
func (p *Plan) chainDriver(w *writer, d Driver) (bounded string) {
	pr := &p.where.preds[d.pred]
	and := &conditions{w: w, any: true}
	columns := p.driverColumns(d.pred)
	w.s("h AS MATERIALIZED (")
	if has, ok := pr.only().(Has); ok {
		w.hasRefs(&has, p.Limit)
		w.s("), d AS MATERIALIZED (SELECT ", columns, " FROM h CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.ref = h.ref")
		w.ofType("r", p.types, and)
		w.probing("r", p.withoutPreds(), and, -1)
	} else {
		w.s("SELECT DISTINCT term FROM (")
		w.allChainTerms(pr.any, p.Limit)
		w.s(") u), d AS MATERIALIZED (SELECT ", columns, " FROM h CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.terms @> ")
		w.termAnd("h.term", p.where.all)
		rest := p.withoutPreds()
		rest.all = nil
		w.probing("r", rest, and, -1)
	}
	w.s(" OFFSET 0) r WHERE (SELECT count(*) FROM h) < ", strconv.Itoa(p.Limit), " LIMIT ", strconv.Itoa(p.Limit), ")")
	return "h"
}

// withoutPreds is the conjunction of terms and ids alone.
func (p *Plan) withoutPreds() *conj {
	c := p.where
	c.preds = nil
	return &c
}

// candidates writes the body of m: the rows of d that pass what the driver has
// not tested, with their sort values.
func (p *Plan) candidates(w *writer, d Driver, g *page) {
	c := &p.where
	fromResource := d.pred < 0 || !c.preds[d.pred].isOrdered()
	distinct := d.pred >= 0 && !single(c.preds[d.pred].any)
	r := "r"
	if fromResource || c.onlyOrdered() && !g.needsResource() {
		r = "d" // has all that is asked for
	}
	w.s(r, ".rid")
	for i := range g.cols {
		w.s(", ")
		w.value(&g.cols[i], r)
		w.s(" AS k", strconv.Itoa(i+1))
	}
	and := &conditions{w: w, lead: " WHERE "}
	switch {
	case !fromResource:
		w.s(" FROM (SELECT ")
		if distinct {
			w.s("DISTINCT ")
		}
		w.s("d.rid FROM d WHERE (SELECT count(*) FROM d) < ", strconv.Itoa(p.Limit), ") d")
		if r == "r" {
			w.s(" CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = d.rid OFFSET 0) r")
		}
		w.probing(r, c, and, d.pred)
		return
	case distinct:
		w.s(" FROM (SELECT DISTINCT ON (d.rid) d.* FROM d) d")
	default:
		w.s(" FROM d")
	}
	and.next()
	w.s("(SELECT count(*) FROM d) < ", strconv.Itoa(p.Limit))
	w.probing(r, &conj{preds: c.preds}, and, d.pred)
}

// onlyOrdered reports whether every clause can be tested with the surrogate alone.
func (c *conj) onlyOrdered() bool {
	if len(c.all)+len(c.any)+len(c.none) > 0 || c.byID {
		return false
	}
	for i := range c.preds {
		for _, m := range c.preds[i].any {
			switch m.(type) {
			case Dates, dateRange, Numbers, NumberPair, Quantities, Strings:
			default:
				return false
			}
		}
	}
	return true
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

// Count is the statement that counts the matches, whatever their number: one row,
// one bigint.
func (p *Plan) Count() Statement {
	w := &writer{env: p.env}
	c := &p.where
	onlyTerms := len(c.preds) == 0 && !c.byID
	switch {
	case onlyTerms && len(c.all)+len(c.any) == 0 && len(c.none) > 0 && len(p.types) > 0:
		// The complement: all of the type, by its surrogates, without those that
		// have a term.
		w.s("SELECT (SELECT count(*) FROM resource r WHERE ")
		w.typed("r", p.types)
		w.s(") - (SELECT count(*) FROM resource r WHERE r.terms && ")
		w.terms(c.none)
		w.s(")")
		return w.statement()
	case onlyTerms:
		w.s("SELECT count(*) FROM resource r")
		w.found("r", c, p.types, &conditions{w: w, lead: " WHERE "})
		return w.statement()
	}
	w.s("SELECT count(*) FROM (")
	w.set(c, p.types)
	w.s(") s")
	return w.statement()
}

// CountType counts the resources of the types searched, against which a total is
// common or rare.
func (p *Plan) CountType() Statement {
	w := &writer{env: p.env}
	w.s("SELECT count(*) FROM resource r")
	if len(p.types) > 0 {
		w.s(" WHERE ")
		w.typed("r", p.types)
	}
	return w.statement()
}

// Surrogates reports whether ordered tables alone tell the matches and their order,
// so that Gather reads resources for the page only.
func (p *Plan) Surrogates() bool {
	for _, k := range p.q.Sort {
		if len(k.Keys) == 0 {
			return false
		}
	}
	return len(p.where.preds) > 0 && p.where.onlyOrdered() && p.where.preds[0].isOrdered()
}

// Gather is the statement that fetches every match, however many, sorts them and
// returns the page: for an order that no index has, and for matches that are many
// but rare.
func (p *Plan) Gather() (Statement, error) {
	g, err := p.page()
	if err != nil {
		return Statement{}, err
	}
	w := &writer{env: p.env}
	w.s("WITH m AS MATERIALIZED (SELECT r.rid")
	for i := range g.cols {
		w.s(", ")
		w.value(&g.cols[i], "r")
		w.s(" AS k", strconv.Itoa(i+1))
	}
	w.s(" FROM ")
	if p.Surrogates() {
		w.s("(")
		w.set(&p.where, p.types)
		w.s(") r")
	} else {
		w.matching("r", &p.where, p.types)
	}
	w.s(") SELECT 0::bigint, t.total, p.rid, ")
	p.tail(w, &g, func() { w.s("SELECT count(*) AS total FROM m") })
	return w.statement(), nil
}

// Walkable reports whether an index has the order asked for, so that Walk can go
// along it.
func (p *Plan) Walkable() bool {
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

// Phases is how many Walk statements make a page: matches that have a value for
// the first sort key, then those that have none.
func (p *Plan) Phases() int {
	if len(p.q.Sort) == 0 || len(p.q.Sort[0].Keys) == 0 {
		return 1
	}
	return 2
}

// Walk is the statement that goes along the order from the cursor and tests each
// resource until the page is full. have is the number of rows that the phases
// before gave, skipped how many matches they passed over for an offset; ok is
// false when this phase has nothing to do for this page. Backwards, phase 0 is
// the matches without a value.
func (p *Plan) Walk(phase, have, skipped int) (st Statement, ok bool, err error) {
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
	w := &writer{env: p.env}
	missing := p.Phases() == 2 && (phase == 1) != g.reverse
	inMissing := g.cursor != nil && p.Phases() == 2 && g.args[0] == nil
	switch {
	case p.Phases() == 2 && !missing:
		if inMissing && !g.reverse {
			return st, false, nil // the cursor is past every value
		}
		if inMissing {
			g.cursor = nil
		}
		p.walkIndex(w, &g)
	case missing:
		if g.cursor != nil && !inMissing {
			if g.reverse {
				return st, false, nil // the cursor is before them
			}
			g.cursor = nil
		}
		p.walkResources(w, &g, true)
	default:
		p.walkResources(w, &g, false)
	}
	return w.statement(), true, nil
}

// CountValued counts the matches that have a value for the first sort key.
func (p *Plan) CountValued() Statement {
	valued := *p
	if len(p.q.Sort) > 0 && len(p.q.Sort[0].Keys) > 0 {
		present := Clause{Any: []Match{termsOf(p.q.Sort[0].Keys, fhir.ValuePresent())}}
		valued.where = conjoin(append(p.clauses[:len(p.clauses):len(p.clauses)], present))
	}
	return valued.Count()
}

// walkResources goes along resource by surrogate or by last update. With missing
// it takes only those without a value for the first sort key.
func (p *Plan) walkResources(w *writer, g *page, missing bool) {
	w.s("SELECT NULL::bigint, NULL::bigint, r.rid, ")
	cols := make([]string, len(g.cols))
	var later []int // sort keys that are read for each row
	for i := range g.cols {
		switch {
		case g.cols[i].key.Code == "_lastUpdated":
			cols[i] = "r.last_updated"
		case g.cols[i].key.Code == "_id":
			cols[i] = "r.id"
		case missing && i == 0:
			w.s("NULL::text, ")
			continue
		default:
			cols[i] = "s.k" + strconv.Itoa(i+1)
			later = append(later, i)
		}
		w.s(g.cols[i].asText(cols[i]), ", ")
	}
	w.s(rowColumns, " FROM resource r")
	w.sortValues(g, later, "r")
	order, sub := cols, *g
	if missing {
		order = cols[1:]
		sub.cols = g.cols[1:]
		if g.cursor != nil {
			sub.args = g.args[1:]
		}
	}
	w.s(" WHERE ")
	and := &conditions{w: w}
	byUpdate := len(cols) == 1 && !missing && cols[0] == "r.last_updated"
	switch {
	case len(p.types) == 1 && byUpdate:
		and.next()
		w.s("r.typ = ")
		w.p(p.types[0])
		w.s("::smallint")
	case len(p.types) > 0:
		and.next()
		w.typed("r", p.types)
	}
	if sub.cursor != nil {
		and.next()
		w.keyset(&sub, order, "r.rid")
		if byUpdate { // where the index begins
			and.next()
			w.bound(&sub, "r.last_updated")
		}
	}
	if missing {
		and.next()
		w.s("NOT (r.terms && ")
		w.terms(termsOf(g.cols[0].key.Keys, fhir.ValuePresent()).Values)
		w.s(")")
	}
	w.probing("r", &p.where, and, -1)
	if !and.any {
		w.s("true")
	}
	w.walkOrder(&sub, order, "r.rid")
	w.limit(g)
}

// sortValues joins the values of later sort keys to each row.
func (w *writer) sortValues(g *page, later []int, r string) {
	if len(later) == 0 {
		return
	}
	w.s(" CROSS JOIN LATERAL (SELECT ")
	for n, i := range later {
		if n > 0 {
			w.s(", ")
		}
		w.value(&g.cols[i], r)
		w.s(" AS k", strconv.Itoa(i+1))
	}
	w.s(" OFFSET 0) s")
}

// bound writes the part of the keyset that an index on the first column can use.
func (w *writer) bound(g *page, col string) {
	w.s(col)
	if g.cols[0].key.Descending != g.reverse {
		w.s(" <= ")
	} else {
		w.s(" >= ")
	}
	w.p(g.args[0])
	w.s("::", g.cols[0].cast)
}

// walkOrder is order where the first column has no nulls: without NULLS LAST the
// index gives it.
func (w *writer) walkOrder(g *page, cols []string, rid string) {
	if len(cols) == 0 {
		w.order(g, cols, rid)
		return
	}
	w.s(" ORDER BY ", cols[0])
	if g.cols[0].key.Descending != g.reverse {
		w.s(" DESC")
	}
	rest := *g
	rest.cols = g.cols[1:]
	mark := len(w.b)
	w.order(&rest, cols[1:], rid)
	// Join both lists: " ORDER BY a" + " ORDER BY b" is ", b".
	tail := append([]byte(", "), w.b[mark+len(" ORDER BY "):]...)
	w.b = append(w.b[:mark], tail...)
}

// walkIndex goes along the ordered table of the first sort key.
func (p *Plan) walkIndex(w *writer, g *page) {
	first := &g.cols[0]
	merged := len(first.key.Keys) > 1
	col := first.of("o")
	if merged {
		col = "o.k"
	}
	w.s("SELECT NULL::bigint, NULL::bigint, r.rid, ", first.asText(col), ", ")
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
		w.s(g.cols[i].asText(cols[i]), ", ")
	}
	w.s(rowColumns, " FROM ")
	if merged {
		w.merged(g)
	} else {
		w.s(first.table)
	}
	w.s(" o CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = o.rid")
	and := &conditions{w: w, any: true}
	// A range that the index itself answers need not be tested on each row.
	skip := p.boundsOf(first)
	w.probing("r", &p.where, and, skip)
	w.s(" OFFSET 0) r")
	w.sortValues(g, later, "r")
	w.s(" WHERE ")
	if merged {
		w.s("true") // the keys are asked for already
	} else {
		w.keys("o", first.key.Keys)
	}
	if skip >= 0 {
		w.indexBounds("o", p.where.preds[skip].any[0])
	}
	if g.cursor != nil {
		w.s(" AND ")
		w.bound(g, col)
		w.s(" AND ")
		w.keyset(g, cols, "r.rid")
	}
	if !first.key.Single {
		rid := "o.rid"
		if merged {
			rid = "r.rid" // asked of what is merged: of each key alone it may hold for none of many
		}
		w.s(" AND NOT EXISTS (SELECT 1 FROM ", first.table, " e WHERE e.rid = ", rid, " AND ")
		w.probeKeys("e", first.key.Keys)
		sign := " < "
		if first.key.Descending {
			sign = " > "
		}
		w.s(" AND (", first.of("e"), ", e.ctid)", sign, "(", col, ", o.ctid) OFFSET 0)")
	}
	w.walkOrder(g, cols, "r.rid")
	w.limit(g)
}

// merged writes the entries of the first sort key where it has several keys. The
// index has those of each in order; said so, PostgreSQL merges them.
func (w *writer) merged(g *page) {
	first := &g.cols[0]
	between, order := "(", " ORDER BY 1"
	if first.key.Descending != g.reverse {
		order += " DESC"
	}
	for i := range first.key.Keys {
		w.s(between, "(SELECT ", first.of("x"), " AS k, x.rid, x.ctid FROM ", first.table, " x WHERE ")
		w.keys("x", first.key.Keys[i:i+1])
		w.s(order, ")")
		between = " UNION ALL "
	}
	w.s(")")
}

// boundsOf returns the index of the clause that is about the entries of the first
// sort key itself, each resource having one at most, or -1.
func (p *Plan) boundsOf(first *sortColumn) int {
	if first.table != "index_date" || !first.key.Single {
		return -1
	}
	for i := range p.where.preds {
		switch m := p.where.preds[i].only().(type) {
		case Dates:
			if len(m.Keys) == 1 && m.Keys[0] == first.key.Keys[0] {
				return i
			}
		case dateRange:
			if m.Keys[0] == first.key.Keys[0] {
				return i
			}
		}
	}
	return -1
}

// indexBounds writes the bounds of a date clause on row o of the walk, with those
// on the low end first where the index can begin or end.
func (w *writer) indexBounds(o string, m Match) {
	var bounds []Dates
	switch m := m.(type) {
	case Dates:
		bounds = []Dates{m}
	case dateRange:
		bounds = m.bounds
	}
	from, to := fhir.OpenLow-1, fhir.OpenHigh+1
	for _, b := range bounds {
		switch b.Op {
		case EQ:
			from, to = max(from, b.Low), min(to, b.High)
		case LT, EB:
			to = min(to, b.Low)
		case LE, AP:
			to = min(to, b.High)
		case SA:
			from = max(from, b.High)
		}
	}
	w.s(" AND ", o, ".low >= ")
	w.p(from)
	w.s("::bigint AND ", o, ".low < ")
	w.p(to)
	w.s("::bigint")
	w.dateBounds(o, bounds)
}
