package match

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// Texts holds for a resource that has a term for one of the distinct texts of
// Keys that Op accepts: display texts, or uris at and below Text.
type Texts struct {
	Keys []fhir.Key
	Op   TextOp
	Text string
}

// findTerms writes a SELECT of the terms of the distinct texts that match.
// token_text has one row for each text, so this reads little.
func (m Texts) findTerms(w *Writer) {
	x := "x" + w.Next()
	switch m.Op {
	case URIBelow:
		// The term of a uri hashes its text as fhir.ValueURI does.
		w.Write("SELECT ", x, ".key # ('x' || encode(substring(sha256(convert_to('u' || ", x, ".text, 'UTF8') || '\\x00'::bytea) FOR 8), 'hex'))::bit(64)::bigint AS term FROM token_text ", x, " WHERE ")
		w.Keys(x, m.Keys)
		text := w.Param(m.Text)
		w.Write(" AND (", x, ".text = ", text, "::text")
		for _, step := range m.steps() {
			w.Write(" OR starts_with(", x, ".text, ", text, "::text || '", step, "')")
		}
		w.Write(")")
	default:
		w.Write("SELECT ", x, ".key # ", x, ".value AS term FROM token_text ", x, " WHERE ")
		w.Keys(x, m.Keys)
		w.Write(" AND strpos(", x, ".text, ")
		w.Bind(m.Text)
		w.Write("::text) > 0")
	}
}

func (m Texts) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (m Texts) test(w *Writer, r string) {
	w.Write("(", r, ".terms && ARRAY(")
	m.findTerms(w)
	w.Write(")) IS TRUE")
}

func (m Texts) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(r.Index.Texts, func(e fhir.TextEntry) bool {
		if !slices.Contains(m.Keys, e.Key) {
			return false
		}
		if m.Op != URIBelow {
			return strings.Contains(e.Text, m.Text)
		}
		rest, ok := strings.CutPrefix(e.Text, m.Text)
		return ok && (rest == "" || slices.ContainsFunc(m.steps(), func(s string) bool { return strings.HasPrefix(rest, s) }))
	}))
}

// steps are what may follow a uri that others are below.
func (m *Texts) steps() []string {
	if strings.Contains(m.Text, "|") {
		return []string{"."} // 1.1 is below 1
	}
	return []string{"/", "|"}
}

func (m Texts) describe() string { return "" }

func (m Texts) within(way []fhir.Key) Match {
	m.Keys = withinKeys(m.Keys, way)
	return m
}
