package matching

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
)

// A Criteria is a search that is tested on single resources.
type Criteria struct {
	typ   string
	Text  string // the query string
	Query *search.Query
	// parameters is the version of the search parameters that the query was read with.
	Parameters int64
	// anchors are sets of terms: a resource that matches has at least one of each.
	anchors [][]int64
}

// maxAnchor is the largest number of terms in a set of anchors.
const maxAnchor = 64

// ParseCriteria compiles a query string on a type. It fails as a search does.
func (s *Evaluator) ParseCriteria(ctx context.Context, typ, query string) (*Criteria, error) {
	if s.Interactions.Model.Resources[typ] == nil {
		return nil, s.Interactions.UnknownType(typ)
	}
	values, err := interaction.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	return s.CompileCriteria(ctx, typ, values)
}

// CompileCriteria compiles search parameters on a type. Parameters of an answer, such as _summary, are ignored.
// Parameters of a page, such as _count, are rejected with invalid, 400.
func (s *Evaluator) CompileCriteria(ctx context.Context, typ string, values url.Values) (*Criteria, error) {
	for name := range values {
		switch name {
		case "_format", "_pretty", "_summary", "_elements":
			values.Del(name) // they speak of an answer
		case "_count", "_offset", "_cursor", "_sort", "_include", "_revinclude", "_total", "_contained", "_containedType":
			return nil, outcome.Invalid("criteria cannot have %s: they are about which resources match, not about a page of them", name)
		}
	}
	reg := s.Interactions.Parameters.Current()
	c := &Criteria{typ: typ, Text: values.Encode(), Parameters: reg.Version()}
	if err := reg.Err(); err != nil {
		return nil, err
	}
	options := s.Interactions.SearchOptions(ctx, false, nil)
	options.MaxCount = MaxMatches
	values = CloneValues(values)
	values.Set("_count", "1000")
	values.Set("_total", "none")
	var err error
	if c.Query, err = search.Parse(reg, typ, values, options); err != nil {
		return nil, err
	}
	if c.Query, err = s.narrowQuery(ctx, c.Query); err != nil {
		return nil, err
	}
	for _, clause := range c.Query.Clauses {
		if terms, ok := anchor(clause); ok {
			c.anchors = append(c.anchors, terms)
		}
	}
	return c, nil
}

// MaxMatches is the largest number of resources that one search tests or returns.
const MaxMatches = 1000

// CloneValues returns a deep copy.
func CloneValues(values url.Values) url.Values {
	out := make(url.Values, len(values)+2)
	for name, v := range values {
		out[name] = slices.Clone(v)
	}
	return out
}

// anchor returns the terms of a clause: each resource that meets the clause has one of them. It returns false if
// there are no such terms.
func anchor(c match.Clause) ([]int64, bool) {
	if c.Not {
		return nil, false
	}
	var terms []int64
	for _, m := range c.Any {
		t, ok := m.(match.Terms)
		if !ok {
			return nil, false
		}
		terms = append(terms, t.Values...)
	}
	return terms, len(terms) > 0 && len(terms) <= maxAnchor
}

// findMatches asks the database which of the resources with some refs match now.
func (s *Evaluator) findMatches(ctx context.Context, c *Criteria, refs []int64) (map[int64]bool, error) {
	found := make(map[int64]bool, len(refs))
	for chunk := range slices.Chunk(refs, MaxMatches) {
		q := *c.Query
		q.Clauses = slices.Clip(q.Clauses)
		q.And(match.Clause{Name: "_id", Any: []match.Match{match.IDs{Refs: chunk}}})
		result, err := s.Store.Search(ctx, &q)
		if err != nil {
			return nil, err
		}
		for _, v := range result.Matches {
			found[int64(fhir.ValueReference(v.ResourceType, v.ID))] = true
		}
	}
	return found, nil
}

// holdsOf tests criteria on a version of an event or, with earlier, on the version before. nil criteria are always
// met.
func (s *Evaluator) holdsOf(c *Criteria, e *Event, earlier bool, ask *questions) answer3 {
	if c == nil {
		return yes
	}
	v, x := s.IndexedVersion(e, earlier)
	if x == nil {
		return no
	}
	r := &match.Resource{Type: v.ResourceType, ID: v.ID, LastUpdated: v.LastUpdated, Index: x}
	holds, open := c.Query.Holds(r)
	switch {
	case !holds:
		return no
	case len(open) == 0:
		return yes
	case !ask.loaded:
		ask.related.wantClauses(open, e.Ref, r)
		return unknown
	}
	a, err := ask.related.decideClauses(ask.ctx, open, e.Ref, r)
	switch {
	case err != nil:
		ask.err = err
		return no
	case a != unknown:
		return a
	case earlier:
		return s.heldBefore(ask.ctx, open, e.Ref, r)
	}
	return ask.askCriteria(c, e.Ref)
}

// needsDatabase reports whether the index entries of a resource may not be enough to test the criteria.
func (c *Criteria) needsDatabase() bool { return c != nil && match.Open(c.Query.Clauses) }

// heldBefore tests clauses about other resources on a version that is no longer the current one. It reads the targets
// of the references of that version, and the resources that refer to it, from the database. A clause that needs
// anything else is not met.
func (s *Evaluator) heldBefore(ctx context.Context, open []match.Clause, ref int64, r *match.Resource) answer3 {
	x := &related{s: s, before: true}
	a, _ := x.decideClauses(ctx, open, ref, r) // errors of single questions are logged
	return a
}

// SplitCriteria splits "Type?query". The query may be missing.
func SplitCriteria(text string) (typ, query string) {
	typ, query, _ = strings.Cut(strings.TrimPrefix(text, "/"), "?")
	return typ, query
}

// TakeList reads a parameter that is given by commas or by repetition, and takes it out.
func TakeList(values url.Values, name string) []string {
	var out []string
	for _, v := range values[name] {
		for _, part := range strings.Split(v, ",") {
			if part = strings.TrimSpace(part); part != "" {
				out = append(out, part)
			}
		}
	}
	values.Del(name)
	return out
}
