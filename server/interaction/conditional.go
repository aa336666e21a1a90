package interaction

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/url"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/smart"
	"kiln/server/store"
)

// condition is the search of a conditional interaction, narrowed to the resources that the
// request may find. A request that acts on its result holds the lock of its key until the
// transaction ends: of two requests with the same condition the second sees the result of
// the first.
type condition struct {
	typ   string
	text  string // canonical: parameters sorted
	query *search.Query
	key   int64
	held  bool // the lock of key is held
}

func (c *condition) String() string { return c.typ + "?" + c.text }

// parseCondition parses criteria. what names their origin in errors.
func (s *Service) parseCondition(ctx context.Context, typ, criteria, what string) (*condition, error) {
	values, err := ParseQuery(criteria)
	if err != nil {
		return nil, err
	}
	return s.conditionOf(ctx, typ, values, what)
}

func (s *Service) conditionOf(ctx context.Context, typ string, values url.Values, what string) (*condition, error) {
	if s.Model.Resources[typ] == nil {
		return nil, s.UnknownType(typ)
	}
	for _, name := range []string{"_format", "_pretty", "_summary", "_elements"} {
		values.Del(name) // they speak of the answer, not of the match
	}
	for name := range values {
		switch name {
		case "_count", "_offset", "_cursor", "_sort", "_include", "_revinclude", "_total", "_contained", "_containedType":
			return nil, outcome.Invalid("%s cannot have %s: it is about which resources match, not about a page of them", what, name)
		}
	}
	if len(values) == 0 {
		return nil, outcome.Invalid("%s needs at least one search parameter", what)
	}
	// Two matches are enough to know that there is more than one.
	values.Set("_count", "2")
	values.Set("_total", "none")
	options := s.searchOptions(ctx, false, nil)
	options.Guard = true
	q, err := search.Parse(s.Parameters.Current(), typ, values, options)
	if err != nil {
		return nil, err
	}
	rights, err := s.Access.Rights(ctx)
	if err != nil {
		return nil, err
	}
	if rights != nil {
		if err := rights.Check(smart.Search, typ); err != nil {
			return nil, err
		}
		if q, err = rights.Narrow(q, smart.Search); err != nil {
			return nil, err
		}
	}
	if len(q.Notices) > 0 {
		// A match that cannot be found yet would be made a second time.
		return nil, outcome.New(outcome.CodeIncomplete, "%s needs to find every match: %s", what, q.Notices[0].Diagnostics)
	}
	values.Del("_count")
	values.Del("_total")
	c := &condition{typ: typ, text: values.Encode(), query: q}
	sum := sha256.Sum256([]byte(c.String()))
	c.key = int64(binary.BigEndian.Uint64(sum[:8]))
	return c, nil
}

// searcher is what matching needs.
type searcher interface {
	Search(ctx context.Context, q *search.Query) (*store.SearchResult, error)
}

// findOneLocked takes the condition's lock and returns its match, nil for none. Several
// are multiple-matches, 412.
func (c *condition) findOneLocked(ctx context.Context, tx *store.Tx) (*fhir.Version, error) {
	if !c.held {
		if err := tx.Lock(ctx, c.key); err != nil {
			return nil, err
		}
	}
	return c.findMatch(ctx, tx)
}

// findMatch is one without the lock.
func (c *condition) findMatch(ctx context.Context, from searcher) (*fhir.Version, error) {
	found, err := from.Search(ctx, c.query)
	if err != nil {
		return nil, err
	}
	switch len(found.Matches) {
	case 0:
		return nil, nil
	case 1:
		return &found.Matches[0], nil
	}
	return nil, outcome.Precondition(outcome.CodeMultiple, "several resources match %s; the interaction needs one at most", c)
}

// mustMatch makes w about the one match.
func (c *condition) mustMatch(ctx context.Context, tx *store.Tx, w *store.Write) error {
	match, err := c.findOneLocked(ctx, tx)
	if err != nil {
		return err
	}
	if match == nil {
		return outcome.New(outcome.CodeNotFound, "no resource matches %s", c)
	}
	w.ID = match.ID
	return nil
}

// unwrapWrite returns why a transaction's only write failed.
func unwrapWrite(err error) error {
	if w, ok := errors.AsType[*store.WriteError](err); ok {
		return w.Err
	}
	return err
}
