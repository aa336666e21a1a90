package searchparam

import (
	"errors"
	"fmt"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
)

// Index returns the index entries of r under its stored id: a patient is in its own compartment, with any id in the
// body. It fails with invalid, 422, if r breaks the expression of a search parameter, and then returns the entries of
// the others.
func (s *Service) Index(id string, r fhir.Resource) (*fhir.Index, error) {
	r.Header().ID.Text = id
	reg := s.Current()
	if err := reg.Err(); err != nil {
		return nil, err
	}
	x := s.emptyIndex()
	x.BaseURLs, x.Narrowed = s.BaseURLs, reg.Narrowed()
	s.Extract(x, r)
	err := reg.Extract(x, searchable(r))
	if more := s.addContained(x, reg, 1, new(int)); err == nil {
		err = more
	}
	if orders := reg.SortIndexes(x.ResourceType); orders != nil {
		if err := s.addOrders(x, reg, r, orders); err != nil {
			return nil, err
		}
	}
	x.Finish()
	return x, err
}

// A resource has at most maxContained references to contained resources; references between those are counted for
// each path to them. A path is at most maxWithin references long; chains find nothing beyond it.
const (
	maxContained = 2000
	maxWithin    = 3
)

// addContained adds what contained resources leave, for chains over the references of x to them. n counts
// them. It fails as Index does.
func (s *Service) addContained(x *fhir.Index, reg *search.Registry, depth int, n *int) error {
	if len(x.Contained) == 0 {
		return nil
	}
	var failed error
	seen := make(map[fhir.ContainedEntry]bool)
	for _, c := range x.Contained {
		if seen[c] {
			continue
		}
		seen[c] = true
		if *n++; *n > maxContained {
			return outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeTooCostly, Expression: x.ResourceType + ".contained",
				Diagnostics: fmt.Sprintf("the resource refers more than %d times to contained resources", maxContained)}})
		}
		y := s.emptyIndex()
		y.BaseURLs, y.Narrowed = s.BaseURLs, reg.Narrowed()
		if !c.Whole {
			y.Within = x.Within
		}
		s.Extract(y, c.Resource)
		err := reg.Extract(y, c.Resource)
		if err == nil && depth < maxWithin {
			err = s.addContained(y, reg, depth+1, n)
		}
		y.Finish()
		if c.Whole {
			y.Targets = y.Targets[:0] // its targets are stored beside it
		}
		x.AddContained(c.Key, depth, y)
		s.Recycle(y)
		if failed == nil {
			failed = err
		}
	}
	return failed
}

// addOrders adds the sort values of r for the indexed orders.
func (s *Service) addOrders(x *fhir.Index, reg *search.Registry, r fhir.Resource, orders []search.SortIndex) error {
	sorters := make([]*fhir.Sorter, 0, 2*len(orders))
	for i := range orders {
		ascending, descending := orders[i].Sorters()
		sorters = append(sorters, ascending, descending)
	}
	if err := s.sortBy(reg, r, sorters); err != nil {
		return err
	}
	for i := range orders {
		x.Ordered(orders[i].Key, sorters[2*i], sorters[2*i+1])
	}
	return nil
}

// Sort passes the sort values of r to the sorters. An expression that cannot be evaluated on r gives no value.
func (s *Service) Sort(r fhir.Resource, by []*fhir.Sorter) error {
	return s.sortBy(s.Current(), r, by)
}

func (s *Service) sortBy(reg *search.Registry, r fhir.Resource, by []*fhir.Sorter) error {
	x := s.emptyIndex()
	x.BaseURLs, x.Sorters = s.BaseURLs, by
	s.Extract(x, r)
	err := reg.Err()
	var failed *search.ExtractError
	if err == nil {
		if err = reg.Extract(x, searchable(r)); errors.As(err, &failed) {
			err = nil
		}
	}
	s.Recycle(x)
	return err
}

// searchable returns r without elements that no search parameter may index: the owner of a Subscription alone may read
// its channel.header.
func searchable(r fhir.Resource) fhir.Resource {
	sub, ok := r.(*r4.Subscription)
	if !ok || sub.Channel == nil || len(sub.Channel.Header) == 0 {
		return r
	}
	without, channel := *sub, *sub.Channel
	without.Channel, channel.Header = &channel, nil
	return &without
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
