package operation

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
)

// everythingCount is the size of a page of $everything: most records are one.
const everythingCount = 1000

// EverythingParams are the inputs of $everything.
type EverythingParams struct {
	ResourceType, ID string // Patient or Encounter
	// Values are _since, _type, _count, start and end (dates of care), and _offset
	// and _cursor of a page.
	Values url.Values
}

// everythingInputs are the names of Values.
var everythingInputs = []string{"_since", "_type", "_count", "start", "end", "_offset", "_cursor"}

// Everything returns the resources of a compartment, the one it is named after
// included, and what these refer to. start and end leave out what is dated before
// or after them; what has no date stays. With _type, the types outside the
// compartment are looked for among the references, and total is left out.
// Spec: https://hl7.org/fhir/R4/operation-patient-everything.html.
func (s *Set) Everything(ctx context.Context, p EverythingParams) (interaction.Response, error) {
	return s.everything(ctx, s.Store, p)
}

func (s *Set) everything(ctx context.Context, from interaction.Reader, p EverythingParams) (interaction.Response, error) {
	if err := s.May(ctx, access.Read, p.ResourceType, p.ID); err != nil {
		return interaction.Response{}, err
	}
	if !fhir.ValidID(p.ID) {
		return interaction.Response{}, outcome.NotFound(p.ResourceType, clip(p.ID))
	}
	if _, err := from.Read(ctx, p.ResourceType, p.ID); err != nil {
		return interaction.Response{}, err
	}
	reg := s.Parameters.Current()
	def, ok := reg.Compartment(p.ResourceType)
	if !ok {
		return interaction.Response{}, outcome.NotSupported("$everything is served for Patient and Encounter")
	}

	// 1. The search that it is.
	types := interaction.CompartmentTypes(def)
	if !slices.Contains(types, p.ResourceType) {
		types = append(types, p.ResourceType)
	}
	var asked []string // by _type
	var dated []match.Clause
	values := url.Values{"_count": {"1000"}}
	kept := url.Values{}
	for name, v := range p.Values {
		last := v[len(v)-1]
		switch name {
		case "_since":
			if _, err := interaction.Instant(name, last); err != nil {
				return interaction.Response{}, err
			}
			values.Set("_lastUpdated", "ge"+last)
		case "_type":
			asked = strings.Split(strings.Join(v, ","), ",")
			for _, t := range asked {
				if s.Model.Resources[t] == nil {
					return interaction.Response{}, outcome.Invalid("_type names %q, which is no resource type", clip(t))
				}
			}
		case "start", "end":
			low, high, err := interaction.ParseDate(name, last)
			if err != nil {
				return interaction.Response{}, err
			}
			outside := match.Dates{Keys: s.careDates(types), Op: match.EB, Low: low, High: high}
			if name == "end" {
				outside.Op = match.SA
			}
			dated = append(dated, match.Clause{Name: name, Value: last, Any: []match.Match{outside}, Not: true})
		case "_count", "_offset", "_cursor":
			values.Set(name, last)
		case "_format", "_pretty":
			continue
		default:
			return interaction.Response{}, outcome.NotSupported("$everything has no parameter %q; it has _since, _type, _count, start and end", clip(name)).
				WithStatus(http.StatusBadRequest)
		}
		if name != "_offset" && name != "_cursor" {
			kept[name] = v
		}
	}
	path := p.ResourceType + "/" + p.ID + "/$everything"
	inside := slices.DeleteFunc(slices.Clone(types), func(t string) bool { return asked != nil && !slices.Contains(asked, t) })
	beside := slices.ContainsFunc(asked, func(t string) bool { return !slices.Contains(inside, t) })
	if !beside {
		types = inside
	}
	values.Set("_type", strings.Join(types, ","))
	if asked == nil || beside {
		values.Set("_include", "*")
	}
	options := s.SearchOptions(ctx, false, nil)
	options.MaxCount = everythingCount
	q, err := search.Parse(reg, "", values, options)
	if err != nil {
		return interaction.Response{}, err
	}
	q.Inside(reg, types, p.ResourceType, p.ID)
	for _, c := range dated {
		q.And(c)
	}

	// 2. Its result, with links of its own.
	answer, err := s.Page(ctx, from, q, interaction.WithQuery(path, kept))
	if err != nil || !beside {
		return answer, err
	}
	answer.Bundle.Total = -1
	answer.Bundle.Entries = slices.DeleteFunc(answer.Bundle.Entries, func(e interaction.Entry) bool {
		return e.Version.ResourceType != "" && !slices.Contains(asked, e.Version.ResourceType)
	})
	return answer, nil
}

// careDateCodes are the search parameters that say when care took place, the
// first one that a type has.
var careDateCodes = []string{"date", "onset-date", "effective-time", "effective", "whenhandedover", "occurrence",
	"authoredon", "authored-on", "authored", "created", "sent", "started", "start-date", "datetime", "collected",
	"event-date", "recorded"}

// careDates are the keys of the index entries that say when care took place, for
// the types that have any.
func (s *Set) careDates(types []string) []fhir.Key {
	var keys []fhir.Key
	for _, t := range types {
		for _, code := range careDateCodes {
			if p, ok := s.Parameters.Current().Lookup(t, code); ok && p.Type == fhir.SearchDate {
				keys = append(keys, p.Keys...)
				break
			}
		}
	}
	return keys
}
