package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/searchtest"
	"kiln/server/smart"
)

// ReadIf decides in the query of the read, match.Hold decides in memory, and both agree:
// lists of terms, lists of ids, negations, many concurrent reads, with and without a
// condition, of existing and absent resources.
func TestReadIf(t *testing.T) {
	s, _ := open(t)
	c := searchtest.NewCorpus(3, 40, 200)
	c.Load(t, s)
	stored := slices.Concat(searchtest.ReadResources(t, s, "Patient", "Observation")["Patient"], searchtest.ReadResources(t, s, "Observation")["Observation"])
	var wg sync.WaitGroup
	var decided [2]int
	for worker := range 8 {
		r := rand.New(rand.NewPCG(5, uint64(worker)))
		var cases []readCase
		for range 200 {
			cases = append(cases, randomReadCase(r, stored))
		}
		for _, c := range cases {
			decided[map[bool]int{true: 1}[c.want]]++
		}
		wg.Go(func() {
			for _, c := range cases {
				test, ok := match.TermTestOf(c.clauses, c.ref())
				if !ok {
					t.Errorf("%v: no test of terms", c.clauses)
					return
				}
				v, err := s.ReadIf(t.Context(), c.Type, c.ID, test)
				plain, plainErr := s.Read(t.Context(), c.Type, c.ID)
				switch {
				case plainErr != nil:
					t.Errorf("%s/%s: %v", c.Type, c.ID, plainErr)
				case c.want && (err != nil || string(v.Body) != string(plain.Body) || v.VersionID != plain.VersionID || !v.LastUpdated.Equal(plain.LastUpdated)):
					t.Errorf("%s/%s under %+v: %v, %v, want it", c.Type, c.ID, test, v, err)
				case !c.want:
					wantStatus(t, err, 404)
				}
			}
			_, err := s.ReadIf(t.Context(), "Observation", "absent", match.TermTest{})
			wantStatus(t, err, 404)
		})
	}
	wg.Wait()
	if decided[0] < 300 || decided[1] < 300 {
		t.Errorf("%d hidden and %d visible: the cases say little", decided[0], decided[1])
	}

	// A deleted resource is deleted for every reader, and a hidden one is absent, even if
	// an earlier version was deleted.
	write(t, s, remove("Observation", "o1"))
	_, err := s.ReadIf(t.Context(), "Observation", "o1", match.TermTest{})
	wantStatus(t, err, 410)
	write(t, s, searchtest.NewWrite(t, []byte(`{"resourceType":"Observation","id":"o1","status":"final","code":{"text":"x"}}`)))
	_, err = s.ReadIf(t.Context(), "Observation", "o1", match.TermTest{Any: [2][]int64{{}}})
	wantStatus(t, err, 404)

	// What asks for more than terms is for somebody else to decide.
	for _, m := range []match.Match{match.Dates{}, match.Strings{}, match.All{Clauses: make([]match.Clause, 2)}} {
		if test, ok := match.TermTestOf([]match.Clause{{Any: []match.Match{m}}}, 1); ok {
			t.Errorf("%T: %+v", m, test)
		}
	}
}

type readCase struct {
	match.Resource
	clauses []match.Clause
	want    bool
}

func (c readCase) ref() int64 { return int64(fhir.ValueReference(c.Type, c.ID)) }

func randomReadCase(r *rand.Rand, stored []match.Resource) readCase {
	c := readCase{Resource: searchtest.PickRandom(r, stored)}
	terms := func(n int) []int64 {
		var out []int64
		for range n {
			x := searchtest.PickRandom(r, stored).Index
			if r.IntN(2) == 0 {
				x = c.Index
			}
			out = append(out, searchtest.PickRandom(r, x.Terms))
		}
		return out
	}
	positive := 0
	for range 1 + r.IntN(4) {
		clause := match.Clause{Any: []match.Match{match.Terms{Values: terms(r.IntN(4))}}, Not: r.IntN(3) == 0}
		if positive++; clause.Not {
			positive--
		} else if positive > 2 {
			break
		}
		switch r.IntN(4) {
		case 0:
			other := searchtest.PickRandom(r, stored)
			clause.Any = append(clause.Any, match.IDs{Refs: []int64{int64(fhir.ValueReference(other.Type, other.ID)), c.ref()}[:1+r.IntN(2)]})
		case 1:
			clause.Any = []match.Match{match.All{Clauses: []match.Clause{{Any: clause.Any}}}}
		}
		c.clauses = append(c.clauses, clause)
	}
	c.want, _ = match.Hold(c.clauses, &c.Resource)
	return c
}

// The queries of ReadIf use the primary key of resource with every condition.
func TestPlanOfReadIf(t *testing.T) {
	s, url := open(t)
	searchtest.NewCorpus(3, 40, 200).Load(t, s)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	refs := []int64{int64(fhir.ValueReference("Patient", "p1"))}
	for sql, args := range map[string][]any{
		db.ReadResourcesIf:     {refs, []int64{1}, 1, []int64{}, 0, []int64{}, 0},
		db.ReadResourcesHaving: {refs, []int64{1}, 1},
	} {
		if plan := planOf(t, conn, sql, args...); !strings.Contains(plan, "resource_ref") || strings.Contains(plan, "Seq Scan on resource") {
			t.Errorf("ReadIf is planned as\n%s", plan)
		}
	}
}

// Searches with a patient's token read no more of the database than the same searches that
// name the patient: the condition is a part of the SQL, with the plans of a good search.
// Contract: docs/contract.md, Authorization, Speed.
func TestPlansOfPatientScopedSearches(t *testing.T) {
	s, database := open(t)
	c := searchtest.NewCorpus(9, 200, 6000)
	c.Load(t, s)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "VACUUM ANALYZE resource"); err != nil {
		t.Fatal(err)
	}
	scopes, err := smart.Parse("patient/*.rs")
	if err != nil {
		t.Fatal(err)
	}
	decider := &access.Decider{Registry: func() *search.Registry { return searchtest.Registry }}
	const patient = "p7"
	rights := decider.RightsOf(t.Context(), &access.Principal{Subject: "app", ClientID: "app", Scopes: scopes, Patient: patient})
	for _, text := range []string{
		"Observation?", "Observation?code=8302-2", "Observation?status=final&category=laboratory", "Observation?_sort=-date", "Observation?date=ge2021&_sort=-date",
		"Observation?date=ge2021", "Observation?value-quantity=gt5", "Observation?_lastUpdated=gt2020", "Observation?code-value-quantity=8302-2$gt5", "Observation?code:not=8302-2",
		"Observation?_include=Observation:subject", "Observation?subject:Patient.gender=male", "Observation?_count=1",
	} {
		typ, query, _ := strings.Cut(text, "?")
		read := func(narrow bool) (blocks int, plans []string, ids []string) {
			values, err := url.ParseQuery(query)
			if err != nil {
				t.Fatal(err)
			}
			if !narrow {
				values.Add("patient", "Patient/"+patient)
			}
			values.Set("_explain", "true")
			q, err := search.Parse(searchtest.Registry, typ, values, search.Options{Explain: true, Now: searchtest.Now})
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if narrow {
				if q, err = rights.Narrow(q, smart.Search); err != nil {
					t.Fatal(err)
				}
				if q.Explain {
					t.Errorf("%s: a narrowed search explains itself", text)
				}
				q.Explain = true
			}
			found := searchtest.FindMatches(t, s, q)
			for _, v := range found.Matches {
				ids = append(ids, v.ID)
			}
			for _, issue := range found.Issues {
				if !strings.Contains(issue.Diagnostics, "Execution Time") {
					continue
				}
				plans = append(plans, issue.Diagnostics)
				blocks += blocksOf(issue.Diagnostics)
			}
			return blocks, plans, ids
		}
		read(false) // the cache of parameters is now current
		named, _, wanted := read(false)
		narrowed, plans, got := read(true)
		if len(plans) == 0 || named == 0 {
			t.Errorf("%s: nothing is explained", text)
		}
		if strings.Contains(strings.Join(plans, ""), "Seq Scan on resource") {
			t.Errorf("%s reads a whole table:\n%s", text, strings.Join(plans, "\n"))
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("%s: %v with the patient's token, %v with the patient named", text, got, wanted)
		}
		if narrowed > named*3/2+30 {
			t.Errorf("%s: %d blocks with the patient's token, %d with the patient named\n%s", text, narrowed, named, strings.Join(plans, "\n"))
		}
		t.Logf("%s: %d blocks with the patient's token, %d with the patient named", text, narrowed, named)
	}
}

var planBuffers = regexp.MustCompile(`(?m)^(\s*)Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?`)

// blocksOf is the number of blocks that a plan has read, from its outermost node.
func blocksOf(plan string) int {
	m := planBuffers.FindStringSubmatch(plan)
	if m == nil {
		return 0
	}
	hit, _ := strconv.Atoi(m[2])
	read, _ := strconv.Atoi(m[3])
	return hit + read
}

func planOf(t *testing.T, conn *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(fmt.Errorf("explain: %w", err))
	}
	return strings.Join(lines, "\n")
}
