package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/search"
)

// Search parameters change while servers run. Their version (table search_registry)
// keeps the index right: each fhir.Index has the version that it was made by
// (ParametersVersion), each transaction that writes index entries ends with a
// comparison (group.check), and a write of a SearchParameter raises the version in its
// own transaction. So a write by an older version either had its transaction id before
// the new version could be seen, and the job that indexes the stored resources waits
// for its end (reindex.go), or it fails, and is done again with a new index.

// Indexer makes index entries by the search parameters in force.
type Indexer interface {
	// Refresh makes sure that what Index does is as new as the database.
	Refresh(ctx context.Context) error
	// Err is why nothing may be written, nil for nearly all.
	Err() error
	// Decode reads a stored resource.
	Decode(body []byte) (fhir.Resource, error)
	// Index returns the finished index entries of r under its stored id. An error is the
	// client's fault. If its cause is a *search.ExtractError, some parameters failed on r,
	// and the entries of the others are returned too.
	Index(id string, r fhir.Resource) (*fhir.Index, error)
	// Sort fills the sorters with the sort keys of r.
	Sort(r fhir.Resource, by []*fhir.Sorter) error
	// Current is the search parameters in force.
	Current() *search.Registry
}

// IndexBy makes the Store ask i for index entries from now on; until then, and with nil,
// writes whose index is outdated are refused after some attempts.
func (s *Store) IndexBy(i Indexer) {
	if i == nil {
		s.indexer.Store(nil)
		return
	}
	s.indexer.Store(&i)
}

// Indexer returns who makes index entries, nil for nobody.
func (s *Store) Indexer() Indexer {
	if i := s.indexer.Load(); i != nil {
		return *i
	}
	return nil
}

// isOutdated reports whether the transaction was ended because an index was made
// by search parameters that have changed since.
func isOutdated(err error) bool {
	if errors.Is(err, errOutdated) {
		return true
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "22012" // CheckPrepared divides by zero
}

var errOutdated = errors.New("store: the search parameters have changed")

// renewIndexes makes the indexes of writes anew, by search parameters that are as new as
// the database.
func (s *Store) renewIndexes(ctx context.Context, ws ...*Write) error {
	if s.Indexer() == nil {
		return nil
	}
	for i, w := range ws {
		if w.Index == nil || w.Resource == nil {
			continue
		}
		x, err := s.Indexer().Index(w.ID, w.Resource)
		if err != nil {
			return &WriteError{i, err}
		}
		w.Index = x
	}
	return nil
}

// refreshIndexer is Indexer.Refresh after a write that was prepared in an epoch. It notices a new epoch.
func (s *Store) refreshIndexer(ctx context.Context, prepared EpochID) error {
	if _, err := s.ParametersState(ctx); err != nil {
		return err
	}
	if s.Indexer() == nil {
		return nil // a new epoch or a raised moment; else the write fails again
	}
	return s.Indexer().Refresh(ctx)
}

// renewUnit is refresh and renew for the entries of a unit.
func (s *Store) renewUnit(ctx context.Context, u *unit) error {
	if err := s.refreshIndexer(ctx, u.entries[0].epoch); err != nil {
		return err
	}
	ws := make([]*Write, len(u.entries))
	for i := range u.entries {
		ws[i] = u.entries[i].w
	}
	for i := range u.entries {
		e := &u.entries[i]
		if err := s.renewIndexes(ctx, e.w); err != nil {
			var w *WriteError
			if errors.As(err, &w) {
				w.Index = e.index
			}
			return err
		}
		if e.w.Method != fhir.DELETE {
			e.fhirIndex = e.w.Index
		}
		if err := s.learnIndexTexts(ctx, e.fhirIndex); err != nil {
			return err
		}
	}
	if u.entries[0].epoch == s.memory.Load().epoch {
		return nil
	}
	// Surrogates and numbers of types belong to the epoch.
	fresh, err := s.prepareEntries(ctx, ws)
	if err != nil {
		return err
	}
	for i, e := range fresh {
		e.unit = u
		u.entries[i] = e
	}
	return nil
}

// ParametersState is the row of the table search_registry, which servers read again
// and again to notice the changes that other servers make.
type ParametersState struct {
	Version     int64 // of the search parameters
	Progress    int64 // changes when a job on the index ends
	Definitions int64 // changes when profiles, value sets or code systems are written
	Fingerprint int64 // of the build that the index is of, search.Fingerprints.All; 0 for none
	Epoch       EpochID
}

// ParametersState reads the row. Like StoredParameters and ReindexJobs it has a
// connection of its own, and may be called with a transaction open.
func (s *Store) ParametersState(ctx context.Context) (ParametersState, error) {
	conn, err := s.side.Acquire(ctx)
	if err != nil {
		return ParametersState{}, translateError(err)
	}
	defer conn.Release()
	q := db.New(conn)
	asked := time.Now()
	r, err := q.ParametersState(ctx)
	if err == nil {
		err = s.meetEpoch(ctx, conn, EpochID(r.Epoch)) // one that was stored for the PostgreSQL that was there before, too
	}
	if err != nil {
		return ParametersState{}, translateError(err)
	}
	if m := s.memory.Load(); m.epoch == EpochID(r.Epoch) {
		s.raiseFloor(r.Moment)
		m.announced.storeParts(asked, r.MoreParts)
	}
	state := ParametersState{Version: r.Version, Progress: r.Progress, Definitions: r.Definitions, Fingerprint: r.Fingerprint, Epoch: EpochID(r.Epoch)}
	s.replicas.parameter.Store(&state)
	return state, nil
}

// StoredParameter is a current SearchParameter resource. Body is nil where the
// caller knows it.
type StoredParameter struct {
	RID       int64
	ID        string
	VersionID int
	Body      []byte
}

// StoredParameters returns the version of the search parameters and the stored
// SearchParameters, by surrogate, as of one moment. known has the versions, by
// surrogate, whose bodies need not be read.
func (s *Store) StoredParameters(ctx context.Context, known map[int64]int) (version, progress int64, list []StoredParameter, err error) {
	return s.storedParameters(ctx, s.side, known)
}

// StoredParameters is Store.StoredParameters inside the transaction.
func (t *Tx) StoredParameters(ctx context.Context, known map[int64]int) (version, progress int64, list []StoredParameter, err error) {
	return t.store.storedParameters(ctx, t.tx, known)
}

func (s *Store) storedParameters(ctx context.Context, conn querier, known map[int64]int) (version, progress int64, list []StoredParameter, err error) {
	p := db.SearchParametersParams{Low: 1, High: 0}
	typ, ok, err := s.typeNumber(ctx, "SearchParameter")
	if err != nil {
		return 0, 0, nil, err
	}
	if ok {
		p.Low, p.High = int64(typ)<<48, int64(typ)<<48|(1<<48-1)
	}
	for rid, version := range known {
		p.KnownRids = append(p.KnownRids, rid)
		p.KnownVersions = append(p.KnownVersions, int32(version))
	}
	rows, err := db.New(conn).SearchParameters(ctx, p)
	if err != nil {
		return 0, 0, nil, translateError(err)
	}
	if len(rows) == 0 {
		return 0, 0, nil, errors.New("store: the table search_registry is empty")
	}
	for _, r := range rows {
		if r.Rid == 0 {
			continue
		}
		body, err := decodeBody(r.Body)
		if err != nil {
			return 0, 0, nil, fmt.Errorf("SearchParameter/%s: %w", r.ID, err)
		}
		list = append(list, StoredParameter{RID: r.Rid, ID: r.ID, VersionID: int(r.Version), Body: body})
	}
	return rows[0].ParametersVersion, rows[0].Progress, list, nil
}

// LockParameters lets no other transaction change the search parameters before this
// one ends. current is the version that the caller knows; where the database has
// another one the transaction is run again after a Refresh.
func (t *Tx) LockParameters(ctx context.Context, current int64) error {
	if t.parametersVersion != 0 {
		return nil
	}
	r, err := db.New(t.tx).LockParameters(ctx)
	if err != nil {
		return translateError(err)
	}
	if r.Version != current {
		return errOutdated
	}
	return nil
}

// RaiseParametersVersion raises the version of the search parameters, once in a
// transaction, and returns it. LockParameters comes first.
func (t *Tx) RaiseParametersVersion(ctx context.Context) (version int64, err error) {
	if t.parametersVersion == 0 {
		if t.parametersVersion, err = db.New(t.tx).RaiseParametersVersion(ctx); err != nil {
			return 0, translateError(err)
		}
	}
	return t.parametersVersion, nil
}

// BumpDefinitions lets every server know that what profiles, value sets or code
// systems say has changed.
func (t *Tx) BumpDefinitions(ctx context.Context) error {
	return translateError(db.New(t.tx).BumpDefinitions(ctx))
}

// TextsOf returns the texts that the index has of some keys, by key.
func (t *Tx) TextsOf(ctx context.Context, keys []fhir.Key) (map[fhir.Key][]string, error) {
	list := make([]int64, len(keys))
	for i, k := range keys {
		list[i] = int64(k)
	}
	rows, err := db.New(t.tx).TextsOf(ctx, list)
	if err != nil {
		return nil, translateError(err)
	}
	texts := make(map[fhir.Key][]string, len(rows))
	for _, r := range rows {
		texts[fhir.Key(r.Key)] = append(texts[fhir.Key(r.Key)], r.Text)
	}
	return texts, nil
}

// checkOwn compares the indexes of a transaction that has raised the version itself: they
// were made by the version before. The missing entries are the work of the job that this
// transaction leaves; the job sees these resources.
func (t *Tx) checkOwn(g *group) error {
	for _, v := range g.parametersVersions {
		if v != t.parametersVersion-1 && v != t.parametersVersion {
			return errOutdated
		}
	}
	g.check.cols[1].reset()
	return nil
}

// checkIndex notes the version that an index was made by.
func (g *group) checkIndex(x *fhir.Index) {
	if n := len(g.parametersVersions); n > 0 && g.parametersVersions[n-1] == x.ParametersVersion {
		return
	}
	g.parametersVersions = append(g.parametersVersions, x.ParametersVersion)
	g.check.cols[1].int64(x.ParametersVersion)
}
