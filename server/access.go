package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/admin"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/search"
)

// access builds what decides on requests that have a token.
func (s *Server) access(i *interaction.Service) *access.Decider {
	return &access.Decider{
		Registry: i.Parameters.Current,
		Options:  func(ctx context.Context) search.Options { return i.SearchOptions(ctx, false, nil) },
		Patients: s.relatedPatients,
	}
}

// policies knows and administers the policies in force.
func (s *Server) policies(ctx context.Context) (*admin.Access, error) {
	source := &access.PolicySource{Store: s.Store, Decider: s.Service.Access, DefaultDeny: func() bool { return s.now().Auth.Policy.DefaultDeny }, Logger: s.Logger}
	s.Service.Access.Policies = source.Current
	if s.Config.Auth.Enabled {
		if err := source.Load(ctx); err != nil {
			return nil, fmt.Errorf("read the access policies: %w", err)
		}
		s.background(source.Run)
		admin.RegisterPolicies(s.Metrics, source)
	}
	return &admin.Access{Decider: s.Service.Access, Policies: source, Store: s.Store}, nil
}

// relatedPatients are the patients of RelatedPerson/id, none where there is no such
// resource or it is not active.
func (s *Server) relatedPatients(ctx context.Context, id string) ([]string, error) {
	v, err := s.Store.Read(ctx, "RelatedPerson", id)
	if e, ok := outcome.From(err); ok && e.HTTPStatus() < http.StatusInternalServerError {
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
	if person.Active.Text == "false" {
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
