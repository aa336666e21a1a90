package strategy

import (
	"context"
	"errors"

	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/session"

	"github.com/jackc/pgx/v5"
)

// Searcher answers searches, and caches results that help with the next ones. It is safe for concurrent use.
type Searcher struct{ env *environment }

// New returns a Searcher with empty caches.
func New(c Config) *Searcher { return &Searcher{newEnvironment(c)} }

// Search runs a search on a connection of the pool. The statement is cancelled in PostgreSQL when the context ends.
// Spec: https://hl7.org/fhir/R4/http.html#search.
func (s *Searcher) Search(ctx context.Context, q *search.Query) (*Result, error) {
	for {
		r, err := s.searchOnce(ctx, q)
		if !errors.Is(err, session.ErrNewParts) {
			return r, err
		}
	}
}

// searchOnce is Search. It fails with session.ErrNewParts if the search waited for so long that it has to be planned again.
func (s *Searcher) searchOnce(ctx context.Context, q *search.Query) (*Result, error) {
	c := session.NewConnection(s.env.admission, s.env.Store)
	defer c.Close()
	return s.env.runSearch(ctx, q, source{store: s.env.Store, connection: c})
}

// SearchIn runs a search inside a transaction, whose writes it sees.
func (s *Searcher) SearchIn(ctx context.Context, tx pgx.Tx, q *search.Query) (*Result, error) {
	return s.env.runSearch(ctx, q, source{store: s.env.Store, private: tx})
}

// SearchOn runs a search in one snapshot of another PostgreSQL with the same data, without the cache. Parts and type
// numbers of that snapshot come from store.
func (s *Searcher) SearchOn(ctx context.Context, conn session.Conn, q *search.Query, store Store) (*Result, error) {
	return s.env.runSearch(ctx, q, source{store: store, private: conn})
}

// source is the source of the statements' rows.
type source struct {
	store      Store
	connection *session.Connection // nil for a private search
	private    session.Conn        // the connection of a private search
}

// newSession returns the session of a search.
func (s source) newSession(q *search.Query) session.Session {
	if s.connection == nil {
		return session.NewPrivate(q, s.store, s.private)
	}
	return session.New(q, s.store, s.connection)
}

// runSearch answers a search. A search by `_content` first counts the resources that the other parameters find.
func (e *environment) runSearch(ctx context.Context, q *search.Query, from source) (*Result, error) {
	if readsContent(q) {
		rest, err := e.answerQuery(ctx, withoutContent(q), from)
		if err != nil {
			return nil, explainTooManyWords(q, err)
		}
		if err := checkContent(*rest.Total); err != nil {
			return nil, err
		}
	}
	r, err := e.answerQuery(ctx, q, from)
	if err != nil {
		return nil, explainTooManyWords(q, err)
	}
	return r, nil
}

// answerQuery finds the page of a query, its includes and its explanation.
func (e *environment) answerQuery(ctx context.Context, q *search.Query, from source) (*Result, error) {
	x := &execution{env: e, store: from.store, session: from.newSession(q), q: q}
	p, exact, err := x.answerQuery(ctx)
	if err != nil {
		return nil, err
	}
	r := newResult(q, p, exact)
	r.bodies = x.session.Bodies()
	if len(p.Rows) > 0 && len(q.Includes)+len(q.RevIncludes) > 0 {
		if err := x.addIncludes(ctx, r, p.Rows); err != nil {
			return nil, err
		}
	}
	if q.Explain {
		if err := x.addExplanation(ctx, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// addExplanation adds the query in words, and each statement with PostgreSQL's plan and times.
func (x *execution) addExplanation(ctx context.Context, r *Result) error {
	add := func(text string) {
		r.Issues = append(r.Issues, outcome.Issue{Severity: outcome.Information, Code: outcome.CodeInformational, Diagnostics: text})
	}
	add(x.q.Describe())
	return x.session.Explain(ctx, add)
}
