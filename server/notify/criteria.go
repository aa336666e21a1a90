package notify

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

// criteria is a search that is held against single resources.
type criteria struct {
	typ   string
	text  string // the query string
	query *search.Query
	// parameters is the version of the search parameters that the query was read with.
	parameters int64
	// anchors are sets of terms: a resource that matches has at least one of each.
	anchors [][]int64
}

// maxAnchor is how many terms a set of anchors may have.
const maxAnchor = 64

// parseCriteria reads a query string on a type. It fails as a search does.
func (s *Service) parseCriteria(ctx context.Context, typ, query string) (*criteria, error) {
	if s.Service.Model.Resources[typ] == nil {
		return nil, s.Service.UnknownType(typ)
	}
	values, err := interaction.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	return s.criteriaOf(ctx, typ, values)
}

func (s *Service) criteriaOf(ctx context.Context, typ string, values url.Values) (*criteria, error) {
	for name := range values {
		switch name {
		case "_format", "_pretty", "_summary", "_elements":
			values.Del(name) // they speak of an answer
		case "_count", "_offset", "_cursor", "_sort", "_include", "_revinclude", "_total", "_contained", "_containedType":
			return nil, outcome.Invalid("criteria cannot have %s: they are about which resources match, not about a page of them", name)
		}
	}
	reg := s.Service.Parameters.Current()
	c := &criteria{typ: typ, text: values.Encode(), parameters: reg.Version()}
	if err := reg.Err(); err != nil {
		return nil, err
	}
	options := s.Service.SearchOptions(ctx, false, nil)
	options.MaxCount = maxFound
	values = cloneValues(values)
	values.Set("_count", "1000")
	values.Set("_total", "none")
	var err error
	if c.query, err = search.Parse(reg, typ, values, options); err != nil {
		return nil, err
	}
	if c.query, err = s.narrowQuery(ctx, c.query); err != nil {
		return nil, err
	}
	for _, clause := range c.query.Clauses {
		if terms, ok := anchor(clause); ok {
			c.anchors = append(c.anchors, terms)
		}
	}
	return c, nil
}

// maxFound bounds the resources that one search is asked about.
const maxFound = 1000

func cloneValues(values url.Values) url.Values {
	out := make(url.Values, len(values)+2)
	for name, v := range values {
		out[name] = slices.Clone(v)
	}
	return out
}

// anchor are the terms of which a resource has one for which the clause holds.
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

// findMatches asks the database which of the resources with these refs match now.
func (s *Service) findMatches(ctx context.Context, c *criteria, refs []int64) (map[int64]bool, error) {
	found := make(map[int64]bool, len(refs))
	for chunk := range slices.Chunk(refs, maxFound) {
		q := *c.query
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

// holdsOf reports whether criteria hold of a version of an event: of the one before where
// earlier says so. nil criteria ask nothing.
func (s *Service) holdsOf(c *criteria, e *Event, earlier bool, ask *questions) answer3 {
	if c == nil {
		return yes
	}
	v, x := s.indexedVersion(e, earlier)
	if x == nil {
		return no
	}
	r := &match.Resource{Type: v.ResourceType, ID: v.ID, LastUpdated: v.LastUpdated, Index: x}
	holds, open := c.query.Holds(r)
	switch {
	case !holds:
		return no
	case len(open) == 0:
		return yes
	case !ask.loaded:
		ask.related.wantClauses(open, e.ref, r)
		return unknown
	}
	a, err := ask.related.decideClauses(ask.ctx, open, e.ref, r)
	switch {
	case err != nil:
		ask.err = err
		return no
	case a != unknown:
		return a
	case earlier:
		return s.heldBefore(ask.ctx, open, e.ref, r)
	}
	return ask.askCriteria(c, e.ref)
}

// needsDatabase reports whether the index entries of a resource may leave open whether it matches.
func (c *criteria) needsDatabase() bool { return c != nil && match.Open(c.query.Clauses) }

// heldBefore reads from the database the data that clauses about other resources need, for
// a version that is no longer the current one: the targets of its own references and the
// resources that refer to it. A clause that needs anything else does not hold.
func (s *Service) heldBefore(ctx context.Context, open []match.Clause, ref int64, r *match.Resource) answer3 {
	x := &related{s: s, before: true}
	a, _ := x.decideClauses(ctx, open, ref, r) // errors of single questions are logged
	return a
}

// splitCriteria reads "Type?query"; the query may be missing.
func splitCriteria(text string) (typ, query string) {
	typ, query, _ = strings.Cut(strings.TrimPrefix(text, "/"), "?")
	return typ, query
}
