package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/oauth/storage"
)

// AppClients are the clients of Apps: app-<id>, confidential, for client_credentials alone.
// One has no scopes until an administrator grants some, and no secret unless an
// administrator makes one.
type AppClients struct {
	Server *Server

	mu     sync.Mutex
	tokens map[string]appToken // by client id
}

// AppClients returns the clients of Apps.
func (s *Server) AppClients() *AppClients { return &AppClients{Server: s} }

// appToken is an access token with the state of the client that it was made in.
type appToken struct {
	text    string
	updated time.Time // of the client
	expires time.Time
}

// appTokenLifetime is how long a token of an App is good. It is used for half of it.
const appTokenLifetime = 10 * time.Minute

func appClientID(app string) string { return "app-" + app }

// Make makes the client of an App in a transaction, where there is none.
func (a *AppClients) Make(ctx context.Context, tx pgx.Tx, app, name string) error {
	return a.make(storage.WithTx(ctx, tx), app, name)
}

func (a *AppClients) make(ctx context.Context, app, name string) error {
	c, err := a.Server.client(clientBody{
		ClientID: appClientID(app), Name: printableText("App " + name[:min(len(name), 150)]),
		TokenEndpointAuthMethod: storage.MethodBasic, GrantTypes: []string{grantClientCredentials},
	})
	if err != nil {
		return err
	}
	if err = a.Server.Store.CreateClient(ctx, c); errors.Is(err, storage.ErrExists) {
		return nil
	}
	return err
}

// Remove deletes the client of an App in a transaction; its tokens end.
func (a *AppClients) Remove(ctx context.Context, tx pgx.Tx, app string) error {
	ctx = storage.WithTx(ctx, tx)
	if err := a.Server.Store.DeleteClient(ctx, appClientID(app)); err != nil {
		if errors.Is(err, storage.ErrNotFound) {
			return nil
		}
		return err
	}
	_, err := a.Server.Store.RevokeClient(ctx, appClientID(app))
	return err
}

// Scopes are the scopes of an App, "" for none, and for a disabled client.
func (a *AppClients) Scopes(ctx context.Context, app string) (string, error) {
	c, err := a.Server.Store.Client(ctx, appClientID(app))
	if errors.Is(err, storage.ErrNotFound) || err == nil && !c.Active {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return strings.Join(c.Scopes, " "), nil
}

// Grant gives the client of an App scopes in place of those that it had. Tokens with more
// than these end.
func (a *AppClients) Grant(ctx context.Context, app, name string, scopes []string) error {
	if err := a.make(ctx, app, name); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"scopes": orEmpty(scopes)})
	if err != nil {
		return err
	}
	_, err = a.Server.PatchClient(ctx, appClientID(app), patch)
	return err
}

// Token is an access token of the client of an App, with all that it was granted.
func (a *AppClients) Token(ctx context.Context, app string) (string, error) {
	id := appClientID(app)
	c, err := a.Server.Store.Client(ctx, id)
	if err != nil {
		return "", noSuch(err, "client", id)
	}
	now := a.Server.Now()
	a.mu.Lock()
	t, ok := a.tokens[id]
	a.mu.Unlock()
	if ok && t.updated.Equal(c.Updated) && now.Before(t.expires.Add(-appTokenLifetime/2)) {
		return t.text, nil
	}
	text, err := a.Server.Mint(ctx, a.Server.Issuer, a.Server.options.BaseURL, Minting{
		ClientID: id, Scope: strings.Join(c.Scopes, " "), Lifetime: appTokenLifetime.String(),
	})
	if err != nil {
		return "", err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tokens == nil {
		a.tokens = make(map[string]appToken)
	}
	a.tokens[id] = appToken{text, c.Updated, now.Add(appTokenLifetime)}
	return text, nil
}
