package strategy

import (
	"context"
	"errors"

	"kiln/server/fhir"
	"kiln/server/search/cache/fill"
	"kiln/server/search/session"
)

// Store contains the resources that are searched.
type Store interface {
	session.Store
	fill.Store
	// TypeNumber returns the number of a resource type; false if it has never been stored. It may ask the database.
	TypeNumber(ctx context.Context, typ string) (int16, bool, error)
	// DecodeBody returns the JSON of the column body. The result may share its memory.
	DecodeBody(stored []byte) ([]byte, error)
	// Resources reads values that the index contains as hashes only; nil if no search needs them.
	Resources() Resources
}

// Resources reads stored resources.
type Resources interface {
	Decode(body []byte) (fhir.Resource, error)
	// Sort passes the sort values of r to the sorters.
	Sort(r fhir.Resource, by []*fhir.Sorter) error
}

// errNoResources reports that a search needs values of resources that the index lacks.
var errNoResources = errors.New("search: the values of stored resources need Store.Resources")
