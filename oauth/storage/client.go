package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ory/fosite"

	"kiln/gen/db"
)

// The ways in which a client authenticates. RFC 7591 §2, OpenID Connect Core §9.
const (
	MethodNone   = "none"
	MethodBasic  = "client_secret_basic"
	MethodPost   = "client_secret_post"
	MethodJWT    = "private_key_jwt"
	grantRefresh = "refresh_token"
)

// Client is a registered client, in the words of /admin/clients.
type Client struct {
	ID                      string          `json:"clientId"`
	Name                    string          `json:"name"`
	Confidential            bool            `json:"confidential"`
	TokenEndpointAuthMethod string          `json:"tokenEndpointAuthMethod"`
	JWKS                    json.RawMessage `json:"jwks,omitempty"`
	JWKSURI                 string          `json:"jwksUri,omitempty"`
	RedirectURIs            []string        `json:"redirectUris"`
	PostLogoutRedirectURIs  []string        `json:"postLogoutRedirectUris"`
	LaunchURI               string          `json:"launchUri,omitempty"`
	GrantTypes              []string        `json:"grantTypes"`
	Scopes                  []string        `json:"scopes"`
	AccessTokenLifetime     string          `json:"accessTokenLifetime,omitempty"`
	RefreshTokenLifetime    string          `json:"refreshTokenLifetime,omitempty"`
	PKCERequired            bool            `json:"pkceRequired"`
	AllowedOrigins          []string        `json:"allowedOrigins"`
	MayIntrospect           bool            `json:"mayIntrospect"`
	Trusted                 bool            `json:"trusted"`
	IDTokenSigningAlg       string          `json:"idTokenSigningAlg"`
	Active                  bool            `json:"active"`

	// AnySecretMethod lets a client whose registration names no method send its
	// secret by either.
	AnySecretMethod bool `json:"anySecretMethod,omitempty"`
	// Secret is the hash of the client's secret, "" without one.
	Secret  string    `json:"-"`
	Created time.Time `json:"-"`
	Updated time.Time `json:"-"`

	access, refresh time.Duration
}

// The methods that fosite asks for.

// GetID is the client id.
func (c *Client) GetID() string { return c.ID }

// GetHashedSecret is nothing that fosite needs: oauth authenticates clients.
func (c *Client) GetHashedSecret() []byte { return nil }

// GetRedirectURIs are the registered ones.
func (c *Client) GetRedirectURIs() []string { return c.RedirectURIs }

// GetGrantTypes are the grant types that the client may use.
func (c *Client) GetGrantTypes() fosite.Arguments { return c.GrantTypes }

// GetResponseTypes is code alone.
func (c *Client) GetResponseTypes() fosite.Arguments { return fosite.Arguments{"code"} }

// GetScopes are the scopes that the client may request.
func (c *Client) GetScopes() fosite.Arguments { return c.Scopes }

// IsPublic reports whether the client has no way to authenticate.
func (c *Client) IsPublic() bool { return !c.Confidential }

// GetAudience is not restricted by client.
func (c *Client) GetAudience() fosite.Arguments { return nil }

// SetLifetimes gives the client's own lifetimes; 0 means the server's.
func (c *Client) SetLifetimes(access, refresh time.Duration) { c.access, c.refresh = access, refresh }

// GetEffectiveLifespan is how long a token of the client is good.
func (c *Client) GetEffectiveLifespan(_ fosite.GrantType, t fosite.TokenType, fallback time.Duration) time.Duration {
	switch {
	case t == fosite.AccessToken && c.access > 0:
		return c.access
	case t == fosite.RefreshToken && c.refresh > 0:
		return c.refresh
	}
	return fallback
}

func readClient(row db.OauthClient) (*Client, error) {
	c := new(Client)
	if err := json.Unmarshal(row.Registration, c); err != nil {
		return nil, fmt.Errorf("read the registration of client %s: %w", row.ID, err)
	}
	c.ID, c.Secret, c.Active, c.Created, c.Updated = row.ID, row.Secret, row.Active, row.Created, row.Updated
	c.access, _ = ParseLifetime(c.AccessTokenLifetime)
	c.refresh, _ = ParseLifetime(c.RefreshTokenLifetime)
	return c, nil
}

// Client returns a client, disabled ones too.
func (s *Store) Client(ctx context.Context, id string) (*Client, error) {
	row, err := s.q.OAuthClient(ctx, id)
	if err != nil {
		return nil, wrapNotFound(err, "read client")
	}
	return readClient(row)
}

// Clients returns every client, by id.
func (s *Store) Clients(ctx context.Context) ([]*Client, error) {
	rows, err := s.q.OAuthClients(ctx)
	if err != nil {
		return nil, fmt.Errorf("read clients: %w", err)
	}
	out := make([]*Client, len(rows))
	for i, row := range rows {
		if out[i], err = readClient(row); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CreateClient fails with ErrExists where the id is taken.
func (s *Store) CreateClient(ctx context.Context, c *Client) error {
	registration, err := json.Marshal(c)
	if err != nil {
		return err
	}
	n, err := s.q.InsertOAuthClient(ctx, db.InsertOAuthClientParams{ID: c.ID, Registration: registration, Secret: c.Secret, Active: c.Active, Now: s.Now()})
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	if n == 0 {
		return ErrExists
	}
	return nil
}

// UpdateClient replaces a client.
func (s *Store) UpdateClient(ctx context.Context, c *Client) error {
	registration, err := json.Marshal(c)
	if err != nil {
		return err
	}
	n, err := s.q.UpdateOAuthClient(ctx, db.UpdateOAuthClientParams{ID: c.ID, Registration: registration, Secret: c.Secret, Active: c.Active, Now: s.Now()})
	return expectOneRow(n, err, "update client")
}

// DeleteClient deletes a client and what users consented to for it.
func (s *Store) DeleteClient(ctx context.Context, id string) error {
	n, err := s.q.DeleteOAuthClient(ctx, id)
	if err := expectOneRow(n, err, "delete client"); err != nil {
		return err
	}
	return s.q.DeleteOAuthConsents(ctx, db.DeleteOAuthConsentsParams{ClientID: id})
}
