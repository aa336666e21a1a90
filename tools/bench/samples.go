package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// Samples are values that occur in a server's data. Every list is in the order
// it was met, without duplicates, except where a comment says otherwise.
type Samples struct {
	References   []string // "Patient/1": of every type that was met
	Patients     []string // logical ids
	Families     []string
	Givens       []string
	Cities       []string
	BirthDates   []string
	Identifiers  []string   // "system|value" of patients
	Codes        []string   // Observation.code, "system|code", as often as met
	Conditions   []string   // Condition.code, "system|code", as often as met
	Dates        []string   // Observation.effective, to the second with zone
	Encounters   []string   // logical ids
	Quantities   []Quantity // of observations
	Practitioner []string   // logical ids
}

// Quantity is a measured value as search writes it.
type Quantity struct {
	Code  string // of the observation, "system|code"
	Value string
	Unit  string // "system|code"
}

// drawSamples walks over the server's patients and takes what hangs on some of
// them. The draw depends on seed and the server's order alone.
func drawSamples(ctx context.Context, c *Client, patients int, seed uint64) (*Samples, error) {
	if patients == 0 {
		patients = 100
	}
	s := &Samples{}
	x := c.NewExchange()
	get := func(path string) (gjson.Result, error) {
		if err := ctx.Err(); err != nil {
			return gjson.Result{}, err
		}
		if err := x.Do(Request{Method: "GET", Path: path}); err != nil {
			return gjson.Result{}, fmt.Errorf("GET %s: %w", path, err)
		}
		if x.Status != 200 {
			return gjson.Result{}, fmt.Errorf("GET %s: %d %s", path, x.Status, excerpt(x.Body))
		}
		// Kept beyond the next request.
		return gjson.Parse(string(x.Body)), nil
	}

	var found []gjson.Result
	for path := "Patient?_count=200"; path != "" && len(found) < 20*patients; {
		page, err := get(path)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Get("entry.#.resource").Array() {
			if e.Get("name.0.family").Exists() && e.Get("birthDate").Exists() {
				found = append(found, e)
			}
		}
		path = nextLink([]byte(page.Raw))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the server has no patients to take samples from: run the import workload first")
	}
	r := rand.New(rand.NewPCG(seed, 1))
	r.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	found = found[:min(patients, len(found))]
	for _, p := range found {
		id := p.Get("id").Str
		s.Patients = append(s.Patients, id)
		s.References = append(s.References, "Patient/"+id)
		appendNew(&s.Families, p.Get("name.0.family").Str)
		appendNew(&s.Givens, p.Get("name.0.given.0").Str)
		appendNew(&s.Cities, p.Get("address.0.city").Str)
		appendNew(&s.BirthDates, p.Get("birthDate").Str)
		for _, i := range p.Get("identifier").Array() {
			if i.Get("system").Exists() && i.Get("value").Exists() {
				appendNew(&s.Identifiers, i.Get("system").Str+"|"+i.Get("value").Str)
			}
		}
	}
	for _, id := range s.Patients[:min(60, len(s.Patients))] {
		page, err := get("Observation?patient=" + id + "&_count=50")
		if err != nil {
			return nil, err
		}
		for _, o := range page.Get("entry.#.resource").Array() {
			s.References = append(s.References, "Observation/"+o.Get("id").Str)
			code := coding(o.Get("code.coding.0"))
			if code != "" {
				s.Codes = append(s.Codes, code)
			}
			appendNew(&s.Dates, o.Get("effectiveDateTime").Str)
			if e, ok := strings.CutPrefix(o.Get("encounter.reference").Str, "Encounter/"); ok {
				appendNew(&s.Encounters, e)
			}
			if q := o.Get("valueQuantity"); q.Get("value").Exists() && q.Get("code").Exists() && code != "" {
				s.Quantities = append(s.Quantities, Quantity{Code: code, Value: short(q.Get("value").Raw), Unit: q.Get("system").Str + "|" + q.Get("code").Str})
			}
		}
		if page, err = get("Condition?patient=" + id + "&_count=20"); err != nil {
			return nil, err
		}
		for _, o := range page.Get("entry.#.resource").Array() {
			s.References = append(s.References, "Condition/"+o.Get("id").Str)
			if code := coding(o.Get("code.coding.0")); code != "" {
				s.Conditions = append(s.Conditions, code)
			}
		}
		if page, err = get("Encounter?patient=" + id + "&_count=20"); err != nil {
			return nil, err
		}
		for _, o := range page.Get("entry.#.resource").Array() {
			s.References = append(s.References, "Encounter/"+o.Get("id").Str)
			if p, ok := strings.CutPrefix(o.Get("participant.0.individual.reference").Str, "Practitioner/"); ok {
				appendNew(&s.Practitioner, p)
			}
		}
	}
	return s, nil
}

func coding(c gjson.Result) string {
	if !c.Get("code").Exists() {
		return ""
	}
	return c.Get("system").Str + "|" + c.Get("code").Str
}

// short keeps at most four digits after the point, as a person would search for.
func short(decimal string) string {
	whole, part, ok := strings.Cut(decimal, ".")
	if !ok || strings.ContainsAny(decimal, "eE") || len(part) <= 4 {
		return decimal
	}
	return whole + "." + part[:4]
}

func appendNew(list *[]string, v string) {
	if v != "" && !slices.Contains(*list, v) {
		*list = append(*list, v)
	}
}

// nextLink is the URL of the next page, "" on the last.
func nextLink(bundle []byte) string {
	return gjson.GetBytes(bundle, `link.#(relation=="next").url`).Str
}

// pick returns a random element; the list must not be empty.
func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }
