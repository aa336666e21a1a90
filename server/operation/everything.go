package operation

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/smart"
)

// everythingCount is the size of a page of $everything: most records are one.
const everythingCount = 1000

// patientEverything is Patient/$everything: the resources of a patient's record and
// what these refer to.
// Spec: https://hl7.org/fhir/R4/operation-patient-everything.html.
func (s *Set) patientEverything() Operation {
	return Operation{Definition: core + "Patient-everything", InstanceOnly: true, Needs: onType(access.Read, access.Search), Further: pages, Run: s.everything}
}

// encounterEverything is Encounter/$everything.
// Spec: https://hl7.org/fhir/R4/encounter-operation-everything.html.
func (s *Set) encounterEverything() Operation {
	further := append([]fhir.OperationParameter{{Name: "start", Max: 1, Type: "date"}, {Name: "end", Max: 1, Type: "date"}}, pages...)
	return Operation{Definition: core + "Encounter-everything", Needs: onType(access.Read, access.Search), Further: further, Run: s.everything}
}

// pages are the inputs that the links of a page have, and those that every search takes.
var pages = []fhir.OperationParameter{{Name: "_offset", Max: 1, Type: "integer"}, {Name: "_cursor", Max: 1, Type: "string"},
	{Name: "_summary", Max: 1, Type: "code"}, {Name: "_elements", Max: -1, Type: "string"}}

// everything returns the resources of a compartment, its focal resource included, and the targets of their
// references. start and end leave out resources dated before or after them; resources without date stay. With
// _type, it looks for types outside of the compartment among the references, and leaves out total. AuditEvents
// are part of the answer only if _type names them.
func (s *Set) everything(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
	from, err := s.everythingReader(ctx, p)
	if err != nil {
		return interaction.Response{}, err
	}
	def, ok := s.Parameters.Current().Compartment(p.ResourceType)
	if !ok {
		return interaction.Response{}, outcome.NotSupported("$everything is served for Patient and Encounter")
	}

	// 1. The search that it is.
	types := interaction.CompartmentTypes(def)
	if !slices.Contains(types, p.ResourceType) {
		types = append(types, p.ResourceType)
	}
	given := in.Values()
	q, err := s.readEverything(given, types)
	if err != nil {
		return interaction.Response{}, err
	}
	if !q.names("AuditEvent") {
		types = slices.DeleteFunc(types, func(t string) bool { return t == "AuditEvent" })
	}
	inside := slices.DeleteFunc(slices.Clone(types), func(t string) bool { return q.asked != nil && !q.names(t) })
	beside := slices.ContainsFunc(q.asked, func(t string) bool { return !slices.Contains(inside, t) })
	if !beside {
		types = inside
	}
	q.values.Set("_type", strings.Join(types, ","))
	path := p.ResourceType + "/" + p.ID + "/$everything"
	e := &record{s: s, from: from, self: interaction.WithQuery(path, q.kept), types: types, of: p, dated: q.dated}

	// 2. The result, with links of its own.
	cut, summary, err := s.Subsets(nil, given)
	if err != nil {
		return interaction.Response{}, err
	}
	if summary == search.SummaryCount {
		q.values.Set("_count", "0")
	}
	answer, err := e.pageWithTargets(ctx, q.values, (q.asked == nil || beside) && summary != search.SummaryCount)
	if err != nil {
		return answer, err
	}
	b := answer.Bundle
	if beside {
		b.Total = -1
	}
	b.Entries = slices.DeleteFunc(b.Entries, func(e interaction.Entry) bool {
		typ := e.Version.ResourceType
		return beside && typ != "" && !q.names(typ) || typ == "AuditEvent" && !q.names(typ)
	})
	for i := range b.Entries {
		b.Entries[i].Version = cut(b.Entries[i].Version)
	}
	return answer, nil
}

// everythingReader checks that the caller may read the focal resource of $everything, and returns a reader of
// the resources that the caller may read and search.
func (s *Set) everythingReader(ctx context.Context, p Request) (interaction.Reader, error) {
	for _, i := range []access.Interaction{access.Read, access.Search} { // it reads and searches
		if err := s.CheckAllowed(ctx, i, p.ResourceType, p.ID); err != nil {
			return nil, err
		}
	}
	if !fhir.ValidID(p.ID) {
		return nil, outcome.NotFound(p.ResourceType, outcome.Clip(p.ID))
	}
	if err := s.SettleAudit(ctx, p.From, "", nil); err != nil { // _type may name AuditEvent
		return nil, err
	}
	from, err := s.SeenBy(ctx, p.From, smart.Read|smart.Search)
	if err != nil {
		return nil, err
	}
	_, err = from.Read(ctx, p.ResourceType, p.ID)
	return from, err
}

// everythingQuery is the parameters of one $everything.
type everythingQuery struct {
	values url.Values // of the search
	kept   url.Values // of the links between pages
	asked  []string   // types of _type, nil without
	dated  []match.Clause
}

// names reports whether _type names a type.
func (q *everythingQuery) names(typ string) bool { return slices.Contains(q.asked, typ) }

// readEverything reads the parameters of $everything. types are the types of the compartment.
func (s *Set) readEverything(given url.Values, types []string) (*everythingQuery, error) {
	q := &everythingQuery{values: url.Values{"_count": {"1000"}}, kept: url.Values{}}
	for name, v := range given {
		last := v[len(v)-1]
		switch name {
		case "_since":
			if _, err := interaction.ParseInstant(name, last); err != nil {
				return nil, err
			}
			q.values.Set("_lastUpdated", "ge"+last)
		case "_type":
			q.asked = strings.Split(strings.Join(v, ","), ",")
			for _, t := range q.asked {
				if s.Model.Resources[t] == nil {
					return nil, outcome.Invalid("_type names %q, which is no resource type", outcome.Clip(t))
				}
			}
		case "start", "end":
			low, high, err := interaction.ParseDate(name, last)
			if err != nil {
				return nil, err
			}
			outside := match.Dates{Keys: s.careDates(types), Op: match.EB, Low: low, High: high}
			if name == "end" {
				outside.Op = match.SA
			}
			q.dated = append(q.dated, match.Clause{Name: name, Value: last, Any: []match.Match{outside}, Not: true})
		case "_count", "_offset", "_cursor":
			q.values.Set(name, last)
		case "_summary", "_elements": // of the resources below
		case "_format", "_pretty":
			continue
		default:
			return nil, outcome.RefusedParameter("$everything has no parameter %q; it has _since, _type, _count, _summary, _elements, start and end", outcome.Clip(name))
		}
		if name != "_offset" && name != "_cursor" {
			q.kept[name] = v
		}
	}
	return q, nil
}

// record is the search that one $everything is.
type record struct {
	s     *Set
	from  interaction.Reader
	self  string // URL without the parameters of a page
	types []string
	of    Request
	dated []match.Clause
}

// pageWithTargets returns the page of the record that values select. With included, the targets of references
// follow the last resource of the record: on an earlier page they would occur twice, or also on a later page.
func (e *record) pageWithTargets(ctx context.Context, values url.Values, included bool) (interaction.Response, error) {
	later := values.Has("_offset") || values.Has("_cursor")
	answer, err := e.page(ctx, values, included && !later)
	if err != nil {
		return answer, err
	}
	b := answer.Bundle
	switch last := next(b) == ""; {
	case included && !last:
		b.Entries = slices.DeleteFunc(b.Entries, func(e interaction.Entry) bool { return e.Mode == "include" })
	case included && later:
		more, err := e.includes(ctx, values)
		if err != nil {
			return interaction.Response{}, err
		}
		b.Entries = append(b.Entries, more...)
	}
	return answer, nil
}

// page returns the page of the record that values select, with or without the targets of its references.
func (e *record) page(ctx context.Context, values url.Values, included bool) (interaction.Response, error) {
	values.Del("_include")
	if included {
		values.Set("_include", "*")
	}
	options := e.s.SearchOptions(ctx, false, nil)
	options.MaxCount = everythingCount
	reg := e.s.Parameters.Current()
	q, err := search.Parse(reg, "", values, options)
	if err != nil {
		return interaction.Response{}, err
	}
	q.Inside(reg, e.types, e.of.ResourceType, e.of.ID)
	for _, c := range e.dated {
		q.And(c)
	}
	return e.s.SearchPage(ctx, e.from, q, e.self)
}

// includes returns the targets of all references of the record that are outside of it, each once.
func (e *record) includes(ctx context.Context, values url.Values) ([]interaction.Entry, error) {
	values.Del("_offset")
	values.Del("_cursor")
	values.Set("_count", strconv.Itoa(everythingCount))
	type name struct{ typ, id string }
	held := make(map[name]bool)
	var out []interaction.Entry
	for {
		answer, err := e.page(ctx, values, true)
		if err != nil {
			return nil, err
		}
		for _, entry := range answer.Bundle.Entries {
			n := name{entry.Version.ResourceType, entry.Version.ID}
			switch entry.Mode {
			case "match":
				held[n] = true
			case "include":
				out = append(out, entry)
			}
		}
		cursor := next(answer.Bundle)
		if cursor == "" {
			break
		}
		values.Set("_cursor", cursor)
	}
	return slices.DeleteFunc(out, func(entry interaction.Entry) bool {
		n := name{entry.Version.ResourceType, entry.Version.ID}
		known := held[n]
		held[n] = true
		return known
	}), nil
}

// next is the cursor of the page behind b, "" where there is none.
func next(b *interaction.Bundle) string {
	for _, l := range b.Links {
		if l.Relation == "next" {
			u, err := url.Parse(l.URL)
			if err == nil {
				return u.Query().Get("_cursor")
			}
		}
	}
	return ""
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
