package searchtest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kiln/server/search"
	"kiln/server/store"
)

// Span returns the range of a date in microseconds. It uses the parser of the standard library.
func Span(text string) (low, high int64) {
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

// DateHolds compares the range of a value with the range of a search value.
func DateHolds(op string, low, high, slow, shigh int64) bool {
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
		margin := (Now.UnixMicro() - slow) / 10
		return low < shigh+margin && high > slow-margin
	}
	panic(op)
}

// Date returns the range of the date of the observation, false if it has none.
func (o *Observation) Date() (low, high int64, ok bool) {
	const open = int64(1e18)
	switch {
	case o.effective != "":
		low, high = Span(o.effective)
	case o.start != "":
		low, _ = Span(o.start)
		high = open
		if o.end != "" {
			_, high = Span(o.end)
		}
	default:
		return 0, 0, false
	}
	return low, high, true
}

// numberHolds compares a value with a search value. scale is the number of units of the value in one unit of the
// search.
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

// A Condition is a search parameter with the test of a resource that it should equal.
type Condition[T any] struct {
	Name, Value string
	Holds       func(*T) bool
}

var (
	Prefixes     = []string{"", "eq", "ne", "lt", "le", "gt", "ge", "sa", "eb", "ap"}
	foldedFamily = strings.NewReplacer("ü", "u", "ø", "o", "å", "a", "ô", "o", "è", "e", "é", "e", "  ", " ")
)

// Fold returns a family name without case and accents.
func Fold(s string) string { return foldedFamily.Replace(strings.ToLower(s)) }

// AnyOf reports whether f holds for an element.
func AnyOf[T any](list []T, f func(T) bool) bool { return slices.ContainsFunc(list, f) }

func hasCode(codes []coding, want string) bool {
	system, code, both := strings.Cut(want, "|")
	return AnyOf(codes, func(c coding) bool {
		if !both {
			return strings.EqualFold(c.Code, want)
		}
		return c.System == system && (code == "" || strings.EqualFold(c.Code, code))
	})
}

func randomToken(r *rand.Rand) string {
	c := PickRandom(r, Codings)
	switch r.IntN(4) {
	case 0:
		return c.Code
	case 1:
		if c.System != "" {
			return c.System + "|"
		}
	case 2:
		return strings.ToUpper(c.Code)
	}
	return c.System + "|" + c.Code
}

// PatientCondition returns a random condition on patients.
func (c *Corpus) PatientCondition(r *rand.Rand) Condition[Patient] {
	switch r.IntN(9) {
	case 0:
		g := PickRandom(r, []string{"male", "female", "other,male", "http://hl7.org/fhir/administrative-gender|female"})
		return Condition[Patient]{"gender", g, func(p *Patient) bool {
			return p.Gender != "" && AnyOf(strings.Split(g, ","), func(v string) bool { return strings.HasSuffix("|"+v, "|"+p.Gender) })
		}}
	case 1:
		g := PickRandom(r, []string{"male", "female", "other,male"})
		return Condition[Patient]{"gender:not", g, func(p *Patient) bool { return !slices.Contains(strings.Split(g, ","), p.Gender) }}
	case 2:
		missing := PickRandom(r, []string{"true", "false"})
		return Condition[Patient]{"birthdate:missing", missing, func(p *Patient) bool { return (p.Birth == "") == (missing == "true") }}
	case 3:
		op, v := PickRandom(r, Prefixes), strconv.Itoa(1930+r.IntN(90))
		if r.IntN(2) == 0 {
			v += "-06"
		}
		slow, shigh := Span(v)
		return Condition[Patient]{"birthdate", op + v, func(p *Patient) bool {
			if p.Birth == "" {
				return false
			}
			low, high := Span(p.Birth)
			return DateHolds(op, low, high, slow, shigh)
		}}
	case 4:
		f := PickRandom(r, Families)
		f = string([]rune(f)[:1+r.IntN(len([]rune(f)))])
		return Condition[Patient]{"family", strings.ReplaceAll(f, ",", `\,`), func(p *Patient) bool { return BeginsWord(Fold(p.Family), Fold(strings.TrimSpace(f))) }}
	case 5:
		f := []rune(PickRandom(r, Families))
		from := r.IntN(len(f))
		part := strings.TrimSpace(string(f[from : from+1+r.IntN(len(f)-from)]))
		if part == "" {
			part = "e"
		}
		return Condition[Patient]{"family:contains", part, func(p *Patient) bool {
			return strings.Contains(JoinText(Fold(p.Family)), JoinText(Fold(part)))
		}}
	case 6:
		f := PickRandom(r, Families)
		return Condition[Patient]{"family:exact", f, func(p *Patient) bool { return p.Family == f }}
	case 7:
		o := PickRandom(r, []string{"Clinic 0", "Clinic 1", "Clinic"})
		return Condition[Patient]{"organization.name", o, func(p *Patient) bool {
			return p.Organization >= 0 && BeginsText(strings.ToLower(fmt.Sprintf("Clinic %d", p.Organization%2)), strings.ToLower(o))
		}}
	}
	if r.IntN(2) == 0 {
		inner := c.SimpleObservation(r)
		return Condition[Patient]{"_has:Observation:patient:" + inner.Name, inner.Value, func(p *Patient) bool {
			return AnyOf(c.Observations, func(o Observation) bool { return o.Subject == "Patient/"+p.ID && inner.Holds(&o) })
		}}
	}
	ids := []string{fmt.Sprintf("p%d", r.IntN(len(c.Patients))), fmt.Sprintf("p%d", r.IntN(len(c.Patients))), "nobody"}
	return Condition[Patient]{"_id", strings.Join(ids, ","), func(p *Patient) bool { return slices.Contains(ids, p.ID) }}
}

// SimpleObservation returns a random condition on observations without a chain.
func (c *Corpus) SimpleObservation(r *rand.Rand) Condition[Observation] {
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
		holds := func(o *Observation) bool { return AnyOf(want, func(w string) bool { return hasCode(o.Code, w) }) }
		if r.IntN(3) == 0 {
			return Condition[Observation]{"code:not", strings.Join(want, ","), func(o *Observation) bool { return !holds(o) }}
		}
		return Condition[Observation]{"code", strings.Join(want, ","), holds}
	case 2:
		s := PickRandom(r, Statuses)
		return Condition[Observation]{"status", s, func(o *Observation) bool { return o.Status == s }}
	case 3:
		op, v := PickRandom(r, Prefixes), randomDate(r)
		slow, shigh := Span(v)
		return Condition[Observation]{"date", op + v, func(o *Observation) bool {
			low, high, ok := o.Date()
			return ok && DateHolds(op, low, high, slow, shigh)
		}}
	case 4:
		missing := PickRandom(r, []string{"true", "false"})
		return Condition[Observation]{"date:missing", missing, func(o *Observation) bool {
			_, _, ok := o.Date()
			return ok != (missing == "true")
		}}
	case 5:
		op, v := PickRandom(r, Prefixes), randomNumber(r)
		return Condition[Observation]{"value-quantity", op + v, func(o *Observation) bool { return o.Value != "" && numberHolds(op, o.Value, v, 1) }}
	case 6:
		op, v, unit := PickRandom(r, Prefixes), randomNumber(r), PickRandom(r, []string{"g", "mg", "kg"})
		grams := map[string]float64{"g": 1, "mg": 0.001, "kg": 1000}
		return Condition[Observation]{"value-quantity", op + v + "|http://unitsofmeasure.org|" + unit, func(o *Observation) bool {
			return o.Value != "" && grams[o.unit] > 0 && numberHolds(op, o.Value, v, grams[unit]/grams[o.unit])
		}}
	case 7:
		cat := PickRandom(r, categories)
		return Condition[Observation]{"category", cat, func(o *Observation) bool { return slices.Contains(o.Categories, cat) }}
	}
	missing := PickRandom(r, []string{"true", "false"})
	return Condition[Observation]{"patient:missing", missing, func(o *Observation) bool {
		return strings.HasPrefix(o.Subject, "Patient/") != (missing == "true")
	}}
}

func (c *Corpus) observationCondition(r *rand.Rand) Condition[Observation] {
	switch r.IntN(8) {
	case 0:
		inner := c.PatientCondition(r)
		return Condition[Observation]{"subject:Patient." + inner.Name, inner.Value, func(o *Observation) bool {
			return AnyOf(c.Patients, func(p Patient) bool { return o.Subject == "Patient/"+p.ID && inner.Holds(&p) })
		}}
	case 1:
		id := fmt.Sprintf("p%d", r.IntN(len(c.Patients)))
		name, value, want := "subject", id, []string{"Patient/" + id, "Group/" + id}
		switch r.IntN(3) {
		case 0:
			name, want = "patient", want[:1]
		case 1:
			value, want = "Group/"+id, want[1:]
		}
		return Condition[Observation]{name, value, func(o *Observation) bool { return slices.Contains(want, o.Subject) }}
	case 2:
		token, op, v := randomToken(r), PickRandom(r, Prefixes), randomNumber(r)
		if strings.HasSuffix(token, "|") {
			token = "http://loinc.org|8480-6"
		}
		return Condition[Observation]{"component-code-value-quantity", token + "$" + op + v, func(o *Observation) bool {
			return AnyOf(o.components, func(c component) bool { return hasCode([]coding{c.code}, token) && numberHolds(op, c.value, v, 1) })
		}}
	case 3:
		token, op, v := randomToken(r), PickRandom(r, Prefixes), randomNumber(r)
		if strings.HasSuffix(token, "|") {
			token = "8302-2"
		}
		return Condition[Observation]{"combo-code-value-quantity", token + "$" + op + v, func(o *Observation) bool {
			return o.Value != "" && hasCode(o.Code, token) && numberHolds(op, o.Value, v, 1) ||
				AnyOf(o.components, func(c component) bool { return hasCode([]coding{c.code}, token) && numberHolds(op, c.value, v, 1) })
		}}
	case 4:
		part := PickRandom(r, []string{"body", "PRESSURE", "e"})
		return Condition[Observation]{"code:text", part, func(o *Observation) bool {
			return AnyOf(o.Code, func(c coding) bool { return strings.Contains(strings.ToLower(c.display), strings.ToLower(part)) })
		}}
	}
	return c.SimpleObservation(r)
}

// RandomCases returns n random searches with the ids that they should find.
func (c *Corpus) RandomCases(seed uint64, n int) []Case {
	r := rand.New(rand.NewPCG(seed, 2))
	var out []Case
	for range n {
		values := url.Values{}
		sc := Case{Type: "Observation", Values: values}
		if r.IntN(3) == 0 {
			sc.Type = "Patient"
			var all []Condition[Patient]
			for range 1 + r.IntN(2) {
				all = append(all, c.PatientCondition(r))
			}
			for _, cond := range all {
				values.Add(cond.Name, cond.Value)
			}
			for i := range c.Patients {
				p := &c.Patients[i]
				if !AnyOf(all, func(cond Condition[Patient]) bool { return !cond.Holds(p) }) {
					sc.Want = append(sc.Want, p.ID)
				}
			}
			if r.IntN(3) == 0 {
				values.Set("_sort", PickRandom(r, []string{"birthdate", "-birthdate", "family", "-family,birthdate", "name", "-name,_id", "-_id", "_lastUpdated", "gender", "-gender,family", "organization,-_id"}))
			}
		} else {
			var all []Condition[Observation]
			for range 1 + r.IntN(3) {
				all = append(all, c.observationCondition(r))
			}
			for _, cond := range all {
				values.Add(cond.Name, cond.Value)
			}
			for i := range c.Observations {
				o := &c.Observations[i]
				if !AnyOf(all, func(cond Condition[Observation]) bool { return !cond.Holds(o) }) {
					sc.Want = append(sc.Want, o.ID)
				}
			}
			if r.IntN(3) == 0 {
				values.Set("_sort", PickRandom(r, []string{"date", "-date", "-date,_id", "value-quantity", "-value-quantity,date", "_id", "-_lastUpdated", "status,-date", "-code,value-quantity", "patient", "-subject,_id", "category,_lastUpdated"}))
			}
		}
		slices.Sort(sc.Want)
		out = append(out, sc)
	}
	return out
}

// A Case is a search and its expected matches.
type Case struct {
	Type   string
	Values url.Values
	Want   []string // ids, sorted
}

func (c *Case) String() string { return c.Type + "?" + c.Values.Encode() }

// ParseQuery parses the search, with extra parameters in pairs of name and value.
func (c *Case) ParseQuery(t testing.TB, extra ...string) *search.Query {
	t.Helper()
	values := url.Values{}
	for k, v := range c.Values {
		values[k] = v
	}
	for i := 0; i < len(extra); i += 2 {
		values.Set(extra[i], extra[i+1])
	}
	q, err := search.Parse(Registry, c.Type, values, search.Options{MaxCount: 10_000, Now: Now})
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	return q
}

// FindMatches runs a search. It fails the test if the search fails.
func FindMatches(t testing.TB, s *store.Store, q *search.Query) *store.SearchResult {
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

// IDs returns the ids of the matches of a page.
func IDs(r *store.SearchResult) []string {
	var out []string
	for _, v := range r.Matches {
		out = append(out, v.ID)
	}
	return out
}

// Parameters returns search parameters from pairs of name and value.
func Parameters(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Add(pairs[i], pairs[i+1])
	}
	return v
}

// separators matches punctuation and white space.
var separators = regexp.MustCompile(`[\p{P}\s]+`)

// JoinText removes punctuation and white space, except between two digits, and unless nothing else is left.
func JoinText(s string) string {
	var b strings.Builder
	at := 0
	for _, span := range separators.FindAllStringIndex(s, -1) {
		b.WriteString(s[at:span[0]])
		if betweenDigits(s, span) {
			b.WriteString(s[span[0]:span[1]])
		}
		at = span[1]
	}
	b.WriteString(s[at:])
	if b.Len() == 0 {
		return s
	}
	return b.String()
}

var endsInDigit, beginsWithDigit = regexp.MustCompile(`\d$`), regexp.MustCompile(`^\d`)

func betweenDigits(s string, span []int) bool {
	return endsInDigit.MatchString(s[:span[0]]) && beginsWithDigit.MatchString(s[span[1]:])
}

// BeginsText reports whether a folded text begins with want. Punctuation and white space do not count. Spec:
// https://hl7.org/fhir/R4/search.html#string.
func BeginsText(text, want string) bool { return strings.HasPrefix(JoinText(text), JoinText(want)) }

// BeginsWord reports whether a part of a name, or a word in it, begins with want.
func BeginsWord(text, want string) bool {
	if BeginsText(text, want) {
		return true
	}
	for _, span := range separators.FindAllStringIndex(text, -1) {
		if rest := text[span[1]:]; rest != "" && !betweenDigits(text, span) && BeginsText(rest, want) {
			return true
		}
	}
	return false
}
