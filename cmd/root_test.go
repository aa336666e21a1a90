package main

import (
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"kiln/queries"
)

func TestUnknownCommands(t *testing.T) {
	for _, args := range []string{"srve", "config prnt", "migrate upp", "package ad x", "serve now"} {
		c := root()
		c.SetArgs(strings.Fields(args))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("kiln %s: %v, want an error that says the command is unknown", args, err)
		}
	}
}

// Names in JSON are lower case, and what is still to do is null.
func TestMigrationsAsJSON(t *testing.T) {
	c := root()
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
