package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func replicaCommand(s *settings) *cobra.Command {
	var o replicaOptions
	c := &cobra.Command{
		Use:   "replica",
		Short: "Read own writes through three servers with two standbys, and measure reads with standbys beside those without",
		Long: `Start a primary and two standbys (pg_basebackup) and three servers of --kiln that read from
them. Clients write, and read their writes: by the header X-Kiln-Position and by the cookie on any
server, by the token of the caller on the same server; by read, search and history, and after a
delete. Meanwhile one standby replays 100 ms late, and the other pauses again and again. The command
fails if an answer is older than the client's write, or has another status than expected.

Then the rows replica (reads and searches for one patient), position (the same and writes, with
positions) and behind (a read or search right after an own write) are measured on a server with
standbys, in turns with a server without, with the processor time of each PostgreSQL.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.replica(c, o) },
	}
	c.Flags().IntVar(&o.reads, "reads", 100_000, "reads after own writes; 0 leaves them out")
	c.Flags().BoolVar(&o.rows, "rows", true, "measure the rows replica, position and behind")
	return c
}

type replicaOptions struct {
	reads int
	rows  bool
}

// Standbys during the reads after own writes.
const (
	lateReplay   = 100 * time.Millisecond // the first replays so much later
	longestPause = 500 * time.Millisecond // the second pauses, and goes on, for at most so long
	replicas     = 2
	readers      = 3 // servers
)

func (s *settings) replica(c *cobra.Command, o replicaOptions) error {
	ctx := c.Context()
	if s.url != "" || s.databaseURL != "" {
		return errors.New("standbys are started beside a PostgreSQL of the command: leave --url and --database-url out")
	}
	if s.corpus == "" {
		dir, err := os.MkdirTemp("", "kiln-bench-bundles-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := writeBundles(dir, 20); err != nil {
			return err
		}
		s.corpus = dir
	}
	t, err := s.target(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	if _, err := t.measure(ctx, importWorkload, Load{Clients: 4, Seed: s.seed}, 1); err != nil {
		return err
	}
	if err := t.settle(ctx, c.ErrOrStderr()); err != nil {
		return err
	}
	var standbys []*Cluster
	defer func() {
		for _, standby := range standbys {
			standby.Stop()
		}
	}()
	for range replicas {
		standby, err := t.cluster.StartStandby(ctx, append(serverSettings(), "hot_standby_feedback=on"))
		if err != nil {
			return err
		}
		standbys = append(standbys, standby)
	}
	if o.reads > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "%d reads after own writes\n", o.reads)
		if err := s.readOwnWrites(ctx, t, standbys, o.reads, c.OutOrStdout()); err != nil {
			return err
		}
	}
	if !o.rows {
		return nil
	}
	return s.measureReplicas(c, t, standbys)
}

// measureReplicas measures the rows and prints their tables.
func (s *settings) measureReplicas(c *cobra.Command, t *target, standbys []*Cluster) error {
	results, goals, costs, err := t.replicaRows(c.Context(), s, standbys)
	if err != nil {
		return err
	}
	if err := s.report(c.OutOrStdout(), results); err != nil {
		return err
	}
	if s.jsonFile != "-" {
		if err := writeCosts(c.OutOrStdout(), costs); err != nil {
			return err
		}
		if err := writeGoals(c.OutOrStdout(), Section7{Machine: machine(), Goals: goals, Results: results}); err != nil {
			return err
		}
	}
	return anyErrors(results)
}

// readURLs is the setting database.read_urls in the environment.
func readURLs(standbys []*Cluster) string {
	text := "KILN_DATABASE__READ_URLS="
	for i, standby := range standbys {
		if i > 0 {
			text += ","
		}
		text += standby.databaseURL("kiln")
	}
	return text
}

// replayLate makes standbys replay each commit so much later than the primary.
func replayLate(ctx context.Context, delay time.Duration, standbys ...*Cluster) error {
	for _, standby := range standbys {
		if err := standby.Exec(ctx, fmt.Sprintf("ALTER SYSTEM SET recovery_min_apply_delay = %d", delay.Milliseconds()), "SELECT pg_reload_conf()"); err != nil {
			return err
		}
	}
	return nil
}
