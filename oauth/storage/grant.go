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

// CreateAuthorizeCodeSession stores a code.
func (s *Store) CreateAuthorizeCodeSession(ctx context.Context, signature string, r fosite.Requester) error {
	s.byOurClock(r, fosite.AuthorizeCode)
	body, session, err := encode(r, r.GetGrantedScopes())
	if err != nil {
		return err
	}
	return s.q.InsertOAuthCode(ctx, db.InsertOAuthCodeParams{
		Signature: signature, GrantID: r.GetID(), ClientID: r.GetClient().GetID(), Request: body, Expires: session.GetExpiresAt(fosite.AuthorizeCode),
	})
}

// CodeUsed reports whether a code was used, or is no longer kept.
func (s *Store) CodeUsed(ctx context.Context, signature string) (bool, error) {
	row, err := s.q.OAuthCode(ctx, signature)
	err = wrapNotFound(err, "read code")
	if errors.Is(err, ErrNotFound) {
		return true, nil
	}
	return !row.Active, err
}

// GetAuthorizeCodeSession returns the request of a code. For a used code it adds
// ErrInvalidatedAuthorizeCode, so that fosite revokes the tokens of the code.
func (s *Store) GetAuthorizeCodeSession(ctx context.Context, signature string, _ fosite.Session) (fosite.Requester, error) {
	row, err := s.q.OAuthCode(ctx, signature)
	if err := wrapNotFound(err, "read code"); err != nil {
		return nil, missing(err)
	}
	r, err := s.decode(ctx, row.Request, row.ClientID)
	if err != nil {
		return nil, err
	}
	if !row.Active {
		return r, fosite.ErrInvalidatedAuthorizeCode
	}
	return r, nil
}

// missing is ErrNotFound in fosite's words.
func missing(err error) error {
	if errors.Is(err, ErrNotFound) {
		return fosite.ErrNotFound
	}
	return err
}

// InvalidateAuthorizeCodeSession uses a code; it fails with ErrUsed for all but one.
func (s *Store) InvalidateAuthorizeCodeSession(ctx context.Context, signature string) error {
	n, err := s.q.UseOAuthCode(ctx, signature)
	if err := expectOneRow(n, err, "use code"); err != nil {
		if errors.Is(err, ErrNotFound) {
			return ErrUsed
		}
		return err
	}
	return nil
}

// CreatePKCERequestSession has nothing to do: the code's request holds the challenge.
func (s *Store) CreatePKCERequestSession(context.Context, string, fosite.Requester) error { return nil }

// DeletePKCERequestSession has nothing to do: the challenge lives and ends with its
// code, so that no wrong verifier can take it off.
func (s *Store) DeletePKCERequestSession(context.Context, string) error { return nil }

// GetPKCERequestSession returns the request that holds the challenge.
func (s *Store) GetPKCERequestSession(ctx context.Context, signature string, session fosite.Session) (fosite.Requester, error) {
	r, err := s.GetAuthorizeCodeSession(ctx, signature, session)
	if err == nil && r.GetRequestForm().Get("code_challenge") == "" {
		return nil, fosite.ErrNotFound
	}
	return r, err
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

// CreateRefreshTokenSession stores a refresh token with the scopes of its family,
// however narrow the request was. RFC 6749 §6.
func (s *Store) CreateRefreshTokenSession(ctx context.Context, signature, _ string, r fosite.Requester) error {
	session, ok := r.GetSession().(*Session)
	if !ok {
		return fmt.Errorf("the session is a %T", r.GetSession())
	}
	scopes := session.Granted
	if len(scopes) == 0 {
		scopes = r.GetGrantedScopes()
	}
	s.byOurClock(r, fosite.RefreshToken)
	body, session, err := encode(r, scopes)
	if err != nil {
		return err
	}
	expires := session.GetExpiresAt(fosite.RefreshToken)
	if err := s.q.InsertOAuthRefresh(ctx, db.InsertOAuthRefreshParams{
		Signature: signature, GrantID: r.GetID(), ClientID: r.GetClient().GetID(), Request: body, Expires: expires,
	}); err != nil {
		return fmt.Errorf("store refresh token: %w", err)
	}
	return s.putGrant(ctx, r, session, expires)
}

// GetRefreshTokenSession returns the request that a refresh token is of. One that
// was rotated more than ten seconds ago comes with ErrInactiveToken, so that fosite
// revokes the family; sooner it is not found, like any that is not good.
func (s *Store) GetRefreshTokenSession(ctx context.Context, signature string, _ fosite.Session) (fosite.Requester, error) {
	row, err := s.q.OAuthRefresh(ctx, signature)
	if err := wrapNotFound(err, "read refresh token"); err != nil {
		return nil, missing(err)
	}
	if row.Revoked {
		return nil, fosite.ErrNotFound
	}
	r, err := s.decode(ctx, row.Request, row.ClientID)
	switch {
	case err != nil:
		return nil, err
	case row.Active:
		return r, nil
	case row.Rotated.Add(grace).After(s.Now()):
		return nil, fosite.ErrNotFound
	}
	return r, fosite.ErrInactiveToken
}

// ClientOfRefreshToken names the client that a refresh token was given to.
func (s *Store) ClientOfRefreshToken(ctx context.Context, signature string) (string, error) {
	row, err := s.q.OAuthRefresh(ctx, signature)
	return row.ClientID, wrapNotFound(err, "read refresh token")
}

// DeleteRefreshTokenSession has nothing to do: RevokeRefreshToken revokes the family.
func (s *Store) DeleteRefreshTokenSession(context.Context, string) error { return nil }

// RotateRefreshToken uses a refresh token; it fails with ErrUsed for all but one.
func (s *Store) RotateRefreshToken(ctx context.Context, _ string, signature string) error {
	n, err := s.q.RotateOAuthRefresh(ctx, db.RotateOAuthRefreshParams{Signature: signature, Now: s.Now()})
	if err := expectOneRow(n, err, "rotate refresh token"); err != nil {
		if errors.Is(err, ErrNotFound) {
			return ErrUsed
		}
		return err
	}
	return nil
}

// RevokeRefreshToken revokes all of a grant.
func (s *Store) RevokeRefreshToken(ctx context.Context, grant string) error {
	if strings.HasPrefix(grant, tokenPrefix) {
		return nil
	}
	if _, err := s.q.RevokeOAuthGrant(ctx, grant); err != nil {
		return err
	}
	return s.revoke(ctx, []string{grant})
}

// RevokeAccessToken revokes all of a grant, or the one token where there is none.
func (s *Store) RevokeAccessToken(ctx context.Context, grant string) error {
	if jti, ok := strings.CutPrefix(grant, tokenPrefix); ok {
		return s.Revoke(ctx, KindToken, []string{jti})
	}
	return s.RevokeRefreshToken(ctx, grant)
}

func (s *Store) revoke(ctx context.Context, grants []string) error {
	if len(grants) == 0 {
		return nil
	}
	if err := s.q.RevokeOAuthRefresh(ctx, grants); err != nil {
		return err
	}
	return s.Revoke(ctx, KindGrant, grants)
}

// ChangedKeys is the signing keys, of KindChanged. No client has this id.
const ChangedKeys = "signing keys"

// Kinds of revocations.
const (
	KindToken  = "token"  // an access token, by jti
	KindGrant  = "grant"  // all tokens of an authorization, by sid
	KindClient = "client" // all that a client got until then
	KindAPIKey = "apikey"
	KindKey    = "key" // all that a signing key has signed, by its kid
	// KindChanged revokes nothing: another thing that servers remember has changed, such as
	// ChangedKeys, or the origins of a client, by its id.
	KindChanged = "changed"
)

// Revocation is something that is no longer good.
type Revocation struct {
	Kind, ID                  string
	Before, Expires, Recorded time.Time
}

// longest is how long a revocation is kept: longer than an access token can live.
const longest = 400 * 24 * time.Hour

// Revoke records that something is no longer good.
func (s *Store) Revoke(ctx context.Context, kind string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	now := s.Now()
	return s.q.InsertOAuthRevocations(ctx, db.InsertOAuthRevocationsParams{Kind: kind, Ids: ids, Before: now, Expires: now.Add(longest)})
}

// RevokeUser revokes every grant of a user and ends the user's sign-ins, with unfinished
// flows and unused codes; it returns the grants.
func (s *Store) RevokeUser(ctx context.Context, username string) (grants []string, err error) {
	// In the order of creation: the next step finds objects made in between.
	if err := s.q.DeleteOAuthFlowsOfUser(ctx, username); err != nil {
		return nil, err
	}
	if err := s.q.DeleteOAuthCodesOfUser(ctx, username); err != nil {
		return nil, err
	}
	if grants, err = s.q.RevokeOAuthGrantsOfUser(ctx, db.RevokeOAuthGrantsOfUserParams{Username: username, Now: s.Now()}); err != nil {
		return nil, err
	}
	if err := s.q.DeleteOAuthLoginsOfUser(ctx, username); err != nil {
		return nil, err
	}
	return grants, s.revoke(ctx, grants)
}

// RevokeClient revokes every grant, code and token of a client.
func (s *Store) RevokeClient(ctx context.Context, client string) (grants []string, err error) {
	if err := s.q.DeleteOAuthCodesOfClient(ctx, client); err != nil {
		return nil, err
	}
	if grants, err = s.q.RevokeOAuthGrantsOfClient(ctx, db.RevokeOAuthGrantsOfClientParams{ClientID: client, Now: s.Now()}); err != nil {
		return nil, err
	}
	if err := s.revoke(ctx, grants); err != nil {
		return nil, err
	}
	return grants, s.Revoke(ctx, KindClient, []string{client})
}

// RevokeLogin ends a sign-in with its unfinished flows, unused codes and grants, except
// grants with offline_access. It returns the grants.
func (s *Store) RevokeLogin(ctx context.Context, login string) (grants []string, err error) {
	// In the order of creation: the next step finds objects made in between.
	if err := s.q.DeleteOAuthLogin(ctx, login); err != nil {
		return nil, err
	}
	if err := s.q.DeleteOAuthFlowsOfBrowser(ctx, login); err != nil {
		return nil, err
	}
	if err := s.q.DeleteOAuthCodesOfLogin(ctx, db.DeleteOAuthCodesOfLoginParams{Login: login, Now: s.Now()}); err != nil {
		return nil, err
	}
	if grants, err = s.q.RevokeOAuthGrantsOfLogin(ctx, login); err != nil {
		return nil, err
	}
	return grants, s.revoke(ctx, grants)
}

// Revocations returns the revocations recorded after since, by the database's clock.
func (s *Store) Revocations(ctx context.Context, since time.Time) ([]Revocation, error) {
	rows, err := s.q.OAuthRevocations(ctx, since)
	if err != nil {
		return nil, fmt.Errorf("read revocations: %w", err)
	}
	out := make([]Revocation, len(rows))
	for i, r := range rows {
		out[i] = Revocation(r)
	}
	return out, nil
}

// StandingParams identify the authorization of an earlier token.
type StandingParams struct{ Client, Username, Token, Grant string }

// Standing are the facts that can end such an authorization.
type Standing struct {
	ClientKnown, ClientActive bool
	ClientRevoked             bool      // tokens issued to the client until ClientBefore have ended
	ClientBefore              time.Time // by the clock of the server that revoked it
	UserActive                bool
	Revoked                   bool // the token, or its grant
	APIKey                    bool // Token is the id of an API key that is good
}

// Standing asks the database.
func (s *Store) Standing(ctx context.Context, p StandingParams) (Standing, error) {
	r, err := s.q.OAuthStanding(ctx, db.OAuthStandingParams{ClientID: p.Client, Username: p.Username, Token: p.Token, GrantID: p.Grant, Now: s.Now()})
	if err != nil {
		return Standing{}, fmt.Errorf("read revocations: %w", err)
	}
	return Standing{ClientKnown: r.ClientKnown, ClientActive: r.ClientActive, ClientRevoked: r.ClientBefore.Unix() > 0, ClientBefore: r.ClientBefore,
		UserActive: r.UserActive, Revoked: r.Revoked, APIKey: r.Apikey}, nil
}
