package strategy_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/searchtest"
	"kiln/server/store"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// The tests below search a few thousand random resources and compare with an
// evaluation in memory that knows the data as they were made and nothing of
// index entries, SQL or plans.

// TestRandomSearches compares searches with an evaluation in memory: with room
// for every candidate, and with so little that all are counted and walked. The
// order of the whole, the pages forwards and backwards by cursor, and the pages
// by offset must be the same sequence.
func TestRandomSearches(t *testing.T) {
	s, _ := searchtest.Open(t)
	s.IndexBy(searchtest.Indexer{})
	c := searchtest.NewCorpus(1, 150, 900)
	c.Load(t, s)
	n := 200
	if testing.Short() {
		n = 50
	}
	for _, sc := range c.RandomCases(3, n) {
		var order []string
		for _, limit := range []int{0, 3} {
			limitSearches(s, limit)
			whole := searchtest.FindMatches(t, s, sc.ParseQuery(t, "_count", "10000"))
			got := searchtest.IDs(whole)
			if limit == 0 {
				order = got
			} else if diff := gocmp.Diff(order, got); diff != "" {
				t.Fatalf("%s: the walk has another order than the candidates:\n%s", &sc, diff)
			}
			sorted := slices.Clone(got)
			slices.Sort(sorted)
			if diff := gocmp.Diff(sc.Want, sorted); diff != "" {
				t.Fatalf("%s (limit %d):\n%s", &sc, limit, diff)
			}
			if *whole.Total != len(sc.Want) {
				t.Fatalf("%s (limit %d): total %d, want %d", &sc, limit, *whole.Total, len(sc.Want))
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
				byOffset = append(byOffset, searchtest.IDs(searchtest.FindMatches(t, s, sc.ParseQuery(t, "_count", strconv.Itoa(size), "_offset", strconv.Itoa(offset))))...)
			}
			if diff := gocmp.Diff(order, byOffset); diff != "" {
				t.Fatalf("%s (limit %d): pages of %d by offset:\n%s", &sc, limit, size, diff)
			}
			if r := searchtest.FindMatches(t, s, sc.ParseQuery(t, "_count", "0")); *r.Total != len(sc.Want) || len(r.Matches) != 0 {
				t.Fatalf("%s: _count=0 gave total %d and %d matches, want %d and 0", &sc, *r.Total, len(r.Matches), len(sc.Want))
			}
		}
	}
}

// pages follows the links to the next page.
func pages(t testing.TB, s *store.Store, sc *searchtest.Case, size int) []string {
	t.Helper()
	var out []string
	extra := []string{"_count", strconv.Itoa(size)}
	for {
		r := searchtest.FindMatches(t, s, sc.ParseQuery(t, extra...))
		out = append(out, searchtest.IDs(r)...)
		if !r.HasNext {
			return out
		}
		extra = []string{"_count", strconv.Itoa(size), "_cursor", r.Last, "_offset", strconv.Itoa(len(out))}
	}
}

// pagesBack goes to the last page and from there to the previous ones.
func pagesBack(t testing.TB, s *store.Store, sc *searchtest.Case, size int) []string {
	t.Helper()
	r := searchtest.FindMatches(t, s, sc.ParseQuery(t, "_count", strconv.Itoa(size)))
	if r.End == "" {
		return searchtest.IDs(r)
	}
	var out []string
	cursor := r.End
	for cursor != "" {
		r = searchtest.FindMatches(t, s, sc.ParseQuery(t, "_count", strconv.Itoa(size), "_cursor", cursor))
		out = append(searchtest.IDs(r), out...)
		cursor = r.First
	}
	return out
}

// TestTotalsFollowWrites runs the same searches before and after writes: a cached total
// must not outlive a change that concerns it.
func TestTotalsFollowWrites(t *testing.T) {
	s, at := searchtest.Open(t)
	other := searchtest.OpenAt(t, at) // writes that another server makes
	limitSearches(s, 2)
	ctx := context.Background()
	observation := func(id, date, value string) *store.Write {
		return searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":%q,"status":"final","code":{"coding":[{"code":"c"}]},
			"subject":{"reference":"Patient/p"},"effectiveDateTime":%q,"valueQuantity":{"value":%s,"system":"http://unitsofmeasure.org","code":"g"}}`, id, date, value))
	}
	if err := s.WriteAll(ctx, []*store.Write{
		searchtest.NewWrite(t, []byte(`{"resourceType":"Patient","id":"p","gender":"male"}`)),
		observation("a", "2020-01-01", "1"), observation("b", "2021-01-01", "2"), observation("c", "2022-01-01", "3"),
	}); err != nil {
		t.Fatal(err)
	}
	searches := []searchtest.Case{
		{Type: "Observation", Values: searchtest.Parameters("date", "ge2020")},
		{Type: "Observation", Values: searchtest.Parameters("date", "ne2021")},
		{Type: "Observation", Values: searchtest.Parameters()},
		{Type: "Observation", Values: searchtest.Parameters("value-quantity", "gt0|http://unitsofmeasure.org|mg")},
		{Type: "Observation", Values: searchtest.Parameters("code", "c")},
		{Type: "Observation", Values: searchtest.Parameters("code:not", "x")},
		{Type: "Observation", Values: searchtest.Parameters("subject:Patient.gender", "male")},
		{Type: "Observation", Values: searchtest.Parameters("code-value-quantity", "c$gt0")},
	}
	check := func(when string, want ...int) {
		t.Helper()
		for range 3 { // counted, from a recent search, from a histogram
			for i := range searches {
				if got := *searchtest.FindMatches(t, s, searches[i].ParseQuery(t)).Total; got != want[i] {
					t.Errorf("%s, %s: total %d, want %d", when, &searches[i], got, want[i])
				}
			}
		}
	}
	check("at first", 3, 2, 3, 3, 3, 3, 3, 3)
	searchtest.Write(t, other, observation("d", "2021-06-01", "4"))
	check("after a create", 4, 2, 4, 4, 4, 4, 4, 4)
	searchtest.Write(t, other, searchtest.NewWrite(t, []byte(`{"resourceType":"Observation","id":"e","status":"final","code":{"coding":[{"code":"x"}]}}`)))
	check("after a create that few match", 4, 2, 5, 4, 4, 4, 4, 4)
	searchtest.Write(t, other, observation("a", "2019-01-01", "0"))
	check("after an update", 3, 2, 5, 3, 4, 4, 4, 3)
	searchtest.Write(t, other, searchtest.NewWrite(t, []byte(`{"resourceType":"Patient","id":"p","gender":"female"}`)))
	check("after an update of the target", 3, 2, 5, 3, 4, 4, 0, 3)
	searchtest.Write(t, other, searchtest.NewDelete("Observation", "b"))
	check("after a delete", 2, 2, 4, 2, 3, 3, 0, 2)
}

// TestCommonTermsAreCached runs new searches after one expensive search for other terms of the type. The cache answers
// them, and follows the writes of another server.
func TestCommonTermsAreCached(t *testing.T) {
	s, at := searchtest.Open(t)
	other := searchtest.OpenAt(t, at)
	limitSearches(s, 20)
	observation := func(i, code int) *store.Write {
		return searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":"o%d","status":%q,"code":{"coding":[{"code":"c%d"}]},
			"effectiveDateTime":"20%02d-01-01"}`, i, []string{"final", "amended"}[i%2], code, i%50))
	}
	var all []*store.Write
	for i := range 400 {
		all = append(all, observation(i, i%4))
	}
	if err := s.WriteAll(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	// A search without conditions caches only the set of all resources.
	everything := searchtest.Case{Type: "Observation", Values: searchtest.Parameters()}
	searchtest.FindMatches(t, s, everything.ParseQuery(t))
	s.Searcher().AwaitCache()
	if r := s.Searcher().CacheState(); r.Sets != 1 || *searchtest.FindMatches(t, s, everything.ParseQuery(t)).Total != 400 || s.Searcher().CacheState().Hits != r.Hits+1 {
		t.Errorf("after a search without conditions the cache contains %+v", r)
	}
	searchtest.FindMatches(t, s, (&searchtest.Case{Type: "Observation", Values: searchtest.Parameters("code", "c0", "date", "ge2001")}).ParseQuery(t))
	s.Searcher().AwaitCache()
	check := func(when string, want int, values ...string) {
		t.Helper()
		before := s.Searcher().CacheState().Hits
		sc := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(values...)}
		if got := *searchtest.FindMatches(t, s, sc.ParseQuery(t)).Total; got != want {
			t.Errorf("%s, %s: total %d, want %d", when, &sc, got, want)
		}
		if s.Searcher().CacheState().Hits == before {
			t.Errorf("%s, %s: not answered by memory", when, &sc)
		}
	}
	check("one term", 100, "code", "c3")
	check("two", 100, "code", "c2", "status", "final")
	check("two that exclude each other", 0, "code", "c2", "status", "amended")
	check("alternatives", 200, "code", "c1,c3", "status", "amended")
	check("none of some", 100, "status", "amended", "code:not", "c1")
	check("with a comparison", 48, "code", "c3", "date", "ge2026")
	searchtest.Write(t, other, observation(0, 3))   // was c0
	searchtest.Write(t, other, observation(400, 3)) // new
	searchtest.Write(t, other, searchtest.NewDelete("Observation", "o3"))
	searchtest.Write(t, s, observation(401, 1)) // by this server, which need not read it again
	check("after writes", 401)
	check("after writes", 101, "code", "c3")
	check("after writes", 101, "code", "c1")
	check("after writes", 2, "code", "c3", "status", "final")
	check("after writes", 99, "code", "c0")

	// An evicted term is read again by itself, when an expensive search needs it.
	bytes := s.Searcher().CacheState().Bytes
	s.SetSearchMemory(bytes / 8)
	s.SetSearchMemory(0)
	lost := []string{"code", "c3", "status:not", "final"}
	if got := *searchtest.FindMatches(t, s, (&searchtest.Case{Type: "Observation", Values: searchtest.Parameters(lost...)}).ParseQuery(t)).Total; got != 99 {
		t.Errorf("with an eighth of the memory the total is %d", got)
	}
	s.Searcher().AwaitCache()
	check("found again", 99, lost...)

	s.SetSearchMemory(-1)
	if r := s.Searcher().CacheState(); r.Bytes != 0 || r.Sets != 0 {
		t.Errorf("without memory, the cache contains %+v", r)
	}
}

// For a row of the change log that a server has written itself, the database returns only
// that it exists. For any other row it returns everything.
func TestChangesOfOthers(t *testing.T) {
	t.Parallel()
	s, url := searchtest.Open(t)
	conn := searchtest.Connect(t, url)
	patient := func(id, gender string) {
		t.Helper()
		searchtest.Write(t, s, searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Patient","id":%q,"gender":%q}`, id, gender)))
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
	s, at := searchtest.Open(t)
	limitSearches(s, 2)
	for i := range 4 {
		searchtest.Write(t, s, searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":"o%d","status":"final","code":{"coding":[{"code":"c"}]}}`, i)))
	}
	sc := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("code", "c")}
	for range 2 {
		if got := *searchtest.FindMatches(t, s, sc.ParseQuery(t)).Total; got != 4 {
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
	if got := *searchtest.FindMatches(t, s, sc.ParseQuery(t)).Total; got != 3 {
		t.Errorf("total %d after the index has changed, want 3", got)
	}
}

// TestNoSequentialScan reads PostgreSQL's plans of one search for each kind of
// parameter, as candidates and as counts and walks: none may read a whole table.
func TestNoSequentialScan(t *testing.T) {
	s, _ := searchtest.Open(t)
	c := searchtest.NewCorpus(5, 40, 200)
	c.Load(t, s)
	for _, limit := range []int{0, 2} {
		limitSearches(s, limit)
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
			q, err := search.Parse(searchtest.Registry, typ, values, search.Options{Explain: true, Now: searchtest.Now})
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			plans := 0
			for _, issue := range searchtest.FindMatches(t, s, q).Issues {
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
	s, _ := searchtest.Open(t)
	s.IndexBy(searchtest.Indexer{})
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
		ws = append(ws, searchtest.NewWrite(t, []byte(text)))
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
			q, err := search.Parse(searchtest.Registry, typ, values, search.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range searchtest.FindMatches(t, s, q).Includes {
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
	s, _ := searchtest.Open(t)
	c := searchtest.NewCorpus(9, 20, 100)
	c.Load(t, s)
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	sc := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("code", "8302-2")}
	_, err := s.Search(ctx, sc.ParseQuery(t))
	if o, ok := outcome.From(err); !ok || o.HTTPStatus() != http.StatusServiceUnavailable {
		t.Errorf("got %v, want an outcome with status 503", err)
	}
}

// A connection whose statement was cancelled is not lent again: a cancellation that comes
// late would end the statement of somebody else.
func TestCancelledConnectionIsNotLentAgain(t *testing.T) {
	s, _ := searchtest.Open(t)
	conn, err := s.Pool().Acquire(t.Context())
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
		conn, err := s.Pool().Acquire(t.Context())
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
	s, url := searchtest.Open(t)
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
			w := searchtest.NewWrite(t, []byte(tt.text))
			searchtest.Write(t, s, w)
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
