package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
)

// Limits of the stored searches of a database. Those whose last use is longest ago are deleted first.
const (
	maxStoredSearches     = 10_000
	maxStoredSearchesSize = 1 << 30 // bytes of parameters
)

// storedSearchLock is the number of the advisory lock that serialises additions to the stored searches.
const storedSearchLock = 0x6b737368 // "kssh"

// PutStoredSearch keeps the path and parameters of a search for its owner, and returns a token for them. It deletes the
// searches that were last used before maxAge.
func (s *Store) PutStoredSearch(ctx context.Context, owner, self string, maxAge time.Duration) (token string, err error) {
	random := make([]byte, 24)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	token = base64.RawURLEncoding.EncodeToString(random)
	key := sha256.Sum256([]byte(token))
	err = pgx.BeginFunc(ctx, s.side, func(tx pgx.Tx) error {
		// The connections of side do not wait for the disk; links have to outlive a crash.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = on"); err != nil {
			return err
		}
		q := db.New(tx)
		if err := q.Lock(ctx, []int64{storedSearchLock}); err != nil {
			return err
		}
		if err := q.PutStoredSearch(ctx, db.PutStoredSearchParams{Token: key[:], Owner: owner, Self: self}); err != nil {
			return err
		}
		return q.TrimStoredSearches(ctx, trimmed(maxAge))
	})
	return token, translateError(err)
}

// UseStoredSearch returns the path and parameters of a stored search; ok is false if the token is unknown, belongs to
// another owner, or was last used before maxAge.
func (s *Store) UseStoredSearch(ctx context.Context, owner, token string, maxAge time.Duration) (self string, ok bool, err error) {
	key := sha256.Sum256([]byte(token))
	self, err = db.New(s.side).UseStoredSearch(ctx, db.UseStoredSearchParams{Token: key[:], Owner: owner, Seconds: maxAge.Seconds()})
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, nil
	}
	return self, err == nil, translateError(err)
}

// TrimStoredSearches deletes the stored searches that were last used before maxAge.
func (s *Store) TrimStoredSearches(ctx context.Context, maxAge time.Duration) error {
	return translateError(db.New(s.side).TrimStoredSearches(ctx, trimmed(maxAge)))
}

func trimmed(maxAge time.Duration) db.TrimStoredSearchesParams {
	return db.TrimStoredSearchesParams{Seconds: maxAge.Seconds(), Most: maxStoredSearches, MostBytes: maxStoredSearchesSize}
}
