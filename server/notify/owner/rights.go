package owner

import (
	"context"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/outcome"
	"kiln/server/search/match"
	"kiln/server/smart"
)

// Rights decide which resources the owner of a Subscription may see.
type Rights interface {
	// Principal is the owner as of now. It fails with login or forbidden where the client
	// is revoked or the user disabled.
	Principal(ctx context.Context, o Owner) (*access.Principal, error)
	matching.Viewer
}

// FindPrincipal returns an owner with the rights of now; nil where everybody may read everything.
func FindPrincipal(ctx context.Context, rights Rights, o Owner) (*access.Principal, error) {
	if rights == nil {
		return nil, nil
	}
	return rights.Principal(ctx, o)
}

// WithPrincipal returns a context with the rights of a principal; for nil the rights of ctx stay.
func WithPrincipal(ctx context.Context, p *access.Principal) context.Context {
	if p == nil {
		return ctx
	}
	return access.WithPrincipal(ctx, p)
}

// IsRevoked reports whether an error of Rights says that the access has ended.
func IsRevoked(err error) bool { return outcome.Is(err, outcome.CodeLogin, outcome.CodeForbidden) }

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

// ErrNoOwner is the error of Decided for such a Subscription.
var ErrNoOwner = outcome.New(outcome.CodeLogin, NoOwner)

// Principal implements Rights.
func (d Decided) Principal(ctx context.Context, o Owner) (*access.Principal, error) {
	if o.Subject == "" && o.Client == "" {
		if d.Authorized {
			return nil, ErrNoOwner
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
