package searchparam

import (
	"context"
	"fmt"
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// SortIndex is an order that an administrator wants the index to keep, as
// administrators see it.
type SortIndex struct {
	ResourceType string         `json:"resource_type"`
	Parameter    string         `json:"parameter"`
	State        SortIndexState `json:"state"`
	Job          string         `json:"job,omitempty"` // the reindex job that is making its entries
	Created      time.Time      `json:"created"`
}

// SortIndexState says what becomes of a SortIndex.
type SortIndexState string

// The states of a SortIndex: its entries are being made; searches use it; a job was
// cancelled or failed for some resources; searches do without, and the entries go; no
// parameter in force has its code, or one without such an order.
const (
	SortIndexBuilding   SortIndexState = "building"
	SortIndexReady      SortIndexState = "ready"
	SortIndexIncomplete SortIndexState = "incomplete"
	SortIndexRemoving   SortIndexState = "removing"
	SortIndexUnused     SortIndexState = "unused"
)

// sortIndex is the row of a parameter.
func (at *snapshot) sortIndex(typ, code string) (store.SortIndex, bool) {
	return findSortIndex(at.sorts, typ, code)
}

func findSortIndex(list []store.SortIndex, typ, code string) (store.SortIndex, bool) {
	i := slices.IndexFunc(list, func(x store.SortIndex) bool { return x.ResourceType == typ && x.Code == code })
	if i < 0 {
		return store.SortIndex{}, false
	}
	return list[i], true
}

// SortIndexes are the orders that administrators want the index to keep, by type and
// code.
func (s *Service) SortIndexes(ctx context.Context) ([]SortIndex, error) {
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	at := s.current.Load()
	out := make([]SortIndex, len(at.sorts))
	for i, row := range at.sorts {
		var err error
		if out[i], err = s.sortIndexState(ctx, at, row); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *Service) sortIndexState(ctx context.Context, at *snapshot, row store.SortIndex) (SortIndex, error) {
	out := SortIndex{ResourceType: row.ResourceType, Parameter: row.Code, Created: row.Created}
	x, ok := at.registry.SortIndex(row.ResourceType, row.Code)
	switch {
	case row.Removed:
		out.State = SortIndexRemoving
		return out, nil
	case !ok:
		out.State = SortIndexUnused
		return out, nil
	case x.Ready:
		out.State = SortIndexReady
		return out, nil
	case row.Key != x.Key: // a job is about to be left
		out.State = SortIndexBuilding
		return out, nil
	}
	all, err := s.Store.ReindexJobs(ctx)
	if err != nil {
		return out, err
	}
	jobs := slices.DeleteFunc(all, func(j store.ReindexJob) bool { return j.ResourceType != row.ResourceType })
	for _, j := range jobs {
		if j.Finished.IsZero() && slices.Contains(j.Keys, x.Key) {
			out.State, out.Job = SortIndexBuilding, j.ID
			return out, nil
		}
	}
	// Where no job is missing, at is of before the last one had ended.
	if out.State = SortIndexBuilding; jobNotice(row.ResourceType, row.Code, []fhir.Key{x.Key}, jobs) != "" {
		out.State = SortIndexIncomplete
	}
	return out, nil
}

// AddSortIndex indexes the order of a search parameter of a resource type, on every server: from now on every write
// adds its entries, and a job adds those of stored resources. Searches use it after the end of the job. An
// existing index stays as it is; the job of an incomplete one runs again, and one being removed is used again. It
// fails with invalid for an order that needs no index, or can have none.
func (s *Service) AddSortIndex(ctx context.Context, typ, code string) (SortIndex, error) {
	if err := s.Refresh(ctx); err != nil {
		return SortIndex{}, err
	}
	if err := s.current.Load().registry.CanSortIndex(typ, code); err != nil {
		return SortIndex{}, err
	}
	var out SortIndex
	var row store.SortIndex
	err := s.Store.InTx(ctx, func(t *store.Tx) error {
		before, list, err := s.lockSortIndexes(ctx, t)
		if err != nil {
			return err
		}
		var found bool
		row, found = findSortIndex(list, typ, code)
		version := before.Version
		if !found {
			in := before.registry.WithSortIndexes([]search.SortIndex{{ResourceType: typ, Code: code}}, func(*search.SortIndex) bool { return false })
			x, ok := in.SortIndex(typ, code)
			if !ok { // the parameter has just gone
				return in.CanSortIndex(typ, code)
			}
			row = store.SortIndex{ResourceType: typ, Code: code, Key: x.Key, Created: s.Now()}
			if err := t.AddSortIndex(ctx, row); err != nil {
				return err
			}
			if version, err = t.RaiseParametersVersion(ctx); err != nil {
				return err
			}
			out = SortIndex{ResourceType: typ, Parameter: code, State: SortIndexIncomplete, Created: row.Created}
		} else {
			if row.Removed {
				if err := t.SetSortIndexRemoved(ctx, typ, code, false); err != nil {
					return err
				}
				row.Removed = false
			}
			if out, err = s.sortIndexState(ctx, before, row); err != nil {
				return err
			}
		}
		if out.State != SortIndexIncomplete {
			return nil
		}
		out.State, out.Job = SortIndexBuilding, s.NewID()
		return t.AddReindexJob(ctx, store.ReindexJob{ID: out.Job, ResourceType: typ, Keys: []fhir.Key{row.Key}, Ranges: true, ParametersVersion: version, Created: s.Now(),
			Reason: fmt.Sprintf("the order of %s by %s is indexed", typ, code)})
	})
	if err != nil {
		return SortIndex{}, err
	}
	s.Wake()
	if err := s.Refresh(ctx); err != nil || out.Job != "" {
		return out, err
	}
	return s.sortIndexState(ctx, s.current.Load(), row)
}

// lockSortIndexes lets nobody else change search parameters or their orders before
// the transaction ends, and returns the rows.
func (s *Service) lockSortIndexes(ctx context.Context, t *store.Tx) (*snapshot, []store.SortIndex, error) {
	at := s.current.Load()
	if at.otherBuild != nil {
		return nil, nil, at.otherBuild
	}
	if err := t.LockParameters(ctx, at.Version); err != nil {
		return nil, nil, err
	}
	list, err := t.SortIndexes(ctx)
	return at, list, err
}

// RemoveSortIndex takes an order back: searches do without it, on every server within
// MaxAge, and a job takes its entries away once none may be under way that reads them.
// It fails with not-found.
func (s *Service) RemoveSortIndex(ctx context.Context, typ, code string) (SortIndex, error) {
	if err := s.Refresh(ctx); err != nil {
		return SortIndex{}, err
	}
	var out SortIndex
	building, key := "", fhir.Key(0)
	err := s.Store.InTx(ctx, func(t *store.Tx) error {
		at, list, err := s.lockSortIndexes(ctx, t)
		if err != nil {
			return err
		}
		row, found := findSortIndex(list, typ, code)
		if !found {
			return outcome.New(outcome.CodeNotFound, "no order of %s by %s is indexed", outcome.Clip(typ), outcome.Clip(code))
		}
		if out, err = s.sortIndexState(ctx, at, row); err != nil {
			return err
		}
		building, key = out.Job, row.Key
		out.State, out.Job = SortIndexRemoving, ""
		return t.SetSortIndexRemoved(ctx, typ, code, true)
	})
	if err != nil {
		return SortIndex{}, err
	}
	if building != "" {
		if err := s.cancelBuild(ctx, building, key); err != nil {
			return SortIndex{}, err
		}
	}
	s.Wake()
	return out, s.Refresh(ctx)
}

// cancelBuild ends the job that makes the entries under key, where it is for nothing
// else.
func (s *Service) cancelBuild(ctx context.Context, id string, key fhir.Key) error {
	jobs, err := s.Store.ReindexJobs(ctx)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j.ID == id && slices.Equal(j.Keys, []fhir.Key{key}) {
			_, err := s.Store.CancelReindexJob(ctx, id)
			return err
		}
	}
	return nil
}

// searchTime is SearchTime where that is nil.
const searchTime = 10 * time.Minute

// followSortIndexes leaves jobs for the orders whose parameter has changed, and, where
// that is due, for those that were removed long enough ago. It reports whether there
// are removed ones.
func (s *Service) followSortIndexes(ctx context.Context, due bool) (removing bool, err error) {
	at := s.current.Load()
	changed := false
	for _, row := range at.sorts {
		removing = removing || row.Removed
		changed = changed || !row.Removed && row.Key != keyInForce(at, row)
	}
	if !changed && !(removing && due) {
		return removing, nil
	}
	ago := searchTime
	if s.SearchTime != nil {
		ago = s.SearchTime()
	}
	return removing, s.Store.InTx(ctx, func(t *store.Tx) error {
		at, list, err := s.lockSortIndexes(ctx, t)
		if err != nil {
			return err
		}
		job := func(typ string, version int64, keys []fhir.Key, reason string) error {
			return t.AddReindexJob(ctx, store.ReindexJob{ID: s.NewID(), ResourceType: typ, Keys: keys, Ranges: true, ParametersVersion: version, Created: s.Now(), Reason: reason})
		}
		for _, row := range list {
			if row.Removed || row.Key == keyInForce(at, row) {
				continue
			}
			var keys []fhir.Key
			if row.Key = keyInForce(at, row); row.Key != 0 {
				keys = []fhir.Key{row.Key}
			}
			if err := t.SetSortIndexKey(ctx, row); err != nil {
				return err
			}
			if err := job(row.ResourceType, at.Version, keys, fmt.Sprintf("search parameter %s of %s has changed, and its order", row.Code, row.ResourceType)); err != nil {
				return err
			}
		}
		types, err := t.DropSortIndexes(ctx, ago)
		if err != nil || len(types) == 0 {
			return err
		}
		version, err := t.RaiseParametersVersion(ctx)
		if err != nil {
			return err
		}
		slices.Sort(types)
		for _, typ := range slices.Compact(types) {
			if err := job(typ, version, nil, fmt.Sprintf("an order of %s is no longer indexed", typ)); err != nil {
				return err
			}
		}
		return nil
	})
}

// keyInForce is the key that writes leave entries of a row under, 0 for none.
func keyInForce(at *snapshot, row store.SortIndex) fhir.Key {
	x, _ := at.registry.SortIndex(row.ResourceType, row.Code)
	return x.Key
}
