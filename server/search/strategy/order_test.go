package strategy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"kiln/server/outcome"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/searchtest"
	"kiln/server/store"
)

// least is the value that sorts a resource: of several the one that comes first.
func least(values []string, descending bool) *string {
	if len(values) == 0 {
		return nil
	}
	pick := slices.Min(values)
	if descending {
		pick = slices.Max(values)
	}
	return &pick
}

// TestSortByTokenReferenceURI sorts by parameters whose order no index has, and compares with an order made here: sorted again for
// each page, and stored.
// Spec: https://hl7.org/fhir/R4/search.html#sort.
func TestSortByTokenReferenceURI(t *testing.T) {
	s, _ := searchtest.Open(t)
	s.IndexBy(searchtest.Indexer{})
	c := searchtest.NewCorpus(11, 60, 500)
	c.Load(t, s)
	values := map[string]func(o *searchtest.Observation) []string{
		"status": func(o *searchtest.Observation) []string { return []string{o.Status} },
		"code": func(o *searchtest.Observation) (out []string) {
			for _, c := range o.Code {
				out = append(out, strings.ToLower(c.Code)+" "+c.System)
			}
			return out
		},
		"category": func(o *searchtest.Observation) []string { return o.Categories },
		"subject": func(o *searchtest.Observation) []string {
			if o.Subject == "" {
				return nil
			}
			return []string{o.Subject}
		},
		"patient": func(o *searchtest.Observation) []string {
			if !strings.HasPrefix(o.Subject, "Patient/") {
				return nil
			}
			return []string{o.Subject}
		},
		"_id": func(o *searchtest.Observation) []string { return []string{o.ID} },
		"value-quantity": func(o *searchtest.Observation) []string {
			v, err := strconv.ParseFloat(o.Value, 64)
			if err != nil {
				return nil
			}
			return []string{fmt.Sprintf("%030.9f", v+1e9)}
		},
		"date": func(o *searchtest.Observation) []string {
			low, _, ok := o.Date()
			if !ok {
				return nil
			}
			return []string{fmt.Sprintf("%020d", low)}
		},
	}
	for _, by := range []string{"status,_id", "-status,_id", "code,-_id", "-code,_id", "category,subject,_id", "-category,-date,_id", "patient,date,_id", "-patient,-_id", "-date,status,_id",
		"_id", "-_id", "_id,date", "value-quantity,_id", "-value-quantity,-_id"} {
		want := slices.Clone(c.Observations)
		slices.SortFunc(want, func(a, b searchtest.Observation) int {
			for key := range strings.SplitSeq(by, ",") {
				code, descending := strings.CutPrefix(key, "-")
				x, y := least(values[code](&a), descending), least(values[code](&b), descending)
				order := 0
				switch {
				case x == nil && y != nil:
					return 1
				case x != nil && y == nil:
					return -1
				case x != nil:
					order = strings.Compare(*x, *y)
				}
				if descending {
					order = -order
				}
				if order != 0 {
					return order
				}
			}
			return 0
		})
		var ids []string
		for _, o := range want {
			ids = append(ids, o.ID)
		}
		sc := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("_sort", by)}
		for _, limit := range []int{0, 3} {
			limitSearches(s, limit)
			if diff := gocmp.Diff(ids, pages(t, s, &sc, 90)); diff != "" {
				t.Errorf("_sort=%s (limit %d):\n%s", by, limit, diff)
			}
			if diff := gocmp.Diff(ids, pagesBack(t, s, &sc, 90)); diff != "" {
				t.Errorf("_sort=%s (limit %d), backwards:\n%s", by, limit, diff)
			}
		}
	}
}

// TestSortHoldsWhileOthersWrite goes through the pages while resources change
// their place: those that stay come once.
func TestSortHoldsWhileOthersWrite(t *testing.T) {
	for _, limit := range []int{0, 3} {
		s, _ := searchtest.Open(t)
		s.IndexBy(searchtest.Indexer{})
		limitSearches(s, limit)
		observation := func(i int, status string) *store.Write {
			return searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":"o%02d","status":%q,"code":{"text":"t"}}`, i, status))
		}
		var ws []*store.Write
		for i := range 40 {
			ws = append(ws, observation(i, []string{"amended", "final", "preliminary", "registered"}[i%4]))
		}
		if err := s.WriteAll(context.Background(), ws); err != nil {
			t.Fatal(err)
		}
		sc := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("_sort", "status,-_id")}
		seen := map[string]int{}
		extra := []string{"_count", "7"}
		for page := 0; ; page++ {
			r := searchtest.FindMatches(t, s, sc.ParseQuery(t, extra...))
			for _, v := range r.Matches {
				seen[v.ID]++
			}
			if !r.HasNext {
				break
			}
			extra = []string{"_count", "7", "_cursor", r.Last, "_offset", strconv.Itoa(7 * (page + 1))}
			// The cursor's own match goes, and a new one comes before every page.
			searchtest.Write(t, s, searchtest.NewDelete("Observation", r.Matches[len(r.Matches)-1].ID))
			searchtest.Write(t, s, observation(50+page, "amended"))
		}
		for i := range 40 {
			if n := seen[fmt.Sprintf("o%02d", i)]; n != 1 {
				t.Errorf("limit %d: o%02d came %d times, want once", limit, i, n)
			}
		}
	}
}

// TestSortOrders sorts values of every form that a token, a reference or a uri has.
func TestSortOrders(t *testing.T) {
	s, _ := searchtest.Open(t)
	s.IndexBy(searchtest.Indexer{})
	var ws []*store.Write
	for _, text := range []string{
		`{"resourceType":"Patient","id":"a","active":true,"identifier":[{"system":"s2","value":"1"}],"telecom":[{"system":"phone","value":"555"}],"meta":{"source":"urn:b"}}`,
		`{"resourceType":"Patient","id":"b","active":false,"identifier":[{"system":"s1","value":"1"},{"value":"0"}],"telecom":[{"system":"email","value":"a@b"}],"name":[{"family":"Ash"}],"meta":{"source":"urn:a"}}`,
		`{"resourceType":"Patient","id":"c","identifier":[{"system":"s1","value":"1"}],"telecom":[{"system":"fax","value":"111"}]}`,
		`{"resourceType":"Condition","id":"a","subject":{"reference":"Patient/b"},"code":{"text":"Zebra bite"}}`,
		`{"resourceType":"Condition","id":"b","subject":{"reference":"Patient/a/_history/1"},"code":{"coding":[{"code":"Y"},{"code":"b"}],"text":"aaa"}}`,
		`{"resourceType":"Condition","id":"c","subject":{"reference":"http://other.example/Patient/z"},"code":{"coding":[{"code":"x"}]}}`,
		`{"resourceType":"Condition","id":"d","subject":{"identifier":{"value":"Nobody"}}}`,
	} {
		ws = append(ws, searchtest.NewWrite(t, []byte(text)))
	}
	if err := s.WriteAll(context.Background(), ws); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, typ, sort, want string }{
		{"booleans, false first", "Patient", "active", "b a c"},
		{"booleans down, missing last", "Patient", "-active", "a b c"},
		{"identifiers by value, then system, the first of each", "Patient", "identifier", "b c a"},
		{"identifiers down, the last of each", "Patient", "-identifier,_id", "a b c"},
		{"contact points by value", "Patient", "telecom", "c a b"},
		{"uris", "Patient", "_source", "b a c"},
		{"uris down", "Patient", "-_source", "a b c"},
		{"codes without case, a text where there is no code, none last", "Condition", "code,_id", "b c a d"},
		{"references by type and id, then elsewhere, an identifier among them", "Condition", "subject", "b a c d"},
		{"a narrowed reference", "Condition", "patient,-_id", "b a c d"},
		{"a later key that is missing comes last too, where the first is missing", "Patient", "-birthdate,-family", "b a c"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sc := searchtest.Case{Type: tt.typ, Values: searchtest.Parameters("_sort", tt.sort)}
			if diff := gocmp.Diff(tt.want, strings.Join(searchtest.IDs(searchtest.FindMatches(t, s, sc.ParseQuery(t))), " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSortOfTooMany refuses by name what cannot be sorted in good time.
func TestSortOfTooMany(t *testing.T) {
	sc := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("_sort", "-date,status")}
	p := plan.Compile(sc.ParseQuery(t), &match.Env{Type: func(string) (int16, bool) { return 1, true }})
	if !p.SortsInMemory() {
		t.Fatal("status is sorted by an index")
	}
	var e *outcome.Error
	if err := error(p.TooManyToSort(plan.MaxOrder + 1)); !errors.As(err, &e) || e.Issues[0].Code != outcome.CodeTooCostly ||
		!strings.Contains(e.Issues[0].Diagnostics, "status") || !strings.Contains(e.Issues[0].Diagnostics, strconv.Itoa(plan.MaxOrder+1)) {
		t.Errorf("got %v, want too-costly that names status and the number of matches", err)
	}
	if command := "kiln admin indexes sort Observation status"; !strings.Contains(e.Issues[0].Diagnostics, command) {
		t.Errorf("%s does not name %s", e.Issues[0].Diagnostics, command)
	}
	if got := e.HTTPStatus(); got != 400 {
		t.Errorf("status %d, want 400", got)
	}
}
