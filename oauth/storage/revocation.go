package storage

import (
	"context"
	"fmt"
	"kiln/gen/db"
	"time"
)

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

// longest is how long a revocation is kept: longer than an access token can live.
const longest = 400 * 24 * time.Hour

func (s *Store) revoke(ctx context.Context, grants []string) error {
	if len(grants) == 0 {
		return nil
	}
	if err := s.q.RevokeOAuthRefresh(ctx, grants); err != nil {
		return err
	}
	return s.Revoke(ctx, KindGrant, grants)
}

// Revocation is something that is no longer good.
type Revocation struct {
	Kind, ID                  string
	Before, Expires, Recorded time.Time
}

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
