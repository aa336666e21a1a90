package strategy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/searchtest"
	"kiln/server/search/strategy"
	"kiln/server/store"
	"kiln/server/store/storetest"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestExplainGolden runs the searches of testdata/explain.txt on a fixed data set, and compares their `_explain` output:
// the query in words, then the name and SQL of each statement. PostgreSQL's plans with their times are left out; the SQL
// has no ids. Each search runs under several limits, because the limits decide between the ways to answer it:
//
//	candidates  all matches are few enough for candidates
//	counts      a driver may find two rows, and nothing is cached: totals, walks, all matches at once
//	cache       the same with a cache, after the first run has filled it
//
// A search that is answered from the cache has only the statement that reads its page. Run with -update to rewrite.
func TestExplainGolden(t *testing.T) {
	const file = "testdata/explain.txt"
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := openExplained(t)
	got := make(map[string]string)
	for _, run := range []struct {
		name   string
		config strategy.Config
		fill   bool
	}{
		{"candidates", strategy.Config{MemoryBytes: -1}, false},
		{"counts", strategy.Config{Limit: 2, MemoryBytes: -1}, false},
		{"cache", strategy.Config{Limit: 2}, true},
	} {
		s.Searcher().Restart(run.config)
		for _, line := range searchesOf(want) {
			if run.fill {
				for range 2 { // the second miss fills the cache
					explainSearch(t, s, line)
					s.Searcher().AwaitCache()
				}
			}
			got[line] += fmt.Sprintf("%s: %s", run.name, explainSearch(t, s, line))
		}
	}
	var out bytes.Buffer
	for text := range bytes.Lines(want) {
		switch line := strings.TrimSuffix(string(text), "\n"); {
		case strings.HasPrefix(line, "# "):
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "? "):
			fmt.Fprintf(&out, "%s\n%s\n", line, got[line[2:]])
		}
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("run with -update if this is meant:\n%s", diff)
	}
}

// searchesOf returns the lines of a golden file that begin with "? ".
func searchesOf(golden []byte) (out []string) {
	lines := bufio.NewScanner(bytes.NewReader(golden))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line, ok := strings.CutPrefix(lines.Text(), "? "); ok {
			out = append(out, line)
		}
	}
	return out
}

// explainSearch returns the total and the ids of a page, and its explanation without PostgreSQL's plans.
func explainSearch(t *testing.T, s *store.Store, line string) string {
	t.Helper()
	typ, query, _ := strings.Cut(line, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	values.Set("_explain", "true")
	q, err := search.Parse(searchtest.Registry, typ, values, search.Options{Explain: true, Now: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	r, err := s.Search(context.Background(), q)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	var out strings.Builder
	if r.Total == nil {
		out.WriteString("no total")
	} else {
		fmt.Fprintf(&out, "total %d", *r.Total)
	}
	fmt.Fprintf(&out, ", %s", idsOf(r.Matches))
	if len(r.Includes) > 0 {
		fmt.Fprintf(&out, ", includes %s", idsOf(r.Includes))
	}
	out.WriteByte('\n')
	for i, issue := range r.Issues {
		parts := strings.SplitN(issue.Diagnostics, "\n", 3)
		if i == 0 || len(parts) < 3 {
			fmt.Fprintf(&out, "  %s\n", strings.ReplaceAll(issue.Diagnostics, "\n", "\n  "))
			continue
		}
		fmt.Fprintf(&out, "  %s: %s\n", parts[0], parts[1])
	}
	return out.String()
}

func idsOf(versions []fhir.Version) string {
	out := make([]string, len(versions))
	for i, v := range versions {
		out[i] = v.ID
	}
	return fmt.Sprint(out)
}

// openExplained returns a store with the data set of the golden explanations. PostgreSQL's statistics are up to date:
// an estimated total needs them.
func openExplained(t *testing.T) *store.Store {
	t.Helper()
	ctx := context.Background()
	url := storetest.New(t)
	s, err := store.Open(ctx, store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.IndexBy(searchtest.Indexer{})
	var writes []*store.Write
	for _, o := range explainedResources() {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		writes = append(writes, searchtest.NewWrite(t, raw))
	}
	if err := s.WriteAll(ctx, writes); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "ANALYZE"); err != nil {
		t.Fatal(err)
	}
	return s
}

// explainedResources are 2 organizations, 40 patients and 400 observations. Their values repeat in fixed cycles.
func explainedResources() (out []map[string]any) {
	type object = map[string]any
	concept := func(system, code, display string) object {
		return object{"coding": []object{{"system": system, "code": code, "display": display}}, "text": display}
	}
	at := func(i int, list ...string) string { return list[i%len(list)] }
	for i := range 2 {
		out = append(out, object{"resourceType": "Organization", "id": fmt.Sprintf("org%d", i), "name": at(i, "Clinic North", "Clinic South")})
	}
	for i := range 40 {
		out = append(out, object{
			"resourceType": "Patient", "id": fmt.Sprintf("p%d", i), "gender": at(i, "female", "male", "other"),
			"birthDate":            fmt.Sprintf("%d-0%d-1%d", 1940+2*i, 1+i%9, i%10),
			"name":                 []object{{"family": at(i, "Ashford", "Miller", "Müller", "Smith"), "given": []string{at(i, "Eve", "Adam", "Peter")}}},
			"managingOrganization": object{"reference": fmt.Sprintf("Organization/org%d", i%2)},
			"identifier":           []object{{"system": "http://hospital.example", "value": fmt.Sprintf("mrn-%d", i)}},
		})
	}
	for i := range 400 {
		out = append(out, object{
			"resourceType": "Observation", "id": fmt.Sprintf("o%d", i), "status": at(i, "final", "final", "final", "amended", "preliminary"),
			"category":          []object{concept("http://terminology.hl7.org/CodeSystem/observation-category", at(i, "vital-signs", "laboratory"), "Category")},
			"code":              concept("http://loinc.org", at(i, "8302-2", "29463-7", "8480-6"), at(i, "Body height", "Body weight", "Systolic blood pressure")),
			"subject":           object{"reference": fmt.Sprintf("Patient/p%d", i%40)},
			"effectiveDateTime": time.Date(2020, 1, 1+3*i, 0, 0, 0, 0, time.UTC).Format(time.DateOnly),
			"valueQuantity":     object{"value": 1 + i%50, "unit": "kg", "system": "http://unitsofmeasure.org", "code": "kg"},
		})
	}
	return out
}
