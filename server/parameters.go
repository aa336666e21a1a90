package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/search"
	"kiln/server/searchparam"
)

// parameters makes the registry of search parameters, the compiled ones and those
// that arrive at run time, and starts the work on the index that they ask for.
func (s *Server) parameters(ctx context.Context) error {
	base := search.NewRegistry(r4.Model, index.Parameters, index.Compartments)
	for _, r := range index.Interpreted {
		var err error
		if base, err = base.Interpret(r.Base, r.URL, r.Expression, r.Type, r.Key, index.Value); err != nil {
			return fmt.Errorf("search parameters: %w", err)
		}
	}
	s.Parameters = &searchparam.Service{
		Base: base, Value: index.Value, Model: r4.Model, Store: s.Store, MakeIndex: s.Service.Index, FindSort: s.Service.Sort,
		NewID: newID, Now: time.Now, Logger: s.Logger,
	}
	s.Service.Registry = s.Parameters.Current
	s.Service.CheckParameter = s.Parameters.Check
	s.Service.WakeReindex = s.Parameters.Wake
	if err := s.Parameters.Open(ctx); err != nil {
		return err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var done sync.WaitGroup
	done.Go(func() { s.Parameters.Run(working) })
	s.stopParameters = func() {
		stop()
		done.Wait()
	}
	return nil
}
