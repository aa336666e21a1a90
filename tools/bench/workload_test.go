package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
)

// corpus writes a folder of small bundles.
func corpus(t *testing.T, n int) Corpus {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		patient := fmt.Sprintf(`{"resourceType":"Patient","identifier":[{"system":"urn:p","value":"%d"}],"name":[{"family":"Smith%d","given":["Anna%d"]}],"birthDate":"1980-01-%02d","address":[{"city":"Boston"}]}`, i, i, i, i%28+1)
		observation := `{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"8302-2"}]},"subject":{"reference":"urn:uuid:p"},"encounter":{"reference":"Encounter/e1"},"effectiveDateTime":"2019-05-17T10:30:00Z","valueQuantity":{"value":158.47443265,"system":"http://unitsofmeasure.org","code":"cm"}}`
		condition := `{"resourceType":"Condition","code":{"coding":[{"system":"http://snomed.info/sct","code":"1"}]},"subject":{"reference":"urn:uuid:p"}}`
		bundle := fmt.Sprintf(`{"resourceType":"Bundle","type":"transaction","entry":[
			{"fullUrl":"urn:uuid:p","resource":%s,"request":{"method":"POST","url":"Patient"}},
			{"fullUrl":"urn:uuid:o","resource":%s,"request":{"method":"POST","url":"Observation"}},
			{"fullUrl":"urn:uuid:c","resource":%s,"request":{"method":"POST","url":"Condition"}}]}`, patient, observation, condition)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("b%02d.json", i)), []byte(bundle), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Corpus{Path: dir}
}

func TestEveryWorkloadRunsWithoutErrors(t *testing.T) {
	f := newFake(t)
	client, err := NewClient(f.url+"/", "token")
	if err != nil {
		t.Fatal(err)
	}
	b := &Bench{Client: client, Corpus: corpus(t, 12), Seed: 1, SampleSize: 10}
	var results []Result
	of := slices.DeleteFunc(slices.Clone(workloads), func(w Workload) bool { // Apps and views are no part of the fake
		return strings.HasPrefix(w.Name, "app") || strings.HasPrefix(w.Name, "view")
	})
	for _, w := range of {
		m, err := b.Run(t.Context(), w, Load{Clients: 3, Duration: 30 * time.Millisecond, Seed: 1})
		if err != nil {
			t.Fatalf("%s: %v", w.Name, err)
		}
		r := summarise(w.Name, Load{Clients: 3}, []*Measured{m})
		if r.All.Requests == 0 || r.All.Errors > 0 {
			t.Errorf("%s: %d requests, %d errors: %v", w.Name, r.All.Requests, r.All.Errors, r.Messages)
		}
		if w.Name == "import" && m.Resources != 36 {
			t.Errorf("import moved %d resources, want 36", m.Resources)
		}
		results = append(results, r)
	}
	dir := t.TempDir()
	if err := drawPlots(dir, results); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "throughput.svg"))
	if err != nil || !strings.Contains(string(svg), "conditional-storm, 3 clients") {
		t.Errorf("throughput.svg does not name the workloads: %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "latency-*.svg")); len(files) != len(of) {
		t.Errorf("there are %d latency plots for %d workloads", len(files), len(of))
	}
}

func TestCycleIsThirtySixSteps(t *testing.T) {
	f := newFake(t)
	client, err := NewClient(f.url, "")
	if err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	m, err := drive(t.Context(), Load{Clients: 1, Duration: time.Minute}, Watched{}, client.NewExchange, func(ctx context.Context, w *Worker) error {
		if done.Swap(true) {
			return io.EOF
		}
		return cycle(ctx, w)
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"create": 9, "read": 9, "update": 9, "delete": 9}
	got := map[string]int64{}
	for name, s := range m.Series {
		got[name] = s.Latency.N()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for typ, all := range f.resources {
		if len(all) > 0 {
			t.Errorf("%d %s are left", len(all), typ)
		}
	}
}

func TestStormFindsDuplicates(t *testing.T) {
	f := newFake(t)
	client, err := NewClient(f.url, "")
	if err != nil {
		t.Fatal(err)
	}
	b := &Bench{Client: client, Seed: 1}
	task, err := stormWorkload.Prepare(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drive(t.Context(), Load{Clients: 2, Duration: 20 * time.Millisecond}, Watched{}, client.NewExchange, task.Op); err != nil {
		t.Fatal(err)
	}
	if err := task.Check(t.Context(), b); err != nil {
		t.Errorf("a server that keeps conditional creates apart fails: %v", err)
	}
	for _, p := range f.resources["Patient"] {
		f.create("Patient", p)
		break
	}
	if err := task.Check(t.Context(), b); err == nil || !strings.Contains(err.Error(), "race-free") {
		t.Errorf("a duplicate is not found: %v", err)
	}
}

func TestOpenLoopCountsFromWhenAnOperationWasDue(t *testing.T) {
	stall := 120 * time.Millisecond
	release := make(chan struct{})
	time.AfterFunc(stall, func() { close(release) })
	m, err := drive(t.Context(), Load{Clients: 1, Rate: 100, Duration: 200 * time.Millisecond}, Watched{}, nil, func(_ context.Context, w *Worker) error {
		begin := w.start()
		<-release // the first operation stalls; those behind it were due meanwhile
		w.record("op", time.Since(begin), "")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s := m.Series["op"]
	if n := s.Latency.N(); n < 15 || n > 21 {
		t.Errorf("%d operations in 200 ms at 100/s, want about 20", n)
	}
	// Of 20 operations 12 were due during the stall: the median waited for it.
	if q := s.Latency.Quantile(0.6); q < 10*time.Millisecond {
		t.Errorf("the 60%% quantile is %v: operations that were due during the stall are not charged for it", q)
	}
}

func TestAnOperationsErrorEndsTheRun(t *testing.T) {
	boom := errors.New("boom")
	_, err := drive(t.Context(), Load{Clients: 4, Duration: time.Minute}, Watched{}, nil, func(context.Context, *Worker) error { return boom })
	if !errors.Is(err, boom) {
		t.Errorf("drive returns %v, want %v", err, boom)
	}
}

func TestSamplesComeFromTheServer(t *testing.T) {
	f := newFake(t)
	client, err := NewClient(f.url, "")
	if err != nil {
		t.Fatal(err)
	}
	b := &Bench{Client: client, Corpus: corpus(t, 15), Seed: 7, SampleSize: 5}
	if _, err := b.Samples(t.Context()); err == nil || !strings.Contains(err.Error(), "import") {
		t.Errorf("without patients Samples says %v, want a hint at the import", err)
	}
	b = &Bench{Client: client, Corpus: b.Corpus, Seed: 7, SampleSize: 5}
	if _, err := b.Run(t.Context(), importWorkload, Load{Clients: 1}); err != nil {
		t.Fatal(err)
	}
	s, err := b.Samples(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Patients) != 5 || len(s.Families) != 5 {
		t.Errorf("%d patients and %d families, want 5 of each", len(s.Patients), len(s.Families))
	}
	if diff := cmp.Diff([]string{"2019-05-17T10:30:00Z"}, s.Dates); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Quantity{"http://loinc.org|8302-2", "158.4744", "http://unitsofmeasure.org|cm"}, s.Quantities[0]); diff != "" {
		t.Error(diff)
	}
	again, err := drawSamples(t.Context(), client, 5, 7)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, again); diff != "" {
		t.Errorf("the same seed draws other samples:\n%s", diff)
	}
}

func TestPieces(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{prefixOf("Müller", 2), "Mü"}, {prefixOf("Li", 4), "Li"},
		{middleOf("Abbott", 4), "bbot"}, {middleOf("Ng", 4), "Ng"},
		{short("158.47443265766623"), "158.4744"}, {short("12"), "12"}, {short("1.23456E2"), "1.23456E2"},
		{query("Observation", "code", "http://loinc.org|1"), "Observation?code=http%3A%2F%2Floinc.org%7C1&_count=20"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
	for location, want := range map[string]string{
		"http://x/fhir/Patient/12/_history/1": "12", "Patient/a.b": "a.b", "http://x/Patient/": "", "http://x/Group/1": "",
	} {
		if got, _ := idFrom(location, "Patient"); got != want {
			t.Errorf("idFrom(%q) = %q, want %q", location, got, want)
		}
	}
}

func TestBundleResourcesHaveLiteralReferences(t *testing.T) {
	var got []string
	var patient string
	err := corpus(t, 1).Each(t.Context(), func(b Bundle) error {
		if b.Entries != 3 {
			t.Errorf("%d entries, want 3", b.Entries)
		}
		return b.Resources(func(typ, id string, json []byte) error {
			if typ == "Patient" {
				patient = id
			}
			got = append(got, typ+" "+gjson.GetBytes(json, "subject.reference").Str)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"Patient ", "Observation Patient/" + patient, "Condition Patient/" + patient}, got); diff != "" {
		t.Error(diff)
	}
}
