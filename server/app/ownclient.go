package app

import (
	"context"

	"github.com/jackc/pgx/v5"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/smart"
)

// clientPrefix begins the id of an App's own client.
const clientPrefix = "app-"

// Clients are the Apps' own clients of the authorization server: app-<id>, without scopes
// until an administrator grants some. docs/contract.md, Apps, section 1.
type Clients interface {
	// Make makes the client of an App in a transaction, where there is none.
	Make(ctx context.Context, conn pgx.Tx, app, name string) error
	// Remove deletes it in a transaction; its tokens end.
	Remove(ctx context.Context, conn pgx.Tx, app string) error
	// Scopes returns the granted scopes of the client, "" for none and for a disabled client.
	Scopes(ctx context.Context, app string) (string, error)
	// Grant gives the client scopes in place of those that it had.
	Grant(ctx context.Context, app, name string, scopes []string) error
	// Token is an access token of the client.
	Token(ctx context.Context, app string) (string, error)
}

// principal returns the principal of an App itself.
func (p *Platform) principal(ctx context.Context, app string) (*access.Principal, error) {
	if p.Clients == nil {
		return access.Open, nil
	}
	text, err := p.Clients.Scopes(ctx, app)
	if err != nil {
		return nil, err
	}
	scopes, err := smart.Parse(text)
	if err != nil {
		return nil, err
	}
	if scopes.Empty() {
		return nil, outcome.New(outcome.CodeForbidden, "App/%s has no grant: an administrator gives one by POST /admin/apps/%s/grants", app, app)
	}
	return &access.Principal{Subject: clientPrefix + app, ClientID: clientPrefix + app, Scopes: scopes}, nil
}

// contextOfHandler returns the context of a handler's fhir.* calls: with the rights of the caller, or of its App.
func (p *Platform) contextOfHandler(ctx context.Context, e *entry) (context.Context, error) {
	if e.auth != "app" {
		return ctx, nil
	}
	c, err := p.principal(ctx, e.app)
	if err != nil {
		return nil, err
	}
	return access.WithPrincipal(ctx, c), nil
}

// bearerToken is the token that an http handler gets, "" for none.
func (p *Platform) bearerToken(ctx context.Context, e *entry, callers string) (string, error) {
	switch {
	case e.auth == "caller":
		return callers, nil
	case e.auth == "app" && p.Clients != nil:
		if _, err := p.principal(ctx, e.app); err != nil {
			return "", err
		}
		return p.Clients.Token(ctx, e.app)
	}
	return "", nil
}

// checkGranted refuses to make an App active that has no grant and needs one.
func (p *Platform) checkGranted(ctx context.Context, id, at, why string) error {
	if p.Clients == nil {
		return nil
	}
	scopes, err := p.Clients.Scopes(ctx, id)
	if err != nil || scopes != "" {
		return err
	}
	return unprocessable(at, "%s, and the App has no grant: an administrator gives one by POST /admin/apps/%s/grants {\"scopes\": [\"system/…\"]} before the App is made active", why, clip(id))
}

// checkScopes reads the scopes of a grant: system scopes alone.
func checkScopes(list []string) error {
	for _, text := range list {
		scope, err := smart.ParseScope(text)
		if err != nil {
			return outcome.Invalid("scopes: %v", err)
		}
		if scope.Context != smart.System {
			return outcome.Invalid("scopes has %q: an App has no user and no patient, so expected scopes such as system/Observation.rs", clip(text))
		}
	}
	return nil
}
