package matching

import (
	"context"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/smart"
)

// narrowQuery adds the rights of a request to a query, so that chains and _has reveal nothing that it may not read.
// The index entries of the resource of an event are at hand.
func (s *Evaluator) narrowQuery(ctx context.Context, q *search.Query) (*search.Query, error) {
	p := access.PrincipalFrom(ctx)
	if s.Interactions.Access == nil || p == nil || p.IsOpen() {
		return q, nil
	}
	rights, err := s.Interactions.Access.Rights(access.WithIndex(ctx, p))
	if err != nil {
		return nil, err
	}
	return rights.Narrow(q, smart.Read|smart.Search)
}

// Grounds are the inputs of compiled criteria beside the principal. When they change, criteria are compiled again.
type Grounds struct {
	Parameters *search.Registry
	Policies   *access.Policies
}

// RightsGrounds returns the present Grounds.
func (s *Evaluator) RightsGrounds(ctx context.Context) (g Grounds, err error) {
	g.Parameters = s.Interactions.Parameters.Current()
	if d := s.Interactions.Access; d != nil && d.Policies != nil {
		g.Policies, err = d.Policies(ctx)
	}
	return g, err
}

// Sights remember who may see the resources of some events. Subscribers share principals: each principal is asked
// about a version once.
type Sights struct {
	s     *Evaluator
	ctx   context.Context
	as    map[*access.Principal]context.Context
	known map[sight]bool
}

// A sight is a principal and a version of an event.
type sight struct {
	principal *access.Principal
	event     *Event
	earlier   bool
}

// maySee reports whether a subscriber may see a version of an event or, with earlier, the version before.
func (x *Sights) maySee(sub *Subscriber, e *Event, earlier bool) (bool, error) {
	p := sub.Principal
	if x.s.Rights == nil || p == nil || p.IsOpen() {
		return true, nil
	}
	k := sight{p, e, earlier}
	if sees, ok := x.known[k]; ok {
		return sees, nil
	}
	if x.as == nil {
		x.as, x.known = make(map[*access.Principal]context.Context), make(map[sight]bool)
	}
	ctx := x.as[p]
	if ctx == nil {
		ctx = access.WithIndex(x.ctx, p)
		x.as[p] = ctx
	}
	v, index := x.s.IndexedVersion(e, earlier)
	sees, err := x.s.Rights.Sees(ctx, p, v, index)
	if err == nil {
		x.known[k] = sees
	}
	return sees, err
}

// MayHear reports whether a subscriber may hear of an event: whether it may see the version, of a deletion the
// version before. If that cannot be decided, a connection does not hear of it, and a queued subscriber does: a
// delivery asks again before it is sent.
func (x *Sights) MayHear(sub *Subscriber, e *Event) bool {
	sees, err := x.maySee(sub, e, e.Kind == Delete)
	if err != nil {
		x.s.Log.Warn("a subscriber's right to see a resource could not be checked", "subscriber", sub.ID, "error", err)
		return sub.Queued
	}
	return sees
}

// visibleEvent returns an event without the version before if the subscriber may not see that.
func (x *Sights) visibleEvent(sub *Subscriber, e *Event) *Event {
	if e.Kind != Update || len(e.Previous.Body) == 0 {
		return e
	}
	if sees, err := x.maySee(sub, e, true); err == nil && sees {
		return e
	}
	without := *e
	without.Previous, without.earlier = fhir.Version{}, held{read: true}
	return &without
}
