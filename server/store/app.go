package store

import (
	"context"

	"kiln/gen/db"
)

// AppsVersion differs when an App has been written.
func (s *Store) AppsVersion(ctx context.Context) (int64, error) {
	v, err := db.New(s.side).AppsVersion(ctx)
	return v, translate(err)
}

// BumpApps makes AppsVersion another one when the transaction commits. Until then
// no other transaction can do so.
func (t *Tx) BumpApps(ctx context.Context) error { return translate(db.New(t.tx).BumpApps(ctx)) }
