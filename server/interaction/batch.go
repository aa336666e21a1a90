package interaction

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"

	"golang.org/x/sync/errgroup"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// batchWidth is how many entries of one batch run at the same time. Writes that
// do are committed together by the store.
const batchWidth = 32

// batch carries out entries independently of each other: deletes, then creates,
// then updates and patches, then reads. Entries about the same resource keep
// their order.
// Spec: https://hl7.org/fhir/R4/http.html#brules, #trules.
func (s *Service) batch(ctx context.Context, p BundleParams, parts []part) (Response, error) {
	out := &Bundle{Type: "batch-response", Total: -1, Entries: make([]Entry, len(parts))}
	phases := make([][]*job, 4)
	names := urns(parts)
	for i, part := range parts {
		err := part.err
		if err == nil {
			var j *job
			if j, err = s.newJob(i, part.entry, p.BaseURL); err == nil {
				err = independent(j, names)
			}
			if err == nil {
				n := batchPhase(j.method)
				if j.to.Search || j.to.Operation != "" && !s.affectsState(j.to) {
					n = 3 // a POST that reads
				}
				phases[n] = append(phases[n], j)
				continue
			}
		}
		out.Entries[i] = s.failed(ctx, i, err)
	}
	if len(phases[0])+len(phases[1])+len(phases[2]) == 0 && !slices.ContainsFunc(phases[3], func(j *job) bool { return !j.readsResources() }) {
		var d demand
		for _, j := range phases[3] {
			one := s.demandOf(j.to.Type, url.Values{"": {j.to.Query}})
			one.beside = one.beside && (j.to.Search || j.to.ID == "")
			d = d.or(one)
		}
		return s.answerRead(ctx, d, func(ctx context.Context, from Reader) (Response, error) {
			again := p
			again.answered = &answered{reading: make(chan struct{}, maxReading)}
			return s.runBatch(ctx, again, from, phases, out)
		})
	}
	ctx, err := s.onPrimary(ctx)
	if err != nil {
		return Response{}, err
	}
	return s.runBatch(ctx, p, s.Store, phases, out)
}

// runBatch carries out the jobs of a batch, phase by phase. On a standby, whose snapshot has one connection, they run one
// after the other, and a fault of that standby is the error of the whole.
func (s *Service) runBatch(ctx context.Context, p BundleParams, from Reader, phases [][]*job, out *Bundle) (Response, error) {
	var told []func() // of a standby, once its answer is certain
	width := batchWidth
	if isOnReplica(ctx) {
		width = 1
	}
	for _, jobs := range phases {
		var g errgroup.Group
		g.SetLimit(width)
		for _, same := range bySubject(jobs) {
			g.Go(func() error {
				for _, j := range same {
					r, err := s.runBatchEntry(ctx, p, from, j)
					if isOnReplica(ctx) && (outcome.Ours(err) || outcome.Is(err, outcome.CodeConflict)) {
						return err
					}
					if err != nil {
						out.Entries[j.i] = s.failed(ctx, j.i, err)
					} else {
						out.Entries[j.i] = entryOf(r, p, j.method)
					}
					if p.Told != nil && (err != nil || !j.isWrite() || !r.wrote()) {
						done := j.doneOf(r, out.Entries[j.i].Answer.Status)
						if isOnReplica(ctx) {
							told = append(told, func() { p.Told(done) })
						} else {
							p.Told(done)
						}
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return Response{}, err
		}
		if err := ctx.Err(); err != nil {
			return Response{}, err
		}
	}
	for _, tell := range told {
		tell()
	}
	return Response{Status: http.StatusOK, Bundle: out}, nil
}

// readsResources reports whether an entry is a read, a search or $everything, which standbys serve.
func (j *job) readsResources() bool {
	return j.to.Operation == "$everything" || j.to.Operation == "" && (j.to.Search || j.method == "GET" || j.method == "HEAD")
}

// urns maps the URNs by which a batch names its entries to the entries.
func urns(parts []part) map[string]int {
	var names map[string]int
	for i, part := range parts {
		if part.err != nil || part.entry.Resource == nil || !isURN(part.entry.FullURL.Text) {
			continue
		}
		if names == nil {
			names = make(map[string]int)
		}
		names[part.entry.FullURL.Text] = i
	}
	return names
}

// independent refuses an entry of a batch that refers to one of names: the other entries
// are not known to it, and the reference would have no target.
// Spec: https://hl7.org/fhir/R4/http.html#brules (no interdependencies).
func independent(j *job, names map[string]int) error {
	if len(names) == 0 || j.entry.Resource == nil || j.to.Operation != "" || j.to.Type == "Bundle" || !bytes.Contains(j.entry.Resource.Header().Raw, []byte("urn:")) {
		return nil
	}
	var l linker
	var err error
	l.walkReferences(fhir.NodeOf(j.entry.Resource), func(n fhir.Node, reference bool) {
		if other, ok := names[n.Text()]; ok && reference && err == nil {
			err = outcome.Invalid("the reference %s is the fullUrl of entry %d: entries of a batch do not depend on each other, entries of a transaction may", outcome.Clip(n.Text()), other)
		}
	})
	return err
}

// batchPhase is when an entry's turn is: DELETE, POST, PUT and PATCH, GET.
func batchPhase(method string) int {
	switch method {
	case "DELETE":
		return 0
	case "POST":
		return 1
	case "PUT", "PATCH":
		return 2
	}
	return 3
}

// bySubject groups jobs that are about the same resource or the same criteria.
func bySubject(jobs []*job) [][]*job {
	groups := make([][]*job, 0, len(jobs))
	at := make(map[string]int)
	for _, j := range jobs {
		subject := ""
		switch {
		case j.method == "GET" || j.method == "HEAD" || j.to.Search:
		case j.to.ID != "":
			subject = j.to.Type + "/" + j.to.ID
		case j.entry.Request.IfNoneExist.Text != "":
			subject = j.to.Type + "?" + j.ifNoneExist
		case j.to.HasQuery:
			subject = j.to.Type + "?" + j.to.Query
		}
		if subject == "" {
			groups = append(groups, []*job{j})
			continue
		}
		i, ok := at[subject]
		if !ok {
			i = len(groups)
			at[subject] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], j)
	}
	return groups
}

// runBatchEntry carries out an entry of a batch.
func (s *Service) runBatchEntry(ctx context.Context, p BundleParams, from Reader, j *job) (Response, error) {
	q := j.entry.Request
	if j.to.Operation != "" || j.to.Search {
		return s.runReadEntry(ctx, from, j, p)
	}
	switch j.method {
	case "POST":
		c := CreateParams{ResourceType: j.to.Type, IfNoneExist: q.IfNoneExist.Text, BaseURL: p.BaseURL}
		return s.create(ctx, c, j.entry.Resource)
	case "PUT":
		return s.update(ctx, UpdateParams{ResourceType: j.to.Type, ID: j.to.ID, Criteria: j.to.Query, BaseURL: p.BaseURL,
			Preconditions: j.preconditions()}, j.entry.Resource)
	case "PATCH":
		contentType, patch, err := j.patch()
		if err != nil {
			return Response{}, err
		}
		return s.Patch(ctx, PatchParams{ResourceType: j.to.Type, ID: j.to.ID, Criteria: j.to.Query,
			ContentType: contentType, Patch: patch, BaseURL: p.BaseURL, Preconditions: j.preconditions()})
	case "DELETE":
		return s.Delete(ctx, DeleteParams{ResourceType: j.to.Type, ID: j.to.ID, Criteria: j.to.Query, Preconditions: j.preconditions()})
	}
	return s.runReadEntry(ctx, from, j, p)
}

// failed is the entry of an error. Errors without an outcome are logged.
func (s *Service) failed(ctx context.Context, i int, err error) Entry {
	e, ok := outcome.From(inEntry(i, err))
	if outcome.Ours(err) {
		s.logger().LogAttrs(ctx, slog.LevelError, "batch entry failed", slog.Int("entry", i), slog.Any("error", err))
	}
	if !ok {
		e = outcome.New(outcome.CodeException, "internal error").At(entryPath(i))
	}
	return Entry{Answer: &Answer{Status: e.StatusWith(s.now().VersionConflictStatus), Issues: e.Issues}}
}
