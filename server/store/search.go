package store

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search"
	"kiln/server/search/cache"
	"kiln/server/search/cache/fill"
	"kiln/server/search/match"
	"kiln/server/search/session"
	"kiln/server/search/strategy"
)

// SearchResult is one page of a search.
type SearchResult = strategy.Result

// Search runs a search. It fails with timeout when the context ends first; the
// statement is cancelled in PostgreSQL. How it is answered is decided in
// server/search/strategy.
func (s *Store) Search(ctx context.Context, q *search.Query) (*SearchResult, error) {
	var r *SearchResult
	err := s.inOneEpoch(func() (err error) {
		r, err = s.searcher.Search(ctx, q)
		return err
	})
	return r, translateError(err)
}

// SetSearchMemory changes what Config.SearchMemory has said, at once.
func (s *Store) SetSearchMemory(bytes int64) { s.searcher.SetMemory(bytes) }

// ReadAhead starts to fill the search cache, while the database is idle, with the items that broad searches of large types
// need. It needs IndexBy.
func (s *Store) ReadAhead() { s.searcher.ReadAhead(fill.AheadFrom) }

// Search is Store.Search inside the transaction: it sees the writes of the transaction.
func (t *Tx) Search(ctx context.Context, q *search.Query) (*SearchResult, error) {
	r, err := t.store.searcher.SearchIn(ctx, t.tx, q)
	return r, translateError(err)
}

// searchable is the Store as searches see it.
type searchable struct{ s *Store }

func (v searchable) Acquire(ctx context.Context) (*pgxpool.Conn, error) { return v.s.pool.Acquire(ctx) }

func (v searchable) Acquired() int64 { return v.s.pool.Stat().AcquireCount() }

func (v searchable) KnownType(typ string) (int16, bool) {
	n, ok := v.s.memory.Load().types.current.Load().number[typ]
	return n, ok
}

func (v searchable) TypeNumber(ctx context.Context, typ string) (int16, bool, error) {
	return v.s.typeNumber(ctx, typ)
}

func (v searchable) TypeName(ctx context.Context, number int16) (string, error) {
	return v.s.typeName(ctx, number)
}

func (v searchable) Parts(ctx context.Context) (*match.Parts, error) {
	parts, err := v.s.currentParts(ctx)
	return parts, translateError(err)
}

func (v searchable) Bodies() session.Bodies { return pageBodies.Get().(*bodies) }

func (v searchable) DecodeBody(stored []byte) ([]byte, error) { return decodeBody(stored) }

func (v searchable) Registry() *search.Registry {
	if v.s.Indexer() == nil {
		return nil
	}
	return v.s.Indexer().Current()
}

func (v searchable) Resources() strategy.Resources {
	if v.s.Indexer() == nil {
		return nil
	}
	return v.s.Indexer()
}

// Searcher answers the searches. Its cache can be inspected and emptied.
func (s *Store) Searcher() *strategy.Searcher { return s.searcher }

// noteWrite tells searches of a write that is about to be committed, in the order of the row of the change log
// that it is in.
func noteWrite(row *cache.WritingRow, e *entry) {
	switch {
	case row == nil || e.w.Unlogged || e.action == nothing:
	case e.action == deleted:
		row.AddVersion(e.rid, e.version, nil)
	default:
		row.AddVersion(e.rid, e.version, &match.Resource{Type: e.w.ResourceType, ID: e.w.ID, VersionID: e.version, LastUpdated: e.lastUpdated, Index: e.fhirIndex})
	}
}
