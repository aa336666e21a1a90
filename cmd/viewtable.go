package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"kiln/server"
	"kiln/server/view/table"
)

// onTables runs a command on the database with its arguments.
func onTables(run func(c *cobra.Command, db *pgx.Conn, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		return runOnDatabase(c, func(c *cobra.Command, url string) error {
			conn, err := server.Connect(c.Context(), url)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(c.Context()))
			return run(c, conn, args)
		}, false)
	}
}

// waitPoll is the time between two looks of --wait.
const waitPoll = 200 * time.Millisecond

// viewMaterialize is `kiln view materialize`.
func viewMaterialize() *cobra.Command {
	var wait bool
	var indexes []string
	c := &cobra.Command{
		Use: "materialize ID", Short: "Keep a stored ViewDefinition as a table of the schema view", Args: cobra.ExactArgs(1),
		Long: `Keeps a stored ViewDefinition as the table view.NAME. A running server builds the table, and keeps it
current from then on. The command works on the database itself.`,
		Example: "  kiln view materialize conditions --index patient_id --wait",
		RunE: onTables(func(c *cobra.Command, db *pgx.Conn, args []string) error {
			var lists [][]string
			for _, i := range indexes {
				lists = append(lists, strings.Split(i, ","))
			}
			t, err := table.Create(c.Context(), db, "ViewDefinition/"+strings.TrimPrefix(args[0], "ViewDefinition/"), "", lists)
			if err != nil {
				return err
			}
			if wait {
				if t, err = awaitTable(c.Context(), db, t.Name); err != nil {
					return err
				}
			}
			return tellTables(c, []*table.Table{t})
		}),
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait until a server has built the table")
	c.Flags().StringArrayVar(&indexes, "index", nil, "columns of an index, with commas between; may be repeated")
	return c
}

// awaitTable waits until a table is built. It fails where the build has failed.
func awaitTable(ctx context.Context, db *pgx.Conn, name string) (*table.Table, error) {
	for {
		t, err := table.Get(ctx, db, name)
		switch {
		case err != nil:
			return nil, err
		case t.State == table.Failed:
			return nil, fmt.Errorf("the build of %s has failed: %s", t.Table, t.Reason)
		case t.State == table.Current:
			return t, nil
		}
		pause := time.NewTimer(waitPoll)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, ctx.Err()
		}
	}
}

// viewList is `kiln view list`.
func viewList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the tables of views", Args: cobra.NoArgs, Example: "  kiln view list --json",
		RunE: onTables(func(c *cobra.Command, db *pgx.Conn, _ []string) error {
			list, err := table.List(c.Context(), db)
			if err != nil {
				return err
			}
			return tellTables(c, list)
		}),
	}
}

func tellTables(c *cobra.Command, list []*table.Table) error {
	if wantsJSON(c) {
		if list == nil {
			list = []*table.Table{}
		}
		return printJSON(c.OutOrStdout(), map[string]any{"views": list})
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TABLE\tVIEW\tVERSION\tSTATE\tROWS\tPROBLEMS\tCURRENT TO")
	for _, t := range list {
		to := "-"
		if t.CurrentTo != nil {
			to = t.CurrentTo.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", t.Table, t.View, t.VersionID, t.State, t.Rows, t.Problems, to)
	}
	return w.Flush()
}

// viewDrop is `kiln view drop`.
func viewDrop() *cobra.Command {
	return &cobra.Command{
		Use: "drop NAME", Short: "Drop the table of a view; the ViewDefinition stays", Args: cobra.ExactArgs(1), Example: "  kiln view drop conditions",
		RunE: onTables(func(c *cobra.Command, db *pgx.Conn, args []string) error {
			return table.Drop(c.Context(), db, tableName(args[0]))
		}),
	}
}

func tableName(text string) string { return strings.TrimPrefix(strings.ToLower(text), "view.") }

// viewGrant is `kiln view grant`, and `kiln view revoke` with give false.
func viewGrant(give bool) *cobra.Command {
	var names []string
	c := &cobra.Command{
		Use: "grant ROLE", Short: "Allow a role of PostgreSQL to read the tables of views", Args: cobra.ExactArgs(1),
		Long: `Lets an existing role of PostgreSQL read tables of views: all with the future ones, or the tables that --view names.
A reader sees all rows. Rebuilds keep the right. Superusers and members of the owner are refused: they may
do more than read.`,
		Example: "  kiln view grant analyst\n  kiln view grant analyst --view conditions --view patients",
		RunE: onTables(func(c *cobra.Command, db *pgx.Conn, args []string) error {
			if args[0] == "" {
				return errors.New("the role has no name")
			}
			for i := range names {
				names[i] = tableName(names[i])
			}
			if give {
				return table.Grant(c.Context(), db, args[0], names)
			}
			return table.Revoke(c.Context(), db, args[0], names)
		}),
	}
	if !give {
		c.Use, c.Short = "revoke ROLE", "End the right of a role to read the tables of views"
		c.Long, c.Example = "", "  kiln view revoke analyst\n  kiln view revoke analyst --view conditions"
	}
	c.Flags().StringArrayVar(&names, "view", nil, "table of a view (default all); may be repeated")
	return c
}
