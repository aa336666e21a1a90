package search

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// everyReference adds every reference parameter of typ to an include.
func (p *parser) everyReference(in *Include, typ string) {
	whole := p.reg.notices[typ]
	p.notices = addNotice(p.notices, whole)
	for _, o := range p.reg.Parameters(typ) {
		if o.Type != fhir.SearchReference || unsupported(o) != "" {
			continue
		}
		if whole == "" {
			p.notice(o)
		}
		for _, k := range o.Keys {
			if !slices.Contains(in.Keys, k) {
				in.Keys = append(in.Keys, k)
			}
		}
		p.canonicals(in, o)
	}
}

// canonicals adds the types that a reference of param may name by a canonical URL:
// those that have a url and a version.
func (p *parser) canonicals(in *Include, param *fhir.Parameter) {
	for _, t := range p.reg.Targets(param) {
		if in.Target != "" && in.Target != t || slices.ContainsFunc(in.Canonicals, func(c Canonical) bool { return c.Type == t }) {
			continue
		}
		url, ok := p.reg.Lookup(t, "url")
		if _, versioned := p.reg.Lookup(t, "version"); ok && versioned && url.Type == fhir.SearchURI {
			p.notice(url)
			in.Canonicals = append(in.Canonicals, Canonical{t, url.Keys})
		}
	}
}

// Canonicals are the includes that may follow canonical URLs: of `_include`, or,
// reverse, of `_revinclude`. iterate is that of Following.
func (p *Plan) Canonicals(reverse, iterate bool) []Include {
	list := p.q.Includes
	if reverse {
		list = p.q.RevIncludes
	}
	var out []Include
	for _, in := range list {
		if len(in.Canonicals) > 0 && (in.Iterate || !iterate) {
			out = append(out, in)
		}
	}
	return out
}

// ByCanonical is the statement that finds the resources which canonicals name, in
// the columns of Following; of any version, so that SameCanonical has the last
// word. false is nothing to ask.
func (p *Plan) ByCanonical(in Include, canonicals []string, seen []int64, limit int) (Statement, bool) {
	var terms []int64
	for _, c := range in.Canonicals {
		if _, ok := p.env.Type(c.Type); ok {
			terms = append(terms, termsOf(c.Keys, urlValues(canonicals)...).Values...)
		}
	}
	return p.withTerms(terms, seen, limit)
}

// ToCanonical is the statement that finds the resources which refer to any of
// canonicals, like ByCanonical.
func (p *Plan) ToCanonical(in Include, canonicals []string, seen []int64, limit int) (Statement, bool) {
	return p.withTerms(termsOf(in.Keys, urlValues(canonicals)...).Values, seen, limit)
}

func (p *Plan) withTerms(terms, seen []int64, limit int) (Statement, bool) {
	if len(terms) == 0 {
		return Statement{}, false
	}
	slices.Sort(terms)
	w := &writer{env: p.env}
	w.s("WITH m AS MATERIALIZED (SELECT r.rid FROM resource r WHERE r.terms && ")
	w.terms(slices.Compact(terms))
	w.s(" AND r.rid <> ALL (")
	w.terms(seen)
	w.s(")")
	p.readable(w, "r")
	w.s(") SELECT r.rid, ", rowColumns, " FROM (SELECT m.rid FROM m ORDER BY m.rid LIMIT ")
	w.p(int64(limit))
	w.s("::bigint) f CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = f.rid OFFSET 0) r ORDER BY r.rid")
	return w.statement(), true
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

// SameCanonical reports whether a canonical names the resource with this url and
// version: one without a version names every one.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
func SameCanonical(canonical, url, version string) bool {
	canonical, _, _ = strings.Cut(canonical, "#")
	named, wanted, versioned := strings.Cut(canonical, "|")
	return url != "" && named == url && (!versioned || wanted == version)
}
