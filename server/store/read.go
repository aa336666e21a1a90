package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// Read returns the current version of a resource. It fails with not-found if the
// resource never existed and with deleted if it is deleted.
// Spec: https://hl7.org/fhir/R4/http.html#read.
func (s *Store) Read(ctx context.Context, typ, id string) (fhir.Version, error) {
	ref, _ := refAndShard(typ, id)
	v, stored, err := s.reads.readVersion(ctx, ref, nil)
	switch {
	case err != nil:
		return fhir.Version{}, err
	case stored == "":
		return fhir.Version{}, absent(ctx, s.pool, typ, id)
	case stored != id:
		return fhir.Version{}, outcome.NotFound(typ, id)
	}
	v.ResourceType, v.ID = typ, id
	return v, nil
}

// ReadMany returns the current versions of resources of one type, by their ids, in one
// statement. What never existed or is deleted is left out.
func (s *Store) ReadMany(ctx context.Context, typ string, ids []string) (map[string]fhir.Version, error) {
	refs := make([]int64, 0, len(ids))
	for _, id := range ids {
		ref, _ := refAndShard(typ, id)
		refs = append(refs, ref)
	}
	rows, err := db.New(s.pool).ReadResources(ctx, refs)
	if err != nil {
		return nil, translateError(err)
	}
	found := make(map[string]fhir.Version, len(rows))
	for _, r := range rows {
		body, err := decodeBody(r.Body)
		if err != nil {
			return nil, err
		}
		if len(body) > 0 {
			found[r.ID] = fhir.Version{ResourceType: typ, ID: r.ID, VersionID: int(r.Version), LastUpdated: r.LastUpdated.UTC(), Method: r.Method, Body: body}
		}
	}
	return found, nil
}

// ReadIf is Read with a condition that the same query tests: no resource is decoded for it.
// If the condition does not hold, the resource is absent, and the read takes the same
// statements as the read of an absent one.
func (s *Store) ReadIf(ctx context.Context, typ, id string, test match.TermTest) (fhir.Version, error) {
	ref, _ := refAndShard(typ, id)
	v, stored, err := s.reads.readVersion(ctx, ref, &test)
	switch {
	case err != nil:
		return fhir.Version{}, err
	case stored == "":
		return fhir.Version{}, absent(ctx, s.pool, typ, id)
	case stored != id:
		return fhir.Version{}, outcome.NotFound(typ, id)
	case v.Body == nil:
		return fhir.Version{}, s.hidden(ctx, typ, id)
	}
	v.ResourceType, v.ID = typ, id
	return v, nil
}

// hidden returns not-found for an existing resource that the reader may not see. It runs
// the same statements as a read of an absent one, so that both take as long.
func (s *Store) hidden(ctx context.Context, typ, id string) error {
	err := absent(ctx, s.pool, typ, id)
	if outcome.Theirs(err) {
		return outcome.NotFound(typ, id)
	}
	return err
}

// Read is Store.Read inside the transaction.
func (t *Tx) Read(ctx context.Context, typ, id string) (fhir.Version, error) {
	return readVersion(ctx, t.tx, typ, id)
}

func readVersion(ctx context.Context, conn db.DBTX, typ, id string) (fhir.Version, error) {
	q := db.New(conn)
	ref, shard := refAndShard(typ, id)
	r, err := q.ReadResource(ctx, db.ReadResourceParams{Ref: ref, Shard: shard})
	switch {
	case err == nil && r.ID == id:
		body, err := decodeBody(r.Body)
		if err != nil {
			return fhir.Version{}, err
		}
		return fhir.Version{
			ResourceType: typ, ID: id, VersionID: int(r.Version), LastUpdated: r.LastUpdated.UTC(),
			Method: r.Method, Body: body,
		}, nil
	case err == nil:
		return fhir.Version{}, outcome.NotFound(typ, id)
	case !errors.Is(err, pgx.ErrNoRows):
		return fhir.Version{}, translateError(err)
	}
	return fhir.Version{}, absent(ctx, conn, typ, id)
}

// absent says why a resource has no current version.
func absent(ctx context.Context, conn db.DBTX, typ, id string) error {
	ref, shard := refAndShard(typ, id)
	h, err := db.New(conn).LastHistory(ctx, db.LastHistoryParams{Ref: ref, Shard: shard})
	switch {
	case err == nil && h.Method == fhir.DELETE:
		return outcome.Deleted(typ, id)
	case err == nil, errors.Is(err, pgx.ErrNoRows): // with history it was created meanwhile
		return outcome.NotFound(typ, id)
	}
	return translateError(err)
}

// VRead returns one version of a resource. It fails with not-found if that
// version never existed and with deleted if it marks a deletion.
// Spec: https://hl7.org/fhir/R4/http.html#vread.
func (s *Store) VRead(ctx context.Context, typ, id string, versionID int) (fhir.Version, error) {
	return vread(ctx, s.pool, typ, id, versionID)
}

// VRead is Store.VRead inside the transaction.
func (t *Tx) VRead(ctx context.Context, typ, id string, versionID int) (fhir.Version, error) {
	return vread(ctx, t.tx, typ, id, versionID)
}

func vread(ctx context.Context, conn db.DBTX, typ, id string, versionID int) (fhir.Version, error) {
	ref, shard := refAndShard(typ, id)
	notFound := NoVersion(typ, id, versionID)
	if versionID < 1 || versionID > 1<<31-1 {
		return fhir.Version{}, notFound
	}
	r, err := db.New(conn).ReadVersion(ctx, db.ReadVersionParams{Ref: ref, Shard: shard, Version: int32(versionID)})
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && r.ID != id:
		return fhir.Version{}, notFound
	case err != nil:
		return fhir.Version{}, translateError(err)
	case r.Method == fhir.DELETE:
		return fhir.Version{}, outcome.New(outcome.CodeDeleted, "version %d of %s/%s is its deletion", versionID, typ, id)
	}
	body, err := decodeBody(r.Body)
	if err != nil {
		return fhir.Version{}, err
	}
	return fhir.Version{
		ResourceType: typ, ID: id, VersionID: versionID, LastUpdated: r.LastUpdated.UTC(),
		Method: r.Method, Body: body,
	}, nil
}

// NoVersion says that a resource never had a version: 404 not-found.
func NoVersion(typ, id string, versionID int) error {
	return outcome.New(outcome.CodeNotFound, "%s/%s has no version %d", typ, id, versionID)
}

// refAndShard returns where a resource lies: its ref and shard.
func refAndShard(typ, id string) (ref int64, shard int16) {
	ref = int64(fhir.ValueReference(typ, id))
	return ref, int16(ref & 255)
}
