// Package searchtest supports tests of searches on a real Store.
//
//	searchtest.go  writes of resources with their index entries
//	store.go       a Store on a database of the test's own
//	corpus.go      random patients and observations
//	cases.go       random searches on them, with the expected results
//	stored.go      stored resources, tested in memory
package searchtest

import (
	"context"
	"testing"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/store"
)

// Registry has the search parameters of R4.
var Registry = search.NewRegistry(r4.Model, index.Parameters, index.Compartments)

// NewWrite returns the PUT of a resource with its index entries. It fails the test if the resource cannot be decoded.
func NewWrite(t testing.TB, raw []byte) *store.Write {
	t.Helper()
	r, err := fhir.Decode(r4.Model, raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	body, err := fhir.Splice(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, _ := Indexer{}.Index("", r)
	return &store.Write{Method: fhir.PUT, ResourceType: r.Type().Name, ID: r.Header().ID.Text, Body: body, Index: x, Resource: r}
}

// An Indexer is a store.Indexer of the compiled search parameters, which never change.
type Indexer struct{}

func (Indexer) Err() error { return nil }

func (Indexer) Refresh(context.Context) error { return nil }

func (Indexer) Decode(body []byte) (fhir.Resource, error) { return fhir.Decode(r4.Model, body) }

func (Indexer) Index(_ string, r fhir.Resource) (*fhir.Index, error) {
	x := new(fhir.Index)
	index.Extract(x, r)
	x.Finish()
	return x, nil
}

func (Indexer) Sort(r fhir.Resource, by []*fhir.Sorter) error {
	index.Extract(&fhir.Index{Sorters: by}, r)
	return nil
}

func (Indexer) Current() *search.Registry { return Registry }
