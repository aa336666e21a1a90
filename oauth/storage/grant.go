package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/ory/fosite"

	"kiln/gen/db"
)

// ErrUsed is the loser's error where several use what can be used once.
var ErrUsed = fmt.Errorf("used already: %w", fosite.ErrSerializationFailure)

// grace is how long a rotated refresh token that comes again is told to be invalid
// and nothing more: two tabs that refresh together are no theft.
const grace = 10 * time.Second

// request is a fosite request as it is stored.
type request struct {
	ID             string     `json:"id"`
	RequestedAt    time.Time  `json:"requestedAt"`
	RequestedScope []string   `json:"requestedScope"`
	GrantedScope   []string   `json:"grantedScope"`
	Form           url.Values `json:"form,omitempty"`
	Session        *Session   `json:"session"`
}

func encode(r fosite.Requester, scopes []string) (body []byte, session *Session, err error) {
	session, ok := r.GetSession().(*Session)
	if !ok {
		return nil, nil, fmt.Errorf("the session is a %T", r.GetSession())
	}
	body, err = json.Marshal(request{
		ID: r.GetID(), RequestedAt: r.GetRequestedAt(), RequestedScope: r.GetRequestedScopes(), GrantedScope: scopes,
		Form: r.GetRequestForm(), Session: session,
	})
	return body, session, err
}

// decode reads a stored request. Its client must still be there and active.
func (s *Store) decode(ctx context.Context, body []byte, client string) (*fosite.Request, error) {
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("read a stored request: %w", err)
	}
	c, err := s.GetClient(ctx, client)
	if err != nil {
		return nil, err
	}
	return &fosite.Request{
		ID: r.ID, RequestedAt: r.RequestedAt, Client: c, RequestedScope: r.RequestedScope, GrantedScope: r.GrantedScope,
		Form: r.Form, Session: r.Session, RequestedAudience: fosite.Arguments{}, GrantedAudience: fosite.Arguments{},
	}, nil
}

// GetClient returns an active client.
func (s *Store) GetClient(ctx context.Context, id string) (fosite.Client, error) {
	c, err := s.Client(ctx, id)
	if errors.Is(err, ErrNotFound) || err == nil && !c.Active {
		return nil, fosite.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ClientAssertionJWTValid is not asked: UseAssertion is.
func (s *Store) ClientAssertionJWTValid(context.Context, string) error { return fosite.ErrJTIKnown }

// SetClientAssertionJWT is not asked: UseAssertion is.
func (s *Store) SetClientAssertionJWT(context.Context, string, time.Time) error {
	return fosite.ErrJTIKnown
}

// UseAssertion notes that an assertion was used; it fails with ErrUsed the second
// time. RFC 7523 §3.
func (s *Store) UseAssertion(ctx context.Context, issuer, jti string, expires time.Time) error {
	n, err := s.q.InsertOAuthAssertion(ctx, db.InsertOAuthAssertionParams{Issuer: issuer, Jti: jti, Expires: expires})
	if err != nil {
		return fmt.Errorf("note an assertion: %w", err)
	}
	if n == 0 {
		return ErrUsed
	}
	return nil
}

// byOurClock moves an expiry that fosite has reckoned by the clock of the machine.
func (s *Store) byOurClock(r fosite.Requester, kind fosite.TokenType) {
	session := r.GetSession()
	session.SetExpiresAt(kind, s.Now().Add(time.Until(session.GetExpiresAt(kind))))
}

// missing is ErrNotFound in fosite's words.
func missing(err error) error {
	if errors.Is(err, ErrNotFound) {
		return fosite.ErrNotFound
	}
	return err
}

// CreateAccessTokenSession stores the grant that the token belongs to; the token
// itself is a JWT that says all there is. Without a user there is no grant.
func (s *Store) CreateAccessTokenSession(ctx context.Context, _ string, r fosite.Requester) error {
	_, session, err := encode(r, r.GetGrantedScopes())
	if err != nil || session.Username == "" {
		return err
	}
	return s.putGrant(ctx, r, session, session.GetExpiresAt(fosite.AccessToken))
}

func (s *Store) putGrant(ctx context.Context, r fosite.Requester, session *Session, expires time.Time) error {
	login := session.Login
	if r.GetGrantedScopes().Has("offline_access") {
		login = "" // it outlives the sign-in
	}
	launch, err := json.Marshal(session.Context)
	if err != nil {
		return err
	}
	return s.q.InsertOAuthGrant(ctx, db.InsertOAuthGrantParams{
		ID: r.GetID(), ClientID: r.GetClient().GetID(), Username: session.Username, Login: login,
		Scope: strings.Join(r.GetGrantedScopes(), " "), Context: launch, Created: s.Now(), Expires: expires,
	})
}

// GrantContext is the launch context of a grant.
func (s *Store) GrantContext(ctx context.Context, id string) (c Context, err error) {
	b, err := s.q.OAuthGrantContext(ctx, id)
	if err := wrapNotFound(err, "read grant"); err != nil {
		return Context{}, err
	}
	return c, json.Unmarshal(b, &c)
}

// CreateGrant stores a grant that no code gave: of a token that an administrator made.
func (s *Store) CreateGrant(ctx context.Context, id, client, username, scope string, expires time.Time) error {
	return s.q.InsertOAuthGrant(ctx, db.InsertOAuthGrantParams{ID: id, ClientID: client, Username: username, Scope: scope, Context: []byte("{}"), Created: s.Now(), Expires: expires})
}

// GetAccessTokenSession finds the grant of an access token.
func (s *Store) GetAccessTokenSession(ctx context.Context, token string, _ fosite.Session) (fosite.Requester, error) {
	grant, client, jti, err := s.LookupGrant(ctx, token)
	if err != nil {
		return nil, missing(err)
	}
	c, err := s.GetClient(ctx, client)
	if err != nil {
		return nil, err
	}
	if grant == "" {
		grant = tokenPrefix + jti
	}
	return &fosite.Request{ID: grant, Client: c, Session: &Session{}}, nil
}

// tokenPrefix marks a request id that is the jti of a token without a grant.
const tokenPrefix = "token:"

// DeleteAccessTokenSession has nothing to do: RevokeAccessToken revokes.
func (s *Store) DeleteAccessTokenSession(context.Context, string) error { return nil }

// RevokeAccessToken revokes all of a grant, or the one token where there is none.
func (s *Store) RevokeAccessToken(ctx context.Context, grant string) error {
	if jti, ok := strings.CutPrefix(grant, tokenPrefix); ok {
		return s.Revoke(ctx, KindToken, []string{jti})
	}
	return s.RevokeRefreshToken(ctx, grant)
}
