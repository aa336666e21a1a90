package notify

import (
	"context"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/smart"
)

// Decided are Rights by the decisions of package access.
type Decided struct {
	Decider *access.Decider
	// Authorized says that the server has authorization. An owner is then required: a Subscription
	// without one has no rights.
	Authorized bool
	// Stands fails with login, 401, where the client of an owner is revoked or the user
	// disabled; nil never asks.
	Stands func(ctx context.Context, o Owner) error
}

// NoOwner is the reason for which a Subscription without an owner is off on a server with authorization.
const NoOwner = "it has no owner: it was stored without authorization, or by a release that did not keep its owner; write it again"

var errNoOwner = outcome.New(outcome.CodeLogin, NoOwner)

// Principal implements Rights.
func (d Decided) Principal(ctx context.Context, o Owner) (*access.Principal, error) {
	if o.Subject == "" && o.Client == "" {
		if d.Authorized {
			return nil, errNoOwner
		}
		return access.Open, nil // written without authorization
	}
	if d.Stands != nil {
		if err := d.Stands(ctx, o); err != nil {
			return nil, err
		}
	}
	scopes, err := smart.Parse(o.Scopes)
	if err != nil {
		return nil, err
	}
	return &access.Principal{
		Subject: o.Subject, Issuer: o.Issuer, ClientID: o.Client, Scopes: scopes, Patient: o.Patient, Encounter: o.Encounter, FHIRUser: o.FHIRUser,
		Unbound: o.Unbound, Roles: o.Roles, Admin: o.Admin, TokenID: o.TokenID, SessionID: o.Session, KeyID: o.Key,
		APIKey: o.Session == "" && o.Client == "apikey:"+o.Subject,
	}, nil
}

// Sees implements Rights.
func (d Decided) Sees(ctx context.Context, p *access.Principal, v fhir.Version, x *fhir.Index) (bool, error) {
	if p.IsOpen() {
		return true, nil
	}
	rights, err := d.Decider.Rights(access.WithIndex(ctx, p))
	if err != nil {
		return false, err
	}
	c, err := rights.Condition(smart.Read, v.ResourceType)
	if err != nil || c.Whole() {
		return err == nil, err
	}
	if x == nil {
		return false, nil
	}
	return c.Holds(&match.Resource{Type: v.ResourceType, ID: v.ID, LastUpdated: v.LastUpdated, Index: x})
}

// narrowQuery adds the rights of a request to a query, so that chains and _has reveal nothing
// that it may not read. The query is about an event, whose index entries are at hand.
func (s *Service) narrowQuery(ctx context.Context, q *search.Query) (*search.Query, error) {
	p := access.PrincipalFrom(ctx)
	if s.Service.Access == nil || p == nil || p.IsOpen() {
		return q, nil
	}
	rights, err := s.Service.Access.Rights(access.WithIndex(ctx, p))
	if err != nil {
		return nil, err
	}
	return rights.Narrow(q, smart.Read|smart.Search)
}

// grounds are what narrow goes by beside the principal: criteria are read anew when it is another.
type grounds struct {
	parameters *search.Registry
	policies   *access.Policies
}

func (s *Service) rightsGrounds(ctx context.Context) (g grounds, err error) {
	g.parameters = s.Service.Parameters.Current()
	if d := s.Service.Access; d != nil && d.Policies != nil {
		g.policies, err = d.Policies(ctx)
	}
	return g, err
}

// sights are who may see what some events are about. Subscribers share principals: each is asked
// about once, with rights that are decided once for all of the events.
type sights struct {
	s     *Service
	ctx   context.Context
	as    map[*access.Principal]context.Context
	known map[sight]bool
}

// sight is a principal and a version of an event.
type sight struct {
	principal *access.Principal
	event     *Event
	earlier   bool
}

// maySee reports whether a subscriber may see a version of an event, the one before where earlier
// says so.
func (x *sights) maySee(sub *Subscriber, e *Event, earlier bool) (bool, error) {
	p := sub.principal
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
	v, index := x.s.indexedVersion(e, earlier)
	sees, err := x.s.Rights.Sees(ctx, p, v, index)
	if err == nil {
		x.known[k] = sees
	}
	return sees, err
}

// mayRead reports whether a subscriber may hear of an event: see its version, of a deletion the one
// before. Where that cannot be told a connection does not hear of it, and a delivery asks again
// before it is sent.
func (x *sights) mayRead(sub *Subscriber, e *Event) bool {
	sees, err := x.maySee(sub, e, e.Kind == Delete)
	if err != nil {
		x.s.Log.Warn("a subscriber's right to see a resource could not be checked", "subscriber", sub.ID, "error", err)
		return sub.Queued
	}
	return sees
}

// visibleEvent is an event as a subscriber that hears of it may see it: without the version before where
// that is hidden.
func (x *sights) visibleEvent(sub *Subscriber, e *Event) *Event {
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
