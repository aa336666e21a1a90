package interaction

import (
	"context"
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/telemetry"
)

// Validator judges resources before they are stored.
type Validator interface {
	// Validate returns the issues of a resource, by the rules, without in.Issues; an
	// empty result is a valid resource. Issues that are no errors do not keep it from
	// being stored.
	Validate(ctx context.Context, in fhir.Reading) []outcome.Issue
}

type skip struct{}

// SkipValidation returns a context in which writes are not validated.
func SkipValidation(ctx context.Context) context.Context {
	return context.WithValue(ctx, skip{}, true)
}

// validate fails with invalid, 422, when the service has a validator and it finds
// an error in r; with 400 for a SearchParameter that can never work, which has to
// be known whether it is valid or not.
func (s *Service) validate(ctx context.Context, r fhir.Resource) error {
	if p, ok := r.(*r4.SearchParameter); ok {
		if err := s.Parameters.Check(p); err != nil {
			return err
		}
	}
	if s.CheckContent != nil {
		if err := s.CheckContent(r); err != nil {
			return err
		}
	}
	if s.Validator == nil || ctx.Value(skip{}) != nil {
		return nil
	}
	s.Parameters.Current() // what profiles say is as new as the search parameters
	ctx, span := telemetry.Start(ctx, "validation")
	issues := s.Validator.Validate(ctx, fhir.Reading{Resource: r})
	span.End()
	if slices.ContainsFunc(issues, isError) {
		return outcome.Unprocessable(issues)
	}
	return nil
}

func isError(i outcome.Issue) bool {
	return i.Severity == outcome.Failure || i.Severity == outcome.Fatal
}

// ruleErrors are the errors, by the rules, of a resource whose JSON is wrong in places.
func (s *Service) ruleErrors(ctx context.Context, in fhir.Reading) []outcome.Issue {
	if s.Validator == nil || ctx.Value(skip{}) != nil {
		return nil
	}
	return slices.DeleteFunc(s.Validator.Validate(ctx, in), func(i outcome.Issue) bool { return !isError(i) })
}

// maxBundleIssues is how many issues of a Bundle are enough: the entries after are not
// looked at, as its sender has something to correct first.
const maxBundleIssues = 100

// entryErrors are the errors, by the rules, of the resources that the entries of a
// Bundle store, where its JSON is wrong in places. base is the service's URL as the
// client sees it.
func (s *Service) entryErrors(ctx context.Context, in fhir.Reading, base string) []outcome.Issue {
	b, ok := in.Resource.(*r4.Bundle)
	if !ok {
		return nil
	}
	stored := make(map[int]bool)  // entries whose resource is to be stored
	will := make(map[string]bool) // see Promised
	for i := range b.Entry {
		q := b.Entry[i].Request
		if b.Entry[i].Resource == nil || q == nil || q.Method.Text != "POST" && q.Method.Text != "PUT" {
			continue
		}
		to, err := s.parseTarget(q.URL.Text, base)
		if err != nil || to.Operation != "" || to.Search {
			continue
		}
		stored[i] = true
		will[to.Type+"/"+to.ID] = true
	}
	ctx = context.WithValue(ctx, promised{}, will)
	var issues []outcome.Issue
	for i := range b.Entry {
		if len(issues) >= maxBundleIssues {
			break
		}
		if !stored[i] {
			continue
		}
		one := fhir.Reading{Resource: b.Entry[i].Resource}
		for _, lost := range in.Lost {
			if rest, ok := strings.CutPrefix(lost, entryPath(i)+".resource"); ok {
				one.Lost = append(one.Lost, one.Resource.Type().Name+rest)
			}
		}
		if found := s.ruleErrors(ctx, one); len(found) > 0 {
			e, _ := outcome.From(inEntry(i, outcome.Unprocessable(found)))
			issues = append(issues, e.Issues...)
		}
	}
	return issues
}
