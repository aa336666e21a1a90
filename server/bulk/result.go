package bulk

import (
	"context"
	"net/http"

	"kiln/server/jobs"
	"kiln/server/web"
)

// Result is what another package answers of the jobs of its type that have ended.
type Result struct {
	// Send answers with the result of a job that is done or has failed. urlOf is the URL of a file.
	Send func(x *web.Exchange, r *http.Request, j *jobs.Job, files []jobs.File, urlOf func(jobs.File) (string, error)) error
	// File returns the content type of a file, and fails where the caller may not read it.
	File func(ctx context.Context, j *jobs.Job, f *jobs.File) (contentType string, err error)
}

// resultName is the name of the result of a job, beside its files.
const resultName = "result"

// resultOf returns the Result of a job's type.
func (s *Service) resultOf(j *jobs.Job) (Result, bool) {
	if j == nil {
		return Result{}, false
	}
	result, ok := s.Results[j.Type]
	return result, ok
}

func (s *Service) sendResult(x *web.Exchange, r *http.Request, j *jobs.Job, result Result) {
	files, err := s.Jobs.Files(r.Context(), j.ID)
	if err == nil {
		err = result.Send(x, r, j, files, func(f jobs.File) (string, error) {
			contentType, err := result.File(r.Context(), j, &f)
			if err != nil {
				return "", err
			}
			signed, err := s.Storage.SignedURL(r.Context(), f.Path, contentType)
			if signed == "" {
				signed = j.Base + "/$job/" + j.ID + "/" + f.Name
			}
			return signed, err
		})
	}
	if err != nil {
		fail(x, r, err)
	}
}

// AsOwner returns a context in which requests run on behalf of the owner of a job.
func AsOwner(ctx context.Context, j *jobs.Job) (context.Context, error) {
	return asOwner(ctx, j.Principal)
}

// CheckRoom fails with too-costly where the files of all jobs, with so many bytes more, are over the quota.
func (s *Service) CheckRoom(ctx context.Context, more int64) error {
	if check := s.room(s.Settings().QuotaBytes); check != nil {
		return check(ctx, more)
	}
	return nil
}

// FilePath is where a file of a task is stored.
func FilePath(t *jobs.Task) string { return jobPath(t) }
