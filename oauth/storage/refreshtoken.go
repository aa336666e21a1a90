package storage

import (
	"context"
	"errors"
	"fmt"
	"kiln/gen/db"
	"strings"

	"github.com/ory/fosite"
)

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
