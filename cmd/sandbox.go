package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"kiln/server/app/sandbox"
)

// sandboxWorker is `kiln sandbox-worker`, the process that the JavaScript of Apps runs
// in. The server starts it; nobody else has a use for it.
func sandboxWorker() *cobra.Command {
	return &cobra.Command{
		Use:    "sandbox-worker BYTES",
		Short:  "Run scripts for a server, over standard input and output",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			memory, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return fmt.Errorf("the limit of memory: %w", err)
			}
			return sandbox.RunWorker(c.InOrStdin(), c.OutOrStdout(), memory)
		},
	}
}
