package store

import (
	"context"
	"time"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// StoredType is a resource type that the database has known.
type StoredType struct {
	Number int16
	Name   string
}

// StoredTypes returns the resource types of the database.
func (s *Store) StoredTypes(ctx context.Context) ([]StoredType, error) {
	rows, err := db.New(s.pool).StoredTypes(ctx)
	out := make([]StoredType, len(rows))
	for i, r := range rows {
		out[i] = StoredType{r.Typ, r.Name}
	}
	return out, translateError(err)
}

// CountOld returns the number of resources of a type that were stored before an instant.
func (s *Store) CountOld(ctx context.Context, typ StoredType, before time.Time) (int64, error) {
	n, err := db.New(s.pool).CountOldResources(ctx, db.CountOldResourcesParams{Typ: typ.Number, Before: before})
	return n, translateError(err)
}

// CountOldVersions returns the number of superseded versions and deletions from before an
// instant: RemoveVersions looks at these.
func (s *Store) CountOldVersions(ctx context.Context, before time.Time) (int64, error) {
	n, err := db.New(s.pool).CountOldVersions(ctx, before)
	return n, translateError(err)
}

// RemoveOld removes up to count resources of a type that were stored before an instant, the
// oldest first, with all of their versions. Readers of the change log learn of it, but no
// deletion is left. It returns the number of removed resources.
func (t *Tx) RemoveOld(ctx context.Context, typ StoredType, before time.Time, count int) (int64, error) {
	q := db.New(t.tx)
	ids, err := q.OldResources(ctx, db.OldResourcesParams{Typ: typ.Number, Before: before, Count: int32(count)})
	if err != nil || len(ids) == 0 {
		return 0, translateError(err)
	}
	ws := make([]*Write, len(ids))
	p := db.RemoveHistoryParams{Typ: typ.Number}
	for i, id := range ids {
		ws[i] = &Write{Method: fhir.DELETE, ResourceType: typ.Name, ID: id}
		ref, shard := refAndShard(typ.Name, id)
		p.Refs, p.Shards = append(p.Refs, ref), append(p.Shards, shard)
	}
	if err := t.Write(ctx, ws); err != nil {
		return 0, err
	}
	return int64(len(ids)), translateError(q.RemoveHistory(ctx, p))
}

// VersionCursor is a position among the superseded versions of a type; the zero value is
// before the first.
type VersionCursor struct {
	After time.Time `json:"after"`
	RID   int64     `json:"rid"`
}

// VersionBatch is what RemoveVersions has done.
type VersionBatch struct {
	Next            VersionCursor
	Looked, Removed int64 // versions
}

// RemoveVersions looks at the next count superseded versions and deletions of a type behind
// the cursor, and removes those that a version from before an instant has superseded. The
// current version of a resource stays, a deletion too.
func (t *Tx) RemoveVersions(ctx context.Context, typ StoredType, before time.Time, at VersionCursor, count int) (VersionBatch, error) {
	r, err := db.New(t.tx).RemoveVersions(ctx, db.RemoveVersionsParams{Typ: typ.Number, Before: before, After: at.After, AfterRid: at.RID, Count: int32(count)})
	if err != nil {
		return VersionBatch{}, translateError(err)
	}
	return VersionBatch{VersionCursor{r.After, r.AfterRid}, r.Seen, r.Gone}, nil
}

// LastRetention returns when the newest job of retention was added, 1970 without any.
func (s *Store) LastRetention(ctx context.Context) (time.Time, error) {
	at, err := db.New(s.pool).LastRetention(ctx)
	return at, translateError(err)
}
