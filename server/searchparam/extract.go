package searchparam

import (
	"errors"

	"kiln/server/fhir"
	"kiln/server/search"
)

// Index returns what r leaves in the search index under the id it is stored with:
// a patient is in its own compartment, whatever id the body came with. It fails
// with invalid, 422, when r breaks the expression of a search parameter, and then
// returns what the others say.
func (s *Service) Index(id string, r fhir.Resource) (*fhir.Index, error) {
	r.Header().ID.Text = id
	reg := s.Current()
	if err := reg.Err(); err != nil {
		return nil, err
	}
	x := s.emptyIndex()
	x.BaseURLs, x.Narrowed = s.BaseURLs, reg.Narrowed()
	s.Extract(x, r)
	err := reg.Extract(x, r)
	x.Finish()
	return x, err
}

// Sort gives the sorters what r is sorted by. What an expression of a search
// parameter cannot be evaluated on has no value for it.
func (s *Service) Sort(r fhir.Resource, by []*fhir.Sorter) error {
	x := s.emptyIndex()
	x.BaseURLs, x.Sorters = s.BaseURLs, by
	s.Extract(x, r)
	reg := s.Current()
	err := reg.Err()
	var failed *search.ExtractError
	if err == nil {
		if err = reg.Extract(x, r); errors.As(err, &failed) {
			err = nil
		}
	}
	s.Recycle(x)
	return err
}

func (s *Service) emptyIndex() *fhir.Index {
	if x, ok := s.indexes.Get().(*fhir.Index); ok {
		return x
	}
	return new(fhir.Index)
}

// Recycle takes an index back for reuse, without the strings that would keep the
// body it was made of in memory. Nobody may use it any more.
func (s *Service) Recycle(x *fhir.Index) {
	x.Reset()
	s.indexes.Put(x)
}
