package plan

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
)

// IncludeLimit bounds what includes add to one page.
const IncludeLimit = 1000

// SelectIncludes returns the statements that find includes of known resources: the targets of their references for
// `_include`, the resources that refer to them for `_revinclude`. With iterate it uses only the parameters with `:iterate`, for
// resources that were themselves included. Each returns at most limit rows with the columns
//
//	rid, id, version, last_updated, method, typ, body
//
// and none whose rid is in seen. Spec: https://hl7.org/fhir/R4/search.html#include.
func (p *Plan) SelectIncludes(rids, seen []int64, iterate bool, limit int) []match.Statement {
	var out []match.Statement
	if keys, types := p.includeKeys(p.q.Includes, iterate); len(keys) > 0 {
		out = append(out, p.included(rids, seen, keys, types, iterate, limit))
	}
	if keys, types := p.includeKeys(p.q.RevIncludes, iterate); len(keys) > 0 {
		w := newWriter(p.env)
		// The order must not tempt the planner into walking all resources.
		w.Write("WITH m AS MATERIALIZED (")
		few := len(rids)*len(keys) <= fewReferences
		if !few {
			w.Write("SELECT DISTINCT f.rid FROM resource t CROSS JOIN LATERAL (")
		}
		w.Write("SELECT r.rid FROM resource r WHERE r.terms && ARRAY(SELECT t.ref # k.key FROM ")
		if few {
			w.Write("resource t, ")
		}
		w.Write("unnest(")
		w.Terms(keys)
		w.Write(", ")
		w.Bind(types)
		w.Write("::smallint[]) AS k(key, typ) WHERE k.typ IN (0, t.typ)")
		if few {
			w.Write(" AND ")
			w.among("t", rids)
		}
		w.Write(") AND r.rid <> ALL (")
		w.Terms(seen)
		w.Write(")")
		p.readable(w, "r")
		if !few {
			w.Write(" OFFSET 0) f WHERE ")
			w.among("t", rids)
		}
		w.Write(") SELECT r.rid, ", rowColumns, " FROM (SELECT m.rid FROM m ORDER BY m.rid LIMIT ")
		w.Bind(int64(limit))
		w.Write("::bigint) f CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = f.rid OFFSET 0) r ORDER BY r.rid")
		out = append(out, w.Statement())
	}
	return out
}

// fewReferences are terms that are looked for at once. An index asks of each resource that it finds which of
// the terms it has, so that many are looked for by the resource that they refer to.
const fewReferences = 2000

// among writes that a resource is one of these.
func (w *writer) among(r string, rids []int64) {
	w.Write(r, ".rid = ANY (")
	w.Terms(rids)
	w.Write(")")
}

// included is the statement for `_include`. The rows of the resources contain their references. Their terms
// show which parameter has a reference; the test is left out if every reference is followed.
func (p *Plan) included(rids, seen, keys []int64, types []int16, iterate bool, limit int) match.Statement {
	typed := slices.ContainsFunc(types, func(t int16) bool { return t != 0 })
	every := slices.ContainsFunc(p.q.Includes, func(in search.Include) bool {
		return in.Source == "*" && in.Param == "*" && in.Target == "" && (in.Iterate || !iterate)
	})
	w := newWriter(p.env)
	w.Write("SELECT r.rid, ", rowColumns, " FROM (SELECT DISTINCT t.rid FROM (SELECT DISTINCT u.ref")
	if typed && !every {
		w.Write(", k.typ")
	}
	w.Write(" FROM resource s, unnest(s.targets) AS u(ref)")
	if !every {
		w.Write(", unnest(")
		w.Terms(keys)
		w.Write(", ")
		w.Bind(types)
		w.Write("::smallint[]) AS k(key, typ)")
	}
	w.Write(" WHERE s.rid = ANY (")
	w.Terms(rids)
	w.Write(")")
	if !every {
		w.Write(" AND u.ref # k.key = ANY (s.terms)")
	}
	w.Write(" OFFSET 0) u JOIN resource t ON t.ref = u.ref WHERE t.rid <> ALL (")
	w.Terms(seen)
	w.Write(")")
	if typed && !every {
		w.Write(" AND u.typ IN (0, t.typ)")
	}
	p.readable(w, "t")
	w.Write(" ORDER BY t.rid LIMIT ")
	w.Bind(int64(limit))
	w.Write("::bigint) f CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = f.rid OFFSET 0) r ORDER BY r.rid")
	return w.Statement()
}

// includeKeys are the keys of includes with the number of the type that their
// references must point at, 0 for any.
func (p *Plan) includeKeys(includes []search.Include, iterate bool) (keys []int64, types []int16) {
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

// ListCanonicals returns the includes that may follow canonical URLs: of `_include`, or with reverse of `_revinclude`. iterate
// has the same meaning as in SelectIncludes.
func (p *Plan) ListCanonicals(reverse, iterate bool) []search.Include {
	list := p.q.Includes
	if reverse {
		list = p.q.RevIncludes
	}
	var out []search.Include
	for _, in := range list {
		if len(in.Canonicals) > 0 && (in.Iterate || !iterate) {
			out = append(out, in)
		}
	}
	return out
}

// SelectByCanonical returns the statement that finds the resources of any version that canonicals name, in the columns of
// SelectIncludes. The caller tests them with MatchesCanonical. It returns false if there can be none.
func (p *Plan) SelectByCanonical(in search.Include, canonicals []string, seen []int64, limit int) (match.Statement, bool) {
	var terms []int64
	for _, c := range in.Canonicals {
		if _, ok := p.env.Type(c.Type); ok {
			terms = append(terms, match.TermsOf(c.Keys, urlValues(canonicals)...).Values...)
		}
	}
	return p.withTerms(terms, seen, limit)
}

// SelectToCanonical is SelectByCanonical for the resources that refer to any of the canonicals.
func (p *Plan) SelectToCanonical(in search.Include, canonicals []string, seen []int64, limit int) (match.Statement, bool) {
	return p.withTerms(match.TermsOf(in.Keys, urlValues(canonicals)...).Values, seen, limit)
}

func (p *Plan) withTerms(terms, seen []int64, limit int) (match.Statement, bool) {
	if len(terms) == 0 {
		return match.Statement{}, false
	}
	slices.Sort(terms)
	w := newWriter(p.env)
	w.Write("WITH m AS MATERIALIZED (SELECT r.rid FROM resource r WHERE r.terms && ")
	w.Terms(slices.Compact(terms))
	w.Write(" AND r.rid <> ALL (")
	w.Terms(seen)
	w.Write(")")
	p.readable(w, "r")
	w.Write(") SELECT r.rid, ", rowColumns, " FROM (SELECT m.rid FROM m ORDER BY m.rid LIMIT ")
	w.Bind(int64(limit))
	w.Write("::bigint) f CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = f.rid OFFSET 0) r ORDER BY r.rid")
	return w.Statement(), true
}

// urlValues are the hashes of canonicals without their versions and fragments.
func urlValues(canonicals []string) []fhir.Value {
	var out []fhir.Value
	for _, c := range canonicals {
		url, _, _ := strings.Cut(c, "#")
		url, _, _ = strings.Cut(url, "|")
		out = append(out, fhir.ValueURI(url))
	}
	return out
}

// MatchesCanonical reports whether a canonical names the resource with this url and version. A canonical without a version
// names every version.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
func MatchesCanonical(canonical, url, version string) bool {
	canonical, _, _ = strings.Cut(canonical, "#")
	named, wanted, versioned := strings.Cut(canonical, "|")
	return url != "" && named == url && (!versioned || wanted == version)
}

// readable writes the test that an include may add r, after other conditions.
func (p *Plan) readable(w *writer, r string) {
	if len(p.q.Readable) == 0 {
		return
	}
	c := match.Conjoin(p.env.Resolve(p.q.Readable))
	and := &match.Conditions{W: w.Writer, Any: true}
	if c.Never {
		and.Next()
		w.Write("false")
	}
	w.Tests(r, &c, and, -1)
}
