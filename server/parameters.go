package server

import (
	"context"
	"fmt"
	"time"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/searchparam"
)

// CompiledParameters returns the search parameters that this program is compiled with.
func CompiledParameters() (*search.Registry, error) {
	base := search.NewRegistry(r4.Model, index.Parameters, index.Compartments)
	for _, r := range index.Interpreted {
		var err error
		if base, err = base.Interpret(r.Base, r.URL, r.Expression, r.Type, r.Key, index.Value); err != nil {
			return nil, fmt.Errorf("search parameters: %w", err)
		}
	}
	return base, nil
}

// parameters makes the search parameters in force, the compiled ones and those that
// arrive at run time, and starts the work on the index that they ask for.
func (s *Server) parameters(ctx context.Context) (*searchparam.Service, error) {
	base, err := CompiledParameters()
	if err != nil {
		return nil, err
	}
	p := &searchparam.Service{
		Base: base, Value: index.Value, Model: r4.Model, Store: s.Store, Extract: index.Extract, BaseURLs: s.Config.baseURLs(),
		NewID: fhir.NewID, Now: time.Now, Logger: s.Logger,
		// With the waiting times before and after a search.
		SearchTime: func() time.Duration { return time.Duration(s.now().Search.TimeoutSeconds)*time.Second + time.Minute },
		Forget: func() {
			s.profiles.forget()
			s.guides.forget()
			s.Validator.Forget()
			s.Terminology.Forget()
		},
	}
	s.guides = &guides{store: s.Store, registry: p.Current}
	s.profiles = &profiles{store: s.Store, registry: p.Current}
	if err := p.Open(ctx); err != nil {
		return nil, err
	}
	s.runInBackground(p.Run)
	return p, nil
}
