package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func TestFloorQuery(t *testing.T) {
	var out bytes.Buffer
	for _, path := range []string{
		query("Patient", "family", "Chal"),
		query("Patient", "name:contains", "alm"),
		query("Patient", "birthdate", "eq1974-12-25"),
		query("Observation", "date", "ge2019-05-17"),
		query("Observation", "date", "gt2019-05-17"),
		query("Observation", "date", "ne2019-05-17"),
		query("Observation", "code", "http://loinc.org|8302-2"),
		query("Patient", "gender", "male"),
		query("Observation", "subject", "Patient/1"),
		query("Condition", "patient", "1"),
		query("Observation", "value-quantity", "gt158.4|http://unitsofmeasure.org|cm"),
		query("Observation", "value-quantity", "158.4|http://unitsofmeasure.org|cm"),
		query("Observation", "code-value-quantity", "http://loinc.org|8302-2$ge158"),
	} {
		c, err := floorQuery(path, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		fmt.Fprintf(&out, "%s\n  FROM %s\n  WHERE %s\n", path, c.from, c.where)
		for i, arg := range c.args {
			fmt.Fprintf(&out, "  $%d %v\n", i+1, arg)
			if !strings.Contains(c.where, fmt.Sprintf("$%d", i+1)) {
				t.Errorf("%s: $%d is not used", path, i+1)
			}
		}
	}
	golden(t, "floor-queries.txt", out.Bytes())
	if _, err := floorQuery("Patient?nonsense=1", nil); err == nil {
		t.Error("an unknown parameter has a floor")
	}
}

func TestEverySearchHasAFloor(t *testing.T) {
	s := &Samples{
		Patients: []string{"1"}, Families: []string{"Chalmers"}, Givens: []string{"Peter"}, Cities: []string{"Boston"}, BirthDates: []string{"1974-12-25"},
		Identifiers: []string{"urn:p|1"}, Codes: []string{"http://loinc.org|8302-2"}, Conditions: []string{"http://snomed.info/sct|1"},
		Dates: []string{"2019-05-17T10:30:00Z"}, Encounters: []string{"1"}, Quantities: []Quantity{{"http://loinc.org|8302-2", "158.4", "http://unitsofmeasure.org|cm"}},
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		_, path := pick(r, searchCategories).query(s, r)
		if _, err := floorQuery(path, nil); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
}

func TestRowsOfBundles(t *testing.T) {
	dir := t.TempDir()
	if err := writeBundles(dir, 3); err != nil {
		t.Fatal(err)
	}
	rows, types, err := rowsOf(t.Context(), Corpus{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 3 || len(types.of) != 5 {
		t.Fatalf("%d transactions of %d types, want 3 of 5", len(rows), len(types.of))
	}
	seen := map[int64]bool{}
	for _, tx := range rows {
		for _, r := range tx {
			if seen[r.rid] || len(r.x.Terms) == 0 || !gjson.ValidBytes(r.body) || gjson.GetBytes(r.body, "id").Str != r.id {
				t.Errorf("row of %s %s: rid %d, %d terms, body %s", r.kind, r.id, r.rid, len(r.x.Terms), excerpt(r.body))
			}
			seen[r.rid] = true
		}
	}
}

func TestBundlesOfTheSmokeTestAreTheSameEveryTime(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b} {
		if err := writeBundles(dir, 2); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bundle-000.json", "bundle-001.json"} {
		one, _ := os.ReadFile(filepath.Join(a, name))
		two, _ := os.ReadFile(filepath.Join(b, name))
		if len(one) == 0 || !bytes.Equal(one, two) || !gjson.ValidBytes(one) {
			t.Errorf("%s is empty, differs or is no JSON", name)
		}
	}
}

func TestBodiesArePackedAsTheServerDoes(t *testing.T) {
	body := []byte(patientJSON)
	packed := packBody("", body)
	if packed[0] != 1 || len(packed) > len(body)/2 {
		t.Errorf("%d bytes become %d, beginning with %d", len(body), len(packed), packed[0])
	}
	for _, stored := range [][]byte{packed, body} {
		if got, err := unpackBody(stored); err != nil || !bytes.Equal(got, body) {
			t.Errorf("unpackBody returns %q, %v", got, err)
		}
	}
}

func TestGoalsTable(t *testing.T) {
	latency := func(p99 float64) Latency { return Latency{P99: Figure{Median: p99}} }
	wal, disk := 2400.0, 1600.0
	m := map[string]Result{
		"read":     {Rate: Figure{Median: 20000}, All: Category{Latency: latency(6)}},
		"crud":     {Rate: Figure{Median: 5000}},
		"import":   {Resources: Figure{Median: 16000}, WAL: &wal, Disk: &disk},
		"search":   {Rate: Figure{Median: 3000}, Categories: []Category{{Name: "token", Latency: latency(3)}, {Name: "date ne", Latency: latency(40)}}},
		"tx2":      {Rate: Figure{Median: 4600}},
		"page-all": {Resources: Figure{Median: 120000}, All: Category{Errors: 2}},
	}
	floors := map[string]Result{"crud": {Rate: Figure{Median: 8000}}, "search": {Rate: Figure{Median: 10000}}}
	s := Section7{Machine: "a machine", Goals: goals(m, floors, 50e6, Result{Memory: map[string]int64{"server": 300e6}}, Result{All: Category{Latency: latency(10)}}, 0)}
	var out bytes.Buffer
	if err := writeGoals(&out, s); err != nil {
		t.Fatal(err)
	}
	golden(t, "goals.txt", out.Bytes())
}
