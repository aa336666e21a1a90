package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func soakCommand(s *settings) *cobra.Command {
	var d time.Duration
	var part float64
	c := &cobra.Command{
		Use:   "soak",
		Short: "Keep up a mixed load on a server with data",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			say := func(format string, args ...any) { fmt.Fprintf(c.ErrOrStderr(), format+"\n", args...) }
			r, goals, err := t.soak(c.Context(), s, d, part, say)
			if err != nil {
				return err
			}
			if err := writeGoals(c.OutOrStdout(), Section7{Machine: machine(), Goals: goals, Results: []Result{r}}); err != nil {
				return err
			}
			return s.report(c.OutOrStdout(), []Result{r})
		},
	}
	c.Flags().DurationVar(&d, "for", 10*time.Minute, "how long, after a tenth as long at the peak")
	c.Flags().Float64Var(&part, "part", 0.8, "of the peak")
	return c
}

// soak keeps up the mixed load at a part of what the machine keeps up for a tenth of
// the time, and compares the first with the last tenth.
func (t *target) soak(ctx context.Context, s *settings, d time.Duration, part float64, say func(string, ...any)) (Result, []Goal, error) {
	l := Load{Clients: 300, Duration: d / 10, Seed: s.seed}
	m, err := t.bench.Run(ctx, mixWorkload, l)
	if err != nil {
		return Result{}, nil, err
	}
	peak := summarise("mix", l, []*Measured{m})
	say("  peak: %s/s; fixed work %.0f us", number(peak.Rate.Median), peak.Pace.Median)
	l.Rate = part * peak.Rate.Median
	p99 := func(m *Measured) float64 { return milliseconds(m.Total().Latency.Quantile(0.99)) }
	var parts []*Measured
	for i := range 10 {
		l.Seed = s.seed + uint64(i)
		m, err := t.bench.Run(ctx, mixWorkload, l)
		if err != nil {
			return Result{}, nil, err
		}
		parts = append(parts, m)
		all := m.Total()
		say("  %2d: %s/s, p50 %.1f ms, p99 %.1f ms, errors %d, server %d MB; fixed work %d us", i+1,
			number(float64(all.Latency.N())/m.Elapsed.Seconds()), milliseconds(all.Latency.Quantile(0.5)), p99(m), all.Errors,
			m.Usage["server"].PeakRSS/1e6, m.Pace.Microseconds())
	}
	r := summarise("mix, kept up", l, parts)
	first, last := parts[1], parts[9]
	return r, []Goal{
		atMost("kept up: errors", 0, float64(r.All.Errors), ""),
		atMost("kept up: p99 of the last tenth", max(1.5*p99(first), p99(first)+5), p99(last), " ms"),
		atMost("kept up: memory of the last tenth", 1.2*float64(first.Usage["server"].PeakRSS)/1e6, float64(last.Usage["server"].PeakRSS)/1e6, " MB"),
	}, nil
}
