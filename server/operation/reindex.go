package operation

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/store"
)

// reindexState answers GET /$reindex: the jobs that bring the index of stored
// resources up to date, under way and of the last week, newest first. The answer
// is a Parameters resource with a parameter job for each, whose parts are id,
// type, parameter (URLs), state (waiting for older transactions, running, done),
// created, reason, started, finished, total, done, changed, failed (resources), rate
// (resources a second), remainingSeconds and failure.
func (s *Set) reindexState(ctx context.Context) (interaction.Response, error) {
	if err := s.CheckAllowed(ctx, access.Admin, "", ""); err != nil {
		return interaction.Response{}, err
	}
	jobs, err := s.Store.ReindexJobs(ctx)
	if err != nil {
		return interaction.Response{}, err
	}
	var out []parameters.Parameter
	now := s.Now()
	for _, j := range slices.Backward(jobs) {
		out = append(out, parameters.Parts("job", jobParts(j, now)...))
	}
	return parametersResponse(http.StatusOK, out)
}

func jobParts(j store.ReindexJob, now time.Time) []parameters.Parameter {
	var p []parameters.Parameter
	add := func(one parameters.Parameter) { p = append(p, one) }
	add(parameters.String("id", j.ID))
	add(parameters.Code("type", j.ResourceType))
	for _, url := range j.Parameters {
		add(parameters.URI("parameter", url))
	}
	state, until := "running", now
	switch {
	case !j.Finished.IsZero():
		state, until = "done", j.Finished
	case j.Planned.IsZero():
		state = "waiting"
	}
	add(parameters.Code("state", state))
	add(parameters.DateTime("created", j.Created.Format(time.RFC3339Nano)))
	add(parameters.String("reason", j.ReasonText()))
	if j.Planned.IsZero() {
		return p
	}
	add(parameters.DateTime("started", j.Planned.Format(time.RFC3339Nano)))
	if state == "done" {
		add(parameters.DateTime("finished", j.Finished.Format(time.RFC3339Nano)))
	}
	for _, n := range []struct {
		name string
		n    int64
	}{{"total", j.Total}, {"done", j.Done}, {"changed", j.Changed}, {"failed", j.Failed}} {
		add(parameters.Decimal(n.name, json.Number(strconv.FormatInt(n.n, 10)))) // a valueInteger ends at two thousand million
	}
	if took := until.Sub(j.Planned).Seconds(); took > 0 && j.Done > 0 {
		rate := float64(j.Done) / took
		add(parameters.Decimal("rate", json.Number(strconv.FormatFloat(math.Round(rate*10)/10, 'f', -1, 64))))
		if state == "running" {
			add(parameters.Decimal("remainingSeconds", json.Number(strconv.FormatInt(int64(math.Ceil(float64(max(0, j.Total-j.Done))/rate)), 10))))
		}
	}
	if j.Failure != "" {
		add(parameters.String("failure", j.Failure))
	}
	return p
}

// reindex answers POST /$reindex: it adds a job for each resource type named by the values or parameters `type`, by
// default for all stored types. The job compares the whole index with the search parameters. The value or
// parameter `parameter`, the code or URL of a search parameter, leaves out types without it. The answer is 202
// with reindexState of the new jobs. An unknown type or parameter is invalid, 400.
func (s *Set) reindex(ctx context.Context, in *Inputs) (interaction.Response, error) {
	if err := s.CheckAllowed(ctx, access.Admin, "", ""); err != nil {
		return interaction.Response{}, err
	}
	types, codes := in.Texts("type"), in.Texts("parameter")
	for _, typ := range types {
		if s.Model.Resources[typ] == nil {
			return interaction.Response{}, outcome.Invalid("parameter type: there is no resource type %q in FHIR R4", outcome.Clip(typ))
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
	var out []parameters.Parameter
	now := s.Now()
	for _, typ := range slices.Compact(types) {
		j := store.ReindexJob{ID: s.NewID(), ResourceType: typ, Ranges: true, ParametersVersion: s.Parameters.Current().Version(), Created: now}
		if err := s.Store.AddReindexJob(ctx, j); err != nil {
			return interaction.Response{}, err
		}
		out = append(out, parameters.Parts("job", jobParts(j, now)...))
	}
	s.Parameters.Wake()
	return parametersResponse(http.StatusAccepted, out)
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
			return nil, outcome.Invalid("parameter parameter: none of the types has a search parameter %q", outcome.Clip(codes[i]))
		}
	}
	return out, nil
}

// reindexOperation is $reindex: by POST reindex, by GET reindexState.
func (s *Set) reindexOperation() Operation {
	return Operation{Definition: local + "reindex", Needs: onType(access.Admin), Run: func(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
		if p.Read {
			return s.reindexState(ctx)
		}
		return s.reindex(ctx, in)
	}}
}
