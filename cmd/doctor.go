package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"kiln/server"
	"kiln/server/access"
	"kiln/server/store"
)

// finding is one thing that doctor looked at.
type finding struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	Says string `json:"says"`
}

// doctor is `kiln doctor`.
func doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Look for what would keep the server from working well",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			findings := examine(c)
			failed := false
			for _, f := range findings {
				failed = failed || !f.OK
			}
			if wantsJSON(c) {
				if err := printJSON(c.OutOrStdout(), findings); err != nil {
					return err
				}
			} else {
				for _, f := range findings {
					mark := "ok  "
					if !f.OK {
						mark = "FAIL"
					}
					fmt.Fprintf(c.OutOrStdout(), "%s  %-16s %s\n", mark, f.What, f.Says)
				}
			}
			if failed {
				return told{fmt.Errorf("something is wrong")}
			}
			return nil
		},
	}
}

func examine(c *cobra.Command) []finding {
	var out []finding
	add := func(what, good string, err error) bool {
		f := finding{What: what, OK: err == nil, Says: good}
		if err != nil {
			f.Says = err.Error()
		}
		out = append(out, f)
		return err == nil
	}
	cfg, err := configured(c)
	if err == nil {
		err = cfg.Check()
	}
	if !add("configuration", "every key is known and has a value that works", err) {
		return out
	}
	add("address", cfg.Server.Listen+" is not reachable from other machines, or access is controlled", access.CheckListen(cfg.Server.Listen, cfg.Auth.Enabled))
	if l, err := net.Listen("tcp", cfg.Server.Listen); err == nil {
		l.Close()
		add("port", cfg.Server.Listen+" is free", nil)
	} else {
		add("port", "a server listens on "+cfg.Server.Listen+" already", reachable(cfg.Server.Listen))
	}
	database, url, err := server.StartDatabase(c.Context(), cfg)
	if !add("PostgreSQL", "it starts and answers", err) {
		return out
	}
	if database != nil {
		defer database.Stop()
	}
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if !add("connection", "the database takes connections", err) {
		return out
	}
	defer conn.Close(ctx)
	settings := ""
	err = conn.QueryRow(ctx, `SELECT format('PostgreSQL %s, encoding %s, fsync %s, synchronous_commit %s, shared_buffers %s',
		current_setting('server_version'), current_setting('server_encoding'), current_setting('fsync'),
		current_setting('synchronous_commit'), current_setting('shared_buffers'))`).Scan(&settings)
	add("settings", settings, err)
	var durable bool
	err = conn.QueryRow(ctx, `SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'`).Scan(&durable)
	if err == nil && !durable {
		err = fmt.Errorf("fsync or full_page_writes is off: a power failure can destroy the data")
	}
	add("durability", "what is acknowledged survives a crash", err)
	plan, err := store.Plan(ctx, url)
	good := "up to date"
	if len(plan) > 0 {
		good = fmt.Sprintf("%d migrations will be applied at the next start", len(plan))
	}
	add("schema", good, err)
	return out
}

// reachable reports why no server answers at address.
func reachable(address string) error {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return fmt.Errorf("the port can neither be taken nor reached: %w", err)
	}
	return conn.Close()
}
