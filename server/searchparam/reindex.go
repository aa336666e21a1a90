package searchparam

import (
	"context"
	"log/slog"
	"time"

	"kiln/server/store"
)

// Wake lets Run look for work at once.
func (s *Service) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// The pauses of Run: without work, while other servers work or transactions must end first, and after an error.
const (
	idle    = 5 * time.Second
	waiting = 50 * time.Millisecond
	failing = 2 * time.Second
)

// removal is how often Run looks for orders whose entries may go.
const removal = time.Second

// Run adds the work of the jobs to the core of package jobs and records its end, until ctx ends. It leaves
// jobs of another build to the servers of that build.
func (s *Service) Run(ctx context.Context) {
	var followed time.Time
	for ctx.Err() == nil {
		var worked, waits, removing bool
		err := s.Refresh(ctx) // the end of a job changes the warnings of searches
		if err == nil {
			due := store.TimeSince(followed) >= removal
			if removing, err = s.followSortIndexes(ctx, due); due {
				followed = time.Now()
			}
		}
		if err == nil {
			worked, waits, err = s.Store.AdvanceReindexJobs(ctx)
		}
		rest := idle
		switch {
		case s.current.Load().otherBuild != nil:
		case err != nil && ctx.Err() == nil:
			s.Logger.Error("work on the index failed; it is tried again", slog.Any("error", err))
			rest = failing
		case worked:
			if core := s.core.Load(); core != nil {
				core.Wake()
			}
			continue
		case waits:
			rest = waiting
		case removing:
			rest = removal
		}
		t := time.NewTimer(rest)
		select {
		case <-t.C:
		case <-s.wake:
		case <-ctx.Done():
		}
		t.Stop()
	}
}
