package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

// smokeCommand runs every workload and every floor once, briefly, on bundles of
// its own making: it proves that the tool works, and judges no figure.
func smokeCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "smoke",
		Short: "Run every workload and floor once, without thresholds",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := os.MkdirTemp("", "kiln-bench-bundles-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			if err := writeBundles(dir, 20); err != nil {
				return err
			}
			s.corpus, s.corpusLimit = dir, 0
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			var results []Result
			for _, w := range workloads {
				r, err := t.measure(c.Context(), w, Load{Clients: 4, Duration: 300 * time.Millisecond, Seed: s.seed}, 1)
				if err != nil {
					return err
				}
				results = append(results, r)
			}
			guarded, _, err := t.access(c.Context(), s, Load{Clients: 4, Duration: 300 * time.Millisecond, Seed: s.seed}, 1)
			if err != nil {
				return err
			}
			results = append(results, guarded...)
			operated, _, err := t.operations(c.Context(), s, Load{Clients: 4, Duration: 300 * time.Millisecond, Seed: s.seed}, 1)
			if err != nil {
				return err
			}
			results = append(results, operated...)
			if t.kiln != nil {
				_, notified, err := t.notifications(c.Context(), s, smokeNotifications)
				if err != nil {
					return err
				}
				results = append(results, notified...)
			}
			if t.db != nil {
				f, done, err := t.openFloor(c.Context(), t.bench.Corpus)
				if err != nil {
					return err
				}
				defer done()
				if f.Samples, err = t.bench.Samples(c.Context()); err != nil {
					return err
				}
				for _, p := range floorParts {
					l := Load{Clients: 4, Duration: 300 * time.Millisecond, Seed: s.seed}
					m, err := f.Run(c.Context(), p, l)
					if err != nil {
						return err
					}
					results = append(results, summarise("floor "+p.workload, l, []*Measured{m}))
				}
			}
			if err := s.report(c.OutOrStdout(), results); err != nil {
				return err
			}
			return anyErrors(results)
		},
	}
}

// anyErrors is an error when a request failed or a workload did nothing.
func anyErrors(results []Result) error {
	for _, r := range results {
		if r.All.Errors > 0 {
			return fmt.Errorf("%s: %d of %d requests failed", r.Workload, r.All.Errors, r.All.Requests)
		}
		if r.All.Requests == 0 {
			return fmt.Errorf("%s did nothing", r.Workload)
		}
	}
	return nil
}

// writeBundles makes n small transaction bundles that look like Synthea's.
func writeBundles(dir string, n int) error {
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("bundle-%03d.json", i)))
		if err != nil {
			return err
		}
		writeBundle(f, i)
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

func writeBundle(w io.Writer, i int) {
	urn := func(kind, n int) string { return fmt.Sprintf("urn:uuid:%08x-%04x-4000-8000-%012x", i+1, kind, n) }
	first := true
	entry := func(typ, urn, resource string) {
		if !first {
			fmt.Fprint(w, ",\n")
		}
		first = false
		fmt.Fprintf(w, `{"fullUrl":"%s","resource":%s,"request":{"method":"POST","url":"%s"}}`, urn, resource, typ)
	}
	patient, practitioner := urn(1, 0), urn(2, 0)
	fmt.Fprint(w, `{"resourceType":"Bundle","type":"transaction","entry":[`)
	entry("Patient", patient, fmt.Sprintf(`{"resourceType":"Patient","identifier":[{"system":"urn:bench:patient","value":"s%d"}],"name":[{"use":"official","family":"%s%d","given":["%s"]}],"gender":"%s","birthDate":"19%02d-%02d-%02d","address":[{"line":["%d Main Street"],"city":"%s","country":"US"}]}`,
		i, words[i%len(words)], i, words[(i+7)%len(words)], []string{"male", "female"}[i%2], 40+i%60, i%12+1, i%28+1, i, words[(i+3)%len(words)]))
	entry("Practitioner", practitioner, fmt.Sprintf(`{"resourceType":"Practitioner","identifier":[{"system":"urn:bench:practitioner","value":"d%d"}],"name":[{"family":"%s","given":["Doctor"]}]}`, i, words[i%len(words)]))
	for j := range 3 {
		encounter := urn(3, j)
		start := time.Date(2010+i%9, time.Month(j*4+1), i%28+1, 10, 30, 0, 0, time.UTC)
		day := start.Format(time.RFC3339)
		entry("Encounter", encounter, fmt.Sprintf(`{"resourceType":"Encounter","status":"finished","class":{"system":"http://terminology.hl7.org/CodeSystem/v3-ActCode","code":"AMB"},"subject":{"reference":"%s"},"participant":[{"individual":{"reference":"%s"}}],"period":{"start":"%s","end":"%s"}}`,
			patient, practitioner, day, start.Add(30*time.Minute).Format(time.RFC3339)))
		entry("Condition", urn(4, j), fmt.Sprintf(`{"resourceType":"Condition","clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/condition-clinical","code":"active"}]},"code":{"coding":[{"system":"http://snomed.info/sct","code":"%d","display":"Finding %d"}]},"subject":{"reference":"%s"},"encounter":{"reference":"%s"},"onsetDateTime":"%s"}`,
			100000+i%5, i%5, patient, encounter, day))
		for k, o := range []struct{ code, name, unit string }{{"8302-2", "Body Height", "cm"}, {"29463-7", "Body Weight", "kg"}} {
			entry("Observation", urn(5, 2*j+k), fmt.Sprintf(`{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"%s","display":"%s"}],"text":"%s"},"subject":{"reference":"%s"},"encounter":{"reference":"%s"},"effectiveDateTime":"%s","valueQuantity":{"value":%d.%d,"unit":"%s","system":"http://unitsofmeasure.org","code":"%s"}}`,
				o.code, o.name, o.name, patient, encounter, day, 60+i+k*20, j, o.unit, o.unit))
		}
	}
	fmt.Fprint(w, `]}`)
}
