package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
)

// searchCategories are drawn with equal probability; the prefixes of date share
// one draw, so that dates are not most of the load.
// Spec: https://hl7.org/fhir/R4/search.html#ptypes.
var searchCategories = []struct {
	name  string
	query func(s *Samples, r *rand.Rand) (category, path string)
}{
	{"string", func(s *Samples, r *rand.Rand) (string, string) {
		switch r.IntN(4) {
		case 0:
			return "string", query("Patient", "given", pick(r, s.Givens))
		case 1:
			return "string", query("Patient", "name", prefixOf(pick(r, s.Families), 3))
		case 2:
			return "string", query("Patient", "address-city", pick(r, s.Cities))
		default:
			return "string", query("Patient", "family", prefixOf(pick(r, s.Families), 4))
		}
	}},
	{":contains", func(s *Samples, r *rand.Rand) (string, string) {
		if r.IntN(2) == 0 {
			return ":contains", query("Patient", "family:contains", middleOf(pick(r, s.Families), 4))
		}
		return ":contains", query("Patient", "name:contains", middleOf(pick(r, s.Givens), 3))
	}},
	{"date", func(s *Samples, r *rand.Rand) (string, string) {
		prefix := pick(r, datePrefixes)
		if r.IntN(4) == 0 {
			return "date " + prefix, query("Patient", "birthdate", prefix+pick(r, s.BirthDates))
		}
		day, _, _ := strings.Cut(pick(r, s.Dates), "T")
		return "date " + prefix, query("Observation", "date", prefix+day)
	}},
	{"token", func(s *Samples, r *rand.Rand) (string, string) {
		switch r.IntN(4) {
		case 0:
			return "token", query("Patient", "identifier", pick(r, s.Identifiers))
		case 1:
			return "token", query("Condition", "code", pick(r, s.Conditions))
		case 2:
			return "token", query("Patient", "gender", pick(r, []string{"male", "female"}))
		default:
			return "token", query("Observation", "code", pick(r, s.Codes))
		}
	}},
	{"quantity", func(s *Samples, r *rand.Rand) (string, string) {
		q := pick(r, s.Quantities)
		return "quantity", query("Observation", "value-quantity", pick(r, []string{"", "gt", "le"})+q.Value+"|"+q.Unit)
	}},
	{"composite", func(s *Samples, r *rand.Rand) (string, string) {
		q := pick(r, s.Quantities)
		return "composite", query("Observation", "code-value-quantity", q.Code+"$"+pick(r, []string{"", "ge", "lt"})+q.Value)
	}},
	{"reference", func(s *Samples, r *rand.Rand) (string, string) {
		switch r.IntN(3) {
		case 0:
			return "reference", query("Observation", "subject", "Patient/"+pick(r, s.Patients))
		case 1:
			return "reference", query("Observation", "encounter", "Encounter/"+pick(r, s.Encounters))
		default:
			return "reference", query("Condition", "patient", pick(r, s.Patients))
		}
	}},
}

var datePrefixes = []string{"eq", "ne", "lt", "le", "gt", "ge", "sa", "eb", "ap"}

// query is a search for one parameter with a page of 20.
func query(typ, parameter, value string) string {
	return typ + "?" + parameter + "=" + url.QueryEscape(value) + "&_count=20"
}

// prefixOf returns the first n characters.
func prefixOf(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// middleOf returns n characters from the middle.
func middleOf(s string, n int) string {
	chars := []rune(s)
	if len(chars) <= n {
		return s
	}
	from := (len(chars) - n) / 2
	return string(chars[from : from+n])
}

var searchWorkload = Workload{
	Name:  "search",
	About: "string, :contains, date with each prefix, token, quantity, composite, reference; pages of 20",
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.searchSamples(ctx)
		if err != nil {
			return Task{}, err
		}
		return Task{Op: func(_ context.Context, w *Worker) error {
			category, path := pick(w.Rand, searchCategories).query(s, w.Rand)
			w.Do(category, Request{Method: "GET", Path: path})
			return nil
		}}, nil
	},
}

// searchSamples are Bench.Samples that are enough for the search workloads.
func (b *Bench) searchSamples(ctx context.Context) (*Samples, error) {
	s, err := b.Samples(ctx)
	if err == nil {
		err = s.enough()
	}
	return s, err
}

// enough names the samples that the search workloads lack.
func (s *Samples) enough() error {
	for _, need := range []struct {
		what string
		n    int
	}{
		{"patients with a given name", len(s.Givens)}, {"patients with a family name", len(s.Families)},
		{"patients with a city", len(s.Cities)}, {"patients with an identifier", len(s.Identifiers)},
		{"coded observations", len(s.Codes)}, {"coded conditions", len(s.Conditions)},
		{"dated observations", len(s.Dates)}, {"observations with an encounter", len(s.Encounters)},
		{"observations with a coded quantity", len(s.Quantities)},
	} {
		if need.n == 0 {
			return fmt.Errorf("the server has no %s to take search values from", need.what)
		}
	}
	return nil
}

// searching makes a workload of queries drawn with equal probability.
func searching(name, about string, queries func(s *Samples, r *rand.Rand) (category, path string)) Workload {
	return Workload{Name: name, About: about, Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.searchSamples(ctx)
		if err != nil {
			return Task{}, err
		}
		return Task{Op: func(_ context.Context, w *Worker) error {
			category, path := queries(s, w.Rand)
			w.Do(category, Request{Method: "GET", Path: path})
			return nil
		}}, nil
	}}
}

var chainWorkload = searching("chain", "chained and reverse chained parameters", func(s *Samples, r *rand.Rand) (string, string) {
	switch r.IntN(4) {
	case 0:
		return "subject:Patient.family", query("Observation", "subject:Patient.family", pick(r, s.Families))
	case 1:
		return "patient.birthdate", query("Condition", "patient.birthdate", pick(r, s.BirthDates))
	case 2:
		return "patient.identifier", query("Encounter", "patient.identifier", pick(r, s.Identifiers))
	default:
		return "_has:Condition", query("Patient", "_has:Condition:patient:code", pick(r, s.Conditions))
	}
})

var includeWorkload = searching("include", "_include and _revinclude", func(s *Samples, r *rand.Rand) (string, string) {
	switch r.IntN(3) {
	case 0:
		return "_include", query("Observation", "code", pick(r, s.Codes)) + "&_include=Observation:subject&_include=Observation:encounter"
	case 1:
		return "_include reference", query("Condition", "patient", pick(r, s.Patients)) + "&_include=Condition:encounter"
	default:
		return "_revinclude", "Patient?_id=" + pick(r, s.Patients) + "&_revinclude=Condition:subject"
	}
})
