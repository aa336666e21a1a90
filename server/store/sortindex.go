package store

import (
	"context"
	"time"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// SortIndex is an order that an administrator wants the index to keep: of the search
// parameter Code of a resource type.
type SortIndex struct {
	ResourceType, Code string
	Key                fhir.Key // of the entries that there are, or that a job makes
	Created            time.Time
	// Removed says that it was taken back: searches do without, and its entries are
	// written as long as one may be under way that reads them.
	Removed bool
}

// SortIndexes are the rows of the table sort_index, by type and code. Like
// StoredParameters it has a connection of its own; which there are changes with the
// version of the search parameters, which are Removed with their progress.
func (s *Store) SortIndexes(ctx context.Context) ([]SortIndex, error) {
	return sortIndexes(ctx, s.side)
}

// SortIndexes is Store.SortIndexes inside the transaction.
func (t *Tx) SortIndexes(ctx context.Context) ([]SortIndex, error) { return sortIndexes(ctx, t.tx) }

func sortIndexes(ctx context.Context, conn querier) ([]SortIndex, error) {
	rows, err := db.New(conn).SortIndexes(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]SortIndex, len(rows))
	for i, r := range rows {
		out[i] = SortIndex{r.ResourceType, r.Code, fhir.Key(r.Key), r.Created.UTC(), r.Removed}
	}
	return out, nil
}

// AddSortIndex adds a row. As with the methods below, LockParameters comes first.
func (t *Tx) AddSortIndex(ctx context.Context, x SortIndex) error {
	return translateError(db.New(t.tx).InsertSortIndex(ctx, db.InsertSortIndexParams{ResourceType: x.ResourceType, Code: x.Code, Key: int64(x.Key), Created: x.Created}))
}

// SetSortIndexKey records that the entries are, or will be, under another key.
func (t *Tx) SetSortIndexKey(ctx context.Context, x SortIndex) error {
	q := db.New(t.tx)
	if err := q.SetSortIndexKey(ctx, db.SetSortIndexKeyParams{ResourceType: x.ResourceType, Code: x.Code, Key: int64(x.Key)}); err != nil {
		return translateError(err)
	}
	return translateError(q.RaiseProgress(ctx))
}

// SetSortIndexRemoved takes an index back from searches, or gives it to them again,
// on every server.
func (t *Tx) SetSortIndexRemoved(ctx context.Context, typ, code string, removed bool) error {
	q := db.New(t.tx)
	if err := q.SetSortIndexRemoved(ctx, db.SetSortIndexRemovedParams{ResourceType: typ, Code: code, Removed: removed}); err != nil {
		return translateError(err)
	}
	return translateError(q.RaiseProgress(ctx))
}

// DropSortIndexes deletes those that were taken back before a time that is so long
// ago, and returns their resource types.
func (t *Tx) DropSortIndexes(ctx context.Context, ago time.Duration) (types []string, err error) {
	types, err = db.New(t.tx).DeleteSortIndexes(ctx, ago.Seconds())
	return types, translateError(err)
}
