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
	c.Flags().DurationVar(&d, "for", 10*time.Minute, "how long, after the peak was looked for")
	c.Flags().Float64Var(&part, "part", 0.8, "of the peak")
	return c
}

// soak keeps up the mixed load at a part of the peak, and compares the second half of
// the time with the first. The peak is the highest rate of arrivals, in steps below the
// rate of a closed loop, whose p99 is not above that loop's: the loop does more at that
// latency, since all of its clients always wait and what waits together is served
// together.
func (t *target) soak(ctx context.Context, s *settings, d time.Duration, part float64, say func(string, ...any)) (Result, []Goal, error) {
	run := func(rate float64, d time.Duration) (*Measured, error) {
		return t.bench.Run(ctx, mixWorkload, Load{Clients: soakClients, Rate: rate, Duration: d, Seed: s.seed})
	}
	rate := func(m *Measured) float64 { return float64(m.Total().Latency.N()) / m.Elapsed.Seconds() }
	p99 := func(m *Measured) float64 { return milliseconds(m.Total().Latency.Quantile(0.99)) }
	m, err := run(0, d/20)
	if err != nil {
		return Result{}, nil, err
	}
	closed, keptUp := rate(m), p99(m)
	say("  closed loop: %s/s, p99 %.1f ms; fixed work %d us", number(closed), keptUp, m.Pace.Microseconds())
	peak, err := peakOf(closed, keptUp, func(rate float64) (float64, error) {
		m, err := run(rate, d/20)
		if err != nil {
			return 0, err
		}
		say("  arrivals: %s/s, p99 %.1f ms; fixed work %d us", number(rate), p99(m), m.Pace.Microseconds())
		return p99(m), nil
	})
	if err != nil {
		return Result{}, nil, err
	}
	var parts []*Measured
	var p99s, memory []float64
	for i := range 10 {
		m, err := run(part*peak, d/10)
		if err != nil {
			return Result{}, nil, err
		}
		parts, p99s = append(parts, m), append(p99s, p99(m))
		memory = append(memory, float64(m.Usage["server"].PeakRSS)/1e6)
		all := m.Total()
		say("  %2d: %s/s, p50 %.1f ms, p99 %.1f ms, errors %d, server %.0f MB; fixed work %d us", i+1,
			number(rate(m)), milliseconds(all.Latency.Quantile(0.5)), p99s[i], all.Errors, memory[i], m.Pace.Microseconds())
	}
	r := summarise("mix, kept up", Load{Clients: soakClients, Rate: part * peak}, parts)
	first, last := figureOf(p99s[:5]).Median, figureOf(p99s[5:]).Median
	return r, []Goal{
		atMost("kept up: errors", 0, float64(r.All.Errors), ""),
		atMost("kept up: p99 of the second half", max(1.5*first, first+5), last, " ms"),
		atMost("kept up: memory of the second half", 1.1*figureOf(memory[:5]).Median, figureOf(memory[5:]).Median, " MB"),
	}, nil
}

// peakOf steps down from the rate of a closed loop until arrivals have a p99 of most
// milliseconds.
func peakOf(closed, most float64, p99 func(rate float64) (float64, error)) (float64, error) {
	for twentieths := 20.0; twentieths >= 10; twentieths-- {
		rate := closed * twentieths / 20
		if is, err := p99(rate); err != nil || is <= most {
			return rate, err
		}
	}
	return 0, fmt.Errorf("half the rate of a closed loop is not kept up with: p99 above %.1f ms", most)
}

// soakClients is the largest number of concurrent requests. Operations that become due while all clients are busy wait,
// and their waiting time counts.
const soakClients = 300
