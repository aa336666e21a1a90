package storage

import (
	"context"
	"errors"
	"kiln/gen/db"

	"github.com/ory/fosite"
)

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
