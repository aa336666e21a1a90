package interaction

import (
	"bytes"
	"context"
	"testing"

	"kiln/definitions/examples"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
)

// accepting is a Parameters that accepts every SearchParameter.
type accepting struct{ Parameters }

func (accepting) Check(*r4.SearchParameter) error { return nil }
func (accepting) Current() *search.Registry       { return nil }

// observer is a Validator that keeps the resources that it was given, unchanged.
type observer struct {
	resource fhir.Resource
	encoded  []byte
}

func (o *observer) Validate(_ context.Context, in fhir.Reading) []outcome.Issue {
	o.resource, o.encoded = in.Resource, fhir.Encode(nil, in.Resource)
	return nil
}

// The resource is validated as it was given. It is not changed for the
// length of the validation either, when another goroutine may read it.
func TestValidateLeavesTheResource(t *testing.T) {
	t.Parallel()
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	all = append(all,
		[]byte(`{"resourceType":"SearchParameter","url":"http://example.org/bare","code":"bare","base":["Patient"],"type":"string","expression":"Patient.name.family"}`),
		[]byte(`{"resourceType":"Patient","id":"p","meta":{"versionId":"7","lastUpdated":"2020-01-01T00:00:00Z"},"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">x</div>"}}`))
	seen := new(observer)
	s := &Service{Parameters: accepting{}, Validator: seen}
	checked := 0
	for _, data := range all {
		r, err := fhir.Decode(r4.Model, data)
		if err != nil {
			continue // some examples are wrong
		}
		before := fhir.Encode(nil, r)
		if err := s.validate(t.Context(), r); err != nil {
			t.Errorf("%s: %v", before[:min(len(before), 100)], err)
		}
		if seen.resource != r || !bytes.Equal(seen.encoded, before) {
			t.Errorf("the validator is given another resource:\n%s\nwant\n%s", seen.encoded, before)
		}
		if after := fhir.Encode(nil, r); !bytes.Equal(after, before) {
			t.Errorf("after the validation:\n%s\nwant\n%s", after, before)
		}
		checked++
	}
	if checked < 700 {
		t.Errorf("%d resources were validated", checked)
	}
}
