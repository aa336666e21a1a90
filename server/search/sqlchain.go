package search

import (
	"strconv"
	"strings"

	"kiln/server/fhir"
)

// chainTerms writes a SELECT of the terms that a resource has which refers to a
// target of the chain: the target's ref, mixed with the key of the reference. A
// canonical is found by its url: the target's url term and the source's term are
// the same value under two keys, so mixing both keys in turns one into the other.
// limit bounds the rows, 0 does not.
func (w *writer) chainTerms(m *Chain, limit int) {
	t := "t" + w.next()
	c := conjoin(m.Clauses)
	types, never := w.targetTypes(m.Target)
	c.never = c.never || never
	if len(m.Keys) == 1 {
		w.s("SELECT ", t, ".ref # ")
		w.p(int64(m.Keys[0]))
		w.s("::bigint AS term FROM ")
	} else {
		w.s("SELECT ", t, ".ref # k.k AS term FROM unnest(")
		w.terms(int64s(m.Keys))
		w.s(") AS k(k), ")
	}
	w.matching(t, &c, types)
	if m.CanonicalKeys != nil {
		u := "t" + w.next()
		w.s(" UNION ALL SELECT v.v # k.k AS term FROM unnest(")
		w.terms(canonicalMasks(m))
		w.s(") AS k(k), (SELECT ", u, ".terms FROM ")
		w.matching(u, &c, types)
		w.s(") f, unnest(f.terms) AS v(v) WHERE ")
		w.noPresence(m.CanonicalKeys, "v")
	}
	if limit > 0 {
		w.s(" LIMIT ", strconv.Itoa(limit))
	}
}

// canonicalMasks turn a term under a url key of the target into the term under a
// key of the reference.
func canonicalMasks(m *Chain) []int64 {
	var masks []int64
	for _, k := range m.Keys {
		for _, u := range m.CanonicalKeys {
			masks = append(masks, int64(k)^int64(u))
		}
	}
	return masks
}

// noPresence writes the test that the term of v does not say that there is any value
// for one of keys: under the other key it would say the same of every resource that
// refers to something.
func (w *writer) noPresence(keys []fhir.Key, v string) {
	w.s(v, ".v <> ALL (")
	w.terms(termsOf(keys, fhir.ValuePresent()).Values)
	w.s(")")
}

// targetTypes are the numbers of the types of a chain's target; several are
// joined by "|".
func (w *writer) targetTypes(target string) (types []int16, never bool) {
	for t := range strings.SplitSeq(target, "|") {
		if n, ok := w.env.Type(t); ok {
			types = append(types, n)
		}
	}
	return types, len(types) == 0
}

// probeChain writes the test that r refers to a target of the chain: along the
// references that it has.
func (w *writer) probeChain(r string, m *Chain) {
	t, u := "t"+w.next(), "u"+w.next()
	c := conjoin(m.Clauses)
	types, never := w.targetTypes(m.Target)
	if never || c.never {
		w.s("false")
		return
	}
	w.s("EXISTS (SELECT 1 FROM unnest(", r, ".targets) AS ", u, "(ref) JOIN resource ", t, " ON ", t, ".ref = ", u, ".ref WHERE ")
	if len(m.Keys) == 1 {
		w.s(u, ".ref # ")
		w.p(int64(m.Keys[0]))
		w.s("::bigint = ANY (", r, ".terms)")
	} else {
		w.s("EXISTS (SELECT 1 FROM unnest(")
		w.terms(int64s(m.Keys))
		w.s(") AS k(k) WHERE ", u, ".ref # k.k = ANY (", r, ".terms) OFFSET 0)")
	}
	w.s(" AND ", t, ".typ = ANY (")
	w.p(types)
	w.s("::smallint[])")
	and := &conditions{w: w, any: true}
	w.probing(t, &c, and, -1)
	w.s(" OFFSET 0)")
	if m.CanonicalKeys != nil {
		t, v := "t"+w.next(), "v"+w.next()
		w.s(" OR EXISTS (SELECT 1 FROM unnest(", r, ".terms) AS ", v, "(v) CROSS JOIN unnest(")
		w.terms(canonicalMasks(m))
		w.s(") AS k(k) JOIN resource ", t, " ON ", t, ".terms @> ARRAY[", v, ".v # k.k] WHERE ", t, ".typ = ANY (")
		w.p(types)
		w.s("::smallint[]) AND ")
		w.noPresence(m.Keys, v)
		w.probing(t, &c, and, -1)
		w.s(" OFFSET 0)")
	}
}

// hasRefs writes a SELECT of the ref of every resource that a matching source
// refers to.
func (w *writer) hasRefs(m *Has, limit int) {
	n := w.next()
	s, u := "s"+n, "u"+n
	c := conjoin(m.Clauses)
	n1, ok := w.env.Type(m.Source)
	c.never = c.never || !ok
	w.s("SELECT ")
	if limit > 0 {
		w.s("DISTINCT ")
	}
	w.s(u, ".ref FROM (SELECT ", s, ".targets, ", s, ".terms FROM ")
	w.matching(s, &c, []int16{n1})
	w.s(") ", s, ", unnest(", s, ".targets) AS ", u, "(ref) WHERE ")
	if len(m.Keys) == 1 {
		w.s("(", u, ".ref # ")
		w.p(int64(m.Keys[0]))
		w.s("::bigint) = ANY (", s, ".terms)")
	} else {
		w.s("EXISTS (SELECT 1 FROM unnest(")
		w.terms(int64s(m.Keys))
		w.s(") AS k(k) WHERE ", u, ".ref # k.k = ANY (", s, ".terms) OFFSET 0)")
	}
	if limit > 0 {
		w.s(" LIMIT ", strconv.Itoa(limit))
	}
}

// probeHas writes the test that a matching source refers to r.
func (w *writer) probeHas(r string, m *Has) {
	s := "s" + w.next()
	c := conjoin(m.Clauses)
	if _, ok := w.env.Type(m.Source); !ok || c.never {
		w.s("false")
		return
	}
	w.s("EXISTS (SELECT 1 FROM resource ", s, " WHERE ", s, ".terms ")
	if len(m.Keys) == 1 {
		w.s("@> (ARRAY[", r, ".ref # ")
		w.p(int64(m.Keys[0]))
		w.s("::bigint] || ")
		w.terms(c.all)
		w.s(")")
		c.all = nil
	} else {
		w.s("&& ARRAY(SELECT ", r, ".ref # k.k FROM unnest(")
		w.terms(int64s(m.Keys))
		w.s(") AS k(k))")
	}
	and := &conditions{w: w, any: true}
	w.probing(s, &c, and, -1)
	w.s(" OFFSET 0)")
}

// textTerms writes a SELECT of the terms of the distinct texts that match.
// token_text has one row for each text, so this reads little.
func (w *writer) textTerms(m *Texts) {
	x := "x" + w.next()
	switch m.Op {
	case URIBelow:
		// The term of a uri hashes its text as fhir.ValueURI does.
		w.s("SELECT ", x, ".key # ('x' || encode(substring(sha256(convert_to('u' || ", x, ".text, 'UTF8') || '\\x00'::bytea) FOR 8), 'hex'))::bit(64)::bigint AS term FROM token_text ", x, " WHERE ")
		w.keys(x, m.Keys)
		text := w.param(m.Text)
		w.s(" AND (", x, ".text = ", text, "::text")
		steps := []string{"/", "|"}
		if strings.Contains(m.Text, "|") {
			steps = []string{"."} // 1.1 is below 1
		}
		for _, step := range steps {
			w.s(" OR starts_with(", x, ".text, ", text, "::text || '", step, "')")
		}
		w.s(")")
	default:
		w.s("SELECT ", x, ".key # ", x, ".value AS term FROM token_text ", x, " WHERE ")
		w.keys(x, m.Keys)
		w.s(" AND strpos(", x, ".text, ")
		w.p(m.Text)
		w.s("::text) > 0")
	}
}
