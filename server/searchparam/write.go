package searchparam

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// Check tells whether a SearchParameter can be stored: whether its elements are
// there, its expressions parse and can give what its type needs. It fails with
// required or invalid, 400. What depends on other SearchParameters is checked
// again in the transaction.
func (s *Service) Check(p *r4.SearchParameter) error {
	at := s.current.Load()
	_, err := s.compile(&search.Compiler{Base: s.Base, Other: definitionLookup(at.stored)}, definitionOf(p))
	if errors.Is(err, search.ErrComponent) {
		return nil // it may come in the same transaction
	}
	return err
}

// Warnings returns warnings about a SearchParameter that can be stored, each with the
// element of the resource.
func (s *Service) Warnings(p *r4.SearchParameter) []outcome.Issue {
	custom, err := (&search.Compiler{Base: s.Base, Other: definitionLookup(s.current.Load().stored)}).Compile(definitionOf(p))
	if err != nil {
		return nil
	}
	return custom.Warnings
}

// Restates reports whether R4 has a search parameter of the same code, type and values for
// each resource type of p.
func (s *Service) Restates(p *r4.SearchParameter) bool {
	return (&search.Compiler{Base: s.Base}).RestatesR4(definitionOf(p))
}

// InTx follows writes of SearchParameters inside their transaction.
func (s *Service) InTx(ctx context.Context, t *store.Tx, ws []*store.Write) (changed bool, err error) {
	before := s.current.Load()
	if before.otherBuild != nil {
		return false, before.otherBuild
	}

	// 1. One at a time, based on the state of this server.
	if err := t.LockParameters(ctx, before.Version); err != nil {
		return false, err
	}

	// 2. The parameters in force after the commit.
	after := &snapshot{}
	_, _, list, err := t.StoredParameters(ctx, before.versionsByKey())
	if err != nil {
		return false, err
	}
	after.stored = s.readParameters(before, list)
	for _, w := range ws {
		if err := s.checkUnique(after, w.ID); err != nil {
			return false, err
		}
	}

	// 3. A job for each type whose index is to change.
	if slices.Equal(before.customParameters(), after.customParameters()) {
		return false, nil // the definition of a compiled parameter: nothing changes
	}
	if after.Version, err = t.RaiseParametersVersion(ctx); err != nil {
		return false, err
	}
	return true, s.addJobs(ctx, t, before, after)
}

// checkUnique refuses a written SearchParameter whose url, or whose code for a type,
// another one has.
func (s *Service) checkUnique(at *snapshot, id string) error {
	var own *stored
	for _, sp := range at.stored {
		if sp.id == id {
			own = sp
		}
	}
	if own == nil {
		return nil // deleted
	}
	if own.err != nil {
		return own.err
	}
	for _, typ := range s.Base.Types() {
		for _, p := range s.Base.Parameters(typ) {
			if p.URL == own.definition.URL && p.Code != own.definition.Code {
				return outcome.InvalidDuplicate("the parameter %[2]s of %[3]s has the url %[1]q; it must be unique", p.URL, p.Code, typ).At("SearchParameter.url")
			}
		}
	}
	for _, sp := range at.stored {
		if sp == own {
			continue
		}
		if sp.definition.URL == own.definition.URL {
			return outcome.InvalidDuplicate("SearchParameter/%s has the url %q already; it must be unique", sp.id, own.definition.URL).At("SearchParameter.url")
		}
		if sp.custom == nil || own.custom == nil || sp.definition.Code != own.definition.Code {
			continue
		}
		for _, p := range own.custom.Parameters {
			if slices.ContainsFunc(sp.custom.Parameters, func(o fhir.Parameter) bool { return o.Base == p.Base }) {
				return outcome.InvalidDuplicate("%s has a search parameter %s already, SearchParameter/%s (%s)", p.Base, p.Code, sp.id, sp.definition.URL).At("SearchParameter.code")
			}
		}
	}
	return nil
}

// addJobs adds an index job for each resource type whose custom keys differ between
// before and after, and for those that contain resources of such a type.
func (s *Service) addJobs(ctx context.Context, t *store.Tx, before, after *snapshot) error {
	was, is := before.customParameters(), after.customParameters()
	changed := make(map[string]*store.ReindexJob)
	for _, typ := range s.Base.Types() {
		j := &store.ReindexJob{}
		add := func(list, others []*search.Custom) (keys []fhir.Key) {
			for _, c := range list {
				for _, key := range c.Keys(typ) {
					if slices.ContainsFunc(others, func(o *search.Custom) bool { return slices.Contains(o.Keys(typ), key) }) {
						continue
					}
					keys = append(keys, key)
					j.Ranges = j.Ranges || c.Ordered(typ)
					if !slices.Contains(j.Parameters, c.URL) {
						j.Parameters = append(j.Parameters, c.URL)
					}
				}
			}
			return keys
		}
		j.Keys = add(is, was)
		gone := add(was, is)
		if len(j.Keys)+len(gone) > 0 {
			changed[typ] = j
		}
	}
	if len(changed) == 0 {
		return nil
	}
	contained, err := s.contained(ctx, t)
	if err != nil {
		return err
	}
	for _, typ := range s.Base.Types() {
		job := store.ReindexJob{ID: s.NewID(), ResourceType: typ, ParametersVersion: after.Version, Created: s.Now()}
		for _, of := range append([]string{typ}, contained[typ]...) {
			if j := changed[of]; j != nil {
				job.Keys, job.Parameters, job.Ranges = append(job.Keys, j.Keys...), append(job.Parameters, j.Parameters...), job.Ranges || j.Ranges
			}
		}
		if len(job.Parameters) == 0 {
			continue
		}
		slices.Sort(job.Parameters)
		job.Parameters = slices.Compact(job.Parameters)
		if err := t.AddReindexJob(ctx, job); err != nil {
			return err
		}
	}
	return nil
}

// contained are the other types that resources of a type contain and refer to, of those that have been stored.
func (s *Service) contained(ctx context.Context, t *store.Tx) (map[string][]string, error) {
	reg := s.Current()
	all := make(map[string][]string)
	type way struct {
		container string
		refs      []fhir.Key
	}
	ways := make(map[fhir.Key]way)
	add := func(from way, typ string) {
		for _, p := range reg.Parameters(typ) {
			if p.Type == fhir.SearchReference {
				for _, k := range p.Keys {
					refs := append(slices.Clone(from.refs), k)
					ways[fhir.ContainedMask(refs...)] = way{from.container, refs}
				}
			}
		}
	}
	for _, typ := range reg.Types() {
		add(way{container: typ}, typ)
	}
	for range maxWithin {
		texts, err := t.TextsOf(ctx, slices.Collect(maps.Keys(ways)))
		if err != nil || len(texts) == 0 {
			return all, err
		}
		before := ways
		ways = make(map[fhir.Key]way)
		for key, types := range texts {
			from := before[key]
			for _, typ := range types {
				if typ != from.container && !slices.Contains(all[from.container], typ) {
					all[from.container] = append(all[from.container], typ)
				}
				add(from, typ)
			}
		}
	}
	return all, nil
}

// Committed follows the commit of such a transaction: when it returns, every
// server knows what changed.
func (s *Service) Committed(ctx context.Context, changed bool) {
	if !changed {
		return
	}
	wait := time.NewTimer(s.MaxAge + s.MaxAge/10) // clocks may run a little apart
	defer wait.Stop()
	if err := s.Refresh(ctx); err != nil {
		s.Logger.Warn("the search parameters cannot be read", slog.Any("error", err))
	}
	s.Wake()
	select {
	case <-wait.C:
	case <-ctx.Done(): // nobody is told then
	}
}
