package bulk

import (
	"context"
	"maps"
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/search/match"
	"kiln/server/store"
)

// ReadingSpec says which resources of one type a Reading has.
type ReadingSpec struct {
	ResourceType string
	Since        time.Time // changed after it; the zero time does not bound
	// Patients and Groups bound the resources to compartments: of these patients, of the patients of
	// these Groups, with both of the patients in both. Both hold ids; none of both bounds nothing.
	Patients, Groups []string
	// Terms bounds the resources to those that have one of these terms of the index; nil does not. A
	// resource that was changed while it is read can come without.
	Terms []int64
	// Pacer makes the reading give way to requests; nil does not.
	Pacer *jobs.Pacer
}

// Reading is the resources of one type, as they were at a moment and as far as a principal may search and
// read them.
type Reading struct {
	spec  ReadingSpec
	e     *export
	t     *exportType
	bound bool // to e.patients
}

// Pages of a Reading.
const (
	readingSpan  = 1 << 20 // surrogates whose terms are looked up together
	readingTerms = 500     // terms that are looked up together
)

// NewReading prepares a Reading for the principal of ctx. A patient or Group that is absent or hidden is
// not-found, 400, with the parameter in the expression.
func (s *Service) NewReading(ctx context.Context, spec ReadingSpec, moment time.Time) (*Reading, error) {
	e, err := s.newExport(ctx, &exportSpec{Level: "system", Since: spec.Since}, moment)
	if err != nil {
		return nil, err
	}
	t, err := e.typeRules(spec.ResourceType)
	if err != nil {
		return nil, err
	}
	t.asked = true
	e.pacer = spec.Pacer
	r := &Reading{spec: spec, e: e, t: t, bound: len(spec.Patients) > 0 || len(spec.Groups) > 0}
	if r.bound {
		e.patients, err = e.boundPatients(ctx, spec.Patients, spec.Groups)
	}
	return r, err
}

// Whole reports whether the principal may search and read every resource of the type.
func (r *Reading) Whole() bool { return r.t.condition.Whole() }

// boundPatients are the patients in a list and in Groups, as far as they are visible.
func (e *export) boundPatients(ctx context.Context, patients, groups []string) (map[int64]bool, error) {
	visible := func(typ string, ids []string) (map[int64]bool, error) {
		t, err := e.typeRules(typ)
		if err != nil {
			return nil, err
		}
		refs := make([]int64, 0, len(ids))
		for _, id := range ids {
			refs = append(refs, int64(fhir.ValueReference(typ, id)))
		}
		out := make(map[int64]bool)
		err = e.inSlices(ctx, refs, targetsAtOnce, func(some []int64) error {
			return e.s.Store.VersionsAtByRefs(ctx, some, e.moment, func(v *store.Stored) error {
				c := &candidate{Stored: v, e: e}
				defer c.release()
				ok, err := e.visible(t, c)
				out[v.Ref] = ok
				return err
			})
		})
		maps.DeleteFunc(out, func(_ int64, ok bool) bool { return !ok })
		return out, err
	}
	check := func(typ, parameter string, ids []string) (map[int64]bool, error) {
		found, err := visible(typ, ids)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if !found[int64(fhir.ValueReference(typ, id))] {
				return nil, outcome.AbsentParameter("%s/%s of the parameter %s is not there", typ, outcome.Clip(id), parameter).At(parameter)
			}
		}
		return found, nil
	}
	named, err := check("Patient", "patient", patients)
	if err != nil || len(groups) == 0 {
		return named, err
	}
	if _, err := check("Group", "group", groups); err != nil {
		return nil, err
	}
	ids := make(map[string]bool)
	for _, group := range groups {
		e.spec.Group = group
		members, err := e.members(ctx, e.moment)
		if err != nil {
			return nil, err
		}
		maps.Copy(ids, members)
	}
	members, err := visible("Patient", slices.Sorted(maps.Keys(ids)))
	if err != nil || len(patients) == 0 {
		return members, err
	}
	maps.DeleteFunc(members, func(ref int64, _ bool) bool { return !named[ref] })
	return members, nil
}

// Each calls each with the resources, until it fails; a body is valid until each returns.
func (r *Reading) Each(ctx context.Context, each func(v *store.Stored) error) error {
	if r.t.condition.None() || r.bound && (len(r.e.patients) == 0 || !r.t.self && len(r.t.keys) == 0) {
		return nil
	}
	offer := func(v *store.Stored) error {
		if ok, err := r.contains(v); err != nil || !ok {
			return err
		}
		if r.e.s.Masks[v.ResourceType] != nil {
			list := []fhir.Version{v.Version}
			if err := r.e.s.Mask(r.e.ctx, list); err != nil {
				return err
			}
			v.Version = list[0]
		}
		return each(v)
	}
	low, high, err := r.e.s.Store.TypeSpan(ctx, r.spec.ResourceType, r.e.moment)
	if err != nil || high == 0 {
		return err
	}
	page := store.MomentPage{ResourceType: r.spec.ResourceType, At: r.e.moment, Since: r.spec.Since, WithIndex: r.bound && !r.t.self}
	if r.bound && r.t.self {
		return r.eachOfRefs(ctx, offer)
	}
	terms := r.terms()
	if terms == nil {
		page.After, page.Last = low-1, high
		return r.e.eachPage(ctx, page, offer)
	}
	for after := low - 1; after < high; {
		last := min(after+readingSpan, high)
		if err := r.eachOfTerms(ctx, page, terms, after, last, offer); err != nil {
			return err
		}
		after = last
	}
	return nil
}

// contains reports whether a resource is in the compartments and visible.
func (r *Reading) contains(v *store.Stored) (bool, error) {
	c := &candidate{Stored: v, e: r.e}
	defer c.release()
	if r.bound {
		in, err := r.t.patientsOf(c, func(ref int64) bool { return r.e.patients[ref] })
		if err != nil || !in {
			return false, err
		}
	}
	return r.e.visible(r.t, c)
}

// eachOfTerms reads the resources of a span that have one of some terms.
func (r *Reading) eachOfTerms(ctx context.Context, page store.MomentPage, terms []int64, after, last int64, offer func(*store.Stored) error) error {
	var rids []int64
	err := r.e.inSlices(ctx, terms, readingTerms, func(some []int64) error {
		list, err := r.e.s.Store.RIDsByTerms(ctx, some, after, last)
		rids = append(rids, list...)
		return err
	})
	if err != nil {
		return err
	}
	if len(terms) > readingTerms {
		slices.Sort(rids)
		rids = slices.Compact(rids)
	}
	for page.After = after; page.After < last; page.After = page.Last {
		n := min(len(rids), r.e.pacer.Size(pageResources))
		if page.Last = last; n < len(rids) {
			page.Last = rids[n-1]
		}
		err := r.e.pacer.Slice(ctx, n, func() error { return r.e.s.Store.VersionsAtByRIDs(ctx, page, rids[:n], offer) })
		if err != nil {
			return err
		}
		rids = rids[n:]
	}
	return nil
}

// eachOfRefs reads the patients that the Reading is bound to.
func (r *Reading) eachOfRefs(ctx context.Context, offer func(*store.Stored) error) error {
	since := func(v *store.Stored) error {
		if !r.spec.Since.IsZero() && !v.LastUpdated.After(r.spec.Since) {
			return nil
		}
		return offer(v)
	}
	return r.e.inSlices(ctx, slices.Sorted(maps.Keys(r.e.patients)), targetsAtOnce, func(some []int64) error {
		return r.e.s.Store.VersionsAtByRefs(ctx, some, r.e.moment, since)
	})
}

// terms are terms of which each resource of the Reading has one; nil where none are known.
func (r *Reading) terms() []int64 {
	switch {
	case r.spec.Terms != nil:
		return r.spec.Terms
	case r.bound:
		var out []int64
		for _, ref := range slices.Sorted(maps.Keys(r.e.patients)) {
			for _, key := range r.t.keys {
				out = append(out, key.Term(fhir.Value(ref)))
			}
		}
		return out
	case r.t.condition.Whole():
		return nil
	}
	c := match.Conjoin(r.t.condition.Clauses())
	switch {
	case len(c.All) > 0:
		return c.All[:1]
	case len(c.Any) > 0:
		return c.Any[0]
	}
	return nil
}
