package plan

import "kiln/server/search/match"

// SelectTypeSizes returns the statement that reads the approximate number of resources of each large type from
// PostgreSQL's statistics: type and number.
func SelectTypeSizes() match.Statement {
	w := newWriter(nil)
	w.Write("SELECT v.typ, (v.part * s.rows)::bigint FROM ")
	w.statistics("typ")
	w.Write(" CROSS JOIN LATERAL unnest(s.most_common_vals::text::smallint[], s.most_common_freqs) AS v(typ, part)")
	return w.Statement()
}

// SelectTypeSpans returns the statement that reads the number of surrogates from the first resource to the last, for some types. It
// is the largest possible number of resources. PostgreSQL's statistics are late after an import.
func SelectTypeSpans(types []int16) match.Statement {
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

// SelectPerInstant returns the statement that reads the approximate number of resources with the same last update, from
// PostgreSQL's statistics; no row if there are none.
func SelectPerInstant() match.Statement {
	w := newWriter(nil)
	w.Write("SELECT CASE WHEN s.n_distinct < 0 THEN -1 / s.n_distinct ELSE s.rows / s.n_distinct END::float8 FROM ")
	w.statistics("last_updated")
	w.Write(" WHERE s.n_distinct <> 0")
	return w.Statement()
}

// statistics writes a subquery s with PostgreSQL's statistics of a column of resource, and the number of its rows.
func (w *writer) statistics(column string) {
	w.Write("(SELECT t.*, c.reltuples AS rows FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace",
		" JOIN pg_stats t ON t.schemaname = n.nspname AND t.tablename = c.relname WHERE c.oid = 'resource'::regclass AND t.attname = '", column, "') s")
}
