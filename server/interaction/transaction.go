package interaction

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// transaction carries out all entries or none. What needs no database comes
// before BEGIN: reading the entries, ids, links between entries, validation, index
// entries. Then:
//
//	lock and answer the conditions -> DELETE, POST, PUT and PATCH in one write -> GET
//
// Spec: https://hl7.org/fhir/R4/http.html#trules.
func (s *Service) transaction(ctx context.Context, p BundleParams, b *r4.Bundle) (Response, error) {
	ctx, err := s.onPrimary(ctx)
	if err != nil {
		return Response{}, err
	}
	t, err := s.plan(ctx, b, p.BaseURL)
	if err != nil {
		return Response{}, err
	}
	// 4. Without conditions everything can be made ready before BEGIN.
	if !t.conditional {
		if err := t.ready(ctx, t.writes); err != nil {
			return Response{}, err
		}
	}
	if !t.conditional && len(t.gets) == 0 {
		// A short one shares its commit with others.
		if err := t.writeJobs(ctx, s.Store.WriteAll, t.writes); err != nil {
			return Response{}, err
		}
		out, err := t.response(ctx, p)
		if err != nil {
			return Response{}, err
		}
		t.tell(p)
		t.release()
		return Response{Status: http.StatusOK, Bundle: out}, nil
	}
	var out *Bundle
	again := false
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		if again && t.conditional {
			// Links were written into the resources: start from the client's text.
			fresh, err := fhir.Decode(s.Model, p.Body)
			if err != nil {
				return err
			}
			if t, err = s.plan(ctx, fresh.(*r4.Bundle), p.BaseURL); err != nil {
				return err
			}
		}
		again = true
		var err error
		out, err = t.run(ctx, tx, p)
		return err
	})
	if err != nil {
		return Response{}, err
	}
	t.tell(p)
	t.release()
	return Response{Status: http.StatusOK, Bundle: out}, nil
}

// tell tells of the entries that no write tells of.
func (t *plan) tell(p BundleParams) {
	if p.Told == nil {
		return
	}
	for _, d := range t.done {
		p.Told(d)
	}
}

// plan is a transaction, read and checked.
type plan struct {
	s           *Service
	jobs        []*job // in request order
	writes      []*job // in execution order
	gets        []*job
	done        []Done // the entries of which no write tells, as the last run left them
	conditional bool   // an entry waits for the answer to its condition
	linker      linker
	// about: the key of a condition -> the entry that makes its match
	about map[int64]*job
	// pending: a conditional reference -> the entry with the same condition.
	pending map[string]*job
	// late: a conditional reference -> its search, of a type that the transaction
	// writes, so that it is answered when those writes are done.
	late map[string]*condition
}

// plan is steps 1 to 3.
func (s *Service) plan(ctx context.Context, b *r4.Bundle, base string) (*plan, error) {
	t := &plan{s: s, jobs: make([]*job, len(b.Entry))}
	t.linker.search = s.conditionalSearch(base)
	// 1. Read and check each entry.
	named := make(map[string]int, len(b.Entry))
	for i := range b.Entry {
		e := &b.Entry[i]
		j, err := s.newJob(i, e, base)
		if err != nil {
			return nil, inEntry(i, err)
		}
		if url := e.FullURL.Text; url != "" && e.Resource != nil {
			if other, twice := named[url]; twice {
				return nil, outcome.Invalid("entries %d and %d have the same fullUrl %s", other, i, outcome.Clip(url)).At(entryPath(i) + ".fullUrl")
			}
			if strings.Contains(url, "/_history/") {
				return nil, outcome.Invalid("constraint bdl-8: fullUrl %s names a version", outcome.Clip(url)).At(entryPath(i) + ".fullUrl")
			}
			named[url] = i
		}
		t.jobs[i] = j
	}
	// 2. Say what each write is about.
	for _, j := range t.jobs {
		if err := t.subject(ctx, j); err != nil {
			return nil, inEntry(j.i, err)
		}
		if j.w != nil {
			t.writes = append(t.writes, j)
		} else {
			t.gets = append(t.gets, j)
		}
		t.conditional = t.conditional || j.cond != nil
	}
	slices.SortStableFunc(t.writes, func(a, b *job) int { return batchPhase(a.method) - batchPhase(b.method) })
	if err := t.distinct(); err != nil {
		return nil, err
	}
	// 3. Answer conditional references, each once, as far as the transaction's own
	// writes cannot make a difference. They only read.
	return t, t.resolveReferences(ctx)
}

// subject decides which resource a write is about, as far as that is known
// before its condition is answered.
func (t *plan) subject(ctx context.Context, j *job) error {
	s, q := t.s, j.entry.Request
	if j.to.Operation != "" {
		return t.operation(j)
	}
	if j.to.Search {
		return nil
	}
	var kind access.Interaction
	var what, criteria string
	switch j.method {
	case "POST":
		kind, what, criteria = access.Create, "ifNoneExist", j.ifNoneExist
		j.w = &store.Write{Method: fhir.POST, ResourceType: j.to.Type, ID: s.NewID()}
	case "PUT":
		kind, what, criteria = access.Update, "a conditional update", j.to.Query
		j.w = &store.Write{Method: fhir.PUT, ResourceType: j.to.Type, ID: j.to.ID, MustExist: s.now().RefuseUpdateCreate}
		if j.to.ID != "" {
			if err := checkID(j.to.ID); err != nil {
				return err
			}
			if err := checkBodyID(j.entry.Resource, j.to.ID); err != nil {
				return err
			}
		}
	case "PATCH":
		kind, what, criteria = access.Patch, "a conditional patch", j.to.Query
		j.w = &store.Write{Method: fhir.PATCH, ResourceType: j.to.Type, ID: j.to.ID, MustExist: true}
	case "DELETE":
		kind, what, criteria = access.Delete, "a conditional delete", j.to.Query
		j.w = &store.Write{Method: fhir.DELETE, ResourceType: j.to.Type, ID: j.to.ID}
		if err := t.s.checkDeletable(ctx, j.to.Type, j.to.ID); err != nil {
			return err
		}
	default:
		return nil
	}
	if err := j.preconditions().read(j.w); err != nil {
		return err
	}
	err := s.checkAllowed(ctx, kind, j.to.Type, j.to.ID)
	if j.method == "PUT" {
		err = s.mayUpdate(ctx, j.to.Type, j.to.ID)
	}
	if err != nil {
		return err
	}
	if err := s.GuardWrite(ctx, j.w); err != nil {
		return err
	}
	switch j.method {
	case "POST":
		if err := refuseImitation(j.entry.Resource); err != nil {
			return err
		}
	case "PUT":
		if j.entry.Resource, err = s.markLoaded(j.entry.Resource); err != nil {
			return err
		}
	}
	if j.to.ID == "" && (j.method != "POST" || q.IfNoneExist.Text != "") {
		c, err := s.parseCondition(ctx, j.to.Type, criteria, what)
		if err != nil {
			return err
		}
		j.cond = c
	}
	return nil
}

// operation refuses an operation that could not be undone with the transaction.
func (t *plan) operation(j *job) error {
	if t.s.affectsState(j.to) {
		return outcome.NotSupported("%s changes something, or is an operation of an App, and is not served inside a transaction", j.to.Operation)
	}
	return nil
}

// distinct refuses two writes of one resource.
func (t *plan) distinct() error {
	seen := make(map[string]int, len(t.writes))
	for _, j := range t.writes {
		if j.w.ID == "" || j.existing != nil || j.twin != nil || j.gone {
			continue
		}
		key := j.target()
		if other, twice := seen[key]; twice {
			return outcome.Invalid("entries %d and %d are both about %s; a transaction changes a resource once", min(other, j.i), max(other, j.i), key).
				At(entryPath(max(other, j.i)))
		}
		seen[key] = j.i
	}
	return nil
}

// resolveReferences answers the conditional references of all resources. A reference with
// the condition of an entry means that entry; one about a type that the transaction writes
// waits for the writes.
// Spec: https://hl7.org/fhir/R4/http.html#trules (conditional references come last).
func (t *plan) resolveReferences(ctx context.Context) error {
	entries := make(map[int64]*job)
	for _, j := range t.writes {
		if j.cond != nil && (j.w.Method == fhir.POST || j.w.Method == fhir.PUT) {
			entries[j.cond.key] = j
		}
	}
	t.pending = make(map[string]*job)
	written := make(map[string]bool)
	for _, j := range t.writes {
		written[j.w.ResourceType] = true
	}
	var texts []string
	for _, j := range t.writes {
		if !j.links() {
			continue
		}
		texts = t.linker.conditionalReferences(texts[:0], j.entry.Resource)
		for _, text := range texts {
			if _, done := t.linker.conditional[text]; done {
				continue
			}
			if t.late[text] != nil {
				j.late = append(j.late, strings.Clone(text))
				continue
			}
			typ, criteria, _ := t.linker.search(text)
			c, err := t.s.parseCondition(ctx, typ, criteria, "a conditional reference")
			if err != nil {
				return inEntry(j.i, err)
			}
			if entry, ok := entries[c.key]; ok {
				t.pending[strings.Clone(text)] = entry
				continue
			}
			text = strings.Clone(text)
			if written[typ] {
				if t.late == nil {
					t.late = make(map[string]*condition)
				}
				t.late[text], t.conditional = c, true
				j.late = append(j.late, text)
				continue
			}
			target, err := t.referent(ctx, t.s.Store, text, c)
			if err != nil {
				return inEntry(j.i, err)
			}
			t.link(text, target)
		}
	}
	return nil
}

// referent is the one match of a conditional reference, "Patient/123".
func (t *plan) referent(ctx context.Context, from searcher, text string, c *condition) (string, error) {
	match, err := c.findMatch(ctx, from)
	if err != nil {
		return "", err
	}
	if match == nil {
		return "", outcome.Precondition(outcome.CodeNotFound, "the conditional reference %s matches no resource", outcome.Clip(text))
	}
	return match.ResourceType + "/" + match.ID, nil
}

// link replaces a conditional reference by target.
func (t *plan) link(text, target string) {
	if t.linker.conditional == nil {
		t.linker.conditional = make(map[string]string)
	}
	t.linker.conditional[text] = target
}

// writeLate writes the entries that wait for the answer to a conditional reference. Entries
// whose references are answered by written resources come first. Once all are written, each
// reference is asked again: a resource written last may match as well. Two that wait for
// each other match nothing, 412.
func (t *plan) writeLate(ctx context.Context, tx *store.Tx, waiting []*job) error {
	for len(waiting) > 0 {
		var found, still []*job
		var failure error
		for _, j := range waiting {
			missing := false
			for _, text := range j.late {
				if t.linker.conditional[text] != "" {
					continue
				}
				target, err := t.referent(ctx, tx, text, t.late[text])
				if e, ok := outcome.From(err); ok && e.Issues[0].Code == outcome.CodeNotFound {
					missing, failure = true, inEntry(j.i, err)
					continue
				}
				if err != nil {
					return inEntry(j.i, err)
				}
				t.link(text, target)
			}
			if missing {
				still = append(still, j)
			} else {
				found = append(found, j)
			}
		}
		if len(found) == 0 {
			return failure
		}
		if err := t.ready(ctx, found); err != nil {
			return err
		}
		if err := t.writeJobs(ctx, tx.Write, found); err != nil {
			return err
		}
		waiting = still
	}
	for text, c := range t.late {
		target, err := t.referent(ctx, tx, text, c)
		if err == nil && target != t.linker.conditional[text] {
			err = outcome.Precondition(outcome.CodeMultiple, "the conditional reference %s matches a resource that the transaction changes", outcome.Clip(text))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// links reports whether the entry has a resource with links: one to store, or a FHIRPath
// Patch.
func (j *job) links() bool {
	switch j.w.Method {
	case fhir.POST, fhir.PUT:
		return true
	case fhir.PATCH:
		return j.entry.Resource.Type().Name == "Parameters"
	}
	return false
}

// ready writes the links into the resources and makes body and index of each.
// From here on every subject is known.
func (t *plan) ready(ctx context.Context, jobs []*job) error {
	targets := make(map[string]string, len(t.writes))
	for _, j := range t.writes {
		if url := j.entry.FullURL.Text; url != "" && j.entry.Resource != nil && j.method != "PATCH" {
			targets[url] = j.target()
		}
	}
	t.linker.targets, t.linker.versions = targets, sync.OnceValue(t.versions)
	for text, j := range t.pending {
		t.link(text, j.target())
	}
	ctx = t.promise(ctx)
	var wrong []outcome.Issue // by the rules, of every entry
	for _, j := range jobs {
		if len(wrong) >= maxBundleIssues {
			break
		}
		if j.w.Method == fhir.PATCH {
			if err := t.patchLinks(ctx, j); err != nil {
				return inEntry(j.i, err)
			}
		}
		if j.w.Method != fhir.POST && j.w.Method != fhir.PUT || j.existing != nil || j.twin != nil {
			continue
		}
		raw, edits := t.linker.rewriteReferences(j.entry.Resource, j.entry.FullURL.Text)
		if err := t.linker.checkResolved(); err != nil {
			return inEntry(j.i, err)
		}
		if err := t.s.validate(ctx, j.entry.Resource); err != nil {
			err = inEntry(j.i, err)
			if e, ok := outcome.From(err); ok && outcome.IsUnprocessable(err) {
				wrong = append(wrong, e.Issues...)
				continue
			}
			return err
		}
		body, err := fhir.Splice(raw, edits)
		if err != nil {
			return inEntry(j.i, err)
		}
		j.w.Body, j.w.Resource = body, j.entry.Resource
		if j.w.Index, err = t.s.Parameters.Index(j.w.ID, j.entry.Resource); err != nil {
			return inEntry(j.i, err)
		}
	}
	if len(wrong) > 0 {
		return outcome.Unprocessable(wrong)
	}
	return nil
}

// target is the reference to the subject of the entry: "Patient/123".
func (j *job) target() string { return j.w.ResourceType + "/" + j.w.ID }

// versions maps "Patient/123" to the version that it will have, where that is known.
func (t *plan) versions() map[string]int {
	versions := make(map[string]int, len(t.writes))
	for _, j := range t.writes {
		switch {
		case j.existing != nil:
			versions[j.target()] = j.existing.VersionID
		case j.method == "POST":
			versions[j.target()] = 1
		case j.method == "PUT" && len(j.w.IfMatch) == 1 && j.w.IfMatch[0] > 0:
			versions[j.target()] = j.w.IfMatch[0] + 1
		}
	}
	return versions
}

// patchLinks makes ready the patch of j.
func (t *plan) patchLinks(ctx context.Context, j *job) error {
	contentType, patch, err := j.patch()
	if err != nil {
		return err
	}
	if j.links() {
		var edits []fhir.Edit
		if patch, edits = t.linker.rewriteReferences(j.entry.Resource, j.entry.FullURL.Text); len(edits) > 0 {
			patch = fhir.Encode(nil, j.entry.Resource)
		}
		if err := t.linker.checkResolved(); err != nil {
			return err
		}
	} else {
		patch = t.linker.applyText(patch)
	}
	j.w.Modify, err = t.s.modify(ctx, PatchParams{ResourceType: j.to.Type, ContentType: contentType, Patch: patch})
	return err
}

// promise returns a context in which the resources of the transaction exist already.
func (t *plan) promise(ctx context.Context) context.Context {
	will := make(map[string]bool, len(t.writes))
	for _, j := range t.writes {
		if !j.gone {
			will[j.w.ResourceType+"/"+j.w.ID] = j.w.Method != fhir.DELETE
		}
	}
	return context.WithValue(ctx, promised{}, will)
}

type promised struct{}

// PromisedResource reports whether the transaction at work creates, changes or deletes a
// resource, and whether the resource will exist when it is done.
func PromisedResource(ctx context.Context, typ, id string) (exists, known bool) {
	will, _ := ctx.Value(promised{}).(map[string]bool)
	exists, known = will[typ+"/"+id]
	return exists, known
}

// run is everything between BEGIN and COMMIT.
func (t *plan) run(ctx context.Context, tx *store.Tx, p BundleParams) (*Bundle, error) {
	writes := t.writes
	var late []*job
	if t.conditional {
		// 5. Conditions see the deletions of the transaction.
		if err := t.lock(ctx, tx); err != nil {
			return nil, err
		}
		n := 0
		for n < len(writes) && writes[n].method == "DELETE" {
			n++
		}
		if err := t.answer(ctx, tx, writes[:n]); err != nil {
			return nil, err
		}
		if err := t.distinct(); err != nil {
			return nil, err
		}
		if err := t.writeJobs(ctx, tx.Write, writes[:n]); err != nil {
			return nil, err
		}
		writes = writes[n:]
		if err := t.answer(ctx, tx, writes); err != nil {
			return nil, err
		}
		if err := t.distinct(); err != nil {
			return nil, err
		}
		var now []*job
		for _, j := range writes {
			if j.late == nil || j.existing != nil || j.twin != nil {
				now = append(now, j)
			} else {
				late = append(late, j)
			}
		}
		writes = now
		if err := t.ready(ctx, writes); err != nil {
			return nil, err
		}
	}
	// 6. Write, last what refers to something by a search.
	if err := t.writeJobs(ctx, tx.Write, writes); err != nil {
		return nil, err
	}
	if len(late) > 0 {
		if err := t.writeLate(ctx, tx, late); err != nil {
			return nil, err
		}
	}
	// 7. Read, and tell.
	out, err := t.response(ctx, p)
	if err != nil {
		return nil, err
	}
	p.answered.bytes.Store(0) // of an attempt before this one
	for _, j := range t.gets {
		r, err := t.s.runReadEntry(ctx, tx, j, p)
		if err != nil {
			return nil, inEntry(j.i, err)
		}
		out.Entries[j.i] = entryOf(r, p, j.method)
		if p.Told != nil {
			t.done = append(t.done, j.doneOf(r, r.Status))
		}
	}
	return out, nil
}

// response is the answer to the transaction, with the results of the writes.
func (t *plan) response(ctx context.Context, p BundleParams) (*Bundle, error) {
	out := &Bundle{Type: "transaction-response", Total: -1, Entries: make([]Entry, len(t.jobs))}
	t.done = nil
	for _, j := range t.writes {
		r, err := t.s.hideUnreadable(ctx, j.response(), nil)
		if err != nil {
			return nil, inEntry(j.i, err)
		}
		if p.Told != nil && !r.wrote() {
			t.done = append(t.done, j.doneOf(r, r.Status))
		}
		out.Entries[j.i] = entryOf(r, p, j.method)
	}
	return out, nil
}

func (t *plan) lock(ctx context.Context, tx *store.Tx) error {
	var keys []int64
	for _, j := range t.writes {
		if j.cond != nil {
			keys = append(keys, j.cond.key)
			j.cond.held = true
		}
	}
	slices.Sort(keys)
	return tx.Lock(ctx, slices.Compact(keys)...)
}

// answer resolves the conditions of jobs, whose locks are held.
func (t *plan) answer(ctx context.Context, tx *store.Tx, jobs []*job) error {
	for _, j := range jobs {
		if j.cond == nil {
			continue
		}
		if err := t.answerOne(ctx, tx, j); err != nil {
			return inEntry(j.i, err)
		}
	}
	return nil
}

func (t *plan) answerOne(ctx context.Context, tx *store.Tx, j *job) error {
	if t.about == nil {
		t.about = make(map[int64]*job)
	}
	other := t.about[j.cond.key]
	if j.method == "PUT" {
		if other != nil {
			return outcome.Invalid("entries %d and %d are both about %s; a transaction changes a resource once", min(other.i, j.i), max(other.i, j.i), j.cond)
		}
		t.about[j.cond.key] = j
		return t.s.resolveUpdate(ctx, tx, j.cond, j.w, j.entry.Resource)
	}
	match, err := j.cond.findMatch(ctx, tx)
	if err != nil {
		return err
	}
	switch {
	case j.method == "POST" && match == nil && other != nil:
		// As if one were carried out after the other.
		j.twin, j.w.ID = other, other.w.ID
	case j.method == "POST" && match == nil:
		t.about[j.cond.key] = j
	case j.method == "POST" && match != nil:
		j.existing = match
		j.w.ID = match.ID // what links to the entry mean
	case j.method == "DELETE" && match == nil:
		j.gone = true
	case j.method == "PATCH" && match == nil:
		return outcome.New(outcome.CodeNotFound, "no resource matches %s", j.cond)
	case match != nil:
		j.w.ID = match.ID
	}
	return nil
}

// writeJobs passes the writes to the store.
func (t *plan) writeJobs(ctx context.Context, write func(context.Context, []*store.Write) error, jobs []*job) error {
	ws := make([]*store.Write, 0, len(jobs))
	of := make([]*job, 0, len(jobs))
	for _, j := range jobs {
		if j.existing != nil || j.twin != nil || j.gone || j.w.Method == fhir.DELETE && !fhir.ValidID(j.w.ID) {
			continue
		}
		ws, of = append(ws, j.w), append(of, j)
	}
	if len(ws) == 0 {
		return nil
	}
	err := write(ctx, ws)
	if w, ok := errors.AsType[*store.WriteError](err); ok {
		j := of[w.Index]
		return inEntry(j.i, t.s.updateCreateError(j.w, w.Err))
	}
	if err != nil {
		return fmt.Errorf("write transaction: %w", err)
	}
	return nil
}

// response is the answer to a write of the transaction.
func (j *job) response() Response {
	switch {
	case j.existing != nil:
		return existingResponse(*j.existing)
	case j.twin != nil:
		return existingResponse(j.twin.w.Result)
	case j.method == "DELETE":
		return deletedResponse(j.w)
	}
	return madeResponse(j.w.Result, j.w.Created)
}

// release gives the index entries back for reuse.
func (t *plan) release() {
	for _, j := range t.writes {
		t.s.recycleIndex(j.w)
	}
}
