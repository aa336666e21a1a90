package plan

import (
	"strconv"
	"strings"

	"kiln/server/search/cache"
	"kiln/server/search/match"
)

// SelectChanges returns the statement that reads the changes since a position, in one row: cache.Changes.Rows (null for no
// change, "" if that cannot be determined) and the present state.
func SelectChanges(since cache.Position) match.Statement {
	return SelectMostChanges(since, cache.MaxChanges)
}

// ChangesRow receives the row of SelectChanges.
type ChangesRow struct{ rows, state *string }

// Columns returns the destinations of the columns.
func (r *ChangesRow) Columns() []any { return []any{&r.rows, &r.state} }

// Changes returns the changes that the row contains. since is the argument of the statement.
func (r *ChangesRow) Changes(since cache.Position) cache.Changes {
	c := cache.Changes{Position: since}
	if r.state != nil {
		c.Now, c.Followed = *r.state, IsLasting(*r.state)
	}
	if r.rows != nil {
		c.Rows, c.Many = *r.rows, *r.rows == ""
	}
	return c
}

// SelectMostChanges is SelectChanges with a limit on the resources that others have written. If they are more, it reads none.
func SelectMostChanges(since cache.Position, most int) match.Statement {
	w := newWriter(nil)
	w.Write("SELECT ")
	w.changes(since, most)
	return w.Statement()
}

// changes writes the columns of SelectChanges. The function is not called where nothing has changed: that
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

// SelectChangedSince returns the statement that reads which resources of some types have changed since a state, in one row:
// whether that is known, their rids, and the present state. There are at most most+1 rids. After many times as many changes it
// does not read all of them, and the resources are unknown. Of the change log it reads the same rows as the function
// changes_of_others.
func SelectChangedSince(since string, types []int16, most int) match.Statement {
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

// SelectStored returns the statements that read some resources and their index entries, in one snapshot. The first
// returns a row for each present resource: rid, id, version, last update in microseconds, terms and targets.
// The others return one row of arrays for each table of entries: rids and keys, then the arguments of the methods of
// cache.Stored.
func SelectStored(rids []int64) (resources, dates, numbers, quantities, strings match.Statement) {
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

// SelectRowsAndChanges is SelectRows with a first row that has no resource. Its first columns are the row of SelectChanges, and
// whether the dictionary has these texts and no others. They are null in all other rows.
func (p *Plan) SelectRowsAndChanges(rids []int64, since cache.Position, texts Texts) match.Statement {
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
