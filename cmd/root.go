package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"kiln/server"
)

// root is the kiln command with all its subcommands.
func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "kiln",
		Short:         "A FHIR R4 server, compiled from its definitions",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       softwareVersion(),
	}
	f := c.PersistentFlags()
	f.String("config", "", "configuration file (default kiln.yaml where there is one)")
	f.String("listen", "", "address to listen on (server.listen)")
	f.String("base-url", "", "base of all links (server.base_url)")
	f.String("database-url", "", "PostgreSQL to use (database.url)")
	f.String("data-dir", "", "folder of the private PostgreSQL (database.data_dir)")
	f.Bool("json", false, "answer in JSON where that makes sense")
	c.AddCommand(serve(), migrate(), load(), pack(), administer(), path(), config(), token(), doctor(), version(), sandboxWorker())
	for _, sub := range c.Commands() {
		if sub.HasSubCommands() {
			// What is no subcommand is an error; nothing is a question.
			sub.Args, sub.RunE = cobra.NoArgs, func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	return c
}

// configured reads the configuration that a command runs with.
func configured(c *cobra.Command) (server.Config, error) {
	l, err := readConfig(c.Flags(), os.Environ())
	return l.config, err
}

// logger writes to standard error as the configuration says.
func logger(c server.LogConfig) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}

// wantsJSON reports whether --json was given.
func wantsJSON(c *cobra.Command) bool {
	b, err := c.Flags().GetBool("json")
	return err == nil && b
}

// printJSON writes v for a script.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
