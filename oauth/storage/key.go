package storage

import (
	"context"
	"time"

	"kiln/gen/db"
)

// Key is a signing key as it is stored.
type Key struct {
	Kid            string
	Algorithm      string
	Private        []byte // PKCS #8, sealed where Sealed
	Sealed         bool
	Created        time.Time
	SignsFrom      time.Time
	PublishedUntil time.Time
	TokensUntil    time.Time // no token that it has signed is good for longer
}

// Keys returns every key, oldest first.
func (s *Store) Keys(ctx context.Context) ([]Key, error) {
	rows, err := s.q.OAuthKeys(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Key, len(rows))
	for i, r := range rows {
		out[i] = Key(r)
	}
	return out, nil
}

// ChangeKeys runs change while no other server changes keys, with the keys there are.
func (s *Store) ChangeKeys(ctx context.Context, change func(ctx context.Context, keys []Key) error) error {
	return s.InTx(ctx, func(ctx context.Context) error {
		if err := s.q.LockOAuthKeys(ctx); err != nil {
			return err
		}
		keys, err := s.Keys(ctx)
		if err != nil {
			return err
		}
		return change(ctx, keys)
	})
}

// AddKey stores a key.
func (s *Store) AddKey(ctx context.Context, k Key) error {
	return s.q.InsertOAuthKey(ctx, db.InsertOAuthKeyParams(k))
}

// SealKey replaces the private part of a key by its sealed form.
func (s *Store) SealKey(ctx context.Context, id string, sealed []byte) error {
	return s.q.SealOAuthKey(ctx, db.SealOAuthKeyParams{Kid: id, Private: sealed})
}

// StartKey says from when a key signs.
func (s *Store) StartKey(ctx context.Context, id string, from time.Time) error {
	return s.q.StartOAuthKey(ctx, db.StartOAuthKeyParams{Kid: id, SignsFrom: from})
}

// KeepKey says that a token which a key signs is good until then; the key is published
// for as long.
func (s *Store) KeepKey(ctx context.Context, id string, until time.Time) error {
	return s.q.KeepOAuthKey(ctx, db.KeepOAuthKeyParams{Kid: id, TokensUntil: until})
}

// RetireKey ends the publication of a key, when it signs no more and its tokens are over.
func (s *Store) RetireKey(ctx context.Context, id string, from time.Time) error {
	return s.q.RetireOAuthKey(ctx, db.RetireOAuthKeyParams{Kid: id, SignsUntil: from})
}

// WithdrawKeys deletes keys, and revokes the tokens that they have signed.
func (s *Store) WithdrawKeys(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if err := s.q.DeleteOAuthKey(ctx, id); err != nil {
			return err
		}
	}
	return s.Revoke(ctx, KindKey, ids)
}

// APIKey is a key of an internal service.
type APIKey struct {
	ID      string
	Hash    string
	Name    string
	Scope   string
	Created time.Time
	Expires time.Time // Never for none
	Revoked bool
}

// Never is when what does not expire expires.
var Never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// CreateAPIKey stores an API key.
func (s *Store) CreateAPIKey(ctx context.Context, k APIKey) error {
	return s.q.InsertOAuthAPIKey(ctx, db.InsertOAuthAPIKeyParams{ID: k.ID, Hash: k.Hash, Name: k.Name, Scope: k.Scope, Created: k.Created, Expires: k.Expires})
}

// APIKey returns an API key, revoked ones too.
func (s *Store) APIKey(ctx context.Context, id string) (APIKey, error) {
	k, err := s.q.OAuthAPIKey(ctx, id)
	return APIKey(k), wrapNotFound(err, "read API key")
}

// APIKeys returns every API key, oldest first.
func (s *Store) APIKeys(ctx context.Context) ([]APIKey, error) {
	rows, err := s.q.OAuthAPIKeys(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]APIKey, len(rows))
	for i, r := range rows {
		out[i] = APIKey(r)
	}
	return out, nil
}

// RevokeAPIKey revokes an API key.
func (s *Store) RevokeAPIKey(ctx context.Context, id string) error {
	n, err := s.q.RevokeOAuthAPIKey(ctx, id)
	if err := expectOneRow(n, err, "revoke API key"); err != nil {
		return err
	}
	return s.Revoke(ctx, KindAPIKey, []string{id})
}

// DeleteAPIKey takes an API key out of the list; it is revoked.
func (s *Store) DeleteAPIKey(ctx context.Context, id string) error {
	if err := s.Revoke(ctx, KindAPIKey, []string{id}); err != nil {
		return err
	}
	return s.q.DeleteOAuthAPIKey(ctx, id)
}
