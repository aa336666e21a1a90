package matching

import (
	"context"
	"encoding/binary"
	"slices"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
)

// related are the other resources that chains and _has of criteria need: the targets of the resources of events, and
// the resources that refer to these. They are read once for some events and criteria, and tested in memory.
type related struct {
	s       *Evaluator
	before  bool                      // nothing is read: the database is asked about a version before
	targets map[int64]*match.Resource // by ref; nil where there is none
	sources map[string]*sources       // by type and keys
	wanted  map[int64]struct{}        // targets to read
}

// sources are the resources of one type that refer to resources of events by some keys.
type sources struct {
	typ    string
	by     []fhir.Key                  // of the references
	of     map[int64][]*match.Resource // by the ref that is referred to
	many   map[int64]bool              // there are more than MaxMatches: the database is asked
	wanted map[int64]struct{}
}

func (s *Evaluator) newRelated() *related {
	return &related{s: s, targets: make(map[int64]*match.Resource), sources: make(map[string]*sources), wanted: make(map[int64]struct{})}
}

// wantFor notes the resources that are needed to test a match on a resource.
func (x *related) wantFor(m match.Related, ref int64) {
	if m.By != nil {
		src := x.sourcesOf(m)
		if _, ok := src.of[ref]; !ok && !src.many[ref] {
			src.wanted[ref] = struct{}{}
		}
		return
	}
	for _, target := range m.Targets {
		if _, ok := x.targets[target]; !ok {
			x.wanted[target] = struct{}{}
		}
	}
}

// found returns the loaded resources that a match on a resource is about. It returns false if only the database can
// answer.
func (x *related) found(m match.Related, ref int64) (list []*match.Resource, ok bool) {
	if m.By != nil {
		src := x.sourcesOf(m)
		return src.of[ref], !src.many[ref]
	}
	for _, target := range m.Targets {
		if t := x.targets[target]; t != nil && slices.Contains(m.Types, t.Type) {
			list = append(list, t)
		}
	}
	return list, true
}

// askRelated asks the database whether a match holds for a version that is not the current one.
func (s *Evaluator) askRelated(ctx context.Context, m match.Related, ref int64) (bool, error) {
	about := match.Clause{Name: "_id", Any: []match.Match{match.IDs{Refs: m.Targets}}}
	switch {
	case m.By != nil:
		about = match.Clause{Name: "_has", Any: []match.Match{match.TermsOf(m.By, fhir.Value(ref))}}
	case len(m.Targets) == 0:
		return false, nil
	}
	q := &search.Query{Types: m.Types, Count: 1, Total: search.TotalNone, Clauses: append(slices.Clip(m.Clauses), about)}
	if len(q.Types) == 1 {
		q.Type = q.Types[0]
	}
	result, err := s.Store.Search(ctx, q)
	return err == nil && len(result.Matches) > 0, err
}

// sourcesOf returns the sources of a match.
func (x *related) sourcesOf(m match.Related) *sources {
	name := []byte(m.Types[0])
	for _, key := range m.By {
		name = append(name, '\n')
		name = binary.LittleEndian.AppendUint64(name, uint64(key))
	}
	src := x.sources[string(name)]
	if src == nil {
		src = &sources{typ: m.Types[0], by: m.By, of: make(map[int64][]*match.Resource), many: make(map[int64]bool), wanted: make(map[int64]struct{})}
		x.sources[string(name)] = src
	}
	return src
}

// wantClauses notes the resources that are needed to test clauses on a resource.
func (x *related) wantClauses(clauses []match.Clause, ref int64, r *match.Resource) {
	for i := range clauses {
		for _, m := range clauses[i].Any {
			if other, ok := match.RelatedTo(m, r); ok {
				x.wantFor(other, ref)
			} else {
				x.wantClauses(match.Inner(m), ref, r)
			}
		}
	}
}

// loadResources reads the wanted resources, up to MaxMatches at a time: one search for all targets, and one for each
// type and search parameter of a _has.
func (x *related) loadResources(ctx context.Context) error {
	for chunk := range slices.Chunk(keysOf(x.wanted), MaxMatches) {
		for _, ref := range chunk {
			x.targets[ref] = nil
		}
		list, err := x.search(ctx, &search.Query{Clauses: []match.Clause{{Name: "_id", Any: []match.Match{match.IDs{Refs: chunk}}}}, Count: MaxMatches})
		if err != nil {
			return err
		}
		for _, r := range list {
			x.targets[int64(fhir.ValueReference(r.Type, r.ID))] = r
		}
	}
	clear(x.wanted)
	for _, src := range x.sources {
		if err := x.loadSources(ctx, src, keysOf(src.wanted)); err != nil {
			return err
		}
		clear(src.wanted)
	}
	return nil
}

// loadSources reads the resources that refer to refs. If there are more than MaxMatches it halves the refs. A single
// ref with more is left to the database.
func (x *related) loadSources(ctx context.Context, src *sources, refs []int64) error {
	if len(refs) == 0 {
		return nil
	}
	var terms []int64
	for _, ref := range refs {
		for _, key := range src.by {
			terms = append(terms, key.Term(fhir.Value(ref)))
		}
	}
	list, err := x.search(ctx, &search.Query{
		Type: src.typ, Types: []string{src.typ}, Count: MaxMatches + 1,
		Clauses: []match.Clause{{Name: "_has", Any: []match.Match{match.Terms{Values: terms}}}},
	})
	if err != nil {
		return err
	}
	if len(list) > MaxMatches {
		if len(refs) == 1 {
			src.many[refs[0]] = true
			return nil
		}
		if err := x.loadSources(ctx, src, refs[:len(refs)/2]); err != nil {
			return err
		}
		return x.loadSources(ctx, src, refs[len(refs)/2:])
	}
	for _, ref := range refs {
		src.of[ref] = []*match.Resource{}
		for _, r := range list {
			if slices.ContainsFunc(src.by, func(k fhir.Key) bool { return r.HasTerm(k.Term(fhir.Value(ref))) }) {
				src.of[ref] = append(src.of[ref], r)
			}
		}
	}
	return nil
}

// search finds resources with their index entries.
func (x *related) search(ctx context.Context, q *search.Query) ([]*match.Resource, error) {
	q.Total = search.TotalNone
	result, err := x.s.Store.Search(ctx, q)
	if err != nil {
		return nil, err
	}
	list := make([]*match.Resource, 0, len(result.Matches))
	for _, v := range result.Matches {
		var h held
		if index := x.s.indexOf(v, &h); index != nil {
			list = append(list, &match.Resource{Type: v.ResourceType, ID: v.ID, LastUpdated: v.LastUpdated, Index: index})
		}
	}
	return list, nil
}

func keysOf(set map[int64]struct{}) []int64 {
	list := make([]int64, 0, len(set))
	for ref := range set {
		list = append(list, ref)
	}
	return list
}

// decideClauses tests clauses on a resource by the loaded resources. It loads further ones for longer chains. The
// answer is unknown if it needs the database.
func (x *related) decideClauses(ctx context.Context, clauses []match.Clause, ref int64, r *match.Resource) (answer3, error) {
	result := yes
	for i := range clauses {
		a, err := x.clause(ctx, &clauses[i], ref, r)
		if err != nil {
			return no, err
		}
		if result = result.and(a); result == no {
			break
		}
	}
	return result, nil
}

// clause tests one clause.
func (x *related) clause(ctx context.Context, c *match.Clause, ref int64, r *match.Resource) (answer3, error) {
	result := no
	for _, m := range c.Any {
		a, err := x.decideMatch(ctx, m, ref, r)
		if err != nil {
			return no, err
		}
		if result = result.or(a); result == yes {
			break
		}
	}
	if c.Not && result != unknown {
		return answerOf(result == no), nil
	}
	return result, nil
}

// decideMatch tests one match.
func (x *related) decideMatch(ctx context.Context, m match.Match, ref int64, r *match.Resource) (answer3, error) {
	alone := match.Clause{Any: []match.Match{m}}
	switch alone.Holds(r) {
	case match.Yes:
		return yes, nil
	case match.No:
		return no, nil
	}
	if inner := match.Inner(m); inner != nil {
		return x.decideClauses(ctx, inner, ref, r)
	}
	other, ok := match.RelatedTo(m, r)
	if x.before {
		holds := false
		if ok {
			var err error
			if holds, err = x.s.askRelated(ctx, other, ref); err != nil {
				x.s.Log.Warn("criteria of a subscription cannot be matched with the version before", "error", err)
			}
		}
		return answerOf(holds), nil
	}
	if !ok {
		return unknown, nil
	}
	list, ok := x.found(other, ref)
	if !ok {
		return unknown, nil
	}
	return x.any(ctx, other.Clauses, list)
}

// any reports whether clauses hold for one of some resources.
func (x *related) any(ctx context.Context, clauses []match.Clause, list []*match.Resource) (answer3, error) {
	for _, r := range list {
		if holds, open := match.Hold(clauses, r); holds {
			x.wantClauses(open, int64(fhir.ValueReference(r.Type, r.ID)), r)
		}
	}
	if err := x.loadResources(ctx); err != nil {
		return no, err
	}
	result := no
	for _, r := range list {
		a, err := x.decideClauses(ctx, clauses, int64(fhir.ValueReference(r.Type, r.ID)), r)
		if err != nil {
			return no, err
		}
		if result = result.or(a); result == yes {
			break
		}
	}
	return result, nil
}
