package plan

import (
	"slices"
	"strconv"
	"strings"

	"kiln/server/search/match"
)

// registryState is the epoch and, behind a blank, what changes when search parameters do, when stored resources have been brought
// up to them, and when PostgreSQL is another one: a standby that takes over may lack the
// last transactions, and gives their numbers anew.
const registryState = "(SELECT g.epoch || ' ' || g.version || '.' || g.progress || '.' || extract(epoch FROM pg_postmaster_start_time()) FROM search_registry g WHERE g.one)"

// Now is the SQL expression, of type text, for the state that a statement sees: a count in that state is valid while
// CheckUnchanged says so.
//
// A standby has no such state: its pg_current_snapshot omits the running transactions of the primary, so their
// changes would seem to be visible already.
const Now = "CASE WHEN pg_is_in_recovery() THEN '' ELSE pg_current_snapshot()::text END || ' ' || " + registryState

// IsLasting reports whether a later statement can prove that an answer of this state is still valid.
func IsLasting(state string) bool { return state != "" && state[0] != ' ' }

// CheckUnchanged returns two expressions: whether no resource that the query depends on has changed since a state, and the present
// state. The caller also compares the states with HasSameIndex. Changes of resources are in the change log. A row without
// resources says that the index has changed.
func (p *Plan) CheckUnchanged(since string) match.Statement {
	w := newWriter(p.env)
	p.unchanged(w, since)
	return w.Statement()
}

// HasSameIndex reports whether the search parameters, on which every search depends, are the same in two states.
func HasSameIndex(a, b string) bool {
	_, x, _ := strings.Cut(a, " ")
	_, y, _ := strings.Cut(b, " ")
	return x == y
}

func (p *Plan) unchanged(w *writer, since string) {
	epoch, at := w.snapshot(since)
	w.Write("NOT pg_is_in_recovery() AND NOT EXISTS (SELECT 1 FROM change c WHERE c.epoch = ", epoch, " AND c.xid >= pg_snapshot_xmin(", at, ") AND NOT pg_visible_in_snapshot(c.xid, ", at, ")")
	if from, to, ok := p.scope(); ok {
		w.Write(" AND (c.rids = '{}' OR EXISTS (SELECT FROM unnest(c.rids) AS r(rid) WHERE r.rid >= ")
		w.Bind(from)
		w.Write("::bigint AND r.rid < ")
		w.Bind(to)
		w.Write("::bigint))")
	}
	w.Write("), ", Now)
}

// maxAdded is the number of new resources that are looked at one by one.
const maxAdded = 1000

// CountAdded returns the statement that updates a total, counted in the state since: whether only a few new resources have changed,
// how many of them match, and the present state, as in CheckUnchanged. ok is false for a query that depends on other resources.
func (p *Plan) CountAdded(since string) (st match.Statement, ok bool) {
	from, to, ok := p.scope()
	if !ok {
		return st, false
	}
	w := newWriter(p.env)
	epoch, at := w.snapshot(since)
	w.Write("WITH n AS MATERIALIZED (SELECT v.rid, v.method FROM change c LEFT JOIN LATERAL unnest(c.rids, string_to_array(c.methods, NULL)) AS v(rid, method) ON true",
		" WHERE c.epoch = ", epoch, " AND c.xid >= pg_snapshot_xmin(", at, ") AND NOT pg_visible_in_snapshot(c.xid, ", at, ") AND (v.rid IS NULL OR v.rid >= ")
	w.Bind(from)
	w.Write("::bigint AND v.rid < ")
	w.Bind(to)
	w.Write("::bigint) LIMIT ", strconv.Itoa(maxAdded+1), ") SELECT NOT pg_is_in_recovery() AND NOT EXISTS (SELECT 1 FROM n WHERE n.method IS DISTINCT FROM 'C') AND (SELECT count(*) FROM n) <= ", strconv.Itoa(maxAdded),
		", (SELECT count(*) FROM n CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = n.rid OFFSET 0) r")
	w.Tests("r", &p.where, &match.Conditions{W: w.Writer, Lead: " WHERE "}, -1)
	w.Write("), ", Now)
	return w.Statement(), true
}

// scope is the range of surrogates that a change must lie in to concern the
// query; false where any change may.
func (p *Plan) scope() (from, to int64, ok bool) {
	if len(p.types) != 1 || slices.ContainsFunc(p.where.Preds, func(p match.Predicate) bool { return match.ReachesOut(p.Any) }) {
		return 0, 0, false
	}
	return int64(p.types[0]) << 48, (int64(p.types[0]) + 1) << 48, true
}

// snapshot binds the epoch and the snapshot of a state.
func (w *writer) snapshot(state string) (epoch, at string) {
	at, registry, _ := strings.Cut(state, " ")
	number, _, _ := strings.Cut(registry, " ")
	return w.Param(number) + "::text::bigint", w.Param(at) + "::text::pg_snapshot"
}
