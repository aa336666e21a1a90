package admin

import (
	"context"
	"net/http"
	"slices"

	"kiln/server/outcome"
	"kiln/server/searchparam"
	"kiln/server/web"
)

// SortIndexes knows the orders that the index keeps because an administrator wants it:
// of a search parameter of a resource type, a token, reference or uri.
type SortIndexes interface {
	SortIndexes(ctx context.Context) ([]searchparam.SortIndex, error)
	AddSortIndex(ctx context.Context, resourceType, parameter string) (searchparam.SortIndex, error)
	RemoveSortIndex(ctx context.Context, resourceType, parameter string) (searchparam.SortIndex, error)
}

func (p *Part) mountSortIndexes(m *web.Mux) {
	m.HandleFunc(web.Admin, "GET /admin/indexes/sort", func(w http.ResponseWriter, r *http.Request) {
		list, err := p.SortIndexes.SortIndexes(r.Context())
		writeAnswer(w, r, map[string]any{"indexes": list}, err)
	})
	m.HandleFunc(web.Admin, "PUT /admin/indexes/sort/{type}/{parameter}", p.addSortIndex)
	m.HandleFunc(web.Admin, "DELETE /admin/indexes/sort/{type}/{parameter}", p.removeSortIndex)
}

// addSortIndex answers 202 with the job that makes the entries, and 200 with the index
// where there is none to wait for.
func (p *Part) addSortIndex(w http.ResponseWriter, r *http.Request) {
	typ, parameter := r.PathValue("type"), r.PathValue("parameter")
	index, err := p.SortIndexes.AddSortIndex(r.Context(), typ, parameter)
	p.answerChange(w, r, err, "index for _sort of "+typ+" by "+parameter, "wanted")
	if err != nil || index.Job == "" {
		writeAnswer(w, r, index, err)
		return
	}
	job, _, err := p.findJob(r.Context(), index.Job)
	if o, ok := outcome.From(err); ok && o.Issues[0].Code == outcome.CodeNotFound { // it had nothing to do, and is forgotten
		index, err = p.sortIndex(r.Context(), index)
		writeAnswer(w, r, index, err)
		return
	}
	if err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	writeAccepted(w, r, job)
}

// sortIndex is the present state of an index.
func (p *Part) sortIndex(ctx context.Context, x searchparam.SortIndex) (searchparam.SortIndex, error) {
	list, err := p.SortIndexes.SortIndexes(ctx)
	i := slices.IndexFunc(list, func(o searchparam.SortIndex) bool {
		return o.ResourceType == x.ResourceType && o.Parameter == x.Parameter
	})
	if err != nil || i < 0 {
		return x, err
	}
	return list[i], nil
}

// removeSortIndex answers 202 with the index: the job that takes its entries away comes
// when no search reads them any more.
func (p *Part) removeSortIndex(w http.ResponseWriter, r *http.Request) {
	typ, parameter := r.PathValue("type"), r.PathValue("parameter")
	index, err := p.SortIndexes.RemoveSortIndex(r.Context(), typ, parameter)
	p.answerChange(w, r, err, "index for _sort of "+typ+" by "+parameter, "removed")
	if err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	web.ExchangeOf(w).SendJSON(r, http.StatusAccepted, index)
}
