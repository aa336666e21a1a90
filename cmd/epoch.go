package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"kiln/server/store"
)

// epochs is `kiln admin epoch`.
func epochs() *cobra.Command {
	c := &cobra.Command{Use: "epoch", Short: "Show the epochs of the database, or begin one"}
	c.AddCommand(
		&cobra.Command{
			Use:     "list",
			Short:   "List the epochs, the unbroken lines of the database's history",
			Example: "  kiln admin epoch list --json",
			Args:    cobra.NoArgs,
			RunE: onDatabase(func(c *cobra.Command, url string) error {
				list, err := store.ReadEpochs(c.Context(), url)
				if err != nil {
					return err
				}
				return tellEpochs(c, list)
			}),
		},
		&cobra.Command{
			Use:   "new",
			Short: "Begin a new epoch, in a copied data directory",
			Long: `Begin a new epoch. The server does that itself after a restore, a copy by pg_dump, pg_upgrade
and a promotion. It cannot recognise a copied data directory: run this command on the copy
before a server uses it.`,
			Example: "  kiln admin epoch new --database-url postgres://kiln@copy/kiln",
			Args:    cobra.NoArgs,
			RunE: onDatabase(func(c *cobra.Command, url string) error {
				e, err := store.StartEpoch(c.Context(), url)
				if err != nil {
					return err
				}
				if wantsJSON(c) {
					return printJSON(c.OutOrStdout(), e.Statistics())
				}
				return tellEpochs(c, []store.Epoch{e})
			}),
		},
	)
	return c
}

func tellEpochs(c *cobra.Command, list []store.Epoch) error {
	if wantsJSON(c) {
		all := make([]store.EpochStatistics, len(list))
		for i, e := range list {
			all[i] = e.Statistics()
		}
		return printJSON(c.OutOrStdout(), all)
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "EPOCH\tCAUSE\tSINCE\tSYSTEM\tDATABASE\tTIMELINE")
	for _, e := range list {
		s := e.Statistics()
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%d\n", s.Number, s.Cause, s.Since.Format(time.RFC3339), s.SystemIdentifier, s.DatabaseOID, s.Timeline)
	}
	return w.Flush()
}
