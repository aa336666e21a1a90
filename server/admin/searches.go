package admin

import (
	"context"
	"net/http"

	"kiln/server/outcome"
	"kiln/server/searchshape"
	"kiln/server/web"
)

// Searches knows the searches that were run, and the indexes that they would gain by.
type Searches interface {
	Shapes(ctx context.Context) ([]searchshape.Shape, error)
	// Suggestions are those for a resource type, all with "".
	Suggestions(ctx context.Context, resourceType string) ([]searchshape.Suggestion, error)
	// Apply has a suggested index built, and returns the id of the job.
	Apply(ctx context.Context, id string) (job string, err error)
}

func (p *Part) mountSearches(m *web.Mux) {
	m.HandleFunc(web.Admin, "GET /admin/searches", func(w http.ResponseWriter, r *http.Request) {
		list, err := p.Searches.Shapes(r.Context())
		writeAnswer(w, r, list, err)
	})
	m.HandleFunc(web.Admin, "GET /admin/indexes/suggestions", func(w http.ResponseWriter, r *http.Request) {
		list, err := p.Searches.Suggestions(r.Context(), r.URL.Query().Get("resource_type"))
		writeAnswer(w, r, map[string]any{"suggestions": list}, err)
	})
	m.HandleFunc(web.Admin, "POST /admin/indexes/suggestions/{id}/apply", p.applySuggestion)
}

// applySuggestion answers 202 with the job, and where it is told of.
func (p *Part) applySuggestion(w http.ResponseWriter, r *http.Request) {
	id, err := p.Searches.Apply(r.Context(), r.PathValue("id"))
	p.answerChange(w, r, err, "index suggestion "+r.PathValue("id"), "applied by job "+id)
	if err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	job, _, err := p.findJob(r.Context(), id)
	if err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	writeAccepted(w, r, job)
}

// writeAccepted answers 202 with a job, and where it is told of.
func writeAccepted(w http.ResponseWriter, r *http.Request, job Job) {
	x := web.ExchangeOf(w)
	w.Header().Set("Location", x.Prefix+"/admin/jobs/"+job.ID)
	w.Header().Set("Cache-Control", "no-store")
	x.SendJSON(r, http.StatusAccepted, job)
}

// noJob is the error of a job that there is not.
func noJob(id string) error {
	return outcome.New(outcome.CodeNotFound, "there is no job %q", id)
}
