package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// Search parameters change while servers run. What keeps the index right is the
// version of the registry (table search_registry): every index says by which
// version it was made (fhir.Index.Registry), every transaction that writes index
// entries ends with a comparison (group.check), and whoever writes a
// SearchParameter raises the version in the same transaction. So a write by an
// older registry either committed, or at least had its number, before the new
// version could be seen — and the job that indexes what is there waits for those
// (reindex.go) — or it fails, and is done again with an index made anew.

// Indexer makes index entries by the search parameters in force.
type Indexer interface {
	// Refresh makes sure that what Index does is as new as the database.
	Refresh(ctx context.Context) error
	// Err is why nothing may be written, nil for nearly all.
	Err() error
	// Decode reads a stored resource.
	Decode(body []byte) (fhir.Resource, error)
	// Index returns what r leaves in the index under the id it is stored with,
	// finished. An error is one of the client's; with a *search.ExtractError as
	// its cause, parameters that r breaks, what the others say is returned too.
	Index(id string, r fhir.Resource) (*fhir.Index, error)
	// Sort gives the sorters what r is sorted by.
	Sort(r fhir.Resource, by []*fhir.Sorter) error
}

// Hook follows the writes of resources that the service itself depends on.
type Hook struct {
	// Before runs inside the transaction, before the writes, and may change what they
	// store; its error, that of a write where it is a *WriteError, refuses them. It may
	// run several times before the transaction commits. May be nil.
	Before func(ctx context.Context, t *Tx, ws []*Write) error
	// InTx runs inside the transaction, after the writes; its error undoes them.
	// What it is given has been written, and DELETE of nothing is left out. It
	// may run several times before the transaction commits, and says whether
	// anything changes by them.
	InTx func(ctx context.Context, t *Tx, ws []*Write) (changed bool, err error)
	// Committed runs when the transaction is committed, before anybody is told.
	Committed func(ctx context.Context, changed bool)
}

// outdated reports whether the transaction was ended because an index was made
// by search parameters that have changed since.
func outdated(err error) bool {
	if errors.Is(err, errOutdated) {
		return true
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "22012" // CheckRegistry divides by zero
}

var errOutdated = errors.New("store: the search parameters have changed")

// renew makes the indexes of writes anew, by search parameters that are as new as
// the database.
func (s *Store) renew(ctx context.Context, ws ...*Write) error {
	if s.Indexer == nil {
		return nil
	}
	for i, w := range ws {
		if w.Index == nil || w.Resource == nil {
			continue
		}
		x, err := s.Indexer.Index(w.ID, w.Resource)
		if err != nil {
			return &WriteError{i, err}
		}
		w.Index = x
	}
	return nil
}

// refresh is Indexer.Refresh.
func (s *Store) refresh(ctx context.Context) error {
	if s.Indexer == nil {
		return errOutdated
	}
	return s.Indexer.Refresh(ctx)
}

// renewUnit is refresh and renew for the entries of a unit.
func (s *Store) renewUnit(ctx context.Context, u *unit) error {
	if err := s.refresh(ctx); err != nil {
		return err
	}
	for i := range u.entries {
		e := &u.entries[i]
		if err := s.renew(ctx, e.w); err != nil {
			var w *WriteError
			if errors.As(err, &w) {
				w.Index = e.index
			}
			return err
		}
		if e.w.Method != fhir.DELETE {
			e.fhirIndex = e.w.Index
		}
		if err := s.learn(ctx, e.fhirIndex); err != nil {
			return err
		}
	}
	return nil
}

// hooked reports whether one of the writes has a hook, and so needs a transaction
// of its own.
func (s *Store) hooked(ws []*Write) bool {
	if len(s.Hooks) == 0 {
		return false
	}
	for _, w := range ws {
		if _, ok := s.Hooks[w.ResourceType]; ok {
			return true
		}
	}
	return false
}

// runHooks runs the hooks of what was written.
func (t *Tx) runHooks(ctx context.Context, entries []*entry) error {
	if len(t.store.Hooks) == 0 {
		return nil
	}
	var of map[string][]*Write
	for _, e := range entries {
		if _, ok := t.store.Hooks[e.w.ResourceType]; ok && e.action != nothing {
			if of == nil {
				of = make(map[string][]*Write)
			}
			of[e.w.ResourceType] = append(of[e.w.ResourceType], e.w)
		}
	}
	for typ, ws := range of {
		h := t.store.Hooks[typ]
		if h.InTx == nil {
			continue
		}
		changed, err := h.InTx(ctx, t, ws)
		if err != nil {
			return err
		}
		if t.hooks == nil {
			t.hooks = make(map[string]bool)
		}
		t.hooks[typ] = t.hooks[typ] || changed
	}
	return nil
}

// prepareHooks runs Before of the hooks of what is to be written. Their WriteErrors count
// in all of ws.
func (t *Tx) prepareHooks(ctx context.Context, ws []*Write) error {
	for typ, h := range t.store.Hooks {
		if h.Before == nil {
			continue
		}
		var own []*Write
		var at []int
		for i, w := range ws {
			if w.ResourceType == typ {
				own, at = append(own, w), append(at, i)
			}
		}
		if len(own) == 0 {
			continue
		}
		if err := h.Before(ctx, t, own); err != nil {
			var w *WriteError
			if errors.As(err, &w) {
				return &WriteError{at[w.Index], w.Err}
			}
			return err
		}
	}
	return nil
}

// committed tells the hooks of a transaction that it is.
func (t *Tx) committed(ctx context.Context) {
	for typ, changed := range t.hooks {
		if h := t.store.Hooks[typ]; h.Committed != nil {
			h.Committed(ctx, changed)
		}
	}
}

// RegistryState is what servers ask for again and again.
type RegistryState struct {
	Version     int64 // of the search parameters
	Progress    int64 // changes when a job on the index ends
	Definitions int64 // changes when profiles, value sets or code systems are written
	Fingerprint int64 // of the build that the index is of, search.Fingerprints.All; 0 for none
}

// RegistryState reads the state of the registry. Like StoredParameters and
// ReindexJobs it may be asked for by whoever has a transaction open.
func (s *Store) RegistryState(ctx context.Context) (RegistryState, error) {
	r, err := db.New(s.side).RegistryState(ctx)
	return RegistryState(r), translate(err)
}

// StoredParameter is a current SearchParameter resource. Body is nil where the
// caller knows it.
type StoredParameter struct {
	RID       int64
	ID        string
	VersionID int
	Body      []byte
}

// StoredParameters returns the version of the registry with the resources it is
// made of, by surrogate, as of one moment. known are versions by surrogate whose
// bodies need not be read.
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
		return 0, 0, nil, translate(err)
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
	return rows[0].Registry, rows[0].Progress, list, nil
}

// LockRegistry lets no other transaction change the search parameters before this
// one ends. current is the version that the caller knows; where the database has
// another one the transaction is run again after a Refresh.
func (t *Tx) LockRegistry(ctx context.Context, current int64) error {
	if t.registry != 0 {
		return nil
	}
	r, err := db.New(t.tx).LockRegistry(ctx)
	if err != nil {
		return translate(err)
	}
	if r.Version != current {
		return errOutdated
	}
	return nil
}

// BumpRegistry raises the version of the search parameters, once in a
// transaction, and returns it. The registry must be locked.
func (t *Tx) BumpRegistry(ctx context.Context) (version int64, err error) {
	if t.registry == 0 {
		if t.registry, err = db.New(t.tx).BumpRegistry(ctx); err != nil {
			return 0, translate(err)
		}
	}
	return t.registry, nil
}

// BumpDefinitions lets every server know that what profiles, value sets or code
// systems say has changed.
func (t *Tx) BumpDefinitions(ctx context.Context) error {
	return translate(db.New(t.tx).BumpDefinitions(ctx))
}

// checkOwn compares the indexes of a transaction that has raised the version
// itself: they were made by the version before. What they lack is the business
// of the job that this transaction leaves, which sees them.
func (t *Tx) checkOwn(g *group) error {
	for _, v := range g.registries {
		if v != t.registry-1 && v != t.registry {
			return errOutdated
		}
	}
	g.check.cols[0].reset()
	return nil
}

// checkIndex notes the version that an index was made by.
func (g *group) checkIndex(x *fhir.Index) {
	if n := len(g.registries); n > 0 && g.registries[n-1] == x.Registry {
		return
	}
	g.registries = append(g.registries, x.Registry)
	g.check.cols[0].int64(x.Registry)
}
