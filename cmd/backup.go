package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"kiln/server/backup"
)

// backupCommand is `kiln backup`.
func backupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the whole database into a file, while others write",
		Long: `Write the whole database into a file, with what each table holds counted and
summed. Servers may go on writing: the file is the state of one moment. A file of
that name is replaced when the backup is whole.`,
		Example: "  kiln backup kiln-2026-11-22.zip",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return onDatabase(func(c *cobra.Command, url string) error {
				// A device or a folder would be replaced by the file.
				if i, err := os.Stat(args[0]); err == nil && !i.Mode().IsRegular() {
					return fmt.Errorf("%s is not a regular file: a backup needs one, or a name that is free", args[0])
				}
				part := args[0] + ".part"
				f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
				if err != nil {
					return err
				}
				defer os.Remove(part) // gone already where all went well
				m, err := backup.Write(c.Context(), url, softwareVersion(), f)
				if err == nil {
					err = f.Sync()
				}
				if closing := f.Close(); err == nil {
					err = closing
				}
				if err == nil {
					err = os.Rename(part, args[0])
				}
				if err != nil {
					return err
				}
				return tellManifest(c, m, "written")
			})(c, nil)
		},
	}
}

// restoreCommand is `kiln restore`.
func restoreCommand() *cobra.Command {
	var verify bool
	c := &cobra.Command{
		Use:     "restore FILE",
		Short:   "Read a backup into an empty database",
		Example: "  kiln restore kiln-2026-11-22.zip --verify --database-url postgres://kiln@db/new",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return onDatabase(func(c *cobra.Command, url string) error {
				m, err := backup.Restore(c.Context(), url, args[0], verify)
				if err != nil {
					return err
				}
				if verify {
					return tellManifest(c, m, "restored, and the same as in the backup")
				}
				return tellManifest(c, m, "restored")
			})(c, nil)
		},
	}
	c.Flags().BoolVar(&verify, "verify", false, "compare every table with the backup")
	return c
}

func tellManifest(c *cobra.Command, m *backup.Manifest, what string) error {
	if wantsJSON(c) {
		return printJSON(c.OutOrStdout(), m)
	}
	var rows int64
	for _, t := range m.Tables {
		rows += t.Rows
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "%d tables, %d rows %s\n", len(m.Tables), rows, what)
	return err
}
