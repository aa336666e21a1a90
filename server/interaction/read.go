package interaction

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// Reader are the reads of interactions: from the store, or a transaction.
type Reader interface {
	Read(ctx context.Context, typ, id string) (fhir.Version, error)
	VRead(ctx context.Context, typ, id string, versionID int) (fhir.Version, error)
	History(ctx context.Context, q store.HistoryQuery) (store.HistoryPage, error)
	searcher
}

// ReadParams are the inputs of a read.
type ReadParams struct {
	ResourceType, ID string
	IfNoneMatch      string    // header; "" asks for no condition
	IfModifiedSince  time.Time // zero asks for no condition
}

// Read returns the current version of a resource, or 304 without content when
// the client's copy is still good. A definition that the server is built with is
// there until one is stored under its id. It fails with not-found and deleted.
// Spec: https://hl7.org/fhir/R4/http.html#read.
func (s *Service) Read(ctx context.Context, p ReadParams) (Response, error) {
	d := s.demandOf(p.ResourceType, url.Values{})
	d.alone = true
	return s.answerRead(ctx, d, func(ctx context.Context, from Reader) (Response, error) { return s.read(ctx, from, p) })
}

func (s *Service) read(ctx context.Context, from Reader, p ReadParams) (Response, error) {
	if err := s.mayFind(ctx, access.Read, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	from, err := s.VisibleReader(ctx, from)
	if err != nil {
		return Response{}, err
	}
	if !fhir.ValidID(p.ID) {
		// A text that is no id names no resource that ever existed.
		return Response{}, outcome.NotFound(p.ResourceType, outcome.Clip(p.ID))
	}
	v, err := from.Read(ctx, p.ResourceType, p.ID)
	if err != nil {
		if outcome.Is(err, outcome.CodeNotFound) {
			return s.builtIn(ctx, p, err)
		}
		return Response{}, err
	}
	return readResponse(v, p.IfNoneMatch, p.IfModifiedSince), nil
}

func readResponse(v fhir.Version, ifNoneMatch string, ifModifiedSince time.Time) Response {
	if (ifNoneMatch != "" || !ifModifiedSince.IsZero()) && notModified(v, ifNoneMatch, ifModifiedSince) {
		v.Body = nil
		return Response{Status: http.StatusNotModified, Version: v}
	}
	return Response{Status: http.StatusOK, Version: v}
}
