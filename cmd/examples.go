package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are what --help shows of how a command is used, where that says more than
// its usage line.
var examples = map[string]string{
	"kiln admin client create": `  kiln admin client create growth-chart --redirect-uris https://app.example.org/callback --scopes 'launch/patient,patient/*.rs,openid,fhirUser'
  kiln admin client create nightly --confidential --grant-types client_credentials --scopes 'system/*.rs'`,
	"kiln admin client update":  "  kiln admin client update growth-chart --redirect-uris https://app.example.org/callback",
	"kiln admin user create":    "  kiln admin user create anna --fhir-user Practitioner/anna --roles admin",
	"kiln admin user update":    "  kiln admin user update anna --email anna@example.org",
	"kiln admin apikey create":  "  kiln admin apikey create --name dashboards --scope 'system/*.rs' --expires 90d",
	"kiln admin key rotate":     "  kiln admin key rotate\n  kiln admin key rotate --now",
	"kiln token mint":           "  TOKEN=$(kiln token mint --client nightly --scope 'system/*.rs' | tail -1)",
	"kiln token explain":        `  kiln token explain "$TOKEN" GET /Patient/1`,
	"kiln admin grant list":     "  kiln admin grant list --user anna",
	"kiln admin grant revoke":   "  kiln admin grant revoke --user anna --client growth-chart",
	"kiln admin apikey list":    "  kiln admin apikey list --json",
	"kiln admin client list":    "  kiln admin client list --json",
	"kiln admin user list":      "  kiln admin user list --json",
	"kiln admin client disable": "  kiln admin client disable growth-chart",
}

// addExamples gives every command below c an example: its own, the table's, or its
// usage line.
func addExamples(c *cobra.Command) {
	for _, sub := range c.Commands() {
		addExamples(sub)
		if sub.Example != "" || sub.HasSubCommands() {
			continue
		}
		if sub.Example = examples[sub.CommandPath()]; sub.Example == "" {
			sub.Example = "  " + strings.TrimSuffix(strings.TrimSpace(sub.UseLine()), " [flags]")
		}
	}
}
