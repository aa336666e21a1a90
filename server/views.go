package server

import (
	"context"
	"time"

	"kiln/gen/r4"
	"kiln/server/bulk"
	"kiln/server/fhir"
	"kiln/server/view"
	"kiln/server/view/operate"
	"kiln/server/view/table"
)

// checkView fails with invalid, 422, for a ViewDefinition that cannot be compiled.
func checkView(r fhir.Resource) error {
	d, ok := r.(*r4.ViewDefinition)
	if !ok {
		return nil
	}
	_, err := view.Compile(r4.Model, d)
	return err
}

// viewOperations builds the operations of SQL on FHIR.
func (s *Server) viewOperations() *operate.Service {
	v := &operate.Service{
		Service:  s.Service,
		Bulk:     s.bulk,
		Settings: func() operate.Settings { return s.derived.Load().views },
		Enabled:  func(ctx context.Context) bool { return s.enabled(ctx, "views") },
		NoteRuns: s.heap.addRuns,
	}
	v.Open(s.Metrics)
	s.bulk.Results = map[string]bulk.Result{operate.ExportJob: v.ExportResult()}
	s.bulk.Jobs.Kinds = append(s.bulk.Jobs.Kinds, v.Kind(s.bulk.RunsJobs))
	return v
}

// viewTables builds the tables of views, and keeps them current.
func (s *Server) viewTables() *table.Service {
	t := &table.Service{
		Service:      s.Service,
		Jobs:         s.bulk.Jobs,
		SnapshotWait: func() time.Duration { return s.derived.Load().views.SnapshotWait },
		Enabled:      func(ctx context.Context) bool { return s.enabled(ctx, "views") },
		Logger:       s.Logger,
	}
	t.Open(s.Metrics)
	s.bulk.Jobs.Kinds = append(s.bulk.Jobs.Kinds, t.Kind())
	return t
}
