package search

import (
	"slices"

	"kiln/server/fhir"
)

// IncludeLimit bounds what includes add to one page.
const IncludeLimit = 1000

// Following returns the statements that follow includes from resources already
// found: references of theirs for `_include`, references to them for
// `_revinclude`. iterate chooses the ones with `:iterate` only, for resources
// that were themselves included. Each returns at most limit rows with the columns
//
//	rid, id, version, last_updated, method, typ, body
//
// and none whose rid is in seen. Spec: https://hl7.org/fhir/R4/search.html#include.
func (p *Plan) Following(rids, seen []int64, iterate bool, limit int) []Statement {
	var out []Statement
	if keys, types := p.includeKeys(p.q.Includes, iterate); len(keys) > 0 {
		out = append(out, p.included(rids, seen, keys, types, iterate, limit))
	}
	if keys, types := p.includeKeys(p.q.RevIncludes, iterate); len(keys) > 0 {
		w := &writer{env: p.env}
		// The order must not tempt the planner into walking all resources.
		w.s("WITH m AS MATERIALIZED (SELECT r.rid FROM resource r WHERE r.terms && ARRAY(SELECT t.ref # k.key FROM resource t, unnest(")
		w.terms(keys)
		w.s(", ")
		w.p(types)
		w.s("::smallint[]) AS k(key, typ) WHERE t.rid = ANY (")
		w.terms(rids)
		w.s(") AND k.typ IN (0, t.typ)) AND r.rid <> ALL (")
		w.terms(seen)
		w.s(")")
		p.readable(w, "r")
		w.s(") SELECT r.rid, ", rowColumns, " FROM (SELECT m.rid FROM m ORDER BY m.rid LIMIT ")
		w.p(int64(limit))
		w.s("::bigint) f CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = f.rid OFFSET 0) r ORDER BY r.rid")
		out = append(out, w.statement())
	}
	return out
}

// included is the statement for `_include`. What the resources refer to stands in
// their rows; which parameter it is that refers shows by the terms, and need not
// be asked where every reference is followed.
func (p *Plan) included(rids, seen, keys []int64, types []int16, iterate bool, limit int) Statement {
	typed := slices.ContainsFunc(types, func(t int16) bool { return t != 0 })
	every := slices.ContainsFunc(p.q.Includes, func(in Include) bool {
		return in.Source == "*" && in.Param == "*" && in.Target == "" && (in.Iterate || !iterate)
	})
	w := &writer{env: p.env}
	w.s("SELECT r.rid, ", rowColumns, " FROM (SELECT DISTINCT t.rid FROM (SELECT DISTINCT u.ref")
	if typed && !every {
		w.s(", k.typ")
	}
	w.s(" FROM resource s, unnest(s.targets) AS u(ref)")
	if !every {
		w.s(", unnest(")
		w.terms(keys)
		w.s(", ")
		w.p(types)
		w.s("::smallint[]) AS k(key, typ)")
	}
	w.s(" WHERE s.rid = ANY (")
	w.terms(rids)
	w.s(")")
	if !every {
		w.s(" AND u.ref # k.key = ANY (s.terms)")
	}
	w.s(" OFFSET 0) u JOIN resource t ON t.ref = u.ref WHERE t.rid <> ALL (")
	w.terms(seen)
	w.s(")")
	if typed && !every {
		w.s(" AND u.typ IN (0, t.typ)")
	}
	p.readable(w, "t")
	w.s(" ORDER BY t.rid LIMIT ")
	w.p(int64(limit))
	w.s("::bigint) f CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = f.rid OFFSET 0) r ORDER BY r.rid")
	return w.statement()
}

// includeKeys are the keys of includes with the number of the type that their
// references must point at, 0 for any.
func (p *Plan) includeKeys(includes []Include, iterate bool) (keys []int64, types []int16) {
	type pair struct {
		key fhir.Key
		typ int16
	}
	seen := make(map[pair]bool)
	for _, in := range includes {
		if iterate && !in.Iterate {
			continue
		}
		var typ int16
		if in.Target != "" {
			n, ok := p.env.Type(in.Target)
			if !ok {
				continue
			}
			typ = n
		}
		for _, k := range in.Keys {
			if !seen[pair{k, typ}] { // several parameters share a key
				seen[pair{k, typ}] = true
				keys = append(keys, int64(k))
				types = append(types, typ)
			}
		}
	}
	return keys, types
}
