package main

import (
	"context"

	"github.com/spf13/cobra"
)

func appsCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "apps",
		Short: "Measure operations of Apps beside plain reads",
		Long: `Measure operations of Apps, a small script and a service that takes no time, beside plain
reads of the same patients, with one App and among 1,000, on --url or a server of --kiln.`,
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
			goals, results, err := t.apps(c.Context(), Load{Clients: 8, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}, s.runs)
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

// apps measures the rows of docs/contract.md, Apps, section 7. The floor of an operation is a
// plain read of the same run: one client tells what it takes more, many how many there are.
func (t *target) apps(ctx context.Context, l Load, runs int) ([]Goal, []Result, error) {
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
	crowd, err := t.measure(ctx, appsWorkload, one, runs)
	if err != nil {
		return nil, nil, err
	}
	read := median(single, "read")
	goals := []Goal{
		atMost("script, p50 above a read of "+number(read)+" us", 150, median(single, "script")-read, " us"),
		atMost("HTTP service, p50 above a read of "+number(read)+" us", 100, median(single, "service")-read, " us"),
		rate("scripts", 3000, many.Rate.Median, 0, 0, "/s"),
		rate("routing among 1,000 Apps, a script's rate", 0, 1e6/max(median(crowd, "script"), 1), 1e6/max(median(single, "script"), 1), 0.95, "/s"),
	}
	return goals, []Result{single, many, crowd}, nil
}
