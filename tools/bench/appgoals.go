package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func appsCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "apps",
		Short: "Measure operations of Apps beside plain reads",
		Long: `Measure operations of Apps, a small script and a service that does nothing, beside plain
reads of the same patients, on --url or a server of --kiln. Of the latter a script is also
measured among 1,000 Apps, in turns with one App.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			if s.corpus != "" {
				if _, err := t.measure(c.Context(), importWorkload, Load{Clients: 4, Seed: s.seed}, 1); err != nil {
					return err
				}
			}
			goals, results, err := t.apps(c.Context(), s, Load{Clients: 8, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}, s.runs)
			if err != nil {
				return err
			}
			if err := s.report(c.OutOrStdout(), results); err != nil {
				return err
			}
			return writeGoals(c.OutOrStdout(), Section7{Machine: machine(), Goals: goals, Results: results})
		},
	}
}

// apps measures the rows of docs/contract.md, Apps, section 7. The floor of an operation is a plain read of the same run:
// one client measures the additional time, many clients the rate.
func (t *target) apps(ctx context.Context, s *settings, l Load, runs int) ([]Goal, []Result, error) {
	median := func(r Result, kind string) float64 {
		for _, c := range r.Categories {
			if c.Name == kind {
				return c.Latency.P50.Median * 1000
			}
		}
		return 0
	}
	one := l
	one.Clients = 1
	single, err := t.measure(ctx, appWorkload, one, runs)
	if err != nil {
		return nil, nil, err
	}
	many, err := t.measure(ctx, appScriptWorkload, l, runs)
	if err != nil {
		return nil, nil, err
	}
	read, alone := median(single, "read"), median(single, direct)
	goals := []Goal{
		atMost("script, p50 above a read of "+number(read)+" us", 150, median(single, "script")-read, " us"),
		atMost("HTTP service, p50 above a read of "+number(read)+" us and its own "+number(alone)+" us", 100, median(single, "service")-read-alone, " us"),
		rate("scripts", 3000, many.Rate.Median, 0, 0, "/s"),
	}
	results := []Result{single, many}
	if t.cluster != nil {
		among, g, err := t.routing(ctx, s, l, max(runs, 2))
		if err != nil {
			return nil, nil, err
		}
		results, goals = append(results, among...), append(goals, g)
	}
	return goals, results, nil
}

// routing measures a script on a server with one App in turns with one among 1,000, each on a
// database of its own with the same patients.
func (t *target) routing(ctx context.Context, s *settings, l Load, runs int) ([]Result, Goal, error) {
	samples, err := t.bench.Samples(ctx)
	if err != nil {
		return nil, Goal{}, err
	}
	var sides [2]func(context.Context, Load) (*Measured, error) // among 1,000, and alone
	var watched []Watched
	for i, w := range []Workload{appsWorkload, appScriptWorkload} {
		url, err := t.cluster.CreateDatabase(ctx, "kiln_bench_"+strings.ReplaceAll(w.Name, "-", "_"))
		if err != nil {
			return nil, Goal{}, err
		}
		k, err := StartKiln(ctx, s.kiln, url)
		if err != nil {
			return nil, Goal{}, err
		}
		defer k.Stop()
		client, err := NewClient(k.URL, "")
		if err != nil {
			return nil, Goal{}, err
		}
		if err := copyPatients(t.bench.Client, client, samples.Patients); err != nil {
			return nil, Goal{}, err
		}
		b := &Bench{Client: client, Watched: Watched{Server: k.PID, Postmaster: t.bench.Watched.Postmaster}, Seed: l.Seed}
		b.once.Do(func() { b.samples = samples })
		task, err := w.Prepare(ctx, b)
		if err != nil {
			return nil, Goal{}, err
		}
		watched = append(watched, b.Watched)
		sides[i] = func(ctx context.Context, l Load) (*Measured, error) {
			return drive(ctx, l, b.Watched, client.NewExchange, task.Op)
		}
	}
	this, floor, err := pair{sides[0], sides[1], watched}.measure(ctx, l, runs)
	if err != nil {
		return nil, Goal{}, err
	}
	return []Result{summarise("script, one App", l, floor), summarise("script, 1,000 Apps", l, this)},
		pairedGoal("routing among 1,000 Apps, a script", this, floor, 0.95), nil
}

// copyPatients stores patients of one server on another.
func copyPatients(from, to *Client, ids []string) error {
	x, y := from.NewExchange(), to.NewExchange()
	for _, id := range ids {
		if err := x.Do(Request{Method: "GET", Path: "Patient/" + id}); err != nil {
			return err
		}
		if err := y.Do(Request{Method: "PUT", Path: "Patient/" + id, Body: x.Body}); err != nil {
			return err
		}
		if y.Status != 200 && y.Status != 201 {
			return fmt.Errorf("PUT Patient/%s: %d %s", id, y.Status, excerpt(y.Body))
		}
	}
	return nil
}
