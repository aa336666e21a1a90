package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"

	"github.com/spf13/cobra"
)

// install is `kiln package install`.
func install() *cobra.Command {
	var r remote
	var dryRun bool
	var integrity string
	c := &cobra.Command{
		Use:   "install FILE.tgz",
		Short: "Bring the definitions of a package to a running server",
		Long: `Store the definitions of a FHIR package on a running server, in one transaction:
SearchParameters, profiles, value sets and what else has a canonical URL. What is
there with that URL is updated where it differs. Nothing is generated: add the
package with "kiln package add" to compile it in.`,
		Example: `  kiln package install hl7.fhir.uv.ips-2.0.0.tgz --dry-run
  kiln package install ips.tgz --server https://fhir.example.org/fhir --token "$TOKEN"`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			archive, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			q := url.Values{}
			if dryRun {
				q.Set("dry-run", "true")
			}
			if integrity != "" {
				q.Set("integrity", integrity)
			}
			body, err := r.call(c, http.MethodPost, "/$install-package?"+q.Encode(), "application/gzip", archive)
			if err != nil {
				return err
			}
			return tellInstalled(c, body)
		},
	}
	r.flags(c)
	configFlag(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would change, and change nothing")
	c.Flags().StringVar(&integrity, "integrity", "", `digest that the file must have, "sha512-…" as npm writes it`)
	return c
}

// tellInstalled prints the answer of $install-package.
func tellInstalled(c *cobra.Command, body []byte) error {
	if wantsJSON(c) {
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s\n", body)
		return err
	}
	var answer struct {
		Parameter []struct {
			Name         string
			ValueString  string
			ValueBoolean bool
			Part         []struct {
				Name           string
				ValueCode      string
				ValueURI       string
				ValueReference struct{ Reference string }
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("the answer is no Parameters resource: %w", err)
	}
	var name, version string
	verb := "installed"
	for _, p := range answer.Parameter {
		switch p.Name {
		case "name":
			name = p.ValueString
		case "version":
			version = p.ValueString
		case "dryRun":
			if p.ValueBoolean {
				verb = "would install"
			}
		case "resource":
			var action, canonical, reference string
			for _, part := range p.Part {
				switch part.Name {
				case "action":
					action = part.ValueCode
				case "url":
					canonical = part.ValueURI
				case "reference":
					reference = part.ValueReference.Reference
				}
			}
			fmt.Fprintf(c.OutOrStdout(), "%-9s  %s  %s\n", action, reference, canonical)
		}
	}
	fmt.Fprintf(c.OutOrStdout(), "%s %s@%s\n", verb, name, version)
	return nil
}
