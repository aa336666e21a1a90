package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/outcome"
)

// Policies returns the access policies as JSON, by name, and the version that every
// change of one raises. With known, the version that the caller has, they are nil
// where nothing has changed.
func (s *Store) Policies(ctx context.Context, known int64) (documents map[string][]byte, version int64, err error) {
	q := db.New(s.side)
	lost := s.FactPool()
	if lost != nil {
		q = db.New(lost)
	}
	// The version first: what changes meanwhile has a later one.
	if version, err = q.ReadPolicyVersion(ctx); err != nil || version == known {
		return nil, version, translateError(err)
	}
	if lost != nil && version < known { // the standby lags: this server has newer policies
		return nil, known, nil
	}
	rows, err := q.ReadPolicies(ctx)
	if err != nil {
		return nil, 0, translateError(err)
	}
	documents = make(map[string][]byte, len(rows))
	for _, r := range rows {
		documents[r.Name] = []byte(r.Document)
	}
	return documents, version, nil
}

// ChangePolicy makes a policy what change makes of its JSON, nil of one that there is
// not: nil deletes it. It is durable on return. created says that there was none.
func (s *Store) ChangePolicy(ctx context.Context, name string, change func(old []byte) ([]byte, error)) (created bool, err error) {
	err = s.InTx(ctx, func(tx *Tx) error {
		q := db.New(tx.tx)
		if _, err := q.RaisePolicyVersion(ctx); err != nil {
			return err
		}
		var old []byte
		text, err := q.ReadPolicy(ctx, name)
		switch {
		case err == nil:
			old = []byte(text)
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		next, err := change(old)
		switch {
		case err != nil:
			return err
		case next != nil:
			created, err = q.PutPolicy(ctx, db.PutPolicyParams{Name: name, Document: string(next), LastUpdated: s.now()})
			return err
		}
		n, err := q.DeletePolicy(ctx, name)
		if err == nil && n == 0 {
			return outcome.New(outcome.CodeNotFound, "there is no policy %q", name)
		}
		return err
	})
	return created, err
}
