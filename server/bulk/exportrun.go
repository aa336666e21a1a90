package bulk

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/smart"
	"kiln/server/store"
)

// exportPart is the work of one part of an export.
type exportPart struct {
	Do    string       `json:"do"`
	Spans []exportSpan `json:"spans,omitempty"`
}

// The kinds of parts, and the sizes of their work.
const (
	planExport       = "plan"
	readSpans        = "read"       // the resources of the level
	readMembers      = "members"    // the same, found by the references to a few patients
	readTargets      = "targets"    // targets of the references of the level
	readProvenance   = "provenance" // Provenance of exported resources
	readDeletions    = "deletions"
	partResources    = 250_000 // surrogates of a part
	pageResources    = 2000    // resources of a page
	fewPatients      = 500     // a Group up to this size is read by its members' references
	patientsAtOnce   = 25      // of these, so many at a time
	targetsAtOnce    = 1000    // references that are looked up together
	filteredAtOnce   = 500     // resources of which a filter is asked of the search engine together
	rememberedGroups = 8       // sets of patients in memory
)

// exportSpan is surrogates of one type: above After, up to Last.
type exportSpan struct {
	Type        string `json:"type"`
	After, Last int64
}

// readBody reads the body of a kick-off.
func readBody(r *http.Request, most int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, outcome.Invalid("the body cannot be read: %v", err)
	}
	if int64(len(body)) > most {
		return nil, outcome.New(outcome.CodeTooLong, "the body of a kick-off has at most %d bytes", most)
	}
	return body, nil
}

// jobPath is where the files of a task are stored.
func jobPath(t *jobs.Task) string { return fmt.Sprintf("%s/%d-%d", t.Job.ID, t.Number, t.Lease) }

// export is an export under way: what decides which resources are in it.
type export struct {
	s      *Service
	ctx    context.Context // of the owner, with indexes at hand
	spec   *exportSpec
	moment time.Time
	rights *access.Rights // nil may do everything
	types  map[string]*exportType
	// patients are the references of the patients of the level; nil at the level of the system.
	patients map[int64]bool
	// joined are the patients who became members of the Group after _since.
	joined map[int64]bool
	pacer  *jobs.Pacer
}

// exportType is the rules of an export for a resource type.
type exportType struct {
	asked     bool
	condition access.Condition
	filters   [][]match.Clause // ORed; none lets everything pass
	queries   []string
	open      bool       // a filter depends on other resources
	keys      []fhir.Key // of references to patients
	self      bool       // Patient
	reduce    func(fhir.Version) fhir.Version
}

// newExport prepares an export on behalf of the owner of ctx.
func (s *Service) newExport(ctx context.Context, spec *exportSpec, moment time.Time) (*export, error) {
	ctx = access.WithIndex(ctx, access.PrincipalFrom(ctx))
	rights, err := s.Access.Rights(ctx)
	if err != nil {
		return nil, err
	}
	return &export{s: s, ctx: ctx, spec: spec, moment: moment, rights: rights, types: make(map[string]*exportType)}, nil
}

// typeRules returns the rules of the export for a type.
func (e *export) typeRules(typ string) (*exportType, error) {
	if t := e.types[typ]; t != nil {
		return t, nil
	}
	reg := e.s.Parameters.Current()
	t := &exportType{asked: len(e.spec.Types) == 0 || slices.Contains(e.spec.Types, typ)}
	t.keys, t.self = reg.CompartmentKeys(typ, "Patient")
	if e.spec.Level != "system" && typ == "Binary" {
		t.asked = false
	}
	if e.rights != nil {
		var err error
		if t.condition, err = e.rights.Condition(smart.Read|smart.Search, typ); err != nil {
			return nil, err
		}
	}
	for _, query := range e.spec.Filters[typ] {
		values, err := interaction.ParseQuery(query)
		if err != nil {
			return nil, err
		}
		q, err := search.Parse(reg, typ, values, e.s.SearchOptions(e.ctx, true, nil))
		if err != nil {
			return nil, err
		}
		t.filters, t.queries = append(t.filters, q.Clauses), append(t.queries, query)
		t.open = t.open || match.Open(q.Clauses)
	}
	if len(e.spec.Elements) > 0 {
		model := e.s.Model.Resources[typ].Type()
		elements := slices.Clone(e.spec.Elements[typ])
		for _, name := range e.spec.Elements[""] {
			if model.FieldOf(name) != nil {
				elements = append(elements, name)
			}
		}
		if len(elements) == 0 && len(e.spec.Elements[""]) > 0 {
			elements = []string{"id"}
		}
		if len(elements) > 0 {
			cut, _, err := e.s.Subsets([]string{typ}, map[string][]string{"_elements": elements})
			if err != nil {
				return nil, err
			}
			t.reduce = cut
		}
	}
	e.types[typ] = t
	return t, nil
}

// candidate is a version with its index, which is made where it is needed.
type candidate struct {
	*store.Stored
	e     *export
	index *fhir.Index
}

func (c *candidate) release() {
	if c.index != nil {
		c.e.s.Parameters.Recycle(c.index)
		c.index = nil
	}
}

// indexed makes the index of the version.
func (c *candidate) indexed() (*fhir.Index, error) {
	if c.index == nil {
		r, err := fhir.Decode(c.e.s.Model, c.Body)
		if err != nil {
			return nil, err
		}
		x, err := c.e.s.Parameters.Index(c.ID, r)
		if x == nil {
			return nil, err
		}
		c.index = x
	}
	return c.index, nil
}

// terms are the terms and targets of the version.
func (c *candidate) terms() (terms, targets []int64, err error) {
	if c.Terms != nil {
		return c.Terms, c.Targets, nil
	}
	x, err := c.indexed()
	if err != nil {
		return nil, nil, err
	}
	return x.Terms, x.Targets, nil
}

// resource is the version as search judges it.
func (c *candidate) resource() (*match.Resource, error) {
	x, err := c.indexed()
	if err != nil {
		return nil, err
	}
	return &match.Resource{Type: c.ResourceType, ID: c.ID, VersionID: c.VersionID, LastUpdated: c.LastUpdated, Index: x}, nil
}

// patientsOf calls found with each patient that the version is in the compartment of, until found
// returns true.
func (t *exportType) patientsOf(c *candidate, found func(ref int64) bool) (bool, error) {
	if t.self && found(c.Ref) {
		return true, nil
	}
	if len(t.keys) == 0 {
		return false, nil
	}
	terms, targets, err := c.terms()
	if err != nil {
		return false, err
	}
	for _, ref := range targets {
		for _, key := range t.keys {
			if _, ok := slices.BinarySearch(terms, key.Term(fhir.Value(ref))); ok && found(ref) {
				return true, nil
			}
		}
	}
	return false, nil
}

// inLevel reports whether a version is in the level.
func (e *export) inLevel(t *exportType, c *candidate) (bool, error) {
	if e.spec.Level == "system" {
		return true, nil
	}
	return t.patientsOf(c, func(ref int64) bool { return e.patients[ref] })
}

// inTime reports whether a version is between _since and _until. If a patient became a member of the Group after
// _since, the versions in the patient's compartment are in time whatever their age.
func (e *export) inTime(t *exportType, c *candidate) (bool, error) {
	if !e.spec.Until.IsZero() && !c.LastUpdated.Before(e.spec.Until) {
		return false, nil
	}
	if e.spec.Since.IsZero() || c.LastUpdated.After(e.spec.Since) {
		return true, nil
	}
	if len(e.joined) == 0 {
		return false, nil
	}
	return t.patientsOf(c, func(ref int64) bool { return e.joined[ref] })
}

// visible reports whether the owner may read and find a version.
func (e *export) visible(t *exportType, c *candidate) (bool, error) {
	switch {
	case t.condition.None():
		return false, nil
	case t.condition.Whole():
		return true, nil
	}
	r, err := c.resource()
	if err != nil {
		return false, err
	}
	return t.condition.Holds(r)
}

// passes reports whether one of the filters lets a version pass. ask says that only the search
// engine can tell.
func (t *exportType) passes(c *candidate) (yes, ask bool, err error) {
	if len(t.filters) == 0 {
		return true, false, nil
	}
	r, err := c.resource()
	if err != nil {
		return false, false, err
	}
	for _, clauses := range t.filters {
		yes, open := match.Hold(clauses, r)
		if yes && len(open) == 0 {
			return true, false, nil
		}
		ask = ask || yes
	}
	return false, ask, nil
}

// contains reports whether the export contains a version, but for _typeFilter where ask is true.
func (e *export) contains(c *candidate, timed bool) (yes, ask bool, err error) {
	t, err := e.typeRules(c.ResourceType)
	if err != nil || !t.asked {
		return false, false, err
	}
	if ok, err := e.inLevel(t, c); err != nil || !ok {
		return false, false, err
	}
	if timed {
		if ok, err := e.inTime(t, c); err != nil || !ok {
			return false, false, err
		}
	}
	return e.admitted(t, c)
}

// admitted reports whether rights and filters let a version pass.
func (e *export) admitted(t *exportType, c *candidate) (yes, ask bool, err error) {
	if ok, err := e.visible(t, c); err != nil || !ok {
		return false, false, err
	}
	return t.passes(c)
}

// askFilters asks the search engine which of some resources of a type the filters let pass.
func (e *export) askFilters(ctx context.Context, typ string, refs []int64) (map[int64]bool, error) {
	out := make(map[int64]bool)
	from, err := e.s.SeenBy(e.ctx, e.s.Store, smart.Read|smart.Search)
	if err != nil {
		return nil, err
	}
	reg := e.s.Parameters.Current()
	for _, query := range e.types[typ].queries {
		values, err := interaction.ParseQuery(query)
		if err != nil {
			return nil, err
		}
		values.Set("_total", "none")
		for some := range slices.Chunk(refs, filteredAtOnce) {
			options := e.s.SearchOptions(e.ctx, true, nil)
			options.DefaultCount, options.MaxCount = filteredAtOnce, filteredAtOnce
			q, err := search.Parse(reg, typ, values, options)
			if err != nil {
				return nil, err
			}
			q.And(match.Clause{Name: "_id", Any: []match.Match{match.IDs{Refs: some}}})
			found, err := from.Search(ctx, q)
			if err != nil {
				return nil, err
			}
			for _, v := range found.Matches {
				out[int64(fhir.ValueReference(v.ResourceType, v.ID))] = true
			}
			found.Release()
		}
	}
	return out, nil
}

// patientSets remembers the patients of the last jobs of this server.
type patientSets struct {
	mu    sync.Mutex
	known []*patientSet
}

type patientSet struct {
	job              string
	once             sync.Mutex
	patients, joined map[int64]bool
}

// setOfJob returns the patients of a job.
func (p *patientSets) setOfJob(job string) *patientSet {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.known {
		if s.job == job {
			return s
		}
	}
	s := &patientSet{job: job}
	p.known = append(p.known, s)
	if len(p.known) > rememberedGroups {
		p.known = p.known[1:]
	}
	return s
}

// loadPatients finds the patients of the level.
func (e *export) loadPatients(ctx context.Context, job string) error {
	if e.spec.Level == "system" {
		return nil
	}
	set := e.s.sets.setOfJob(job)
	set.once.Lock()
	defer set.once.Unlock()
	if set.patients == nil {
		patients, joined, err := e.findPatients(ctx)
		if err != nil {
			return err
		}
		set.patients, set.joined = patients, joined
	}
	e.patients, e.joined = set.patients, set.joined
	return nil
}

func (e *export) findPatients(ctx context.Context) (patients, joined map[int64]bool, err error) {
	t, err := e.typeRules("Patient")
	if err != nil {
		return nil, nil, err
	}
	patients = make(map[int64]bool)
	add := func(v *store.Stored) error {
		c := &candidate{Stored: v, e: e}
		defer c.release()
		ok, err := e.visible(t, c)
		if ok && v.ResourceType == "Patient" {
			patients[v.Ref] = true
		}
		return err
	}
	if e.spec.Level == "Patient" && len(e.spec.Patients) == 0 {
		_, last, err := e.s.Store.TypeSpan(ctx, "Patient", e.moment)
		if err != nil {
			return nil, nil, err
		}
		err = e.eachPage(ctx, store.MomentPage{ResourceType: "Patient", At: e.moment, Last: last}, add)
		return patients, nil, err
	}
	ids := e.spec.Patients
	if e.spec.Level == "Group" {
		members, err := e.members(ctx, e.moment)
		if err != nil {
			return nil, nil, err
		}
		if len(ids) > 0 {
			ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !members[id] })
		} else {
			ids = slices.Sorted(maps.Keys(members))
		}
		if !e.spec.Since.IsZero() {
			before, err := e.members(ctx, e.spec.Since)
			if err != nil {
				return nil, nil, err
			}
			joined = make(map[int64]bool)
			for _, id := range ids {
				if !before[id] {
					joined[int64(fhir.ValueReference("Patient", id))] = true
				}
			}
		}
	}
	var refs []int64
	for _, id := range ids {
		refs = append(refs, int64(fhir.ValueReference("Patient", id)))
	}
	err = e.inSlices(ctx, refs, targetsAtOnce, func(some []int64) error { return e.s.Store.VersionsAtByRefs(ctx, some, e.moment, add) })
	return patients, joined, err
}

// eachPage calls each with the resources from a page to page.Last, in pages, and gives way to requests.
func (e *export) eachPage(ctx context.Context, page store.MomentPage, each func(*store.Stored) error) error {
	for page.After < page.Last {
		page.Count = e.pacer.Size(pageResources)
		err := e.pacer.Slice(ctx, page.Count, func() (err error) {
			page.After, err = e.s.Store.VersionsAt(ctx, page, each)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// inSlices calls read with all references, at most so many at a time, and gives way to requests.
func (e *export) inSlices(ctx context.Context, refs []int64, most int, read func(some []int64) error) error {
	for len(refs) > 0 {
		n := min(e.pacer.Size(most), len(refs))
		err := e.pacer.Slice(ctx, n, func() error { return read(refs[:n]) })
		if err != nil {
			return err
		}
		refs = refs[n:]
	}
	return nil
}

// members are the ids of the patients of the Group and of its member Groups at a moment. Groups
// that the owner may not read have none.
func (e *export) members(ctx context.Context, at time.Time) (map[string]bool, error) {
	t, err := e.typeRules("Group")
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool)
	seen := map[string]bool{e.spec.Group: true}
	for next := []string{e.spec.Group}; len(next) > 0; {
		var refs []int64
		for _, id := range next {
			refs = append(refs, int64(fhir.ValueReference("Group", id)))
		}
		next = nil
		err := e.s.Store.VersionsAtByRefs(ctx, refs, at, func(v *store.Stored) error {
			c := &candidate{Stored: v, e: e}
			defer c.release()
			if ok, err := e.visible(t, c); err != nil || !ok {
				return err
			}
			var group struct {
				Member []struct {
					Entity struct {
						Reference string `json:"reference"`
					} `json:"entity"`
					Inactive bool `json:"inactive"`
				} `json:"member"`
			}
			if err := json.Unmarshal(v.Body, &group); err != nil {
				return err
			}
			for _, m := range group.Member {
				if m.Inactive {
					continue
				}
				typ, id := e.localReference(m.Entity.Reference)
				switch {
				case typ == "Patient":
					out[id] = true
				case typ == "Group" && !seen[id]:
					seen[id] = true
					next = append(next, id)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// localReference reads a literal reference to this server.
func (e *export) localReference(reference string) (typ, id string) {
	for _, base := range e.s.BaseURLs {
		reference = strings.TrimPrefix(reference, base+"/")
	}
	typ, rest, ok := strings.Cut(reference, "/")
	id, _, _ = strings.Cut(rest, "/_history/")
	if !ok || !fhir.ValidID(id) {
		return "", ""
	}
	return typ, id
}

// runExport works on one part of an export.
func (s *Service) runExport(ctx context.Context, t *jobs.Task) (jobs.Result, error) {
	var spec exportSpec
	var part exportPart
	var shared sharedState
	for _, in := range []struct {
		text []byte
		into any
	}{{t.Job.Spec, &spec}, {t.Spec, &part}, {t.Job.Shared, &shared}} {
		if err := json.Unmarshal(in.text, in.into); err != nil {
			return jobs.Result{}, err
		}
	}
	owned, err := asOwner(ctx, t.Job.Principal)
	if err != nil {
		return jobs.Result{}, err
	}
	if part.Do == planExport {
		return s.planExport(ctx, owned, t, &spec)
	}
	e, err := s.newExport(owned, &spec, shared.Moment)
	if err != nil {
		return jobs.Result{}, err
	}
	e.pacer = t.NewPacer()
	if err := e.loadPatients(ctx, t.Job.ID); err != nil {
		return jobs.Result{}, err
	}
	w := &exportWriter{export: e, ctx: ctx, task: t, out: s.newLines(ctx, t), targets: make(map[int64]bool)}
	defer w.out.abort()
	switch part.Do {
	case readSpans:
		err = w.readSpans(part.Spans)
	case readMembers:
		err = w.readMembers(part.Spans)
	case readTargets:
		err = w.readTargets()
	case readProvenance:
		err = w.readProvenance()
	case readDeletions:
		err = w.readDeletions()
	default:
		err = fmt.Errorf("bulk: a part of an export does %q", part.Do)
	}
	if err != nil {
		return jobs.Result{}, err
	}
	files, err := w.out.close()
	if err != nil {
		return jobs.Result{}, err
	}
	return jobs.Result{Files: files, Done: w.done, Data: partData{Targets: encodeRefs(w.targets)}}, nil
}

// partData is the result of a part that later parts read.
type partData struct {
	Targets string `json:"targets,omitempty"` // references, 8 bytes each, as base64
}

func encodeRefs(refs map[int64]bool) string {
	b := make([]byte, 0, 8*len(refs))
	for ref := range refs {
		b = binary.BigEndian.AppendUint64(b, uint64(ref))
	}
	return base64.StdEncoding.EncodeToString(b)
}

func decodeRefs(text string, into map[int64]bool) error {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return err
	}
	for ; len(b) >= 8; b = b[8:] {
		into[int64(binary.BigEndian.Uint64(b))] = true
	}
	return nil
}

// planExport fixes the moment and makes the other parts.
func (s *Service) planExport(ctx, owned context.Context, t *jobs.Task, spec *exportSpec) (jobs.Result, error) {
	moment, err := s.fixExportMoment(ctx)
	if err != nil {
		return jobs.Result{}, err
	}
	e, err := s.newExport(owned, spec, moment)
	if err != nil {
		return jobs.Result{}, err
	}
	e.pacer = t.NewPacer()
	if err := e.loadPatients(ctx, t.Job.ID); err != nil {
		return jobs.Result{}, err
	}
	files, err := s.writeWarnings(ctx, t, spec.Warnings)
	if err != nil {
		return jobs.Result{}, err
	}
	result := jobs.Result{Files: files, Shared: map[string]any{"moment": moment, "epoch": int64(s.Store.Epoch()), "since": !spec.Since.IsZero()}}
	var provenance bool
	if result.Parts, provenance, err = e.planReads(ctx); err != nil {
		return jobs.Result{}, err
	}
	add := func(stage int, do string) {
		result.Parts = append(result.Parts, jobs.Part{Stage: stage, Spec: exportPart{Do: do}})
	}
	if !spec.Since.IsZero() {
		add(1, readDeletions)
	}
	if spec.Level != "system" {
		add(2, readTargets)
	}
	if provenance {
		add(2, readProvenance)
	}
	return result, nil
}

// fixExportMoment fixes the moment of an export, where there is room for its files.
func (s *Service) fixExportMoment(ctx context.Context) (time.Time, error) {
	if check := s.room(s.Settings().QuotaBytes); check != nil {
		if err := check(ctx, 1); err != nil {
			return time.Time{}, err
		}
	}
	if s.Settle != nil { // AuditEvents of acknowledged writes are resources too
		if err := s.Settle(ctx); err != nil {
			return time.Time{}, err
		}
	}
	moment, err := s.Store.FixMoment(ctx, s.Settings().SnapshotWait)
	if e, ok := outcome.From(err); ok && errors.Is(err, store.ErrMomentWait) {
		return time.Time{}, outcome.New(outcome.CodeTransient, "%s", e.Issues[0].Diagnostics).Because(jobs.ErrFinal)
	}
	return moment, err
}

// writeWarnings writes the warnings of a kick-off to a file of errors.
func (s *Service) writeWarnings(ctx context.Context, t *jobs.Task, warnings []json.RawMessage) ([]jobs.File, error) {
	out := s.newLines(ctx, t)
	defer out.abort()
	for _, line := range warnings {
		if err := out.addLine(jobs.Errors, "OperationOutcome", line); err != nil {
			return nil, err
		}
	}
	return out.close()
}

// planReads makes the parts that read the resources of the level. provenance says that another part reads
// Provenance of what these export.
func (e *export) planReads(ctx context.Context) (parts []jobs.Part, provenance bool, err error) {
	stored, err := e.s.Store.ResourceTypes(ctx)
	if err != nil {
		return nil, false, err
	}
	plan := spanPlan{do: readSpans, room: partResources}
	if e.hasFewPatients() {
		plan.do = readMembers
	}
	for _, typ := range stored {
		if e.s.Model.Resources[typ] == nil {
			continue
		}
		t, err := e.typeRules(typ)
		if err != nil {
			return nil, false, err
		}
		if t.condition.None() {
			continue
		}
		if typ == "Provenance" && (e.spec.Associated != "" || e.spec.Level != "system" && t.asked) {
			provenance = true
			continue
		}
		if !t.asked || e.spec.Level != "system" && !t.self && len(t.keys) == 0 {
			continue
		}
		low, high, err := e.s.Store.TypeSpan(ctx, typ, e.moment)
		if err != nil {
			return nil, false, err
		}
		if high > 0 {
			plan.addSpan(exportSpan{typ, low - 1, high})
		}
	}
	plan.flush()
	return plan.parts, provenance, nil
}

// hasFewPatients reports whether the level is so few patients that references to them find its resources.
func (e *export) hasFewPatients() bool {
	return e.spec.Level != "system" && len(e.patients) <= fewPatients && (e.spec.Level == "Group" || len(e.spec.Patients) > 0)
}

// spanPlan divides spans of surrogates into parts.
type spanPlan struct {
	do    string // exportPart.Do of the parts
	spans []exportSpan
	room  int64 // surrogates that the next part has room for
	parts []jobs.Part
}

// addSpan adds a span, in pieces where the parts read all of its surrogates.
func (p *spanPlan) addSpan(span exportSpan) {
	if p.do == readMembers {
		p.spans = append(p.spans, span)
		return
	}
	for after := span.After; after < span.Last; {
		last := min(after+p.room, span.Last)
		p.spans = append(p.spans, exportSpan{span.Type, after, last})
		p.room -= last - after
		after = last
		if p.room <= 0 {
			p.flush()
		}
	}
}

// flush ends the part that is being planned.
func (p *spanPlan) flush() {
	if len(p.spans) > 0 {
		p.parts = append(p.parts, jobs.Part{Stage: 1, Spec: exportPart{Do: p.do, Spans: p.spans}})
	}
	p.spans, p.room = nil, partResources
}
