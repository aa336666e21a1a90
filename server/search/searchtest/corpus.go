package searchtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"kiln/server/store"
)

// Now is the present of every search, for the prefix ap.
var Now = time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)

type coding struct{ System, Code, display string }

// A Patient is the data of a resource Patient.
type Patient struct {
	ID, Family, given string
	Gender            string // "" is none
	Birth             string // "" is none
	Organization      int    // -1 is none
}

// An Observation is the data of a resource Observation.
type Observation struct {
	ID         string
	Status     string
	Code       []coding
	Categories []string
	Subject    string // reference, "" is none
	effective  string // dateTime, "" is none
	start, end string // Period
	Value      string // decimal, "" is none
	unit       string // UCUM code
	components []component
	Updated    time.Time // of the version that was written, where somebody asks
}

type component struct {
	code  coding
	value string
}

// A Corpus is random patients and observations. Its data is the source of expected results, which so depend on no
// index entry, SQL or plan.
type Corpus struct {
	Patients     []Patient
	Observations []Observation
}

// PickRandom returns an element of a list.
func PickRandom[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

var (
	Families = []string{"Müller", "Mueller", "MULLER", "Chalmers", "van den Berg", "Van  Buren", "O'Neil", "Ødegård", "Ngô", "Smith", "Smithson", "smi_th", "100%"}
	givens   = []string{"Eve", "Adam", "Ève", "Anna-Lena", "Peter James", "李", "José"}
	Codings  = []coding{
		{"http://loinc.org", "8302-2", "Body Height"}, {"http://loinc.org", "29463-7", "Body Weight"}, {"http://loinc.org", "8480-6", "Systolic blood pressure"},
		{"http://snomed.info/sct", "8302-2", "Something else"}, {"", "local", "Kept here"}, {"http://snomed.info/sct", "AbC", "Mixed Case"},
	}
	Statuses   = []string{"final", "final", "final", "amended", "preliminary"}
	categories = []string{"laboratory", "vital-signs", "survey"}
	units      = []string{"g", "mg", "kg", "mmol/L"}
)

func randomDate(r *rand.Rand) string {
	t := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(r.IntN(3*365*24*3600)) * time.Second)
	switch r.IntN(6) {
	case 0:
		return t.Format("2006")
	case 1:
		return t.Format("2006-01")
	case 2:
		return t.Format("2006-01-02T15:04:05Z07:00")
	case 3:
		return t.In(time.FixedZone("", 5*3600+1800)).Format("2006-01-02T15:04:05.000Z07:00")
	}
	return t.Format("2006-01-02")
}

func randomNumber(r *rand.Rand) string {
	switch r.IntN(4) {
	case 0:
		return strconv.Itoa(r.IntN(12))
	case 1:
		return strconv.Itoa(r.IntN(12)) + ".0"
	case 2:
		return fmt.Sprintf("%.2f", float64(r.IntN(1200))/100)
	}
	return fmt.Sprintf("%d", 1000*r.IntN(12))
}

// NewCorpus returns a corpus, the same for the same seed and sizes.
func NewCorpus(seed uint64, patients, observations int) *Corpus {
	r := rand.New(rand.NewPCG(seed, 1))
	c := &Corpus{}
	for i := range patients {
		p := Patient{ID: fmt.Sprintf("p%d", i), Family: PickRandom(r, Families), given: PickRandom(r, givens), Gender: PickRandom(r, []string{"male", "female", "other", ""}), Organization: r.IntN(5) - 1}
		if r.IntN(5) > 0 {
			p.Birth = time.Date(1930+r.IntN(90), time.Month(1+r.IntN(12)), 1+r.IntN(28), 0, 0, 0, 0, time.UTC).Format(PickRandom(r, []string{"2006", "2006-01", "2006-01-02", "2006-01-02"}))
		}
		c.Patients = append(c.Patients, p)
	}
	for i := range observations {
		o := Observation{ID: fmt.Sprintf("o%d", i), Status: PickRandom(r, Statuses), Code: []coding{PickRandom(r, Codings)}}
		if r.IntN(4) == 0 {
			o.Code = append(o.Code, PickRandom(r, Codings))
		}
		for _, c := range categories {
			if r.IntN(3) == 0 {
				o.Categories = append(o.Categories, c)
			}
		}
		switch r.IntN(10) {
		case 0:
		case 1:
			o.Subject = fmt.Sprintf("Group/p%d", r.IntN(patients))
		default:
			o.Subject = fmt.Sprintf("Patient/p%d", r.IntN(patients))
		}
		switch r.IntN(6) {
		case 0:
		case 1:
			o.start = randomDate(r)
			if r.IntN(2) == 0 {
				_, high := Span(o.start)
				o.end = time.UnixMicro(high).UTC().Add(time.Duration(r.IntN(400*24)) * time.Hour).Format("2006-01-02")
			}
		default:
			o.effective = randomDate(r)
		}
		if r.IntN(3) > 0 {
			o.Value, o.unit = randomNumber(r), PickRandom(r, units)
		}
		for range r.IntN(3) {
			o.components = append(o.components, component{PickRandom(r, Codings), randomNumber(r)})
		}
		c.Observations = append(c.Observations, o)
	}
	return c
}

// An Object is a JSON object.
type Object = map[string]any

func codeableConcept(codes ...coding) Object {
	var list []any
	for _, c := range codes {
		o := Object{"code": c.Code, "display": c.display}
		if c.System != "" {
			o["system"] = c.System
		}
		list = append(list, o)
	}
	return Object{"coding": list}
}

// JSON returns the resource.
func (p *Patient) JSON() Object {
	o := Object{"resourceType": "Patient", "id": p.ID, "name": []any{Object{"family": p.Family, "given": []any{p.given}}}}
	if p.Gender != "" {
		o["gender"] = p.Gender
	}
	if p.Birth != "" {
		o["birthDate"] = p.Birth
	}
	if p.Organization >= 0 {
		o["managingOrganization"] = Object{"reference": fmt.Sprintf("Organization/org%d", p.Organization)}
	}
	return o
}

// JSON returns the resource.
func (o *Observation) JSON() Object {
	out := Object{"resourceType": "Observation", "id": o.ID, "status": o.Status, "code": codeableConcept(o.Code...)}
	var list []any
	for _, c := range o.Categories {
		list = append(list, codeableConcept(coding{"http://category", c, c}))
	}
	if list != nil {
		out["category"] = list
	}
	if o.Subject != "" {
		out["subject"] = Object{"reference": o.Subject}
	}
	switch {
	case o.effective != "":
		out["effectiveDateTime"] = o.effective
	case o.start != "":
		p := Object{"start": o.start}
		if o.end != "" {
			p["end"] = o.end
		}
		out["effectivePeriod"] = p
	}
	quantity := func(value, unit string) Object {
		return Object{"value": json.Number(value), "unit": unit, "system": "http://unitsofmeasure.org", "code": unit}
	}
	if o.Value != "" {
		out["valueQuantity"] = quantity(o.Value, o.unit)
	}
	list = nil
	for _, c := range o.components {
		list = append(list, Object{"code": codeableConcept(c.code), "valueQuantity": quantity(c.value, "g")})
	}
	if list != nil {
		out["component"] = list
	}
	return out
}

// Organizations returns the organizations to which patients refer, the same for every corpus.
func Organizations() []Object {
	var out []Object
	for i := range 4 {
		out = append(out, Object{"resourceType": "Organization", "id": fmt.Sprintf("org%d", i), "name": fmt.Sprintf("Clinic %d", i%2), "partOf": Object{"reference": "Organization/org3"}})
	}
	return out
}

// Load writes the corpus, in random order.
func (c *Corpus) Load(t testing.TB, s *store.Store) {
	t.Helper()
	var all []Object
	for i := range c.Patients {
		all = append(all, c.Patients[i].JSON())
	}
	for i := range c.Observations {
		all = append(all, c.Observations[i].JSON())
	}
	all = append(all, Organizations()...)
	r := rand.New(rand.NewPCG(7, 7))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for batch := range slices.Chunk(all, 500) {
		var ws []*store.Write
		for _, o := range batch {
			raw, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			ws = append(ws, NewWrite(t, raw))
		}
		if err := s.WriteAll(context.Background(), ws); err != nil {
			t.Fatal(err)
		}
	}
}
