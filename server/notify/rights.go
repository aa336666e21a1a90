package notify

import (
	"context"

	"kiln/oauth/smart"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
)

// Decided are Rights by the decisions of package access.
type Decided struct {
	Decider *access.Decider
	// Stands fails with login, 401, where the client of an owner is revoked or the user
	// disabled; nil never asks.
	Stands func(ctx context.Context, o Owner) error
}

// Principal implements Rights.
func (d Decided) Principal(ctx context.Context, o Owner) (*access.Principal, error) {
	if o.Subject == "" && o.Client == "" {
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
		Subject: o.Subject, ClientID: o.Client, Scopes: scopes, Patient: o.Patient, Encounter: o.Encounter, FHIRUser: o.FHIRUser,
		Roles: o.Roles, Admin: o.Admin, TokenID: o.TokenID, SessionID: o.Session,
	}, nil
}

// Sees implements Rights.
func (d Decided) Sees(ctx context.Context, p *access.Principal, v fhir.Version, x *fhir.Index) (bool, error) {
	if p.IsOpen() {
		return true, nil
	}
	c, err := d.Decider.For(ctx, p).Condition(smart.Read, v.ResourceType)
	if err != nil || c.Whole() {
		return err == nil, err
	}
	if x == nil {
		return false, nil
	}
	return c.Holds(&match.Resource{Type: v.ResourceType, ID: v.ID, LastUpdated: v.LastUpdated, Index: x})
}

// narrow adds to a query what the rights of a request require, so that chains and _has
// tell of nothing that it may not read.
func (s *Service) narrow(ctx context.Context, q *search.Query) (*search.Query, error) {
	p := access.From(ctx)
	if s.Service.Access == nil || p == nil || p.IsOpen() {
		return q, nil
	}
	return s.Service.Access.For(ctx, p).Narrow(q, smart.Read|smart.Search)
}
