package matching

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/store"
)

// An Evaluator finds the subscribers of events. Its fields are set before its first use.
type Evaluator struct {
	Store *store.Store
	// Interactions has the search parameters, and the rights of requests.
	Interactions *interaction.Service
	Rights       Viewer // nil: everybody may read everything
	Log          *slog.Logger
	// QuestionTimeout is the time limit of one search by criteria.
	QuestionTimeout time.Duration
	// ReadVersions reads the versions of events as subscribers may see them.
	ReadVersions func(ctx context.Context, keys []store.VersionKey, types map[int64]string) (map[store.VersionKey]fhir.Version, error)
}

// A Viewer decides who may see a version of a resource.
type Viewer interface {
	// Sees reports whether p may read a version; x has its index entries, nil if they are
	// not known.
	Sees(ctx context.Context, p *access.Principal, v fhir.Version, x *fhir.Index) (bool, error)
}

// IndexEntries returns the index entries of a version, nil if there are none.
func (s *Evaluator) IndexEntries(v fhir.Version) *fhir.Index { return s.indexOf(v, new(held)) }

// DecodeVersions returns the resources of an event after and before it, nil for none.
func (s *Evaluator) DecodeVersions(e *Event) (current, previous fhir.Resource) {
	s.indexOf(e.Version, &e.current)
	s.indexOf(e.Previous, &e.earlier)
	return e.current.resource, e.earlier.resource
}

// NewSights returns Sights for some events.
func (s *Evaluator) NewSights(ctx context.Context) Sights { return Sights{s: s, ctx: ctx} }

// PrincipalSees reports whether a principal may read the resource of an event now; of a deletion, the version before.
func (s *Evaluator) PrincipalSees(ctx context.Context, p *access.Principal, e *Event) (bool, error) {
	if s.Rights == nil || p == nil || p.IsOpen() {
		return true, nil
	}
	v, x := s.IndexedVersion(e, e.Kind == Delete)
	return s.Rights.Sees(ctx, p, v, x)
}

// RefuseCostly returns the error for criteria that cost too much.
func (s *Evaluator) RefuseCostly() error {
	return outcome.New(outcome.CodeTooCostly, "the criteria took more than %s to match an event: make them narrower, or about fewer other resources", s.QuestionTimeout)
}

// A Hit is an event and a subscriber that receives it.
type Hit struct {
	Subscriber *Subscriber
	Event      *Event
}

// MatchEvents returns the hits of events, in the order of the events, with each subscriber once an event. It tests
// chains and _has on the related resources, which it reads once for all events and rules. Other open criteria take
// one search for each rule. costly are subscribers whose criteria took too long: their result is unknown. An event
// that a subscriber may not see is no hit.
func (s *Evaluator) MatchEvents(ctx context.Context, m *Matcher, events []*Event) (hits []Hit, costly []*Subscriber, err error) {
	type open struct {
		place *placed
		event int
	}
	decided := make([][]*Subscriber, len(events))
	ask := questions{ctx: ctx, related: s.newRelated(), sights: s.NewSights(ctx)}
	var waiting []open
	for i, e := range events {
		if !m.WantsType(e.ResourceType()) {
			continue
		}
		_, x := s.IndexedVersion(e, e.Kind == Delete)
		for _, p := range m.candidates(e.ResourceType(), e.Kind, x) {
			switch s.holds(p, e, &ask) {
			case yes:
				decided[i] = append(decided[i], p.subscriber)
			case unknown:
				waiting = append(waiting, open{p, i})
			}
		}
	}
	// What needs other resources: first by those that it names, then by a search.
	steps := []func(context.Context) error{
		func(ctx context.Context) error { ask.loaded = true; return ask.related.loadResources(ctx) },
		func(ctx context.Context) error { return s.answer(ctx, &ask) },
	}
	for _, step := range steps {
		if len(waiting) == 0 {
			break
		}
		if err := step(ctx); err != nil {
			return nil, nil, err
		}
		var still []open
		for _, w := range waiting {
			switch s.holds(w.place, events[w.event], &ask) {
			case yes:
				decided[w.event] = append(decided[w.event], w.place.subscriber)
			case unknown:
				still = append(still, w)
			}
			if ask.err != nil {
				return nil, nil, ask.err
			}
		}
		waiting = still
	}
	seen := make(map[*Subscriber]bool)
	for _, w := range waiting { // queries that came too late
		if !seen[w.place.subscriber] {
			seen[w.place.subscriber] = true
			costly = append(costly, w.place.subscriber)
		}
	}
	for i, list := range decided {
		seen := make(map[*Subscriber]bool, len(list))
		for _, sub := range list {
			if seen[sub] {
				continue
			}
			seen[sub] = true
			if events[i].Written.Before(sub.Since) || !ask.sights.MayHear(sub, events[i]) {
				continue
			}
			hits = append(hits, Hit{sub, events[i]})
		}
	}
	return hits, costly, nil
}

// An answer3 is yes, no or unknown.
type answer3 uint8

const (
	no answer3 = iota
	yes
	unknown
)

func answerOf(b bool) answer3 {
	if b {
		return yes
	}
	return no
}

// and returns the conjunction of two answers.
func (a answer3) and(b answer3) answer3 {
	switch {
	case a == no || b == no:
		return no
	case a == unknown || b == unknown:
		return unknown
	}
	return yes
}

// or returns the disjunction of two answers.
func (a answer3) or(b answer3) answer3 {
	switch {
	case a == yes || b == yes:
		return yes
	case a == unknown || b == unknown:
		return unknown
	}
	return no
}

// holds tests the conditions of a rule on an event of its type and kinds.
func (s *Evaluator) holds(p *placed, e *Event, ask *questions) answer3 {
	r, result := p.rule, yes
	switch e.Kind {
	case Create, VRead:
		if r.Current != nil || r.Previous != nil {
			result = s.combine(r, s.holdsOf(r.Current, e, false, ask), answerOf(r.Created))
			if r.Previous == nil {
				result = s.holdsOf(r.Current, e, false, ask)
			}
		}
	case Update:
		if r.Current != nil || r.Previous != nil {
			result = s.combine(r, s.holdsOf(r.Current, e, false, ask), s.holdsOf(r.Previous, e, true, ask))
		}
	case Delete:
		switch {
		case r.Previous != nil:
			result = s.combine(r, answerOf(r.Deleted), s.holdsOf(r.Previous, e, true, ask))
		case r.Current != nil:
			result = s.holdsOf(r.Current, e, true, ask) // the last version
		}
	}
	if result != no && r.Filter != nil {
		result = result.and(s.holdsOf(r.Filter, e, e.Kind == Delete, ask))
	}
	if result == yes && r.Test != nil {
		result = answerOf(r.Test(ask.ctx, ask.sights.visibleEvent(p.subscriber, e)))
	}
	return result
}

// combine combines the answers about the two versions of an event.
func (s *Evaluator) combine(r *Rule, current, previous answer3) answer3 {
	switch {
	case r.Previous == nil:
		return current
	case r.Current == nil:
		return previous
	case r.Both:
		return current.and(previous)
	}
	return current.or(previous)
}

// questions are the open questions of events and rules.
type questions struct {
	ctx     context.Context
	related *related
	sights  Sights
	loaded  bool  // related has the wanted resources
	err     error // of reading more of it
	// of is which resources match criteria, by their refs: unknown until the database was
	// asked, and where it took too long.
	of map[*Criteria]map[int64]answer3
}

func (q *questions) askCriteria(c *Criteria, ref int64) answer3 {
	refs := q.of[c]
	if refs == nil {
		if q.of == nil {
			q.of = make(map[*Criteria]map[int64]answer3)
		}
		refs = make(map[int64]answer3)
		q.of[c] = refs
	}
	if _, ok := refs[ref]; !ok {
		refs[ref] = unknown
	}
	return refs[ref]
}

const (
	// parallelQuestions bounds the searches of one batch of events under way.
	parallelQuestions = 4
	// DefaultQuestionTimeout bounds one of them: what costs more holds up the events of others
	// that need the database.
	DefaultQuestionTimeout = 5 * time.Second
	// pingTimeout is how long a database may take for nothing before it counts as hung.
	pingTimeout = time.Second
)

// answer asks the database about several criteria at a time. Criteria without an answer in time are asked once more,
// alone, and stay unknown if they are late again. It fails if the database fails: the events are then read again.
// Criteria that can no longer be asked match nothing, and are logged.
func (s *Evaluator) answer(ctx context.Context, q *questions) error {
	places := make(chan struct{}, parallelQuestions)
	var asking sync.WaitGroup
	var mu sync.Mutex
	var failed error
	type question struct {
		criteria *Criteria
		refs     []int64
	}
	var late []question
	for c, refs := range q.of {
		var list []int64
		for ref, a := range refs {
			if a == unknown {
				list = append(list, ref)
			}
		}
		if len(list) == 0 {
			continue
		}
		places <- struct{}{}
		asking.Go(func() {
			defer func() { <-places }()
			inTime, err := s.askOnce(ctx, c, list, refs)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			} else if !inTime {
				late = append(late, question{c, list})
			}
		})
	}
	asking.Wait()
	if failed != nil {
		return failed
	}
	for _, l := range late {
		inTime, err := s.askOnce(ctx, l.criteria, l.refs, q.of[l.criteria])
		if err != nil {
			return err
		}
		if inTime {
			continue
		}
		// Is it the criteria, or the database?
		ping, cancel := context.WithTimeout(ctx, pingTimeout)
		err = s.Store.Pool().Ping(ping)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// askOnce asks which of the resources with some refs match criteria. It returns false if there is no answer in time.
func (s *Evaluator) askOnce(ctx context.Context, c *Criteria, list []int64, refs map[int64]answer3) (inTime bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, s.QuestionTimeout)
	defer cancel()
	found, err := s.findMatches(bounded, c, list)
	if err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if bounded.Err() != nil {
			return false, nil
		}
		if outcome.Ours(err) {
			return false, err
		}
		s.Log.Warn("criteria of a subscription cannot be asked", "criteria", c.typ+"?"+c.Text, "error", err)
	}
	for _, ref := range list {
		refs[ref] = answerOf(found[ref])
	}
	return true, nil
}
