package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/search"
)

// What is compiled into a server changes with the server: the index of a database
// is that of one build, whose fingerprints it keeps. They change with the version
// of the search parameters, so that no write of another build passes the check
// after that (registry.go), and with jobs for the types that have to be indexed
// again.

// ClaimFresh makes the index of a database that nobody has used that of a build,
// in one statement. It reports false, and does nothing, on any other.
func (s *Store) ClaimFresh(ctx context.Context, f search.Fingerprints) (bool, error) {
	_, err := db.New(s.pool).SetFingerprints(ctx, fingerprints(f, true))
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, translate(err)
}

// ClaimIndex makes the index that of a build. Until the transaction ends no other
// changes the registry, and none stores a type for the first time. jobs gets the
// types whose stored resources another build may have indexed otherwise, and the
// version that the registry is raised to, and returns the jobs for them. Where the
// index is that build's already, nothing happens.
//
// A write of the other build that passed the check before this commits may not be
// visible yet, but its type is, which was stored beforehand; and the job that finds
// its resource waits for it. So a type counts that has no resource, and has a job
// that does nothing.
func (t *Tx) ClaimIndex(ctx context.Context, f search.Fingerprints, jobs func(types []string, version int64) ([]ReindexJob, error)) error {
	q := db.New(t.tx)
	now, err := q.LockRegistry(ctx)
	if err != nil || now.Fingerprint == f.All {
		return translate(err)
	}
	if err := q.LockResourceTypes(ctx); err != nil {
		return translate(err)
	}
	p := fingerprints(f, false)
	types, err := q.IndexedOtherwise(ctx, db.IndexedOtherwiseParams{Types: p.Types, Fingerprints: p.Fingerprints})
	if err != nil {
		return translate(fmt.Errorf("compare fingerprints: %w", err))
	}
	if t.registry, err = q.SetFingerprints(ctx, p); err != nil {
		return translate(fmt.Errorf("set fingerprints: %w", err))
	}
	list, err := jobs(types, t.registry)
	if err != nil {
		return err
	}
	for _, j := range list {
		if err := t.AddReindexJob(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

func fingerprints(f search.Fingerprints, fresh bool) db.SetFingerprintsParams {
	p := db.SetFingerprintsParams{Fingerprint: f.All, Fresh: fresh}
	for _, typ := range slices.Sorted(maps.Keys(f.Types)) {
		p.Types = append(p.Types, typ)
		p.Fingerprints = append(p.Fingerprints, f.Types[typ])
	}
	return p
}
