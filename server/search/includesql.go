package search

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
		w := &writer{env: p.env}
		w.s("SELECT ", "r.rid, ", rowColumns, " FROM (SELECT DISTINCT t.rid FROM resource s, unnest(s.targets) AS u(ref) JOIN resource t ON t.ref = u.ref WHERE s.rid = ANY (")
		w.terms(rids)
		w.s(") AND EXISTS (SELECT 1 FROM unnest(")
		w.terms(keys)
		w.s(", ")
		w.p(types)
		w.s("::smallint[]) AS k(key, typ) WHERE u.ref # k.key = ANY (s.terms) AND k.typ IN (0, t.typ) OFFSET 0) AND t.rid <> ALL (")
		w.terms(seen)
		w.s(") ORDER BY t.rid LIMIT ")
		w.p(int64(limit))
		w.s("::bigint) f CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = f.rid OFFSET 0) r ORDER BY r.rid")
		out = append(out, w.statement())
	}
	if keys, types := p.includeKeys(p.q.RevIncludes, iterate); len(keys) > 0 {
		w := &writer{env: p.env}
		w.s("SELECT ", "r.rid, ", rowColumns, " FROM resource r WHERE r.terms && ARRAY(SELECT t.ref # k.key FROM resource t, unnest(")
		w.terms(keys)
		w.s(", ")
		w.p(types)
		w.s("::smallint[]) AS k(key, typ) WHERE t.rid = ANY (")
		w.terms(rids)
		w.s(") AND k.typ IN (0, t.typ)) AND r.rid <> ALL (")
		w.terms(seen)
		w.s(") ORDER BY r.rid LIMIT ")
		w.p(int64(limit))
		w.s("::bigint")
		out = append(out, w.statement())
	}
	return out
}

// includeKeys are the keys of includes with the number of the type that their
// references must point at, 0 for any.
func (p *Plan) includeKeys(includes []Include, iterate bool) (keys []int64, types []int16) {
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
			keys = append(keys, int64(k))
			types = append(types, typ)
		}
	}
	return keys, types
}
