package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func operationsCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "operations",
		Short: "Measure what rate limits and audit cost reads and writes",
		Long: `Measure what rate limits and audit cost: servers of --kiln on one database, one for each
setting, beside one with nothing of it in the same run.`,
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
			l := Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
			if len(s.clients) > 0 {
				l.Clients = s.clients[0]
			}
			results, goals, err := t.operations(c.Context(), s, l, max(s.runs, 2))
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

// operations measures each setting on a server of its own beside t's, which limits and
// records nothing. The runs of a row and of its floor take turns, so that both have the
// same weather.
func (t *target) operations(ctx context.Context, s *settings, l Load, runs int) ([]Result, []Goal, error) {
	if t.kiln == nil {
		return nil, nil, errors.New("operations are measured on servers of --kiln: leave --url out")
	}
	samples, err := t.bench.Samples(ctx)
	if err != nil {
		return nil, nil, err
	}
	reading := func(_ context.Context, w *Worker) error {
		if w.Do("read", Request{Method: "GET", Path: "Patient/" + pick(w.Rand, samples.Patients)}) {
			w.Moved(1)
		}
		return nil
	}
	// Each operation is a write and a read of the same resource.
	writing := func(_ context.Context, w *Worker) error {
		path := fmt.Sprintf("Basic/bench-%d", w.Rand.IntN(1_000_000))
		body := fmt.Appendf(nil, `{"resourceType":"Basic","id":%q,"code":{"text":"bench"},"subject":{"reference":"Patient/%s"}}`, path[len("Basic/"):], pick(w.Rand, samples.Patients))
		if w.Do("update", Request{Method: "PUT", Path: path, Body: body}) && w.Do("read", Request{Method: "GET", Path: path}) {
			w.Moved(1)
		}
		return nil
	}
	rows := []struct {
		name, setting string
		op            Op
		ratio         float64 // of the floor
	}{
		{"read, rate limit", "KILN_AUTH__RATE_LIMITING__REQUESTS_PER_MINUTE=1000000000", reading, 0.97},
		{"read, audit.rest all", "KILN_AUDIT__REST=all", reading, 0.85},
		{"write and read, audit.rest writes", "KILN_AUDIT__REST=writes", writing, 0.90},
	}
	var results []Result
	var goals []Goal
	for _, row := range rows {
		other, err := startKiln(ctx, s.kiln, t.url, []string{row.setting})
		if err != nil {
			return nil, nil, err
		}
		client, err := NewClient(other.URL, "")
		if err != nil {
			other.Stop()
			return nil, nil, err
		}
		bench := &Bench{Client: client, Watched: Watched{Server: other.PID, Postmaster: t.bench.Watched.Postmaster}, Seed: s.seed}
		var this, floor []*Measured
		for i := range runs {
			l.Seed = s.seed + uint64(i)
			for _, side := range []struct {
				on   *Bench
				into *[]*Measured
			}{{t.bench, &floor}, {bench, &this}} {
				m, err := drive(ctx, l, side.on.Watched, side.on.Client.NewExchange, row.op)
				if err != nil {
					other.Stop()
					return nil, nil, fmt.Errorf("%s: %w", row.name, err)
				}
				*side.into = append(*side.into, m)
			}
		}
		f, r := summarise(row.name+": without", l, floor), summarise(row.name, l, this)
		if r.All.Errors > 0 {
			fmt.Fprintf(os.Stderr, "%s: %d errors; the server's log ends with\n%s\n", row.name, r.All.Errors, other.Log())
		}
		other.Stop()
		results = append(results, f, r)
		goals = append(goals, rate(row.name, 0, r.Rate.Median, f.Rate.Median, row.ratio, "/s"))
	}
	return results, goals, nil
}
