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

// The search parameters that are compiled into a server differ from build to build,
// and the index of a database belongs to one build: the database keeps that build's
// fingerprints. A server of another build records its own in one transaction, which
// also raises the version of the search parameters, so that writes of the former build
// fail (indexer.go), and leaves jobs for the resource types that have to be indexed
// again.

// ClaimFresh records in a new database that its index belongs to this build, in one
// statement. It reports false, and does nothing, where a server has used the database
// before.
func (s *Store) ClaimFresh(ctx context.Context, f search.Fingerprints) (bool, error) {
	_, err := db.New(s.pool).SetFingerprints(ctx, fingerprints(f, true))
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, translateError(err)
}

// ClaimIndex records that the index belongs to this build; where it does already,
// nothing happens. Until the transaction ends no other one changes the search
// parameters or stores a resource type for the first time. jobs gets the types whose
// stored resources another build may have indexed otherwise, with the new version of
// the search parameters, and returns the jobs that index them again.
//
// A write of the other build that passed the check before this commits may not be
// visible yet. Its resource type is, because types are stored beforehand, and the job
// of the type waits for that write. So types without a resource have jobs too; those
// find nothing to do.
func (t *Tx) ClaimIndex(ctx context.Context, f search.Fingerprints, jobs func(types []string, version int64) ([]ReindexJob, error)) error {
	q := db.New(t.tx)
	now, err := q.LockParameters(ctx)
	if err != nil || now.Fingerprint == f.All {
		return translateError(err)
	}
	if err := q.LockResourceTypes(ctx); err != nil {
		return translateError(err)
	}
	p := fingerprints(f, false)
	types, err := q.IndexedOtherwise(ctx, db.IndexedOtherwiseParams{Types: p.Types, Fingerprints: p.Fingerprints})
	if err != nil {
		return translateError(fmt.Errorf("compare fingerprints: %w", err))
	}
	if t.parametersVersion, err = q.SetFingerprints(ctx, p); err != nil {
		return translateError(fmt.Errorf("set fingerprints: %w", err))
	}
	list, err := jobs(types, t.parametersVersion)
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
