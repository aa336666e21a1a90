package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	yamlv3 "go.yaml.in/yaml/v3"

	"kiln/server"
)

var update = flag.Bool("update", false, "rewrite the generated pages of docs/reference")

// The generated pages of docs/reference equal the code. `go test ./cmd -run Reference -update`
// writes them.
func TestReferencePages(t *testing.T) {
	t.Parallel()
	for page, render := range map[string]func() string{
		"configuration.md": configurationPage,
		"commands.md":      commandsPage,
	} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("..", "docs", "reference", page)
			want := render()
			if *update {
				if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("docs/reference/%s differs from the code (%v); run go test ./cmd -run Reference -update", page, err)
			}
		})
	}
}

const generated = "<!-- Written by `go test ./cmd -run Reference -update` from the code. Do not edit. -->\n\n"

// configurationPage renders a table of the keys of each section of server.Config.
func configurationPage() string {
	var b strings.Builder
	b.WriteString("# Configuration\n\n" + generated +
		"Each key can be set in `kiln.yaml`, in the environment (`KILN_SEARCH__MAX_COUNT` sets `search.max_count`) and,\n" +
		"unless it needs a restart, at run time (`kiln admin config set KEY VALUE`). A flag overrides the environment,\n" +
		"the environment overrides the database, and the database overrides the file.\n\n" +
		"`kiln config print` shows the values in force and their sources. `kiln config check` reports every wrong value.\n")
	config, section := server.Default(), ""
	for _, k := range keys() {
		if its, _, _ := strings.Cut(k.name, "."); its != section {
			section = its
			fmt.Fprintf(&b, "\n## %s\n\n| Key | Default | Changes apply | Meaning |\n|---|---|---|---|\n", section)
		}
		applies := "at once"
		if k.needsRestart() {
			applies = "at a restart"
		}
		value, err := yamlv3.Marshal(k.show(config))
		if err != nil {
			value = []byte(err.Error())
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", k.name, flow(value), applies, cell(k.doc))
	}
	return b.String()
}

// needsRestart reports whether the field of a key, or a struct above it, has the tag restart or file.
func (k key) needsRestart() bool {
	t := reflect.TypeFor[server.Config]()
	for _, i := range k.index {
		field := t.Field(i)
		if _, ok := field.Tag.Lookup("restart"); ok {
			return true
		}
		if _, ok := field.Tag.Lookup("file"); ok {
			return true
		}
		t = field.Type
	}
	return false
}

// cell escapes text for a cell of a Markdown table.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "\n", " "), "|", `\|`)
}

// commandsPage renders the usage, the flags and the examples of every command that is not hidden.
func commandsPage() string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" + generated +
		"`kiln help COMMAND` prints the same. `kiln completion bash|zsh|fish` prints a completion script for a shell.\n")
	var write func(c *cobra.Command)
	write = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			if sub.Runnable() && !sub.HasSubCommands() {
				writeCommand(&b, sub)
			}
			write(sub)
		}
	}
	write(root())
	return b.String()
}

func writeCommand(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n```\n%s\n```\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."), c.UseLine())
	if c.Long != "" {
		fmt.Fprintf(b, "\n%s\n", strings.TrimSpace(c.Long))
	}
	flags := false
	c.InheritedFlags() // merges the flags of the parent commands
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if !flags {
			b.WriteString("\n| Flag | Default | Meaning |\n|---|---|---|\n")
			flags = true
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fallback := f.DefValue
		if fallback != "" && fallback != "[]" {
			fallback = "`" + fallback + "`"
		} else {
			fallback = ""
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, fallback, cell(f.Usage))
	})
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.TrimRight(c.Example, "\n "))
	}
}
