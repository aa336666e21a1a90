package plan

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/cache"
	"kiln/server/search/match"
)

// Changes is the statement that reads the changes since a position, in one row: cache.Changes.Rows (null
// for no change, "" if that cannot be determined) and the present state.
func Changes(since cache.Position) match.Statement {
	return MostChanges(since, cache.MaxChanges)
}

// ChangesRow receives the row of the statement Changes.
type ChangesRow struct{ rows, state *string }

// Columns returns the destinations of the columns.
func (r *ChangesRow) Columns() []any { return []any{&r.rows, &r.state} }

// Changes returns the changes that the row contains. since is the argument of the statement.
func (r *ChangesRow) Changes(since cache.Position) cache.Changes {
	c := cache.Changes{Position: since}
	if r.state != nil {
		c.Now, c.Followed = *r.state, Lasting(*r.state)
	}
	if r.rows != nil {
		c.Rows, c.Many = *r.rows, *r.rows == ""
	}
	return c
}

// MostChanges is Changes of most resources at most that others have written: more cannot be told, and are not read.
func MostChanges(since cache.Position, most int) match.Statement {
	w := newWriter(nil)
	w.Write("SELECT ")
	w.changes(since, most)
	return w.Statement()
}

// changes writes the columns of Changes. The function is not called where nothing has changed: that
// is seen in an index of the change log.
func (w *writer) changes(since cache.Position, most int) {
	epoch, at := w.snapshot(since.State)
	written, versions := make([]int64, len(since.Written)), make([]int32, len(since.Written))
	for i, r := range since.Written {
		written[i], versions[i] = r.RID, r.Version
	}
	w.Write("CASE WHEN EXISTS (SELECT FROM change l WHERE l.epoch = ", epoch, " AND l.xid >= pg_snapshot_xmax(", at, "))",
		" OR EXISTS (SELECT FROM change l WHERE l.epoch = ", epoch, " AND l.xid = ANY (ARRAY(SELECT pg_snapshot_xip(", at, "))))",
		" THEN changes_of_others(", epoch, ", ", at, ", ")
	w.Bind(since.Types)
	w.Write("::smallint[], ", strconv.Itoa(most), ", ")
	w.Bind(written)
	w.Write("::bigint[], ")
	w.Bind(versions)
	w.Write("::integer[]) END AS changed, ", Now, " AS now")
}

// snapshot binds the epoch and the snapshot of a state.
func (w *writer) snapshot(state string) (epoch, at string) {
	at, registry, _ := strings.Cut(state, " ")
	number, _, _ := strings.Cut(registry, " ")
	return w.Param(number) + "::text::bigint", w.Param(at) + "::text::pg_snapshot"
}

// ChangedSince is the statement that reads which resources of some types have changed since a state,
// in one row: whether that can be followed, their rids, and the present state. They are one more
// than most at most; of many times as many changes not all are read, and they cannot be followed. Of the
// change log it reads what changes_of_others does.
func ChangedSince(since string, types []int16, most int) match.Statement {
	w := newWriter(nil)
	epoch, at := w.snapshot(since)
	read := strconv.Itoa(changesRead*most + 1)
	w.Write("WITH c AS MATERIALIZED (SELECT l.rids FROM change l WHERE l.epoch = ", epoch, " AND l.xid >= pg_snapshot_xmax(", at, ")",
		" UNION ALL SELECT l.rids FROM change l WHERE l.epoch = ", epoch, " AND l.xid = ANY (ARRAY(SELECT pg_snapshot_xip(", at, ")))),",
		" n AS MATERIALIZED (SELECT u.rid FROM c CROSS JOIN LATERAL unnest(c.rids) AS u(rid) WHERE (u.rid >> 48)::smallint = ANY (")
	w.Bind(types)
	w.Write("::smallint[]) LIMIT ", read, ")",
		" SELECT NOT pg_is_in_recovery() AND (SELECT count(*) < ", read, " FROM n) AND NOT EXISTS (SELECT FROM c WHERE c.rids = '{}'),",
		" ARRAY(SELECT DISTINCT n.rid FROM n LIMIT ", strconv.Itoa(most+1), "), ", Now)
	return w.Statement()
}

// changesRead is how many changes are read for each resource that may have changed: some change again.
const changesRead = 4

// Stored returns the statements that read some resources and their index entries, in one snapshot. The first
// returns a row for each present resource: rid, id, version, last update in microseconds, terms and targets.
// The others return one row of arrays for each table of entries: rids and keys, then the arguments of the methods of
// cache.Stored.
func Stored(rids []int64) (resources, dates, numbers, quantities, strings match.Statement) {
	of := func(columns, from string) match.Statement {
		w := newWriter(nil)
		w.Write("SELECT ", columns, " FROM ", from, " WHERE x.rid = ANY (")
		w.Bind(rids)
		w.Write("::bigint[])")
		return w.Statement()
	}
	resources = of("x.rid, x.id, x.version, (extract(epoch FROM x.last_updated) * 1000000)::bigint, x.terms, x.targets", "resource x")
	dates = of("array_agg(x.rid), array_agg(x.key), array_agg(x.low), array_agg(x.high)", "index_date x")
	const ends = "array_agg(x.rid), array_agg(x.key), array_agg(x.low::text), array_agg(coalesce(x.high, x.low)::text)"
	numbers = of(ends, "index_number x")
	quantities = of(ends+", array_agg(q.system), array_agg(q.code), array_agg(q.unit)", "index_quantity x JOIN quantity_unit q ON q.id = x.unit")
	strings = of("array_agg(x.rid), array_agg(x.key), array_agg(x.text)", "index_string x")
	return resources, dates, numbers, quantities, strings
}

// Texts are all texts under some keys of the dictionary, by key and by value.
type Texts struct{ Keys, Values []int64 }

// RowsChanged is Rows with the row of Changes in the first columns of a first row, which
// has no resource, and whether the dictionary has these texts and no others; they are null in all other rows.
func (p *Plan) RowsChanged(rids []int64, since cache.Position, texts Texts) match.Statement {
	w := newWriter(p.env)
	w.Write("SELECT ")
	w.changes(since, cache.MaxChanges)
	if len(texts.Keys) > 0 {
		w.Write(", ARRAY(SELECT d.value FROM token_text d WHERE d.key = ANY (")
		w.Bind(texts.Keys)
		w.Write("::bigint[]) ORDER BY d.key, d.value) = ")
		w.Bind(append([]int64{}, texts.Values...))
		w.Write("::bigint[]")
	} else {
		w.Write(", true")
	}
	w.Write(", NULL::bigint, NULL::bigint, NULL::bigint, ", strings.Repeat("NULL::text, ", len(p.q.Sort)),
		"NULL::text, NULL::integer, NULL::timestamptz, NULL::\"char\", NULL::smallint, NULL::bytea")
	if len(rids) > 0 {
		w.Write(" UNION ALL SELECT NULL::text, NULL::text, NULL::boolean, ")
		p.rowsOf(w, rids)
	}
	return w.Statement()
}

// Members is the statement that finds the rid of every match, each once.
func (p *Plan) Members() match.Statement {
	w := newWriter(p.env)
	if p.where.Empty() {
		w.Write("SELECT r.rid FROM resource r WHERE ")
		w.Typed("r", p.types)
		return w.Statement()
	}
	w.Set(&p.where, p.types)
	return w.Statement()
}

// columnTables are the tables of the kinds of columns.
var columnTables = [...]string{cache.Dates: "index_date", cache.Numbers: "index_number", cache.Quantities: "index_quantity"}

// updatedColumn names the column of the last updates.
var updatedColumn = cache.KeysOf([]fhir.Key{match.UpdatedKey})

// Column is the statement that reads the entries of a column: rid, whether any of them is
// a range of numbers, and low and high end of a date, or the number as text and its unit; by
// unit, then by value and rid. It reads nothing but an index, in its order, of several keys merged;
// references are read from the resources, and sorted.
func Column(c cache.ColumnKey, env *match.Env) match.Statement {
	w := newWriter(env)
	if c.Keys == updatedColumn {
		w.Write("SELECT x.rid, false, x.at, x.at + 1, NULL::text, 0::bigint FROM (SELECT r.rid, (extract(epoch FROM r.last_updated) * 1000000)::bigint AS at FROM resource r WHERE r.typ = ")
		w.Bind(c.Type)
		w.Write("::smallint ORDER BY r.last_updated, r.rid) x")
		return w.Statement()
	}
	if c.Kind == cache.References {
		w.Write("SELECT r.rid, false, t.ref, t.ref, NULL::text, 0::bigint FROM resource r CROSS JOIN LATERAL ")
		if len(c.Keys) == 0 {
			w.Write("(SELECT r.ref) t(ref) WHERE ")
		} else {
			w.Write("unnest(r.targets) AS t(ref) WHERE ")
			w.Under("t.ref", c.List(), "r.terms")
			w.Write(" AND ")
		}
		w.Typed("r", []int16{c.Type})
		w.Write(" ORDER BY t.ref, r.rid")
		return w.Statement()
	}
	keys, columns, order := storedKeys(c, c.List(), env), "x.rid, x.low", "x.low, x.rid"
	switch c.Kind {
	case cache.Dates:
		w.Write("SELECT x.rid, false, x.low, x.high, NULL::text, 0::bigint")
		columns, order = "x.rid, x.low, x.high", "x.low, x.high, x.rid"
	case cache.Numbers:
		w.Write("SELECT x.rid, ")
		w.anyRange(c.Kind, keys)
		w.Write(", 0::bigint, 0::bigint, x.low::text, 0::bigint")
	case cache.Quantities:
		w.Write("SELECT x.rid, ")
		w.anyRange(c.Kind, keys)
		w.Write(", 0::bigint, 0::bigint, x.low::text, x.unit")
		columns, order = "x.rid, x.low, x.unit", "x.unit, x.low, x.rid"
	}
	if len(keys) == 1 {
		w.Write(" FROM ", columnTables[c.Kind], " x WHERE ")
		w.Keys("x", keys)
	} else {
		between := " FROM ("
		for i := range keys {
			w.Write(between, "(SELECT ", columns, " FROM ", columnTables[c.Kind], " x WHERE ")
			w.Keys("x", keys[i:i+1])
			w.Write(" ORDER BY ", order, ")")
			between = " UNION ALL "
		}
		w.Write(") x")
	}
	w.Write(" ORDER BY ", order)
	return w.Statement()
}

// anyRange writes whether a column has a range of numbers.
func (w *writer) anyRange(kind match.Table, keys []fhir.Key) {
	w.Write("(SELECT EXISTS (SELECT FROM ", columnTables[kind], " y WHERE ")
	w.Keys("y", keys)
	w.Write(" AND y.high IS NOT NULL))")
}

// The resources whose terms SampleTerms reads: so many one after the other, at so many
// places among all of the type; of a type that is not large one in samplePart.
const (
	samplesAtOnce = 500
	samplePlaces  = 80
	samplePart    = 4
)

// SampleTerms is the statement that reads the terms of some resources of a type, evenly
// spread, as arrays.
func SampleTerms(typ int16) match.Statement {
	w := newWriter(nil)
	end := func(order string) {
		w.Write("(SELECT r.rid FROM resource r WHERE ")
		w.Typed("r", []int16{typ})
		w.Write(" ORDER BY r.rid ", order, " LIMIT 1)")
	}
	w.Write("WITH b AS MATERIALIZED (SELECT ")
	end("")
	w.Write(" AS low, ")
	end("DESC")
	w.Write(" AS high), s AS MATERIALIZED (SELECT b.low, b.high, greatest(1, (b.high - b.low) / ", strconv.Itoa(samplePlaces), ") AS step FROM b)",
		" SELECT t.terms FROM s CROSS JOIN generate_series(s.low, s.high, s.step) AS g(at) CROSS JOIN LATERAL (SELECT r.terms FROM resource r WHERE r.rid >= g.at",
		" AND r.rid < g.at + least(s.step, greatest(", strconv.Itoa(samplesAtOnce), ", s.step / ", strconv.Itoa(samplePart), ")) ORDER BY r.rid LIMIT ", strconv.Itoa(samplesAtOnce), ") t")
	return w.Statement()
}

// AllTerms is the statement that reads rid and terms of every resource of a type.
func AllTerms(typ int16) match.Statement {
	w := newWriter(nil)
	w.Write("SELECT r.rid, r.terms FROM resource r WHERE ")
	w.Typed("r", []int16{typ})
	return w.Statement()
}

// Columns splits the clauses into comparisons, each of the one entry that a resource has
// under a key at most, and the rest. ok is false for a query that memory does not answer:
// of several types, or by more than the rows of the resource itself.
func (p *Plan) Columns() (compared []cache.Comparison, rest []match.Clause, ok bool) {
	if len(p.types) != 1 || p.Empty || !match.ByRows(p.clauses) {
		return nil, nil, false
	}
	for _, pr := range p.where.Preds {
		if key, ok := columnOf(p.types[0], pr.Only()); ok {
			compared = append(compared, cache.Comparison{Column: key, Match: pr.Only()})
		}
	}
	if len(compared) == 0 {
		return nil, p.clauses, true
	}
	for _, c := range p.clauses {
		if len(c.Any) != 1 || c.Not {
			rest = append(rest, c)
			continue
		}
		if _, ok := columnOf(p.types[0], c.Any[0]); !ok {
			rest = append(rest, c)
		}
	}
	return compared, rest, true
}

// A Link is a clause about resources of one type that one reference leads to.
type Link struct {
	References, Own cache.ColumnKey // as in cache.Link
	Back            bool
	Others          *Plan // of those resources
}

// Links are the clauses that are links, and the plan of those beside them, nil where there are none;
// no links where one of the clauses asks about other resources in another way.
func (p *Plan) Links() (links []Link, beside *Plan) {
	reachesOut := func(c match.Clause) bool { return match.ReachesOut(c.Any) }
	if len(p.types) != 1 || p.Empty || !slices.ContainsFunc(p.clauses, reachesOut) {
		return nil, nil
	}
	var others []match.Clause
	for _, c := range p.clauses {
		if !reachesOut(c) {
			others = append(others, c)
			continue
		}
		l, ok := p.link(&c)
		if !ok {
			return nil, nil
		}
		links = append(links, l)
	}
	if len(others) > 0 {
		beside = Compile(&search.Query{Types: p.q.Types, Clauses: others}, p.env)
	}
	return links, beside
}

func (p *Plan) link(c *match.Clause) (l Link, ok bool) {
	if c.Not || len(c.Any) != 1 {
		return l, false
	}
	m, ok := match.LinkOf(c.Any[0])
	if !ok {
		return l, false
	}
	stored := slices.DeleteFunc(slices.Clone(m.Types), func(t string) bool { _, ok := p.env.Type(t); return !ok })
	if len(stored) != 1 {
		return l, false
	}
	l = Link{Back: m.Back, Others: Compile(&search.Query{Types: stored, Clauses: m.Clauses}, p.env)}
	from, to := p.OnlyType(), l.Others.types[0]
	if l.Back {
		from, to = to, from
	}
	l.References, l.Own = referencesColumn(from, m.Keys), cache.OwnRefsColumn(to)
	return l, !l.Others.Empty
}

func referencesColumn(typ int16, keys []fhir.Key) cache.ColumnKey {
	return cache.ColumnKey{Type: typ, Kind: cache.References, Keys: cache.KeysOf(keys)}
}

// Terms returns the clauses on terms beside so many comparisons. It returns nil if the clauses contain something
// else, or nothing but comparisons.
func (p *Plan) Terms(comparisons int) *cache.Terms {
	c := &p.where
	switch {
	case c.ByID, len(c.Preds) != comparisons:
		return nil
	case len(c.All)+len(c.Any) > 0:
		return &cache.Terms{All: c.All, Any: c.Any, None: c.None}
	case len(c.None) > 0, comparisons == 0:
		return &cache.Terms{All: []int64{cache.Every}, None: c.None}
	}
	return nil
}

// columnOf is the column that a match is a comparison of.
func columnOf(typ int16, m match.Match) (key cache.ColumnKey, ok bool) {
	c, ok := match.ComparisonOf(m)
	if !ok || !c.Single || len(c.Keys) == 0 {
		return cache.ColumnKey{Type: typ}, false
	}
	return cache.ColumnKey{Type: typ, Kind: c.Table, Keys: cache.KeysOf(c.Keys)}, true
}

// WithTerm is the statement that reads the rids of the resources of a type that have a term, at
// most so many. The type is tested: a range of rids would be read from its index, all of the type's.
func WithTerm(typ int16, term int64, most int) match.Statement {
	w := newWriter(nil)
	w.Write("SELECT r.rid FROM resource r WHERE ")
	if term == cache.Every { // its index has all there are
		w.Typed("r", []int16{typ})
	} else {
		w.Write("r.terms && ")
		w.Terms([]int64{term})
		w.Write(" AND r.typ + 0 = ")
		w.Bind(typ)
		w.Write("::smallint")
	}
	w.Write(" LIMIT ", strconv.Itoa(most))
	return w.Statement()
}

// ColumnsOf are the columns that comparisons with parameters of a type are answered by.
func ColumnsOf(typ int16, params []*fhir.Parameter) []cache.ColumnKey {
	var out []cache.ColumnKey
	for _, p := range params {
		kind, ok := kindOf(p)
		if key := (cache.ColumnKey{Type: typ, Kind: kind, Keys: cache.KeysOf(p.Keys)}); ok && !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}

// kindOf is the kind of the column of a parameter; false where it has no order or a resource may have
// several of its values.
func kindOf(p *fhir.Parameter) (kind cache.Kind, ok bool) {
	switch p.Type {
	case fhir.SearchDate:
		kind = cache.Dates
	case fhir.SearchNumber:
		kind = cache.Numbers
	case fhir.SearchQuantity:
		kind = cache.Quantities
	default:
		return kind, false
	}
	return kind, p.Single && len(p.Keys) > 0
}

// CodedColumns are the columns that answer comparisons of a composite of code and value, for each of some terms
// of the code.
func CodedColumns(typ int16, params []*fhir.Parameter, terms []int64) []cache.ColumnKey {
	type rows struct { // of values with codes, which several composites may share
		kind        cache.Kind
		coded, code fhir.Key
	}
	var all []rows
	for _, p := range params {
		for _, c := range p.Composites {
			kind, ok := valueKind(c, params)
			if c.Coded == 0 || !ok {
				continue
			}
			for _, code := range codeKeys(c) {
				if r := (rows{kind, c.Coded, code}); !slices.Contains(all, r) {
					all = append(all, r)
				}
			}
		}
	}
	var out []cache.ColumnKey
	for _, r := range all {
		for _, term := range terms {
			key := fhir.CompositeKey(r.coded, r.code.ValueOf(term))
			out = append(out, cache.ColumnKey{Type: typ, Kind: r.kind, Keys: cache.KeysOf([]fhir.Key{key})})
		}
	}
	return out
}

// valueKind is kindOf the part of a composite that has an order.
func valueKind(c fhir.Composite, params []*fhir.Parameter) (kind cache.Kind, ok bool) {
	for _, part := range c.Parts {
		i := slices.IndexFunc(params, func(p *fhir.Parameter) bool { return p.Code == part.Code })
		if i < 0 {
			continue
		}
		if kind, ok = kindOf(params[i]); ok {
			return kind, true
		}
	}
	return kind, false
}

// codeKeys are the keys of the parts of a composite that are tokens.
func codeKeys(c fhir.Composite) (keys []fhir.Key) {
	for _, part := range c.Parts {
		if part.Type == fhir.SearchToken {
			keys = append(keys, part.Keys...)
		}
	}
	return keys
}

// WithEntries is the statement that reads the positions of those columns that have entries, among some of
// a kind and a type.
func WithEntries(columns []cache.ColumnKey, env *match.Env) match.Statement {
	w := newWriter(env)
	var keys, at []int64
	for i, c := range columns {
		for _, k := range storedKeys(c, c.List(), env) {
			keys, at = append(keys, int64(k)), append(at, int64(i))
		}
	}
	w.Write("SELECT DISTINCT c.at FROM (SELECT unnest(")
	w.Bind(keys)
	w.Write("::bigint[]) AS key, unnest(")
	w.Bind(at)
	w.Write("::bigint[]) AS at) c WHERE EXISTS (SELECT FROM ", columnTables[columns[0].Kind], " x WHERE x.key = c.key) ORDER BY c.at")
	return w.Statement()
}

// storedKeys are the keys that the entries of a column have.
func storedKeys(c cache.ColumnKey, keys []fhir.Key, env *match.Env) []fhir.Key {
	if c.Kind == cache.Numbers {
		return keys
	}
	return env.Parts.Stored(keys, []int16{c.Type})
}

// A Reference is a parameter that leads to one resource type alone.
type Reference struct {
	References cache.ColumnKey
	Target     string
}

// LinksOf are the references that links of a type lead along, by parameters that have one target.
func LinksOf(typ int16, params []*fhir.Parameter) []Reference {
	var out []Reference
	for _, p := range params {
		if p.Type == fhir.SearchReference && len(p.Targets) == 1 && len(p.Keys) > 0 {
			out = append(out, Reference{referencesColumn(typ, p.Keys), p.Targets[0]})
		}
	}
	return out
}

// UpdatedColumn is the column of the last updates of a type.
func UpdatedColumn(typ int16) cache.ColumnKey {
	return cache.ColumnKey{Type: typ, Kind: cache.Dates, Keys: updatedColumn}
}

// TypeSizes is the statement that reads the approximate number of resources of each large type from
// PostgreSQL's statistics: type and number.
func TypeSizes() match.Statement {
	w := newWriter(nil)
	w.Write("SELECT v.typ, (v.part * s.rows)::bigint FROM ")
	w.statistics("typ")
	w.Write(" CROSS JOIN LATERAL unnest(s.most_common_vals::text::smallint[], s.most_common_freqs) AS v(typ, part)")
	return w.Statement()
}

// TypeSpans is the statement that reads for some types what TypeSizes does, at most: how many surrogates there are from the
// first resource to the last. Statistics come late behind an import.
func TypeSpans(types []int16) match.Statement {
	w := newWriter(nil)
	w.Write("SELECT t.typ, s.last - s.first + 1 FROM unnest(")
	w.Bind(types)
	w.Write("::smallint[]) AS t(typ) CROSS JOIN LATERAL (SELECT")
	for _, end := range []struct{ name, order string }{{" AS first, ", ""}, {" AS last", "DESC "}} {
		w.Write(" (SELECT r.rid FROM resource r WHERE r.rid >= t.typ::bigint << 48 AND r.rid < (t.typ + 1)::bigint << 48 ORDER BY r.rid ", end.order, "LIMIT 1)", end.name)
	}
	w.Write(") s WHERE s.first IS NOT NULL")
	return w.Statement()
}

// PerInstant is the statement that reads about how many resources have the same last update, as the
// statistics of PostgreSQL tell; no row where there are none.
func PerInstant() match.Statement {
	w := newWriter(nil)
	w.Write("SELECT CASE WHEN s.n_distinct < 0 THEN -1 / s.n_distinct ELSE s.rows / s.n_distinct END::float8 FROM ")
	w.statistics("last_updated")
	w.Write(" WHERE s.n_distinct <> 0")
	return w.Statement()
}

// statistics writes s, what PostgreSQL's statistics tell of a column of resource and of how many rows
// that has.
func (w *writer) statistics(column string) {
	w.Write("(SELECT t.*, c.reltuples AS rows FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace",
		" JOIN pg_stats t ON t.schemaname = n.nspname AND t.tablename = c.relname WHERE c.oid = 'resource'::regclass AND t.attname = '", column, "') s")
}

// OnlyType is the number of the one type searched.
func (p *Plan) OnlyType() int16 { return p.types[0] }

// OneType is the name of the one type searched; false where there are more, or nothing can match.
func (p *Plan) OneType() (name string, ok bool) {
	if len(p.q.Types) != 1 || p.Empty {
		return "", false
	}
	return p.q.Types[0], true
}

// Clauses returns the clauses of the query after the database has resolved the parts that depend on it.
func (p *Plan) Clauses() []match.Clause { return p.clauses }

// CachePage returns the page as the cache reads it, in the order of surrogates or of a column; ok is false for a cursor of another
// type. The page is empty if the search has another order, or asks for the total alone.
func (p *Plan) CachePage() (page cache.Page, ok bool, err error) {
	order := p.rememberedOrder()
	if p.q.Count == 0 || len(p.q.Sort) > 0 && order == nil {
		return cache.Page{}, true, nil
	}
	g, err := p.page()
	if err != nil {
		return page, false, err
	}
	page = cache.Page{Order: order, Backwards: g.reverse, Offset: g.offset, Limit: g.limit}
	if g.cursor != nil {
		n := g.cursor.RID & (1<<48 - 1)
		if n>>32 != 0 || g.cursor.RID>>48 != int64(p.types[0]) {
			return page, false, nil
		}
		page.Bounded, page.Beyond.N = true, uint32(n)
		if order != nil {
			page.Beyond.Low, page.Beyond.Valued = lowOf(g.args[0])
		}
	}
	return page, true, nil
}

// rememberedOrder is the order asked for where a column has it: of one date that a resource has
// one of at most, or of the last update. nil for others.
func (p *Plan) rememberedOrder() *cache.ColumnOrder {
	if len(p.q.Sort) != 1 || len(p.types) != 1 {
		return nil
	}
	k := &p.q.Sort[0]
	var m match.Match
	switch {
	case k.Code == "_lastUpdated":
		m = match.Updated{}
	case k.Type == fhir.SearchDate && k.Single:
		m = match.Dates{Keys: k.Keys, Single: true}
	default:
		return nil
	}
	column, ok := columnOf(p.types[0], m)
	if !ok {
		return nil
	}
	return &cache.ColumnOrder{Column: column, Descending: k.Descending}
}

// lowOf is the argument of a cursor's date; false for none.
func lowOf(arg any) (low int64, ok bool) {
	switch v := arg.(type) {
	case int64:
		return v, true
	case time.Time:
		return v.UnixMicro(), true
	}
	return 0, false
}
