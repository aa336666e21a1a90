package operation

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/store"
)

// ReindexState answers GET /$reindex: the jobs that bring the index of stored
// resources up to date, under way and of the last week, newest first. The answer
// is a Parameters resource with a parameter job for each, whose parts are id,
// type, parameter (URLs), state (waiting for older transactions, running, done),
// created, reason, started, finished, total, done, changed, failed (resources), rate
// (resources a second), remainingSeconds and failure.
func (s *Set) ReindexState(ctx context.Context) (interaction.Response, error) {
	if err := s.May(ctx, access.Admin, "", ""); err != nil {
		return interaction.Response{}, err
	}
	jobs, err := s.Store.ReindexJobs(ctx)
	if err != nil {
		return interaction.Response{}, err
	}
	out := parameters{}
	now := s.Now()
	for _, j := range slices.Backward(jobs) {
		out.part("job", jobParts(j, now))
	}
	return interaction.Response{Status: http.StatusOK, Body: out.json()}, nil
}

func jobParts(j store.ReindexJob, now time.Time) parameters {
	p := parameters{}
	p.add("id", "valueString", j.ID)
	p.add("type", "valueCode", j.ResourceType)
	for _, url := range j.Parameters {
		p.add("parameter", "valueUri", url)
	}
	state, until := "running", now
	switch {
	case !j.Finished.IsZero():
		state, until = "done", j.Finished
	case j.Planned.IsZero():
		state = "waiting"
	}
	p.add("state", "valueCode", state)
	p.add("created", "valueDateTime", j.Created.Format(time.RFC3339Nano))
	reason := "asked for by POST /$reindex"
	switch {
	case len(j.Parameters) > 0:
		reason = "search parameters have changed"
	case len(j.Keys) > 0:
		reason = "another build of the server has made the index"
	}
	p.add("reason", "valueString", reason)
	if j.Planned.IsZero() {
		return p
	}
	p.add("started", "valueDateTime", j.Planned.Format(time.RFC3339Nano))
	if state == "done" {
		p.add("finished", "valueDateTime", j.Finished.Format(time.RFC3339Nano))
	}
	for _, n := range []struct {
		name string
		n    int64
	}{{"total", j.Total}, {"done", j.Done}, {"changed", j.Changed}, {"failed", j.Failed}} {
		p.add(n.name, "valueDecimal", n.n) // a valueInteger ends at two thousand million
	}
	if took := until.Sub(j.Planned).Seconds(); took > 0 && j.Done > 0 {
		rate := float64(j.Done) / took
		p.add("rate", "valueDecimal", json.Number(strconv.FormatFloat(math.Round(rate*10)/10, 'f', -1, 64)))
		if state == "running" {
			p.add("remainingSeconds", "valueDecimal", int64(math.Ceil(float64(max(0, j.Total-j.Done))/rate)))
		}
	}
	if j.Failure != "" {
		p.add("failure", "valueString", j.Failure)
	}
	return p
}

// Reindex answers POST /$reindex: it adds a job for each resource type that the
// values or parameters `type` name, all that are stored when there are none, which
// compares the whole index with what the search parameters say. The value or
// parameter `parameter`, the code or URL of a search parameter, leaves out the
// types that have none such. The answer is 202 and what ReindexState tells of the
// new jobs. An unknown type or parameter is invalid, 400.
func (s *Set) Reindex(ctx context.Context, p Request) (interaction.Response, error) {
	if err := s.May(ctx, access.Admin, "", ""); err != nil {
		return interaction.Response{}, err
	}
	types, codes := slices.Clone(p.Values["type"]), slices.Clone(p.Values["parameter"])
	if len(p.Body) > 0 {
		r, err := s.Decode("Parameters", p.Body)
		if err != nil {
			return interaction.Response{}, err
		}
		for _, in := range r.(*r4.Parameters).Parameter {
			value := fhir.NodeOf(in.Value).Text()
			switch in.Name.Text {
			case "type":
				types = append(types, value)
			case "parameter":
				codes = append(codes, value)
			default:
				return interaction.Response{}, outcome.Invalid("$reindex has no parameter %q: expected type or parameter", clip(in.Name.Text))
			}
		}
	}
	for _, typ := range types {
		if s.Model.Resources[typ] == nil {
			return interaction.Response{}, outcome.Invalid("parameter type: there is no resource type %q in FHIR R4", clip(typ))
		}
	}
	if len(types) == 0 {
		var err error
		if types, err = s.Store.ResourceTypes(ctx); err != nil {
			return interaction.Response{}, err
		}
	}
	types, err := s.withParameters(types, codes)
	if err != nil {
		return interaction.Response{}, err
	}
	slices.Sort(types)
	out := parameters{}
	now := s.Now()
	for _, typ := range slices.Compact(types) {
		j := store.ReindexJob{ID: s.NewID(), ResourceType: typ, Ranges: true, Registry: s.Parameters.Current().Version(), Created: now}
		if err := s.Store.AddReindexJob(ctx, j); err != nil {
			return interaction.Response{}, err
		}
		out.part("job", jobParts(j, now))
	}
	s.Parameters.Wake()
	return interaction.Response{Status: http.StatusAccepted, Body: out.json()}, nil
}

// withParameters returns the types that have one of the parameters.
func (s *Set) withParameters(types, codes []string) ([]string, error) {
	if len(codes) == 0 {
		return types, nil
	}
	found := make([]bool, len(codes))
	out := slices.DeleteFunc(slices.Clone(types), func(typ string) bool {
		has := false
		for _, p := range s.Parameters.Current().Parameters(typ) {
			for i, code := range codes {
				if p.Code == code || p.URL == code {
					has, found[i] = true, true
				}
			}
		}
		return !has
	})
	for i, ok := range found {
		if !ok {
			return nil, outcome.Invalid("parameter parameter: none of the types has a search parameter %q", clip(codes[i]))
		}
	}
	return out, nil
}

// addIndex makes the operations on the index and on packages known.
func (s *Set) addIndex() {
	s.Add("$reindex", Operation{
		System:     true,
		Definition: "http://kiln/fhir/OperationDefinition/reindex",
		Run: func(ctx context.Context, p Request) (interaction.Response, error) {
			if p.Read {
				return s.ReindexState(ctx)
			}
			return s.Reindex(ctx, p)
		},
	})
	s.Add("$install-package", Operation{
		System: true, Affects: true,
		Definition: "http://kiln/fhir/OperationDefinition/install-package",
		Accepts:    []string{"application/gzip", "application/x-gzip", "application/x-gtar", "application/x-tgz", "application/octet-stream"},
		Run:        s.InstallPackage,
	})
}
