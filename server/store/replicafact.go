package store

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/fhir"
	"kiln/server/search"
)

// ReadFact is Read of a resource that decides on access: from the primary, and from a standby while reads continue
// without one.
func (s *Store) ReadFact(ctx context.Context, typ, id string) (v fhir.Version, err error) {
	if s.ReadsContinue() {
		_, ok, err := s.ReadOnReplica(ctx, Position{}, true, func(ctx context.Context, t *ReplicaReader) (err error) {
			v, err = t.Read(ctx, typ, id)
			return err
		})
		if ok {
			return v, err
		}
	}
	return s.Read(ctx, typ, id)
}

// SearchFact is ReadFact for a search.
func (s *Store) SearchFact(ctx context.Context, q *search.Query) (found *SearchResult, err error) {
	if s.ReadsContinue() {
		_, ok, err := s.ReadOnReplica(ctx, Position{}, true, func(ctx context.Context, t *ReplicaReader) (err error) {
			found, err = t.Search(ctx, q)
			return err
		})
		if ok {
			return found, err
		}
	}
	return s.Search(ctx, q)
}

// FactPool returns the connections to the standby that has replayed most while reads continue without a primary, else nil.
func (s *Store) FactPool() *pgxpool.Pool {
	if !s.ReadsContinue() {
		return nil
	}
	var best *replica
	for _, rep := range s.replicas.list {
		if rep.serves() && (best == nil || rep.replayed.Load() > best.replayed.Load()) {
			best = rep
		}
	}
	if best == nil {
		return nil
	}
	return best.pool
}
