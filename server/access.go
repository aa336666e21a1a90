package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/admin"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
)

// policySource knows the policies in force; its Decider decides on requests that have a
// token.
func (s *Server) policySource() *access.PolicySource {
	return &access.PolicySource{
		Store: s.Store,
		Decider: &access.Decider{
			Registry:         s.Parameters.Current,
			Options:          func(ctx context.Context) search.Options { return s.Service.SearchOptions(ctx, false, nil) },
			Patients:         s.relatedPatients,
			Policies:         func(ctx context.Context) (*access.Policies, error) { return s.policies.Current(ctx) },
			Related:          s.holdsOfRelated,
			PatientsSeeAudit: func() bool { return s.now().Audit.VisibleToPatients },
		},
		DefaultDeny: func() bool { return s.now().Auth.Policy.DefaultDeny },
		Logger:      s.Logger,
	}
}

// startPolicies reads the policies, and follows their changes.
func (s *Server) startPolicies(ctx context.Context) error {
	if err := s.policies.Load(ctx); err != nil {
		return fmt.Errorf("read the access policies: %w", err)
	}
	s.runInBackground(s.policies.Run)
	admin.RegisterPolicies(s.Metrics, s.policies)
	return nil
}

// relatedTimeout bounds a question about other resources, which may wait for a connection
// while a write holds one.
const relatedTimeout = 5 * time.Second

// holdsOfRelated reports whether one of the targets of m has one of its types and meets its clauses.
func (s *Server) holdsOfRelated(ctx context.Context, m match.Related) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, relatedTimeout)
	defer cancel()
	targets := match.Clause{Name: "_id", Any: []match.Match{match.IDs{Refs: m.Targets}}}
	q := &search.Query{Types: m.Types, Count: 1, Total: search.TotalNone, Clauses: append(slices.Clip(m.Clauses), targets)}
	if len(q.Types) == 1 {
		q.Type = q.Types[0]
	}
	found, err := s.Store.SearchFact(ctx, q)
	if err != nil {
		return false, fmt.Errorf("access by the security context of a Binary: %w", err)
	}
	return len(found.Matches) > 0, nil
}

// relatedPatients returns the patients that RelatedPerson/id is related to now. There are
// none if the resource is absent or inactive, or if its period has not begun or has ended.
func (s *Server) relatedPatients(ctx context.Context, id string) ([]string, error) {
	v, err := s.Store.ReadFact(ctx, "RelatedPerson", id)
	if outcome.Theirs(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := fhir.Decode(r4.Model, v.Body)
	if err != nil {
		return nil, err
	}
	person := r.(*r4.RelatedPerson)
	if person.Active.Text == "false" || !withinPeriod(person.Period, time.Now()) {
		return nil, nil
	}
	reference := person.Patient.Reference.Text
	for _, base := range s.Config.baseURLs() {
		reference = strings.TrimPrefix(reference, base+"/")
	}
	patient, ok := strings.CutPrefix(reference, "Patient/")
	if patient, _, _ = strings.Cut(patient, "/_history/"); !ok || !fhir.ValidID(patient) {
		return nil, nil
	}
	return []string{patient}, nil
}

// withinPeriod reports whether a time lies in a period. Both boundaries are inclusive: a
// period that ends with "2026-11-28" lasts until the end of that day. A boundary that is
// absent is open. A boundary that cannot be read contains
// no time.
// Spec: https://hl7.org/fhir/R4/datatypes.html#Period.
func withinPeriod(p *r4.Period, now time.Time) bool {
	if p == nil {
		return true
	}
	at := now.UnixMicro()
	if start := p.Start.Text; start != "" {
		if low, _, err := fhir.ParseDate(start); err != nil || at < low {
			return false
		}
	}
	if end := p.End.Text; end != "" {
		if _, high, err := fhir.ParseDate(end); err != nil || at >= high {
			return false
		}
	}
	return true
}
