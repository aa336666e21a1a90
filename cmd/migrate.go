package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"kiln/queries"
	"kiln/server/store"
)

// migrate is `kiln migrate`.
func migrate() *cobra.Command {
	c := &cobra.Command{Use: "migrate", Short: "Migrate the schema of the database, or show its state",
		Example: `  kiln migrate status
  kiln migrate up --database-url postgres://kiln@db/kiln`}
	c.AddCommand(
		&cobra.Command{
			Use:     "up",
			Short:   "Apply all pending migrations; serve does this at its start",
			Example: "  kiln migrate up",
			Args:    cobra.NoArgs,
			RunE: onDatabase(func(c *cobra.Command, url string) error {
				plan, err := store.Plan(c.Context(), url)
				if err != nil {
					return err
				}
				if err := store.Migrate(c.Context(), url); err != nil {
					return err
				}
				for i := range plan {
					plan[i].Applied = time.Now()
				}
				return tellMigrations(c, plan, "the schema was up to date already")
			}),
		},
		&cobra.Command{
			Use:     "status",
			Short:   "List every migration and when it was applied",
			Example: "  kiln migrate status --json",
			Args:    cobra.NoArgs,
			RunE: onDatabase(func(c *cobra.Command, url string) error {
				all, err := store.Status(c.Context(), url)
				if err != nil {
					return err
				}
				return tellMigrations(c, all, "there are no migrations")
			}),
		},
		&cobra.Command{
			Use:     "plan",
			Short:   "List what `migrate up` would apply",
			Example: "  kiln migrate plan",
			Args:    cobra.NoArgs,
			RunE: onDatabase(func(c *cobra.Command, url string) error {
				plan, err := store.Plan(c.Context(), url)
				if err != nil {
					return err
				}
				return tellMigrations(c, plan, "nothing to do: the schema is up to date")
			}),
		},
	)
	return c
}

// migration is a migration as --json shows it; applied is null for a missing one.
type migration struct {
	Version int64      `json:"version"`
	Name    string     `json:"name"`
	Applied *time.Time `json:"applied"`
}

func tellMigrations(c *cobra.Command, list []queries.Migration, none string) error {
	if wantsJSON(c) {
		out := make([]migration, len(list))
		for i, m := range list {
			out[i] = migration{m.Version, m.Name, nil}
			if !m.Applied.IsZero() {
				out[i].Applied = &m.Applied
			}
		}
		return printJSON(c.OutOrStdout(), out)
	}
	if len(list) == 0 {
		fmt.Fprintln(c.OutOrStdout(), none)
	}
	for _, m := range list {
		state := "missing"
		if !m.Applied.IsZero() {
			state = "applied " + m.Applied.Local().Format(time.DateTime)
		}
		fmt.Fprintf(c.OutOrStdout(), "%04d  %-40s %s\n", m.Version, m.Name, state)
	}
	return nil
}
