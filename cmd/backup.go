package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"kiln/server/backup"
)

// backupCommand is `kiln backup`.
func backupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Back up the whole database to a file",
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
				var m *backup.Manifest
				started := time.Now()
				err := replaceFile(args[0], func(f *os.File) (err error) {
					m, err = backup.Write(c.Context(), url, softwareVersion(), f)
					return err
				})
				if err != nil {
					return err
				}
				if err := noteBackup(c, url, args[0], started, false); err != nil {
					fmt.Fprintln(c.ErrOrStderr(), "the backup is whole, but the database does not list it:", err)
				}
				return tellManifest(c, m, "written")
			})(c, nil)
		},
	}
}

// noteBackup records a backup in its database.
func noteBackup(c *cobra.Command, url, file string, started time.Time, verified bool) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return backup.Note(c.Context(), url, started, info.Size(), verified)
}

// replaceFile has write fill a file beside the one of that name, and puts it in its place
// when it is whole. One backup writes a file at a time: two would mix their bytes.
func replaceFile(name string, write func(*os.File) error) error {
	part := name + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	busy := fmt.Errorf("another backup writes %s: wait for it, or take another name", name)
	// The lock ends with its process: the folder of a killed backup is used again.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return busy
	} else if err != nil {
		return fmt.Errorf("lock %s: %w", part, err)
	}
	// A backup that was whole between opening and locking has given the file its name.
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Stat(part); err != nil || !os.SameFile(mine, now) {
		return busy
	}
	if err = f.Truncate(0); err == nil {
		err = write(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		os.Remove(part)
	}
	return err
}

// restoreCommand is `kiln restore`.
func restoreCommand() *cobra.Command {
	var verify bool
	c := &cobra.Command{
		Use:     "restore FILE",
		Short:   "Restore a backup into an empty database",
		Example: "  kiln restore kiln-2026-11-22.zip --verify --database-url postgres://kiln@db/new",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			// It works on an empty database only: that of a server cannot be taken for it.
			return runOnDatabase(c, func(c *cobra.Command, url string) error {
				m, err := backup.Restore(c.Context(), url, args[0], verify)
				if err != nil {
					return err
				}
				if verify {
					if err := noteBackup(c, url, args[0], m.Made, true); err != nil {
						return err
					}
					return tellManifest(c, m, "restored, and the same as in the backup")
				}
				return tellManifest(c, m, "restored")
			}, true)
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
