package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"

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
	c.AddCommand(serve(), migrate(), load(), packageCommand(), adminCommand(), appCommand(), fhirpathCommand(), config(), token(), backupCommand(), restoreCommand(), exportCommand(), importCommand(), viewCommand(), doctor(), health(), version(), sandboxWorker())
	for _, sub := range c.Commands() {
		if sub.Hidden {
			continue
		}
		addShared(sub)
		refuseUnknown(sub)
	}
	c.SetHelpCommand(helpCommand())
	c.InitDefaultCompletionCmd()
	if completion, _, err := c.Find([]string{"completion"}); err == nil {
		refuseUnknown(completion)
	}
	addExamples(c)
	return c
}

// refuseUnknown makes an error of each argument of a group of commands that is none of
// them; a group alone is a question. A wrong number of arguments is told with those that
// the command takes.
func refuseUnknown(c *cobra.Command) {
	if c.HasSubCommands() && !c.Runnable() {
		c.Args, c.RunE = cobra.NoArgs, func(c *cobra.Command, _ []string) error { return c.Help() }
	} else if count := c.Args; count != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			err := count(c, args)
			if err != nil && strings.Contains(err.Error(), "arg(s)") { // cobra's, of a wrong number
				return fmt.Errorf("%w: %s", err, c.UseLine())
			}
			return err
		}
	}
	for _, sub := range c.Commands() {
		refuseUnknown(sub)
	}
}

// helpCommand is help of the command that its arguments name; cobra's own ends well for
// one that there is not.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err == nil && len(rest) > 0 {
				err = fmt.Errorf("unknown command %q for %q", rest[0], about.CommandPath())
			}
			if err != nil {
				return err
			}
			return about.Help()
		},
	}
}

// addShared gives a command of the top level, and those below it, the flags that it
// shares with others: only those that it uses.
func addShared(c *cobra.Command) {
	file, address, database, asJSON := true, false, true, true
	switch c.Name() {
	case "serve":
		address, asJSON = true, false
	case "config", "doctor":
		address = true
	case "health":
		address, database, asJSON = true, false, false
	case "app", "load":
		database = false
	case "package", "version":
		file, database = false, false
	case "fhirpath":
		file, database, asJSON = false, false, false
	}
	f := c.PersistentFlags()
	switch c.Name() {
	case "admin", "backup", "migrate", "token", "view":
		addAnyServerFlag(f)
	}
	if file {
		configFlag(c)
	}
	if address {
		f.String("listen", "", "address to listen on (server.listen)")
		f.String("base-url", "", "base of all links (server.base_url)")
	}
	if database {
		f.String("database-url", "", "PostgreSQL to use (database.url)")
		f.String("data-dir", "", "folder of the private PostgreSQL (database.data_dir)")
	}
	if asJSON {
		f.Bool("json", false, "answer in JSON")
	}
}

// configFlag adds --config.
func configFlag(c *cobra.Command) {
	c.PersistentFlags().String("config", "", "configuration file (default kiln.yaml where there is one)")
}

// loadConfig reads the configuration that a command runs with.
func loadConfig(c *cobra.Command) (server.Config, error) {
	l, err := readConfig(c.Flags(), os.Environ())
	return l.config, err
}

// logger writes to standard error as the configuration says; format changes how.
func logger(c server.LogConfig, level *slog.LevelVar) (log *slog.Logger, format func(string)) {
	var at slog.Level
	if err := at.UnmarshalText([]byte(c.Level)); err == nil {
		level.Set(at)
	}
	options := &slog.HandlerOptions{Level: level}
	h := logHandler{slog.NewTextHandler(os.Stderr, options), slog.NewJSONHandler(os.Stderr, options), new(atomic.Bool)}
	format = func(name string) { h.asJSON.Store(name == "json") }
	format(c.Format)
	return slog.New(h), format
}

// logHandler writes text or JSON, whichever is wanted at the moment.
type logHandler struct {
	text, json slog.Handler
	asJSON     *atomic.Bool
}

func (h logHandler) now() slog.Handler {
	if h.asJSON.Load() {
		return h.json
	}
	return h.text
}

func (h logHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.now().Enabled(ctx, l) }

func (h logHandler) Handle(ctx context.Context, r slog.Record) error { return h.now().Handle(ctx, r) }

func (h logHandler) WithAttrs(list []slog.Attr) slog.Handler {
	return logHandler{h.text.WithAttrs(list), h.json.WithAttrs(list), h.asJSON}
}

func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.text.WithGroup(name), h.json.WithGroup(name), h.asJSON}
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
