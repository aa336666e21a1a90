package bulk

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/rest"
)

// searchSpec is a search or $everything that is answered later.
type searchSpec struct {
	Operation    string     `json:"operation,omitempty"` // $everything; "" for a search
	ResourceType string     `json:"type,omitempty"`
	ID           string     `json:"id,omitempty"` // of $everything
	Compartment  string     `json:"compartment,omitempty"`
	InID         string     `json:"inId,omitempty"` // of the compartment
	Values       url.Values `json:"values"`
	Body         []byte     `json:"body,omitempty"`
	Lenient      bool       `json:"lenient,omitempty"`
}

// searchPage is the size of the pages that an asynchronous search reads.
const searchPage = 1000

// searchJob checks a search or $everything and makes its job.
func (s *Service) searchJob(ctx context.Context, k rest.KickOff) (*jobs.Job, []jobs.Part, error) {
	spec := searchSpec{Operation: k.Operation, ResourceType: k.Search.ResourceType, Compartment: k.Search.Compartment, InID: k.Search.CompartmentID,
		Values: url.Values{}, Body: k.Body, Lenient: k.Lenient}
	values := k.Search.Values
	if k.Operation != "" {
		spec.ResourceType, spec.ID, values = k.ResourceType, k.ID, k.Values
	}
	for name, list := range values {
		switch name {
		case "_count", "_offset", "_sort", "_cursor", "_format", "_pretty":
		case "_summary":
			if list[len(list)-1] == "count" {
				return nil, nil, outcome.Invalid("_summary=count asks for no resources: send the search without Prefer: respond-async")
			}
			spec.Values[name] = list
		default:
			spec.Values[name] = list
		}
	}
	var err error
	if k.Operation == "" {
		_, err = s.CheckSearch(ctx, spec.search(nil))
	} else {
		_, err = s.everything(ctx, &spec, url.Values{"_count": {"1"}}) // fails where the request has a fault
	}
	if err != nil {
		return nil, nil, err
	}
	stored, err := json.Marshal(spec)
	if err != nil {
		return nil, nil, err
	}
	return &jobs.Job{Type: "search", Spec: stored, Reason: "a search with Prefer: respond-async"}, []jobs.Part{{Spec: struct{}{}}}, nil
}

func (p *searchSpec) search(page url.Values) interaction.SearchParams {
	return interaction.SearchParams{ResourceType: p.ResourceType, Compartment: p.Compartment, CompartmentID: p.InID, Values: merged(p.Values, page), Lenient: p.Lenient}
}

// merged returns the values of a search with the values of a page.
func merged(values, page url.Values) url.Values {
	out := make(url.Values, len(values)+len(page))
	for name, list := range values {
		out[name] = list
	}
	for name, list := range page {
		out[name] = list
	}
	return out
}

func (s *Service) everything(ctx context.Context, p *searchSpec, page url.Values) (interaction.Response, error) {
	return s.Operation(ctx, interaction.OperationParams{Name: p.Operation, ResourceType: p.ResourceType, ID: p.ID, Read: p.Body == nil, Values: merged(p.Values, page), Body: p.Body})
}

// runSearch reads all pages of a search, and writes each resource once.
func (s *Service) runSearch(ctx context.Context, t *jobs.Task) (jobs.Result, error) {
	var spec searchSpec
	if err := json.Unmarshal(t.Job.Spec, &spec); err != nil {
		return jobs.Result{}, err
	}
	owned, err := asOwner(ctx, t.Job.Principal)
	if err != nil {
		return jobs.Result{}, err
	}
	began := s.Now()
	out := s.newLines(ctx, t)
	defer out.abort()
	seen := make(map[int64]bool)
	page := url.Values{}
	pacer := t.NewPacer()
	for first := true; first || page.Get("_cursor") != ""; first = false {
		count := pacer.Size(searchPage)
		page.Set("_count", strconv.Itoa(count))
		err := pacer.Slice(ctx, count, func() error {
			next, err := s.writePage(owned, out, seen, &spec, page)
			page.Set("_cursor", next)
			return err
		})
		if err != nil {
			return jobs.Result{}, err
		}
		t.Progress(int64(len(seen)))
	}
	files, err := out.close()
	if err != nil {
		return jobs.Result{}, err
	}
	n := int64(len(seen))
	return jobs.Result{Files: files, Total: n, Done: n, Shared: map[string]any{"moment": began}}, nil
}

// writePage writes the resources of a page that were not written yet, and returns the cursor of the next page.
func (s *Service) writePage(ctx context.Context, out *lines, seen map[int64]bool, p *searchSpec, page url.Values) (next string, err error) {
	var answer interaction.Response
	if p.Operation == "" {
		answer, err = s.Search(ctx, p.search(page))
	} else {
		answer, err = s.everything(ctx, p, page)
	}
	if err != nil {
		return "", err
	}
	defer answer.Release()
	return nextCursor(answer.Bundle), s.addEntries(out, seen, answer.Bundle, page.Get("_cursor") == "")
}

// addEntries writes the resources of a page that were not written yet, and the first page's
// warnings.
func (s *Service) addEntries(out *lines, seen map[int64]bool, b *interaction.Bundle, first bool) error {
	for _, e := range b.Entries {
		if e.Version.ResourceType == "" {
			if first && e.Mode == "outcome" {
				if err := addIssues(out, e.Body); err != nil {
					return err
				}
			}
			continue
		}
		ref := int64(fhir.ValueReference(e.Version.ResourceType, e.Version.ID))
		if seen[ref] {
			continue
		}
		seen[ref] = true
		if err := out.addLine(jobs.Output, e.Version.ResourceType, e.Version.Body); err != nil {
			return err
		}
	}
	return nil
}

// addIssues writes each issue of an OperationOutcome as a line of errors.
func addIssues(out *lines, body []byte) error {
	var o struct {
		Issue []json.RawMessage `json:"issue"`
	}
	if err := json.Unmarshal(body, &o); err != nil {
		return err
	}
	for _, issue := range o.Issue {
		line := append(append([]byte(`{"resourceType":"OperationOutcome","issue":[`), issue...), "]}"...)
		if err := out.addLine(jobs.Errors, "OperationOutcome", line); err != nil {
			return err
		}
	}
	return nil
}

// nextCursor is the cursor of the page behind b, "" where there is none.
func nextCursor(b *interaction.Bundle) string {
	for _, l := range b.Links {
		if l.Relation == "next" {
			if _, query, ok := strings.Cut(l.URL, "?"); ok {
				if values, err := url.ParseQuery(query); err == nil {
					return values.Get("_cursor")
				}
			}
		}
	}
	return ""
}

// newLines are the files of a part.
func (s *Service) newLines(ctx context.Context, t *jobs.Task) *lines {
	settings := s.Settings()
	return &lines{ctx: ctx, storage: s.Storage, prefix: jobPath(t), max: settings.MaxFileBytes, base: t.Job.Base, room: s.room(settings.QuotaBytes)}
}

// room returns the check of the quota; nil where there is none.
func (s *Service) room(quota int64) func(ctx context.Context, more int64) error {
	if quota == 0 {
		return nil
	}
	return func(ctx context.Context, more int64) error {
		stored, err := s.Jobs.StoredBytes(ctx)
		if err != nil {
			return err
		}
		if stored+more > quota {
			return outcome.New(outcome.CodeTooCostly, "the files of all jobs would be larger than bulk.quota_mb allows; DELETE a job whose results were fetched")
		}
		return nil
	}
}
