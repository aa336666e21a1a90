package searchparam

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// takeOver records the index as made by this build, with a job for each resource
// type that another build may have indexed otherwise.
func (s *Service) takeOver(ctx context.Context) error {
	if done, err := s.Store.ClaimFresh(ctx, s.fingerprints); done || err != nil {
		return err
	}
	var claimed []string
	err := s.Store.InTx(ctx, func(t *store.Tx) error {
		return t.ClaimIndex(ctx, s.fingerprints, func(types []string, version int64) ([]store.ReindexJob, error) {
			claimed = types
			return s.rebuild(ctx, t, types, version)
		})
	})
	if err != nil {
		return err
	}
	if len(claimed) > 0 {
		s.Logger.Info("another build has made the index; it is brought up to date while the server runs", slog.Any("types", claimed))
	}
	s.Committed(ctx, true) // a server of the other build may still search
	return nil
}

// rebuild returns the jobs that index everything of types again. Until they are
// done, searches by any parameter of theirs have a warning.
func (s *Service) rebuild(ctx context.Context, t *store.Tx, types []string, version int64) ([]store.ReindexJob, error) {
	at := &snapshot{ParametersState: store.ParametersState{Version: version}}
	_, _, list, err := t.StoredParameters(ctx, nil)
	if err != nil {
		return nil, err
	}
	at.stored = s.readParameters(at, list)
	if at.sorts, err = t.SortIndexes(ctx); err != nil {
		return nil, err
	}
	in := s.buildRegistry(at, nil)
	jobs := make([]store.ReindexJob, len(types))
	for i, typ := range types {
		jobs[i] = store.ReindexJob{ID: s.NewID(), ResourceType: typ, Keys: keysOf(in, typ), Ranges: true, ParametersVersion: version, Created: s.Now()}
	}
	return jobs, nil
}

// keysOf are all keys that resources of a type are indexed under.
func keysOf(in *search.Registry, typ string) []fhir.Key {
	var keys []fhir.Key
	for _, p := range in.Parameters(typ) {
		keys = append(keys, p.EveryKey()...)
	}
	for _, x := range in.SortIndexes(typ) {
		keys = append(keys, x.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// refuseSearches makes the server answer neither searches nor writes, because another build
// has taken over the index (as state says), and returns that error. A server of this
// build that starts takes the index back.
func (s *Service) refuseSearches(next *snapshot, state store.ParametersState, asked time.Time) error {
	if next.otherBuild == nil {
		next.otherBuild = outcome.Unavailable("a server of another build, with other search parameters, has taken over the index of the database: " +
			"this one neither searches nor writes any more; replace it by that build, or start it again to take the index back")
		if next.Version >= 0 { // else the server starts
			s.Logger.Error("a server of another build has taken over the database's index; this one refuses searches and writes")
		}
	}
	next.ParametersState, next.asked = state, asked
	next.registry = next.registry.Unavailable(next.otherBuild)
	s.current.Store(next)
	return next.otherBuild
}
