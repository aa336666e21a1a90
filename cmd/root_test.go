package main

import (
	"io"
	"strings"
	"testing"
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
