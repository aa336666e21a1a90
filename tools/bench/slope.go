package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
)

// slopeQueries are searches whose result stays the same however many other
// patients there are: all ask for one patient or encounter.
var slopeQueries = []struct {
	name string
	path func(p *slopePatient, encounter string) string
}{
	{"identifier", func(p *slopePatient, _ string) string { return query("Patient", "identifier", p.identifier) }},
	{"_id", func(p *slopePatient, _ string) string { return query("Patient", "_id", p.id) }},
	{"reference", func(p *slopePatient, _ string) string { return query("Observation", "subject", "Patient/"+p.id) }},
	{"reference and token", func(p *slopePatient, _ string) string {
		return query("Observation", "patient", p.id) + "&category=vital-signs"
	}},
	{"reference and date", func(p *slopePatient, _ string) string {
		return query("Observation", "patient", p.id) + "&date=ge2010"
	}},
	{"sorted by date", func(p *slopePatient, _ string) string {
		return query("Observation", "patient", p.id) + "&_sort=-date"
	}},
	{"encounter", func(_ *slopePatient, e string) string { return query("Observation", "encounter", e) }},
	{"chain", func(p *slopePatient, _ string) string { return query("Encounter", "patient.identifier", p.identifier) }},
	{"two hops", func(p *slopePatient, _ string) string {
		return query("Observation", "encounter.patient.identifier", p.identifier)
	}},
	{"_has", func(_ *slopePatient, e string) string {
		return query("Patient", "_has:Observation:patient:encounter", "Encounter/"+e)
	}},
	{"_revinclude", func(p *slopePatient, _ string) string {
		return query("Patient", "_id", p.id) + "&_revinclude=Condition:subject"
	}},
	{"compartment", func(p *slopePatient, _ string) string { return "Patient/" + p.id + "/Condition?_count=20" }},
}

// slopePatient is one patient of the smaller corpus, as a server knows her.
type slopePatient struct {
	identifier, id string
	encounters     []string
}

func slopeCommand(s *settings) *cobra.Command {
	var small int
	c := &cobra.Command{
		Use:   "slope",
		Short: "Compare searches for one patient among few and among all",
		Long: `Import the first --small bundles into one server and all of the corpus into
another, and compare the time of searches that find the same in both.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if s.corpus == "" || s.url != "" {
				return errors.New("the slope is measured on two servers of its own: --corpus is needed, --url is not for it")
			}
			var identifiers []string
			var results [2]Result
			for i, bundles := range []int{small, s.corpusLimit} {
				var err error
				if results[i], err = s.slope(c, bundles, &identifiers); err != nil {
					return err
				}
			}
			return writeSlope(c, results)
		},
	}
	c.Flags().IntVar(&small, "small", 60, "bundles of the smaller corpus")
	return c
}

// slope measures one of the two servers. The first finds the patients to ask for.
func (s *settings) slope(c *cobra.Command, bundles int, identifiers *[]string) (Result, error) {
	ctx, one := c.Context(), *s
	one.corpusLimit = bundles
	t, err := one.target(ctx)
	if err != nil {
		return Result{}, err
	}
	defer t.close()
	fmt.Fprintf(c.ErrOrStderr(), "import of %d bundles (0 is all)\n", bundles)
	if _, err := t.measure(ctx, importWorkload, Load{Clients: 4}, 1); err != nil {
		return Result{}, err
	}
	if err := t.settle(ctx, c.ErrOrStderr()); err != nil {
		return Result{}, err
	}
	if *identifiers == nil {
		samples, err := t.bench.Samples(ctx)
		if err != nil {
			return Result{}, err
		}
		*identifiers = samples.Identifiers
	}
	patients, err := slopePatients(t.bench.Client, *identifiers)
	if err != nil {
		return Result{}, err
	}
	w := Workload{Name: "slope", Prepare: func(context.Context, *Bench) (Task, error) {
		return Task{Op: func(_ context.Context, w *Worker) error {
			p := &patients[w.Rand.IntN(len(patients))]
			q := slopeQueries[w.Rand.IntN(len(slopeQueries))]
			w.Do(q.name, Request{Method: "GET", Path: q.path(p, pick(w.Rand, p.encounters))})
			return nil
		}}, nil
	}}
	return t.measure(ctx, w, Load{Clients: 1, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}, s.runs)
}

// slopePatients finds the patients with these identifiers, each once.
func slopePatients(c *Client, identifiers []string) ([]slopePatient, error) {
	x := c.NewExchange()
	get := func(path string) (gjson.Result, error) {
		if err := x.Do(Request{Method: "GET", Path: path}); err != nil {
			return gjson.Result{}, fmt.Errorf("GET %s: %w", path, err)
		}
		if x.Status != 200 {
			return gjson.Result{}, fmt.Errorf("GET %s: %d %s", path, x.Status, excerpt(x.Body))
		}
		return gjson.Parse(string(x.Body)), nil
	}
	var out []slopePatient
	seen := make(map[string]bool)
	for _, identifier := range identifiers {
		found, err := get("Patient?identifier=" + url.QueryEscape(identifier))
		if err != nil {
			return nil, err
		}
		p := slopePatient{identifier: identifier, id: found.Get("entry.0.resource.id").Str}
		if p.id == "" || seen[p.id] {
			continue
		}
		seen[p.id] = true
		encounters, err := get("Encounter?patient=" + p.id + "&_count=20&_sort=date")
		if err != nil {
			return nil, err
		}
		for _, id := range encounters.Get("entry.#.resource.id").Array() {
			p.encounters = append(p.encounters, id.Str)
		}
		if len(p.encounters) > 0 {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the server has none of the patients to ask for")
	}
	return out, nil
}

func writeSlope(c *cobra.Command, results [2]Result) error {
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "search\tfew: p50 ms\tp99\tall: p50 ms\tp99\tslope\t")
	for _, few := range append(results[0].Categories, results[0].All) {
		for _, all := range append(results[1].Categories, results[1].All) {
			if all.Name == few.Name {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.2f\t\n", few.Name, number(few.Latency.P50.Median), number(few.Latency.P99.Median),
					number(all.Latency.P50.Median), number(all.Latency.P99.Median), all.Latency.P50.Median/few.Latency.P50.Median)
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		if r.All.Errors > 0 {
			return fmt.Errorf("%d of %d requests failed", r.All.Errors, r.All.Requests)
		}
	}
	return nil
}
