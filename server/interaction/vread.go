package interaction

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// VReadParams are the inputs of a vread.
type VReadParams struct {
	ResourceType, ID, VersionID string
	IfNoneMatch                 string
	IfModifiedSince             time.Time
}

// VRead returns one version of a resource. It fails with not-found if that
// version never existed and with deleted if it marks a deletion.
// Spec: https://hl7.org/fhir/R4/http.html#vread.
func (s *Service) VRead(ctx context.Context, p VReadParams) (Response, error) {
	d := s.demandOf(p.ResourceType, url.Values{})
	d.alone = true
	return s.answerRead(ctx, d, func(ctx context.Context, from Reader) (Response, error) { return s.vread(ctx, from, p) })
}

func (s *Service) vread(ctx context.Context, from Reader, p VReadParams) (Response, error) {
	if err := s.mayFind(ctx, access.Read, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	from, err := s.VisibleReader(ctx, from)
	if err != nil {
		return Response{}, err
	}
	n, ok := readVersionID(p.VersionID)
	if !ok || !fhir.ValidID(p.ID) {
		return Response{}, outcome.New(outcome.CodeNotFound, "%s/%s has no version %q", p.ResourceType, outcome.Clip(p.ID), outcome.Clip(p.VersionID))
	}
	v, err := from.VRead(ctx, p.ResourceType, p.ID, n)
	if err != nil {
		return Response{}, err
	}
	if s.LogRead != nil {
		if err := s.LogRead(ctx, v); err != nil {
			return Response{}, err
		}
	}
	return readResponse(v, p.IfNoneMatch, p.IfModifiedSince), nil
}

// readVersionID reads a version id of this server.
func readVersionID(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil && n > 0 && text[0] != '0'
}
