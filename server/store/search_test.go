package store_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/store"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// The tests below search a few thousand random resources and compare with an
// evaluation in memory that knows the data as they were made and nothing of
// index entries, SQL or plans.

var registry = search.NewRegistry(r4.Model, index.Parameters, index.Compartments)

// searchNow is the present of every search, for the prefix ap.
var searchNow = time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)

type coding struct{ system, code, display string }

type patient struct {
	id, family, given string
	gender            string // "" is none
	birth             string // "" is none
	organization      int    // -1 is none
}

type observation struct {
	id         string
	status     string
	code       []coding
	categories []string
	subject    string // reference, "" is none
	effective  string // dateTime, "" is none
	start, end string // Period
	value      string // decimal, "" is none
	unit       string // UCUM code
	components []component
	updated    time.Time // of the version that was written, where somebody asks
}

type component struct {
	code  coding
	value string
}

type corpus struct {
	patients     []patient
	observations []observation
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

var (
	families = []string{"Müller", "Mueller", "MULLER", "Chalmers", "van den Berg", "Van  Buren", "O'Neil", "Ødegård", "Ngô", "Smith", "Smithson", "smi_th", "100%"}
	givens   = []string{"Eve", "Adam", "Ève", "Anna-Lena", "Peter James", "李", "José"}
	codings  = []coding{
		{"http://loinc.org", "8302-2", "Body Height"}, {"http://loinc.org", "29463-7", "Body Weight"}, {"http://loinc.org", "8480-6", "Systolic blood pressure"},
		{"http://snomed.info/sct", "8302-2", "Something else"}, {"", "local", "Kept here"}, {"http://snomed.info/sct", "AbC", "Mixed Case"},
	}
	statuses   = []string{"final", "final", "final", "amended", "preliminary"}
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

func newCorpus(seed uint64, patients, observations int) *corpus {
	r := rand.New(rand.NewPCG(seed, 1))
	c := &corpus{}
	for i := range patients {
		p := patient{id: fmt.Sprintf("p%d", i), family: pick(r, families), given: pick(r, givens), gender: pick(r, []string{"male", "female", "other", ""}), organization: r.IntN(5) - 1}
		if r.IntN(5) > 0 {
			p.birth = time.Date(1930+r.IntN(90), time.Month(1+r.IntN(12)), 1+r.IntN(28), 0, 0, 0, 0, time.UTC).Format(pick(r, []string{"2006", "2006-01", "2006-01-02", "2006-01-02"}))
		}
		c.patients = append(c.patients, p)
	}
	for i := range observations {
		o := observation{id: fmt.Sprintf("o%d", i), status: pick(r, statuses), code: []coding{pick(r, codings)}}
		if r.IntN(4) == 0 {
			o.code = append(o.code, pick(r, codings))
		}
		for _, c := range categories {
			if r.IntN(3) == 0 {
				o.categories = append(o.categories, c)
			}
		}
		switch r.IntN(10) {
		case 0:
		case 1:
			o.subject = fmt.Sprintf("Group/p%d", r.IntN(patients))
		default:
			o.subject = fmt.Sprintf("Patient/p%d", r.IntN(patients))
		}
		switch r.IntN(6) {
		case 0:
		case 1:
			o.start = randomDate(r)
			if r.IntN(2) == 0 {
				_, high := span(o.start)
				o.end = time.UnixMicro(high).UTC().Add(time.Duration(r.IntN(400*24)) * time.Hour).Format("2006-01-02")
			}
		default:
			o.effective = randomDate(r)
		}
		if r.IntN(3) > 0 {
			o.value, o.unit = randomNumber(r), pick(r, units)
		}
		for range r.IntN(3) {
			o.components = append(o.components, component{pick(r, codings), randomNumber(r)})
		}
		c.observations = append(c.observations, o)
	}
	return c
}

type object = map[string]any

func codeableConcept(codes ...coding) object {
	var list []any
	for _, c := range codes {
		o := object{"code": c.code, "display": c.display}
		if c.system != "" {
			o["system"] = c.system
		}
		list = append(list, o)
	}
	return object{"coding": list}
}

func (p *patient) json() object {
	o := object{"resourceType": "Patient", "id": p.id, "name": []any{object{"family": p.family, "given": []any{p.given}}}}
	if p.gender != "" {
		o["gender"] = p.gender
	}
	if p.birth != "" {
		o["birthDate"] = p.birth
	}
	if p.organization >= 0 {
		o["managingOrganization"] = object{"reference": fmt.Sprintf("Organization/org%d", p.organization)}
	}
	return o
}

func (o *observation) json() object {
	out := object{"resourceType": "Observation", "id": o.id, "status": o.status, "code": codeableConcept(o.code...)}
	var list []any
	for _, c := range o.categories {
		list = append(list, codeableConcept(coding{"http://category", c, c}))
	}
	if list != nil {
		out["category"] = list
	}
	if o.subject != "" {
		out["subject"] = object{"reference": o.subject}
	}
	switch {
	case o.effective != "":
		out["effectiveDateTime"] = o.effective
	case o.start != "":
		p := object{"start": o.start}
		if o.end != "" {
			p["end"] = o.end
		}
		out["effectivePeriod"] = p
	}
	quantity := func(value, unit string) object {
		return object{"value": json.Number(value), "unit": unit, "system": "http://unitsofmeasure.org", "code": unit}
	}
	if o.value != "" {
		out["valueQuantity"] = quantity(o.value, o.unit)
	}
	list = nil
	for _, c := range o.components {
		list = append(list, object{"code": codeableConcept(c.code), "valueQuantity": quantity(c.value, "g")})
	}
	if list != nil {
		out["component"] = list
	}
	return out
}

// organizations are those that patients have, the same in every corpus.
func organizations() []object {
	var out []object
	for i := range 4 {
		out = append(out, object{"resourceType": "Organization", "id": fmt.Sprintf("org%d", i), "name": fmt.Sprintf("Clinic %d", i%2), "partOf": object{"reference": "Organization/org3"}})
	}
	return out
}

// load writes the corpus, in random order.
func (c *corpus) load(t testing.TB, s *store.Store) {
	t.Helper()
	var all []object
	for i := range c.patients {
		all = append(all, c.patients[i].json())
	}
	for i := range c.observations {
		all = append(all, c.observations[i].json())
	}
	all = append(all, organizations()...)
	r := rand.New(rand.NewPCG(7, 7))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for batch := range slices.Chunk(all, 500) {
		var ws []*store.Write
		for _, o := range batch {
			raw, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			ws = append(ws, resourceWrite(t, raw))
		}
		if err := s.WriteAll(context.Background(), ws); err != nil {
			t.Fatal(err)
		}
	}
}

// resourceWrite is the PUT of a resource with its index entries.
func resourceWrite(t testing.TB, raw []byte) *store.Write {
	t.Helper()
	r, err := fhir.Decode(r4.Model, raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	b, err := fhir.Splice(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := new(fhir.Index)
	index.Extract(x, r)
	x.Finish()
	return &store.Write{Method: fhir.PUT, ResourceType: r.Type().Name, ID: r.Header().ID.Text, Body: b, Index: x, Resource: r}
}

// span is the range of a date, by the standard library's parser.
func span(text string) (low, high int64) {
	for _, l := range []struct {
		layout  string
		y, m, d int
		width   time.Duration
	}{
		{"2006", 1, 0, 0, 0}, {"2006-01", 0, 1, 0, 0}, {"2006-01-02", 0, 0, 1, 0},
		{"2006-01-02T15:04:05Z07:00", 0, 0, 0, time.Second},
	} {
		t, err := time.Parse(l.layout, text)
		if err != nil {
			continue
		}
		if strings.Contains(text, ".") {
			l.width = time.Millisecond
		}
		return t.UnixMicro(), t.AddDate(l.y, l.m, l.d).Add(l.width).UnixMicro()
	}
	panic(text)
}

// dateHolds compares the range of a value with the range of a search value.
func dateHolds(op string, low, high, slow, shigh int64) bool {
	contained := low >= slow && high <= shigh
	switch op {
	case "", "eq":
		return contained
	case "ne":
		return !contained
	case "lt":
		return low < slow
	case "gt":
		return high > shigh
	case "le":
		return low < slow || contained
	case "ge":
		return high > shigh || contained
	case "sa":
		return low >= shigh
	case "eb":
		return high <= slow
	case "ap":
		margin := (searchNow.UnixMicro() - slow) / 10
		return low < shigh+margin && high > slow-margin
	}
	panic(op)
}

func (o *observation) date() (low, high int64, ok bool) {
	const open = int64(1e18)
	switch {
	case o.effective != "":
		low, high = span(o.effective)
	case o.start != "":
		low, _ = span(o.start)
		high = open
		if o.end != "" {
			_, high = span(o.end)
		}
	default:
		return 0, 0, false
	}
	return low, high, true
}

// numberHolds compares a value with a search value of the given text; scale is
// the number of value's units in one unit of the search.
func numberHolds(op, value, text string, scale float64) bool {
	v, _ := strconv.ParseFloat(value, 64)
	v /= scale
	s, _ := strconv.ParseFloat(text, 64)
	half := 0.5
	if _, fraction, ok := strings.Cut(text, "."); ok {
		for range fraction {
			half /= 10
		}
	}
	const tiny = 1e-9
	in := v >= s-half-tiny && v < s+half-tiny
	switch op {
	case "", "eq":
		return in
	case "ne":
		return !in
	case "lt", "eb":
		return v < s-tiny
	case "le":
		return v <= s+tiny
	case "gt", "sa":
		return v > s+tiny
	case "ge":
		return v >= s-tiny
	case "ap":
		m := max(half, s/10)
		return v >= s-m-tiny && v <= s+m+tiny
	}
	panic(op)
}

// A condition is a parameter and its expected matches.
type condition[T any] struct {
	name, value string
	holds       func(*T) bool
}

var (
	prefixes     = []string{"", "eq", "ne", "lt", "le", "gt", "ge", "sa", "eb", "ap"}
	foldedFamily = strings.NewReplacer("ü", "u", "ø", "o", "å", "a", "ô", "o", "è", "e", "é", "e", "  ", " ")
)

func fold(s string) string { return foldedFamily.Replace(strings.ToLower(s)) }

func anyOf[T any](list []T, f func(T) bool) bool { return slices.ContainsFunc(list, f) }

func hasCode(codes []coding, want string) bool {
	system, code, both := strings.Cut(want, "|")
	return anyOf(codes, func(c coding) bool {
		if !both {
			return strings.EqualFold(c.code, want)
		}
		return c.system == system && (code == "" || strings.EqualFold(c.code, code))
	})
}

func randomToken(r *rand.Rand) string {
	c := pick(r, codings)
	switch r.IntN(4) {
	case 0:
		return c.code
	case 1:
		if c.system != "" {
			return c.system + "|"
		}
	case 2:
		return strings.ToUpper(c.code)
	}
	return c.system + "|" + c.code
}

func (c *corpus) patientCondition(r *rand.Rand) condition[patient] {
	switch r.IntN(9) {
	case 0:
		g := pick(r, []string{"male", "female", "other,male", "http://hl7.org/fhir/administrative-gender|female"})
		return condition[patient]{"gender", g, func(p *patient) bool {
			return p.gender != "" && anyOf(strings.Split(g, ","), func(v string) bool { return strings.HasSuffix("|"+v, "|"+p.gender) })
		}}
	case 1:
		g := pick(r, []string{"male", "female", "other,male"})
		return condition[patient]{"gender:not", g, func(p *patient) bool { return !slices.Contains(strings.Split(g, ","), p.gender) }}
	case 2:
		missing := pick(r, []string{"true", "false"})
		return condition[patient]{"birthdate:missing", missing, func(p *patient) bool { return (p.birth == "") == (missing == "true") }}
	case 3:
		op, v := pick(r, prefixes), strconv.Itoa(1930+r.IntN(90))
		if r.IntN(2) == 0 {
			v += "-06"
		}
		slow, shigh := span(v)
		return condition[patient]{"birthdate", op + v, func(p *patient) bool {
			if p.birth == "" {
				return false
			}
			low, high := span(p.birth)
			return dateHolds(op, low, high, slow, shigh)
		}}
	case 4:
		f := pick(r, families)
		f = string([]rune(f)[:1+r.IntN(len([]rune(f)))])
		return condition[patient]{"family", strings.ReplaceAll(f, ",", `\,`), func(p *patient) bool { return beginsWord(fold(p.family), fold(strings.TrimSpace(f))) }}
	case 5:
		f := []rune(pick(r, families))
		from := r.IntN(len(f))
		part := strings.TrimSpace(string(f[from : from+1+r.IntN(len(f)-from)]))
		if part == "" {
			part = "e"
		}
		return condition[patient]{"family:contains", part, func(p *patient) bool {
			return strings.Contains(joinTest(fold(p.family)), joinTest(fold(part)))
		}}
	case 6:
		f := pick(r, families)
		return condition[patient]{"family:exact", f, func(p *patient) bool { return p.family == f }}
	case 7:
		o := pick(r, []string{"Clinic 0", "Clinic 1", "Clinic"})
		return condition[patient]{"organization.name", o, func(p *patient) bool {
			return p.organization >= 0 && beginsText(strings.ToLower(fmt.Sprintf("Clinic %d", p.organization%2)), strings.ToLower(o))
		}}
	}
	if r.IntN(2) == 0 {
		inner := c.simpleObservation(r)
		return condition[patient]{"_has:Observation:patient:" + inner.name, inner.value, func(p *patient) bool {
			return anyOf(c.observations, func(o observation) bool { return o.subject == "Patient/"+p.id && inner.holds(&o) })
		}}
	}
	ids := []string{fmt.Sprintf("p%d", r.IntN(len(c.patients))), fmt.Sprintf("p%d", r.IntN(len(c.patients))), "nobody"}
	return condition[patient]{"_id", strings.Join(ids, ","), func(p *patient) bool { return slices.Contains(ids, p.id) }}
}

func (c *corpus) simpleObservation(r *rand.Rand) condition[observation] {
	switch r.IntN(9) {
	case 0, 1:
		var want []string
		for range 1 + r.IntN(2) {
			want = append(want, randomToken(r))
		}
		if r.IntN(8) == 0 { // more than one look-up asks for
			for i := range 70 {
				want = append(want, fmt.Sprintf("unused%d", i))
			}
		}
		holds := func(o *observation) bool { return anyOf(want, func(w string) bool { return hasCode(o.code, w) }) }
		if r.IntN(3) == 0 {
			return condition[observation]{"code:not", strings.Join(want, ","), func(o *observation) bool { return !holds(o) }}
		}
		return condition[observation]{"code", strings.Join(want, ","), holds}
	case 2:
		s := pick(r, statuses)
		return condition[observation]{"status", s, func(o *observation) bool { return o.status == s }}
	case 3:
		op, v := pick(r, prefixes), randomDate(r)
		slow, shigh := span(v)
		return condition[observation]{"date", op + v, func(o *observation) bool {
			low, high, ok := o.date()
			return ok && dateHolds(op, low, high, slow, shigh)
		}}
	case 4:
		missing := pick(r, []string{"true", "false"})
		return condition[observation]{"date:missing", missing, func(o *observation) bool {
			_, _, ok := o.date()
			return ok != (missing == "true")
		}}
	case 5:
		op, v := pick(r, prefixes), randomNumber(r)
		return condition[observation]{"value-quantity", op + v, func(o *observation) bool { return o.value != "" && numberHolds(op, o.value, v, 1) }}
	case 6:
		op, v, unit := pick(r, prefixes), randomNumber(r), pick(r, []string{"g", "mg", "kg"})
		grams := map[string]float64{"g": 1, "mg": 0.001, "kg": 1000}
		return condition[observation]{"value-quantity", op + v + "|http://unitsofmeasure.org|" + unit, func(o *observation) bool {
			return o.value != "" && grams[o.unit] > 0 && numberHolds(op, o.value, v, grams[unit]/grams[o.unit])
		}}
	case 7:
		cat := pick(r, categories)
		return condition[observation]{"category", cat, func(o *observation) bool { return slices.Contains(o.categories, cat) }}
	}
	missing := pick(r, []string{"true", "false"})
	return condition[observation]{"patient:missing", missing, func(o *observation) bool {
		return strings.HasPrefix(o.subject, "Patient/") != (missing == "true")
	}}
}

func (c *corpus) observationCondition(r *rand.Rand) condition[observation] {
	switch r.IntN(8) {
	case 0:
		inner := c.patientCondition(r)
		return condition[observation]{"subject:Patient." + inner.name, inner.value, func(o *observation) bool {
			return anyOf(c.patients, func(p patient) bool { return o.subject == "Patient/"+p.id && inner.holds(&p) })
		}}
	case 1:
		id := fmt.Sprintf("p%d", r.IntN(len(c.patients)))
		name, value, want := "subject", id, []string{"Patient/" + id, "Group/" + id}
		switch r.IntN(3) {
		case 0:
			name, want = "patient", want[:1]
		case 1:
			value, want = "Group/"+id, want[1:]
		}
		return condition[observation]{name, value, func(o *observation) bool { return slices.Contains(want, o.subject) }}
	case 2:
		token, op, v := randomToken(r), pick(r, prefixes), randomNumber(r)
		if strings.HasSuffix(token, "|") {
			token = "http://loinc.org|8480-6"
		}
		return condition[observation]{"component-code-value-quantity", token + "$" + op + v, func(o *observation) bool {
			return anyOf(o.components, func(c component) bool { return hasCode([]coding{c.code}, token) && numberHolds(op, c.value, v, 1) })
		}}
	case 3:
		token, op, v := randomToken(r), pick(r, prefixes), randomNumber(r)
		if strings.HasSuffix(token, "|") {
			token = "8302-2"
		}
		return condition[observation]{"combo-code-value-quantity", token + "$" + op + v, func(o *observation) bool {
			return o.value != "" && hasCode(o.code, token) && numberHolds(op, o.value, v, 1) ||
				anyOf(o.components, func(c component) bool { return hasCode([]coding{c.code}, token) && numberHolds(op, c.value, v, 1) })
		}}
	case 4:
		part := pick(r, []string{"body", "PRESSURE", "e"})
		return condition[observation]{"code:text", part, func(o *observation) bool {
			return anyOf(o.code, func(c coding) bool { return strings.Contains(strings.ToLower(c.display), strings.ToLower(part)) })
		}}
	}
	return c.simpleObservation(r)
}

// cases makes n random searches with the ids that they should find.
func (c *corpus) cases(seed uint64, n int) []searchCase {
	r := rand.New(rand.NewPCG(seed, 2))
	var out []searchCase
	for range n {
		values := url.Values{}
		sc := searchCase{typ: "Observation", values: values}
		if r.IntN(3) == 0 {
			sc.typ = "Patient"
			var all []condition[patient]
			for range 1 + r.IntN(2) {
				all = append(all, c.patientCondition(r))
			}
			for _, cond := range all {
				values.Add(cond.name, cond.value)
			}
			for i := range c.patients {
				p := &c.patients[i]
				if !anyOf(all, func(cond condition[patient]) bool { return !cond.holds(p) }) {
					sc.want = append(sc.want, p.id)
				}
			}
			if r.IntN(3) == 0 {
				values.Set("_sort", pick(r, []string{"birthdate", "-birthdate", "family", "-family,birthdate", "name", "-name,_id", "-_id", "_lastUpdated", "gender", "-gender,family", "organization,-_id"}))
			}
		} else {
			var all []condition[observation]
			for range 1 + r.IntN(3) {
				all = append(all, c.observationCondition(r))
			}
			for _, cond := range all {
				values.Add(cond.name, cond.value)
			}
			for i := range c.observations {
				o := &c.observations[i]
				if !anyOf(all, func(cond condition[observation]) bool { return !cond.holds(o) }) {
					sc.want = append(sc.want, o.id)
				}
			}
			if r.IntN(3) == 0 {
				values.Set("_sort", pick(r, []string{"date", "-date", "-date,_id", "value-quantity", "-value-quantity,date", "_id", "-_lastUpdated", "status,-date", "-code,value-quantity", "patient", "-subject,_id", "category,_lastUpdated"}))
			}
		}
		slices.Sort(sc.want)
		out = append(out, sc)
	}
	return out
}

type searchCase struct {
	typ    string
	values url.Values
	want   []string // ids, sorted
}

func (c *searchCase) String() string { return c.typ + "?" + c.values.Encode() }

func (c *searchCase) parse(t testing.TB, extra ...string) *search.Query {
	t.Helper()
	values := url.Values{}
	for k, v := range c.values {
		values[k] = v
	}
	for i := 0; i < len(extra); i += 2 {
		values.Set(extra[i], extra[i+1])
	}
	q, err := search.Parse(registry, c.typ, values, search.Options{MaxCount: 10_000, Now: searchNow})
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	return q
}

func find(t testing.TB, s *store.Store, q *search.Query) *store.SearchResult {
	t.Helper()
	r, err := s.Search(context.Background(), q)
	if err != nil {
		t.Fatalf("%v: %v", q.Applied().Encode(), cmp.Or(error(nil), unwrapAll(err)))
	}
	return r
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok || u.Unwrap() == nil {
			return err
		}
		err = u.Unwrap()
	}
}

func ids(r *store.SearchResult) []string {
	var out []string
	for _, v := range r.Matches {
		out = append(out, v.ID)
	}
	return out
}

// TestRandomSearches compares searches with an evaluation in memory: with room
// for every candidate, and with so little that all are counted and walked. The
// order of the whole, the pages forwards and backwards by cursor, and the pages
// by offset must be the same sequence.
func TestRandomSearches(t *testing.T) {
	s, _ := open(t)
	s.IndexBy(compiled{})
	c := newCorpus(1, 150, 900)
	c.load(t, s)
	n := 200
	if testing.Short() {
		n = 50
	}
	for _, sc := range c.cases(3, n) {
		var order []string
		for _, limit := range []int{0, 3} {
			s.SetSearchLimit(limit)
			whole := find(t, s, sc.parse(t, "_count", "10000"))
			got := ids(whole)
			if limit == 0 {
				order = got
			} else if diff := gocmp.Diff(order, got); diff != "" {
				t.Fatalf("%s: the walk has another order than the candidates:\n%s", &sc, diff)
			}
			sorted := slices.Clone(got)
			slices.Sort(sorted)
			if diff := gocmp.Diff(sc.want, sorted); diff != "" {
				t.Fatalf("%s (limit %d):\n%s", &sc, limit, diff)
			}
			if *whole.Total != len(sc.want) {
				t.Fatalf("%s (limit %d): total %d, want %d", &sc, limit, *whole.Total, len(sc.want))
			}
			size := max(1, len(order)/4)
			if diff := gocmp.Diff(order, pages(t, s, &sc, size)); diff != "" {
				t.Fatalf("%s (limit %d): pages of %d forwards:\n%s", &sc, limit, size, diff)
			}
			if diff := gocmp.Diff(order, pagesBack(t, s, &sc, size)); diff != "" {
				t.Fatalf("%s (limit %d): pages of %d backwards:\n%s", &sc, limit, size, diff)
			}
			var byOffset []string
			for offset := 0; offset < len(order); offset += size {
				byOffset = append(byOffset, ids(find(t, s, sc.parse(t, "_count", strconv.Itoa(size), "_offset", strconv.Itoa(offset))))...)
			}
			if diff := gocmp.Diff(order, byOffset); diff != "" {
				t.Fatalf("%s (limit %d): pages of %d by offset:\n%s", &sc, limit, size, diff)
			}
			if r := find(t, s, sc.parse(t, "_count", "0")); *r.Total != len(sc.want) || len(r.Matches) != 0 {
				t.Fatalf("%s: _count=0 gave total %d and %d matches, want %d and 0", &sc, *r.Total, len(r.Matches), len(sc.want))
			}
		}
	}
}

// pages follows the links to the next page.
func pages(t testing.TB, s *store.Store, sc *searchCase, size int) []string {
	t.Helper()
	var out []string
	extra := []string{"_count", strconv.Itoa(size)}
	for {
		r := find(t, s, sc.parse(t, extra...))
		out = append(out, ids(r)...)
		if !r.HasNext {
			return out
		}
		extra = []string{"_count", strconv.Itoa(size), "_cursor", r.Last, "_offset", strconv.Itoa(len(out))}
	}
}

// pagesBack goes to the last page and from there to the previous ones.
func pagesBack(t testing.TB, s *store.Store, sc *searchCase, size int) []string {
	t.Helper()
	r := find(t, s, sc.parse(t, "_count", strconv.Itoa(size)))
	if r.End == "" {
		return ids(r)
	}
	var out []string
	cursor := r.End
	for cursor != "" {
		r = find(t, s, sc.parse(t, "_count", strconv.Itoa(size), "_cursor", cursor))
		out = append(ids(r), out...)
		cursor = r.First
	}
	return out
}

// TestTotalsFollowWrites runs the same searches before and after writes: a cached total
// must not outlive a change that concerns it.
func TestTotalsFollowWrites(t *testing.T) {
	s, at := open(t)
	other := openAt(t, at) // writes that another server makes
	s.SetSearchLimit(2)
	ctx := context.Background()
	observation := func(id, date, value string) *store.Write {
		return resourceWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":%q,"status":"final","code":{"coding":[{"code":"c"}]},
			"subject":{"reference":"Patient/p"},"effectiveDateTime":%q,"valueQuantity":{"value":%s,"system":"http://unitsofmeasure.org","code":"g"}}`, id, date, value))
	}
	if err := s.WriteAll(ctx, []*store.Write{
		resourceWrite(t, []byte(`{"resourceType":"Patient","id":"p","gender":"male"}`)),
		observation("a", "2020-01-01", "1"), observation("b", "2021-01-01", "2"), observation("c", "2022-01-01", "3"),
	}); err != nil {
		t.Fatal(err)
	}
	searches := []searchCase{
		{typ: "Observation", values: params("date", "ge2020")},
		{typ: "Observation", values: params("date", "ne2021")},
		{typ: "Observation", values: params()},
		{typ: "Observation", values: params("value-quantity", "gt0|http://unitsofmeasure.org|mg")},
		{typ: "Observation", values: params("code", "c")},
		{typ: "Observation", values: params("code:not", "x")},
		{typ: "Observation", values: params("subject:Patient.gender", "male")},
		{typ: "Observation", values: params("code-value-quantity", "c$gt0")},
	}
	check := func(when string, want ...int) {
		t.Helper()
		for range 3 { // counted, remembered, from a histogram
			for i := range searches {
				if got := *find(t, s, searches[i].parse(t)).Total; got != want[i] {
					t.Errorf("%s, %s: total %d, want %d", when, &searches[i], got, want[i])
				}
			}
		}
	}
	check("at first", 3, 2, 3, 3, 3, 3, 3, 3)
	write(t, other, observation("d", "2021-06-01", "4"))
	check("after a create", 4, 2, 4, 4, 4, 4, 4, 4)
	write(t, other, resourceWrite(t, []byte(`{"resourceType":"Observation","id":"e","status":"final","code":{"coding":[{"code":"x"}]}}`)))
	check("after a create that few match", 4, 2, 5, 4, 4, 4, 4, 4)
	write(t, other, observation("a", "2019-01-01", "0"))
	check("after an update", 3, 2, 5, 3, 4, 4, 4, 3)
	write(t, other, resourceWrite(t, []byte(`{"resourceType":"Patient","id":"p","gender":"female"}`)))
	check("after an update of the target", 3, 2, 5, 3, 4, 4, 0, 3)
	write(t, other, remove("Observation", "b"))
	check("after a delete", 2, 2, 4, 2, 3, 3, 0, 2)
}

func params(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Add(pairs[i], pairs[i+1])
	}
	return v
}

// TestCommonTermsAreRemembered runs new searches after one expensive search for other terms
// of the type: they are answered from memory, and follow the writes of another server.
func TestCommonTermsAreRemembered(t *testing.T) {
	s, at := open(t)
	other := openAt(t, at)
	s.SetSearchLimit(20)
	observation := func(i, code int) *store.Write {
		return resourceWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":"o%d","status":%q,"code":{"coding":[{"code":"c%d"}]},
			"effectiveDateTime":"20%02d-01-01"}`, i, []string{"final", "amended"}[i%2], code, i%50))
	}
	var all []*store.Write
	for i := range 400 {
		all = append(all, observation(i, i%4))
	}
	if err := s.WriteAll(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	// A search for all that there is learns no more than which these are.
	everything := searchCase{typ: "Observation", values: params()}
	find(t, s, everything.parse(t))
	s.SearchSettled()
	if r := s.Remembered(); r.Sets != 1 || *find(t, s, everything.parse(t)).Total != 400 || s.Remembered().Hits != r.Hits+1 {
		t.Errorf("of everything it remembers %+v", r)
	}
	find(t, s, (&searchCase{typ: "Observation", values: params("code", "c0", "date", "ge2001")}).parse(t))
	s.SearchSettled()
	check := func(when string, want int, values ...string) {
		t.Helper()
		before := s.Remembered().Hits
		sc := searchCase{typ: "Observation", values: params(values...)}
		if got := *find(t, s, sc.parse(t)).Total; got != want {
			t.Errorf("%s, %s: total %d, want %d", when, &sc, got, want)
		}
		if s.Remembered().Hits == before {
			t.Errorf("%s, %s: not answered by memory", when, &sc)
		}
	}
	check("one term", 100, "code", "c3")
	check("two", 100, "code", "c2", "status", "final")
	check("two that exclude each other", 0, "code", "c2", "status", "amended")
	check("alternatives", 200, "code", "c1,c3", "status", "amended")
	check("none of some", 100, "status", "amended", "code:not", "c1")
	check("with a comparison", 48, "code", "c3", "date", "ge2026")
	write(t, other, observation(0, 3))   // was c0
	write(t, other, observation(400, 3)) // new
	write(t, other, remove("Observation", "o3"))
	write(t, s, observation(401, 1)) // by this server, which need not read it again
	check("after writes", 401)
	check("after writes", 101, "code", "c3")
	check("after writes", 101, "code", "c1")
	check("after writes", 2, "code", "c3", "status", "final")
	check("after writes", 99, "code", "c0")

	// A term that has given way is found again by itself, when a dear search has missed it.
	bytes := s.Remembered().Bytes
	s.SetSearchMemory(bytes / 8)
	s.SetSearchMemory(0)
	lost := []string{"code", "c3", "status:not", "final"}
	if got := *find(t, s, (&searchCase{typ: "Observation", values: params(lost...)}).parse(t)).Total; got != 99 {
		t.Errorf("with an eighth of the memory the total is %d", got)
	}
	s.SearchSettled()
	check("found again", 99, lost...)

	s.SetSearchMemory(-1)
	if r := s.Remembered(); r.Bytes != 0 || r.Sets != 0 {
		t.Errorf("without memory, %+v is remembered", r)
	}
}

// For a row of the change log that a server has written itself, the database returns only
// that it exists. For any other row it returns everything.
func TestChangesOfOthers(t *testing.T) {
	t.Parallel()
	s, url := open(t)
	conn := connect(t, url)
	patient := func(id, gender string) {
		t.Helper()
		write(t, s, resourceWrite(t, fmt.Appendf(nil, `{"resourceType":"Patient","id":%q,"gender":%q}`, id, gender)))
	}
	patient("a", "male")
	var since string
	var typ int16
	if err := conn.QueryRow(t.Context(), "SELECT pg_current_snapshot()::text, typ FROM resource").Scan(&since, &typ); err != nil {
		t.Fatal(err)
	}
	patient("a", "female")
	patient("b", "male")
	var a int64
	if err := conn.QueryRow(t.Context(), "SELECT rid FROM resource WHERE id = 'a'").Scan(&a); err != nil {
		t.Fatal(err)
	}
	type told struct {
		ID      string `json:"i"`
		Version int    `json:"v"`
	}
	for _, c := range []struct {
		name          string
		most, version int
		typ           int16
		own           string
		others        []told
		text          string // instead
	}{
		{"its version", 10, 2, typ, fmt.Sprintf("%d/2", a), []told{{"b", 1}}, ""},
		{"its version, and one of others", 1, 2, typ, fmt.Sprintf("%d/2", a), []told{{"b", 1}}, ""},
		{"an older version", 10, 1, typ, "", []told{{"a", 2}, {"b", 1}}, ""},
		{"more than are asked for", 1, 1, typ, "", nil, "''"},
		{"its version, no other of a type", 10, 2, typ + 1, fmt.Sprintf("%d/2", a), nil, ""},
		{"none of a type", 10, 1, typ + 1, "", nil, "NULL"},
	} {
		var rows *string
		if err := conn.QueryRow(t.Context(), "SELECT changes_of_others(4294967296, $1::text::pg_snapshot, $2, $3, $4, $5)",
			since, []int16{c.typ}, c.most, []int64{a}, []int32{int32(c.version)}).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		if c.text != "" {
			if c.text == "NULL" != (rows == nil) || rows != nil && *rows != "" {
				t.Errorf("%s: %v, want %s", c.name, rows, c.text)
			}
			continue
		}
		if rows == nil {
			t.Errorf("%s: nothing", c.name)
			continue
		}
		own, others, _ := strings.Cut(*rows, " ")
		var got []told
		if others != "" {
			if err := json.Unmarshal([]byte(others), &got); err != nil {
				t.Fatalf("%s: %v in %s", c.name, err, *rows)
			}
		}
		slices.SortFunc(got, func(a, b told) int { return cmp.Compare(a.ID, b.ID) })
		if own != c.own || !slices.Equal(got, c.others) {
			t.Errorf("%s: %q and %+v, want %q and %+v", c.name, own, got, c.own, c.others)
		}
	}
}

// TestTotalsFollowTheIndex changes the index entries of a resource, as work on the index
// does: without a new version, and with a row of the change log that names no version.
func TestTotalsFollowTheIndex(t *testing.T) {
	s, at := open(t)
	s.SetSearchLimit(2)
	for i := range 4 {
		write(t, s, resourceWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":"o%d","status":"final","code":{"coding":[{"code":"c"}]}}`, i)))
	}
	sc := searchCase{typ: "Observation", values: params("code", "c")}
	for range 2 {
		if got := *find(t, s, sc.parse(t)).Total; got != 4 {
			t.Fatalf("total %d, want 4", got)
		}
	}
	conn, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `
		WITH gone AS (UPDATE resource SET terms = '{}' WHERE id = 'o1')
		INSERT INTO change (shard, rids, refs, versions, methods) VALUES (0, '{}', '{}', '{}', '')`); err != nil {
		t.Fatal(err)
	}
	if got := *find(t, s, sc.parse(t)).Total; got != 3 {
		t.Errorf("total %d after the index has changed, want 3", got)
	}
}

// TestNoSequentialScan reads PostgreSQL's plans of one search for each kind of
// parameter, as candidates and as counts and walks: none may read a whole table.
func TestNoSequentialScan(t *testing.T) {
	s, _ := open(t)
	c := newCorpus(5, 40, 200)
	c.load(t, s)
	for _, limit := range []int{0, 2} {
		s.SetSearchLimit(limit)
		for _, text := range []string{
			"Patient", "Patient?_id=p1", "Patient?_lastUpdated=ge2020", "Patient?_lastUpdated=gt2020&_sort=-_lastUpdated", "Patient?_sort=_id",
			"Patient?gender=male", "Patient?gender:not=male", "Patient?gender:missing=true", "Observation?code=8302-2,8480-6&status=final", "Observation?code:text=body",
			"Patient?family=mu", "Patient?family:contains=ulle", "Patient?family:exact=Smith", "Patient?_sort=family,-birthdate", "Patient?_sort=-family", "Patient?_sort=name", "Patient?_sort=-name&family=mu",
			"Patient?birthdate=1970", "Patient?birthdate=gt1970", "Patient?birthdate=ne1970", "Patient?birthdate=eb1990", "Observation?date=ge2020&date=lt2021&_sort=-date",
			"Observation?date=ap2021-03", "Observation?code=8302-2&date=ge2020", "Observation?value-quantity=5.4", "Observation?value-quantity=gt5|http://unitsofmeasure.org|g",
			"Observation?value-quantity=ap5", "Observation?_sort=value-quantity", "Observation?code-value-quantity=8302-2$gt5", "Observation?component-code-value-quantity=8480-6$gt5",
			"Observation?combo-code-value-quantity=8480-6$gt5", "Observation?subject=Patient/p1", "Observation?subject:Patient.gender=male", "Observation?patient.organization.name=clinic",
			"Observation?patient.birthdate=gt1970&code=8302-2", "Patient?_has:Observation:patient:code=8302-2", "Patient?_has:Observation:patient:date=gt2020&gender=male",
			"Observation?_profile:below=http://acme.org", "Observation?subject:Patient.gender:not=male", "?_type=Patient,Observation&_lastUpdated=gt2020", "?_tag=a", "?_lastUpdated=gt2020", "?_lastUpdated=gt2020&_tag=a",
			"Observation?_include=Observation:subject&_count=5", "Patient?_revinclude=Observation:patient&_count=5",
		} {
			typ, query, _ := strings.Cut(text, "?")
			values, err := url.ParseQuery(query)
			if err != nil {
				t.Fatal(err)
			}
			values.Set("_explain", "true")
			q, err := search.Parse(registry, typ, values, search.Options{Explain: true, Now: searchNow})
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			plans := 0
			for _, issue := range find(t, s, q).Issues {
				if strings.Contains(issue.Diagnostics, "Execution Time") {
					plans++
				}
				if strings.Contains(issue.Diagnostics, "Seq Scan") {
					t.Errorf("%s (limit %d) reads a whole table:\n%s", text, limit, issue.Diagnostics)
				}
			}
			if plans == 0 {
				t.Errorf("%s (limit %d): no plan was explained", text, limit)
			}
		}
	}
}

// TestIncludes follows references in both directions, from matches only and, with :iterate,
// from included resources; a resource comes once and a cycle ends. Spec:
// https://hl7.org/fhir/R4/search.html#include.
func TestIncludes(t *testing.T) {
	s, _ := open(t)
	s.IndexBy(compiled{})
	var ws []*store.Write
	for _, text := range []string{
		`{"resourceType":"Organization","id":"a","partOf":{"reference":"Organization/b"}}`,
		`{"resourceType":"Organization","id":"b","partOf":{"reference":"Organization/a"}}`,
		`{"resourceType":"Organization","id":"c"}`,
		`{"resourceType":"Patient","id":"p","managingOrganization":{"reference":"Organization/a"},"generalPractitioner":[{"reference":"Organization/c"},{"reference":"Practitioner/x"}]}`,
		`{"resourceType":"Practitioner","id":"x"}`,
		`{"resourceType":"Observation","id":"o1","status":"final","code":{"text":"t"},"subject":{"reference":"Patient/p"}}`,
		`{"resourceType":"Observation","id":"o2","status":"final","code":{"text":"t"},"subject":{"reference":"Patient/p"},"hasMember":[{"reference":"Observation/o1"}]}`,
		`{"resourceType":"Observation","id":"o3","status":"final","code":{"text":"t"},"subject":{"reference":"Patient/absent"}}`,
		`{"resourceType":"Library","id":"l1","url":"http://a/Library/l","version":"1","status":"active","type":{"text":"t"},"relatedArtifact":[{"type":"depends-on","resource":"http://a/Library/m"}]}`,
		`{"resourceType":"Library","id":"l2","url":"http://a/Library/l","version":"2","status":"active","type":{"text":"t"}}`,
		`{"resourceType":"Library","id":"m","url":"http://a/Library/m","status":"active","type":{"text":"t"}}`,
		`{"resourceType":"Measure","id":"any","status":"active","library":["http://a/Library/l"]}`,
		`{"resourceType":"Measure","id":"one","status":"active","library":["http://a/Library/l|1"]}`,
		`{"resourceType":"Measure","id":"none","status":"active","library":["http://a/Library/l|3"]}`,
		`{"resourceType":"Questionnaire","id":"q","url":"http://a/Library/l","status":"active"}`,
		`{"resourceType":"Provenance","id":"v","target":[{"reference":"Observation/o1/_history/1"}],"recorded":"2020-01-01T00:00:00Z","agent":[{"who":{"reference":"Practitioner/x"}}]}`,
	} {
		ws = append(ws, resourceWrite(t, []byte(text)))
	}
	if err := s.WriteAll(context.Background(), ws); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, search, want string }{
		{"a reference of the matches", "Observation?_id=o1,o2&_include=Observation:subject", "Patient/p"},
		{"none is repeated, and no match", "Observation?_include=Observation:has-member&_include=Observation:subject", "Patient/p"},
		{"what is absent is left out", "Observation?_id=o3&_include=Observation:subject", ""},
		{"only to one target type", "Patient?_include=Patient:general-practitioner:Practitioner", "Practitioner/x"},
		{"every reference", "Patient?_include=Patient:*", "Organization/a Organization/c Practitioner/x"},
		{"without iterate it stops after one step", "Observation?_id=o1&_include=Observation:subject&_include:iterate=Organization:partof", "Patient/p"},
		{"iterate goes on, and ends in a cycle", "Observation?_id=o1&_include=Observation:subject&_include:iterate=Patient:organization&_include:iterate=Organization:partof", "Organization/a Organization/b Patient/p"},
		{"references to the matches", "Patient?_revinclude=Observation:subject", "Observation/o1 Observation/o2"},
		{"a narrowed parameter", "Patient?_revinclude=Observation:patient", "Observation/o1 Observation/o2"},
		{"versioned references count", "Observation?_id=o1&_revinclude=Provenance:target", "Provenance/v"},
		{"iterated backwards", "Patient?_revinclude=Observation:subject&_revinclude:iterate=Provenance:target", "Observation/o1 Observation/o2 Provenance/v"},
		{"everything that refers", "Patient?_revinclude=*", "Observation/o1 Observation/o2"},
		{"a canonical names every version", "Measure?_id=any&_include=Measure:depends-on:Library", "Library/l1 Library/l2"},
		{"a canonical with a version names that", "Measure?_id=one&_include=Measure:depends-on:Library", "Library/l1"},
		{"or nothing", "Measure?_id=none&_include=Measure:depends-on", ""},
		{"a canonical of any type", "Measure?_id=any&_include=Measure:*", "Library/l1 Library/l2 Questionnaire/q"},
		{"iterated along canonicals", "Measure?_id=one&_include=Measure:depends-on:Library&_include:iterate=Library:depends-on", "Library/l1 Library/m"},
		{"what names the match by its canonical, in its version or in any", "Library?_id=l1&_revinclude=Measure:depends-on", "Measure/any Measure/one"},
		{"not what names another version", "Library?_id=l2&_revinclude=Measure:depends-on", "Measure/any"},
		{"iterated backwards along canonicals", "Library?_id=m&_revinclude=Library:depends-on&_revinclude:iterate=Measure:depends-on", "Library/l1 Measure/any Measure/one"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			typ, query, _ := strings.Cut(tt.search, "?")
			values, err := url.ParseQuery(query)
			if err != nil {
				t.Fatal(err)
			}
			q, err := search.Parse(registry, typ, values, search.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range find(t, s, q).Includes {
				got = append(got, v.ResourceType+"/"+v.ID)
			}
			slices.Sort(got)
			if diff := gocmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSearchIsCancelled gives a search less time than it needs.
func TestSearchIsCancelled(t *testing.T) {
	s, _ := open(t)
	c := newCorpus(9, 20, 100)
	c.load(t, s)
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	sc := searchCase{typ: "Observation", values: params("code", "8302-2")}
	_, err := s.Search(ctx, sc.parse(t))
	wantStatus(t, err, 503)
}

// A connection whose statement was cancelled is not lent again: a cancellation that comes
// late would end the statement of somebody else.
func TestCancelledConnectionIsNotLentAgain(t *testing.T) {
	s, _ := open(t)
	conn, err := s.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cancelled := conn.Conn().PgConn().PID()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "SELECT pg_sleep(60)"); err == nil {
		t.Fatal("the statement was not cancelled")
	}
	conn.Release()
	for range 20 {
		conn, err := s.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if conn.Conn().PgConn().PID() == cancelled {
			t.Fatal("the connection is lent again")
		}
		conn.Release()
	}
}

// A string has one row, and a part of a name one more for each further word.
func TestRowsOfStrings(t *testing.T) {
	s, url := open(t)
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, tt := range []struct {
		name, text string
		want       int
	}{
		{"names of one word and an address of several",
			`{"resourceType":"Patient","id":"a","name":[{"family":"A","given":["Peter","James"]}],"address":[{"line":["1 Oak Street"],"city":"Boston","state":"MA","postalCode":"02115","country":"US"}]}`, 8},
		{"a family of two words", `{"resourceType":"Patient","id":"b","name":[{"family":"Carreño Quinones"}]}`, 2},
		{"a name of another sort", `{"resourceType":"Organization","id":"a","name":"St. John's General Hospital"}`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := resourceWrite(t, []byte(tt.text))
			write(t, s, w)
			var got int
			if err := conn.QueryRow(context.Background(), `SELECT count(*) FROM index_string WHERE rid = (SELECT rid FROM resource WHERE ref = $1)`,
				int64(fhir.ValueReference(w.ResourceType, w.ID))).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("%d rows, want %d", got, tt.want)
			}
		})
	}
}
