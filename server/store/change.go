package store

import (
	"context"
	"strconv"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// ChangePosition is a place in the change log. The zero value is its beginning.
type ChangePosition struct {
	XID     int64 // transaction
	RID     int64
	Version int
}

// Change is one version in the order of the change log: by transaction, then by
// resource. A transaction's id is given when it begins to write, so the order is
// not that of the commits.
type Change struct {
	Position     ChangePosition
	ResourceType string
	Ref          int64 // fhir.ValueReference(type, id)
	VersionID    int
	Method       fhir.Method
}

// Changes returns up to count changes behind a position. It stops before the
// oldest transaction that is still running, so what it has passed is complete:
// a reader that goes on from the last position skips nothing.
func (s *Store) Changes(ctx context.Context, after ChangePosition, count int) ([]Change, error) {
	rows, err := db.New(s.pool).Changes(ctx, db.ChangesParams{
		AfterXid: strconv.FormatInt(after.XID, 10), AfterRid: after.RID, AfterVersion: int32(after.Version), Count: int32(count),
	})
	if err != nil {
		return nil, translate(err)
	}
	changes := make([]Change, len(rows))
	for i, r := range rows {
		typ, err := s.typeName(ctx, int16(r.Rid>>48))
		if err != nil {
			return nil, err
		}
		changes[i] = Change{
			Position:     ChangePosition{XID: r.Xid, RID: r.Rid, Version: int(r.Version)},
			ResourceType: typ, Ref: r.Ref, VersionID: int(r.Version), Method: r.Method,
		}
	}
	return changes, nil
}

// ChangeHorizon is the position behind all changes of transactions that are no
// longer running: where a reader begins that wants only news.
func (s *Store) ChangeHorizon(ctx context.Context) (ChangePosition, error) {
	xid, err := db.New(s.pool).ChangeHorizon(ctx)
	return ChangePosition{XID: xid}, translate(err)
}

// TrimChanges deletes the changes before a position's transaction and returns
// their number.
func (s *Store) TrimChanges(ctx context.Context, before ChangePosition) (int, error) {
	n, err := db.New(s.pool).TrimChanges(ctx, strconv.FormatInt(before.XID, 10))
	return int(n), translate(err)
}
