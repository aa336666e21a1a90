package server

import (
	"context"
	"time"

	"kiln/server/admin"
	"kiln/server/retention"
)

// retentionJobs builds the jobs that remove old AuditEvents and versions. It adds them to the
// core of Bulk Data.
func (s *Server) retentionJobs() *retention.Service {
	r := &retention.Service{Store: s.Store, Jobs: s.bulk.Jobs, Now: time.Now, Audit: s.audit.Record, Logger: s.Logger,
		Settings: func() retention.Settings {
			c := s.now()
			return retention.Settings{AuditDays: c.Audit.RetentionDays, HistoryDays: c.FHIR.HistoryRetentionDays}
		}}
	s.bulk.Jobs.Kinds = append(s.bulk.Jobs.Kinds, r.Kind())
	return r
}

// startRetention starts a job of retention for an administrator.
func (s *Server) startRetention(ctx context.Context) (admin.Job, error) {
	j, err := s.retention.Start(ctx, "an administrator asked for it")
	if err != nil {
		return admin.Job{}, err
	}
	return adminJob(j), nil
}
