package main

import (
	"github.com/spf13/cobra"

	"kiln/gen/r4"
	"kiln/server/fhirpath"
)

// path is `kiln fhirpath`.
func path() *cobra.Command {
	return &cobra.Command{
		Use:   "fhirpath",
		Short: "Evaluate FHIRPath expressions, one JSON object a line in and out",
		Long: `Reads lines such as
	{"resource":{"resourceType":"Patient","name":[{"given":["Jim"]}]},"expr":"name.given","env":{}}
and answers each with a line such as
	{"result":[{"type":"string","value":"Jim"}],"error":null}`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return fhirpath.Serve(c.InOrStdin(), c.OutOrStdout(), r4.Model)
		},
	}
}
