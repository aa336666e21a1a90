package main

import (
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"kiln/queries"
)

func TestUnknownCommands(t *testing.T) {
	for _, args := range []string{"srve", "config prnt", "migrate upp", "package ad x", "serve now", "help srve", "help migrate upp", "admin cache clera", "admin config list auth", "token mnt", "completion zhs"} {
		c := root()
		c.SetArgs(strings.Fields(args))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("kiln %s: %v, want an error that says the command is unknown", args, err)
		}
	}
}

// A wrong number of arguments is told with those that the command takes.
func TestWrongNumberOfArguments(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"load", "kiln load PATH"}, {"package install", "kiln package install NAME@VERSION"}, {"backup", "kiln backup FILE"},
	} {
		c := root()
		c.SetArgs(strings.Fields(tt.args))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("kiln %s: %v, want %s in it", tt.args, err, tt.want)
		}
	}
}

// A command has only the flags that it uses, and its help shows how to use it.
func TestHelp(t *testing.T) {
	for _, tt := range []struct{ command, has, hasNot string }{
		{"serve", "config listen base-url database-url data-dir pprof", "json server token"},
		{"migrate up", "config database-url data-dir json", "listen base-url"},
		{"load", "config json server token parallel state errors quiet", "listen base-url database-url data-dir"},
		{"package add", "json dir registry", "config listen base-url database-url data-dir"},
		{"package install", "json config server token", "listen database-url"},
		{"config print", "config listen base-url database-url data-dir json", "server"},
		{"doctor", "config listen base-url database-url data-dir json", "server"},
		{"fhirpath", "", "config listen base-url database-url data-dir json"},
		{"version", "json", "config listen base-url database-url data-dir"},
	} {
		c := command(t, strings.Fields(tt.command)...)
		for _, name := range strings.Fields(tt.has) {
			if c.Flag(name) == nil {
				t.Errorf("kiln %s has no --%s", tt.command, name)
			}
		}
		for _, name := range strings.Fields(tt.hasNot) {
			if c.Flag(name) != nil {
				t.Errorf("kiln %s has --%s, which it does not use", tt.command, name)
			}
		}
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && c.HasParent() && !c.HasSubCommands() && c.Example == "" && !c.Hidden {
			t.Errorf("%s --help has no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root())
}

// Names in JSON are lower case, and a pending migration has the time null.
func TestMigrationsAsJSON(t *testing.T) {
	c := command(t, "migrate", "status")
	var out strings.Builder
	c.SetOut(&out)
	if err := c.ParseFlags([]string{"--json"}); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	if err := tellMigrations(c, []queries.Migration{{Version: 1, Name: "0001_a.sql", Applied: at}, {Version: 2, Name: "0002_b.sql"}}, ""); err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	want := []map[string]any{
		{"version": 1.0, "name": "0001_a.sql", "applied": "2024-05-06T07:08:09Z"},
		{"version": 2.0, "name": "0002_b.sql", "applied": nil},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The version is the one that CHANGELOG.md begins with, and the chart's.
func TestVersionIsTheChangelogs(t *testing.T) {
	t.Parallel()
	if !strings.HasPrefix(softwareVersion(), release) || !strings.Contains(document(t, "CHANGELOG.md"), "\n## "+release+" ") {
		t.Errorf("kiln is %s; CHANGELOG.md has no section of that version", softwareVersion())
	}
	if !strings.Contains(document(t, "deploy/helm/Chart.yaml"), `appVersion: "`+release+`"`) {
		t.Errorf("the chart's appVersion is not %s", release)
	}
}
