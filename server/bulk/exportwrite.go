package bulk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/jobs"
	"kiln/server/store"
)

// exportWriter writes the resources of one part.
type exportWriter struct {
	*export
	ctx  context.Context
	task *jobs.Task
	out  *lines
	done int64
	// targets are the references of what resources of the level refer to.
	targets map[int64]bool
	// asked are the resources of a page of which a filter is asked of the search engine.
	asked []store.Stored
}

// write writes a version.
func (w *exportWriter) write(v fhir.Version) error {
	list := []fhir.Version{v}
	if w.s.Masks[v.ResourceType] != nil {
		if err := w.s.Mask(w.export.ctx, list); err != nil {
			return err
		}
	}
	if t := w.types[v.ResourceType]; t != nil && t.reduce != nil {
		list[0] = t.reduce(list[0])
	}
	w.done++
	if w.done%1000 == 0 {
		w.task.Progress(w.done)
	}
	return w.out.addLine(jobs.Output, v.ResourceType, list[0].Body)
}

// offer writes a version of the level, if the export contains it, and notes its references.
func (w *exportWriter) offer(v *store.Stored) error {
	c := &candidate{Stored: v, e: w.export}
	defer c.release()
	yes, ask, err := w.contains(c, true)
	switch {
	case err != nil:
		return err
	case ask && !yes:
		kept := *v
		kept.Body = slices.Clone(v.Body)
		w.asked = append(w.asked, kept)
		return nil
	case !yes:
		return nil
	}
	return w.writeNoted(c)
}

// writeNoted writes a version and notes its references.
func (w *exportWriter) writeNoted(c *candidate) error {
	if w.spec.Level != "system" {
		_, targets, err := c.terms()
		if err != nil {
			return err
		}
		for _, ref := range targets {
			if !w.patients[ref] {
				w.targets[ref] = true
			}
		}
	}
	return w.write(c.Version)
}

// askPending asks the search engine about the resources in w.asked, and writes those that pass.
func (w *exportWriter) askPending(write func(*candidate) error) error {
	byType := make(map[string][]int64)
	for i := range w.asked {
		v := &w.asked[i]
		byType[v.ResourceType] = append(byType[v.ResourceType], v.Ref)
	}
	pass := make(map[int64]bool)
	for typ, refs := range byType {
		some, err := w.askFilters(w.ctx, typ, refs)
		if err != nil {
			return err
		}
		for ref := range some {
			pass[ref] = true
		}
	}
	for i := range w.asked {
		if !pass[w.asked[i].Ref] {
			continue
		}
		c := &candidate{Stored: &w.asked[i], e: w.export}
		err := write(c)
		c.release()
		if err != nil {
			return err
		}
	}
	w.asked = w.asked[:0]
	return nil
}

// readSpans writes the resources of the level among some surrogates.
func (w *exportWriter) readSpans(spans []exportSpan) error {
	for _, span := range spans {
		t, err := w.typeRules(span.Type)
		if err != nil {
			return err
		}
		page := w.pageOf(span)
		page.WithIndex = w.spec.Level != "system" && !t.self
		for page.After < span.Last {
			page.Count = w.pacer.Size(pageResources)
			err := w.pacer.Slice(w.ctx, page.Count, func() error { return w.readPage(&page, w.offer) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// pageOf returns the first page of a span, before any of it is read.
func (w *exportWriter) pageOf(span exportSpan) store.MomentPage {
	page := store.MomentPage{ResourceType: span.Type, At: w.moment, Until: w.spec.Until, After: span.After, Last: span.Last, Count: pageResources}
	if len(w.joined) == 0 {
		page.Since = w.spec.Since
	}
	return page
}

// readPage offers the resources of a page, and moves the page behind them.
func (w *exportWriter) readPage(page *store.MomentPage, offer func(*store.Stored) error) (err error) {
	if page.After, err = w.s.Store.VersionsAt(w.ctx, *page, offer); err != nil {
		return err
	}
	return w.askPending(w.writeNoted)
}

// readMembers writes the resources of the level that refer to one of a few patients.
func (w *exportWriter) readMembers(spans []exportSpan) error {
	patients := make([]int64, 0, len(w.patients))
	for ref := range w.patients {
		patients = append(patients, ref)
	}
	slices.Sort(patients)
	for _, span := range spans {
		t, err := w.typeRules(span.Type)
		if err != nil {
			return err
		}
		seen := make(map[int64]bool)
		offer := func(v *store.Stored) error {
			if seen[v.Ref] {
				return nil
			}
			seen[v.Ref] = true
			return w.offer(v)
		}
		if t.self {
			err := w.inSlices(w.ctx, patients, targetsAtOnce, func(some []int64) error {
				if err := w.s.Store.VersionsAtByRefs(w.ctx, some, w.moment, offer); err != nil {
					return err
				}
				return w.askPending(w.writeNoted)
			})
			if err != nil {
				return err
			}
		}
		if len(t.keys) == 0 {
			continue
		}
		err = w.inSlices(w.ctx, patients, patientsAtOnce, func(some []int64) error { return w.readPatients(span, t, some, offer) })
		if err != nil {
			return err
		}
	}
	return nil
}

// readPatients offers the resources of a span that refer to some patients.
func (w *exportWriter) readPatients(span exportSpan, t *exportType, patients []int64, offer func(*store.Stored) error) error {
	page := w.pageOf(span)
	page.Terms = []int64{}
	for _, ref := range patients {
		for _, key := range t.keys {
			page.Terms = append(page.Terms, key.Term(fhir.Value(ref)))
		}
	}
	for page.After < span.Last {
		if err := w.readPage(&page, offer); err != nil {
			return err
		}
	}
	return nil
}

// readTargets writes what resources of the level refer to, unless it is in a patient's compartment.
func (w *exportWriter) readTargets() error {
	results, err := w.s.Jobs.Results(w.ctx, w.task.Job.ID)
	if err != nil {
		return err
	}
	wanted := make(map[int64]bool)
	for _, r := range results {
		var data partData
		if err := json.Unmarshal(r, &data); err != nil {
			return err
		}
		if err := decodeRefs(data.Targets, wanted); err != nil {
			return err
		}
	}
	refs := make([]int64, 0, len(wanted))
	for ref := range wanted {
		refs = append(refs, ref)
	}
	slices.Sort(refs)
	return w.inSlices(w.ctx, refs, targetsAtOnce, w.targetsOf)
}

func (w *exportWriter) targetsOf(refs []int64) error {
	var found []store.Stored
	err := w.s.Store.VersionsAtByRefs(w.ctx, refs, w.moment, func(v *store.Stored) error {
		t, err := w.typeRules(v.ResourceType)
		if err != nil || !t.asked || t.self || v.ResourceType == "Provenance" {
			return err
		}
		kept := *v
		kept.Body = slices.Clone(v.Body)
		found = append(found, kept)
		return nil
	})
	if err != nil {
		return err
	}
	inside, err := w.ofPatients(found)
	if err != nil {
		return err
	}
	for i := range found {
		if inside[found[i].Ref] {
			continue
		}
		c := &candidate{Stored: &found[i], e: w.export}
		yes, ask, err := w.admitted(w.types[c.ResourceType], c)
		if err == nil && yes {
			err = w.write(c.Version)
		}
		if err == nil && ask && !yes {
			w.asked = append(w.asked, found[i])
		}
		c.release()
		if err != nil {
			return err
		}
	}
	return w.askPending(func(c *candidate) error { return w.write(c.Version) })
}

// ofPatients returns which of some versions are in the compartment of any patient.
func (w *exportWriter) ofPatients(versions []store.Stored) (map[int64]bool, error) {
	by := make(map[int64][]int64) // versions by what may be a patient
	for i := range versions {
		t, err := w.typeRules(versions[i].ResourceType)
		if err != nil {
			return nil, err
		}
		c := &candidate{Stored: &versions[i], e: w.export}
		_, err = t.patientsOf(c, func(ref int64) bool {
			by[ref] = append(by[ref], c.Ref)
			return false
		})
		c.release()
		if err != nil {
			return nil, err
		}
	}
	refs := make([]int64, 0, len(by))
	for ref := range by {
		refs = append(refs, ref)
	}
	inside := make(map[int64]bool)
	for some := range slices.Chunk(refs, targetsAtOnce) {
		err := w.s.Store.VersionsAtByRefs(w.ctx, some, w.moment, func(v *store.Stored) error {
			if v.ResourceType == "Patient" {
				for _, ref := range by[v.Ref] {
					inside[ref] = true
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return inside, nil
}

// provenanceOf is a Provenance with its targets.
type provenanceOf struct {
	store.Stored
	recorded time.Time
	targets  []int64
}

// readProvenance writes Provenance: of the resources that are exported, where
// includeAssociatedData asks for it, else of the resources of the level.
func (w *exportWriter) readProvenance() error {
	_, last, err := w.s.Store.TypeSpan(w.ctx, "Provenance", w.moment)
	if err != nil {
		return err
	}
	page := store.MomentPage{ResourceType: "Provenance", At: w.moment, Last: last, WithIndex: true}
	associated := w.spec.Associated
	if associated == "" {
		page.Since, page.Until = w.spec.Since, w.spec.Until
	}
	newest := make(map[int64]newestProvenance) // by target
	read := func(each func(p *provenanceOf, about []int64) error) (err error) {
		var list []provenanceOf
		page.After, err = w.s.Store.VersionsAt(w.ctx, page, func(v *store.Stored) error {
			p, ok, err := w.provenance(v)
			if ok {
				list = append(list, p)
			}
			return err
		})
		if err != nil {
			return err
		}
		about, err := w.aboutExported(list, associated != "")
		if err != nil {
			return err
		}
		for i := range list {
			if err := each(&list[i], about[list[i].Ref]); err != nil {
				return err
			}
		}
		return nil
	}
	pass := func(each func(p *provenanceOf, about []int64) error) error {
		for page.After = 0; page.After < last; {
			page.Count = w.pacer.Size(pageResources / 4)
			if err := w.pacer.Slice(w.ctx, page.Count, func() error { return read(each) }); err != nil {
				return err
			}
		}
		return nil
	}
	if associated == latestProvenance {
		err := pass(func(p *provenanceOf, about []int64) error {
			for _, ref := range about {
				if n, ok := newest[ref]; !ok || p.recorded.After(n.recorded) || p.recorded.Equal(n.recorded) && p.Ref > n.ref {
					newest[ref] = newestProvenance{p.Ref, p.recorded}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return pass(func(p *provenanceOf, about []int64) error {
		if len(about) == 0 || associated == latestProvenance && !slices.ContainsFunc(about, func(ref int64) bool { return newest[ref].ref == p.Ref }) {
			return nil
		}
		return w.write(p.Version)
	})
}

type newestProvenance struct {
	ref      int64
	recorded time.Time
}

// provenance reads the targets of a Provenance; ok is false for a Provenance that is hidden or filtered out.
func (w *exportWriter) provenance(v *store.Stored) (p provenanceOf, ok bool, err error) {
	t, err := w.typeRules("Provenance")
	if err != nil {
		return p, false, err
	}
	c := &candidate{Stored: v, e: w.export}
	defer c.release()
	yes, _, err := w.admitted(t, c)
	if err != nil || !yes {
		return p, false, err
	}
	var content struct {
		Recorded string `json:"recorded"`
		Target   []struct {
			Reference string `json:"reference"`
		} `json:"target"`
	}
	if err := json.Unmarshal(v.Body, &content); err != nil {
		return p, false, fmt.Errorf("read Provenance/%s: %w", v.ID, err)
	}
	p.Stored = *v
	p.Body = slices.Clone(v.Body)
	p.recorded, _ = time.Parse(time.RFC3339Nano, content.Recorded) // one without is the oldest
	for _, target := range content.Target {
		if typ, id := w.localReference(target.Reference); typ != "" {
			p.targets = append(p.targets, int64(fhir.ValueReference(typ, id)))
		}
	}
	return p, true, nil
}

// aboutExported returns which targets of some Provenance are exported, or, without exact, in the
// level; by the reference of the Provenance.
func (w *exportWriter) aboutExported(list []provenanceOf, exact bool) (map[int64][]int64, error) {
	by := make(map[int64][]int64)
	for i := range list {
		for _, ref := range list[i].targets {
			by[ref] = append(by[ref], list[i].Ref)
		}
	}
	refs := make([]int64, 0, len(by))
	for ref := range by {
		refs = append(refs, ref)
	}
	out := make(map[int64][]int64)
	var ask []store.Stored
	found := func(ref int64) {
		for _, p := range by[ref] {
			out[p] = append(out[p], ref)
		}
	}
	for some := range slices.Chunk(refs, targetsAtOnce) {
		err := w.s.Store.VersionsAtByRefs(w.ctx, some, w.moment, func(v *store.Stored) error {
			c := &candidate{Stored: v, e: w.export}
			defer c.release()
			if !exact {
				t, err := w.typeRules(v.ResourceType)
				if err != nil {
					return err
				}
				yes, err := w.inLevel(t, c)
				if yes {
					yes, err = w.visible(t, c)
				}
				if yes {
					found(v.Ref)
				}
				return err
			}
			yes, open, err := w.contains(c, true)
			if yes {
				found(v.Ref)
			} else if open {
				ask = append(ask, store.Stored{Version: fhir.Version{ResourceType: v.ResourceType, ID: v.ID}, Ref: v.Ref})
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for i := range ask {
		pass, err := w.askFilters(w.ctx, ask[i].ResourceType, []int64{ask[i].Ref})
		if err != nil {
			return nil, err
		}
		if pass[ask[i].Ref] {
			found(ask[i].Ref)
		}
	}
	return out, nil
}

// deletionsOfLine is the number of entries of a Bundle of deletions.
const deletionsOfLine = 500

// readDeletions writes the deletions after _since: of resources whose last version was in the level,
// of the types asked for, and visible to the owner.
func (w *exportWriter) readDeletions() error {
	types, err := w.s.Store.ResourceTypes(w.ctx)
	if err != nil {
		return err
	}
	var refs []string
	flush := func() error {
		if len(refs) == 0 {
			return nil
		}
		line := []byte(`{"resourceType":"Bundle","type":"transaction","entry":[`)
		for i, ref := range refs {
			if i > 0 {
				line = append(line, ',')
			}
			line = append(line, `{"request":{"method":"DELETE","url":"`+ref+`"}}`...)
		}
		refs = refs[:0]
		return w.out.addLine(jobs.Deleted, "Bundle", append(line, "]}"...))
	}
	// Deleted patients come first: others were in their compartments.
	slices.SortStableFunc(types, func(a, b string) int { return firstPatient(a) - firstPatient(b) })
	gone := make(map[int64]bool)
	for _, typ := range types {
		if w.s.Model.Resources[typ] == nil {
			continue
		}
		t, err := w.typeRules(typ)
		if err != nil {
			return err
		}
		if t.condition.None() || !t.asked && !t.self {
			continue
		}
		offer := func(v *store.Stored) error {
			c := &candidate{Stored: v, e: w.export}
			defer c.release()
			in, err := w.wasInLevel(t, c, gone)
			if in {
				in, err = w.visible(t, c)
			}
			if err != nil || !in {
				return err
			}
			if t.self {
				gone[v.Ref] = true
			}
			if !t.asked {
				return nil
			}
			if refs = append(refs, typ+"/"+v.ID); len(refs) == deletionsOfLine {
				return flush()
			}
			return nil
		}
		after := int64(0)
		for first := true; first || after > 0; first = false {
			// Each page looks at all deletions after _since: smaller ones would cost more.
			err := w.pacer.Slice(w.ctx, pageResources, func() (err error) {
				after, err = w.s.Store.DeletionsAt(w.ctx, typ, w.spec.Since, w.moment, after, pageResources, offer)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return flush()
}

func firstPatient(typ string) int {
	if typ == "Patient" {
		return 0
	}
	return 1
}

// wasInLevel is inLevel of a version before its deletion.
func (w *exportWriter) wasInLevel(t *exportType, c *candidate, gone map[int64]bool) (bool, error) {
	switch {
	case w.spec.Level == "system":
		return true, nil
	case t.self && w.spec.Level == "Patient" && len(w.spec.Patients) == 0:
		return true, nil
	case t.self && w.spec.Level == "Group":
		members, err := w.members(w.ctx, w.moment)
		return members[c.ID], err
	}
	return t.patientsOf(c, func(ref int64) bool { return w.patients[ref] || gone[ref] })
}
