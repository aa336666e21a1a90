package plan

import (
	"kiln/server/fhir"
	"kiln/server/search/cache"
	"kiln/server/search/match"
)

// columnTables are the tables of the kinds of columns.
var columnTables = [...]string{cache.Dates: "index_date", cache.Numbers: "index_number", cache.Quantities: "index_quantity"}

// updatedColumn names the column of the last updates.
var updatedColumn = cache.KeysOf([]fhir.Key{match.UpdatedKey})

// SelectColumn returns the statement that reads the entries of a column: rid, whether any of them is a range of numbers, and low
// and high end of a date, or the number as text and its unit; by unit, then by value and rid. It reads only an index, in its
// order, and merges several keys. It reads references from the resources, and sorts them.
func SelectColumn(c cache.ColumnKey, env *match.Env) match.Statement {
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

// SelectFilledColumns returns the statement that reads the positions of the columns with entries, among columns of one kind and
// one type.
func SelectFilledColumns(columns []cache.ColumnKey, env *match.Env) match.Statement {
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

// UpdatedColumn returns the column of the last updates of a type.
func UpdatedColumn(typ int16) cache.ColumnKey {
	return cache.ColumnKey{Type: typ, Kind: cache.Dates, Keys: updatedColumn}
}
