package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kiln/definitions"
)

// install is `kiln package install`.
func install(source *definitions.Source) *cobra.Command {
	var r remote
	var dryRun, strict bool
	var integrity string
	c := &cobra.Command{
		Use:   "install NAME@VERSION|FILE.tgz",
		Short: "Store the definitions of a package on a running server",
		Long: `Store the definitions of a FHIR package on a running server, in one transaction:
SearchParameters, profiles, value sets and other resources with a canonical URL. A
stored resource with the same URL is updated if it differs. Faults of the package are
reported with file and element, and only the faulty definitions are left out; with
--strict nothing is stored then. Nothing is generated: add the package with
"kiln package add" to compile it in.`,
		Example: `  kiln package install hl7.fhir.uv.ips@2.0.0 --dry-run
  kiln package install ips.tgz --server https://fhir.example.org/fhir --token "$TOKEN"`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			archive, err := source.Fetch(c.Context(), args[0])
			if err != nil {
				return err
			}
			q := url.Values{}
			if dryRun {
				q.Set("dry-run", "true")
			}
			if strict {
				q.Set("strict", "true")
			}
			if integrity != "" {
				q.Set("integrity", integrity)
			}
			body, err := r.call(c, http.MethodPost, "/$install-package?"+q.Encode(), "application/gzip", archive)
			if err != nil {
				return err
			}
			return printInstalled(c, body)
		},
	}
	r.flags(c)
	configFlag(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show the changes, and make none")
	c.Flags().BoolVar(&strict, "strict", false, "store nothing where a definition has an error")
	c.Flags().StringVar(&integrity, "integrity", "", `digest that the file must have, "sha512-…" as npm writes it`)
	return c
}

// serverFlags adds the flags that select the packages of a running server instead of those
// in the source tree.
func (r *remote) serverFlags(c *cobra.Command) {
	c.Flags().StringVar(&r.server, "server", "", "base URL of a running server, whose installed packages are meant (default the source tree)")
	c.Flags().StringVar(&r.token, "token", "", "bearer token")
}

// onServer reports whether a running server is meant. A token without one is an error.
func (r *remote) onServer() (bool, error) {
	if r.server == "" && r.token != "" {
		return false, fmt.Errorf("--token is for a running server: give --server too")
	}
	return r.server != "", nil
}

// listInstalled prints the packages that were installed on a running server.
func listInstalled(c *cobra.Command, r *remote, each bool) error {
	body, err := r.call(c, http.MethodGet, "/$packages", "", nil)
	if err != nil {
		return err
	}
	return printAnswer(c, body, func(answer []answerParameter) {
		for _, p := range answer {
			name, version := p.part("name"), p.part("version")
			fmt.Fprintf(c.OutOrStdout(), "%s@%s  %s resources, installed %s%s\n", name.ValueString, version.ValueString,
				p.part("resources").ValueInteger, p.part("installed").ValueDateTime, replacedCounts(p))
			if !each {
				continue
			}
			for _, d := range p.Part {
				if d.Name == "replaced" {
					fmt.Fprintf(c.OutOrStdout(), "  %s  replaced by %s\n", d.part("reference").ValueReference.Reference, d.part("by").ValueString)
				}
			}
		}
	})
}

// replacedCounts says how many definitions of a package other versions have replaced:
// "; 95 replaced by 4.0.0, 3 by 5.0.1".
func replacedCounts(p answerParameter) string {
	counts := make(map[string]int)
	for _, d := range p.Part {
		if d.Name == "replaced" {
			counts[d.part("by").ValueString]++
		}
	}
	out, word := "", "; %d replaced by %s"
	for _, version := range slices.Sorted(maps.Keys(counts)) {
		out += fmt.Sprintf(word, counts[version], version)
		word = ", %d by %s"
	}
	return out
}

// removeInstalled removes a package, NAME or NAME@VERSION, from a running server.
func removeInstalled(c *cobra.Command, r *remote, spec string, dryRun bool) error {
	q := url.Values{"name": {spec}}
	if i := strings.LastIndexByte(spec, '@'); i > 0 {
		q = url.Values{"name": {spec[:i]}, "version": {spec[i+1:]}}
	}
	if dryRun {
		q.Set("dry-run", "true")
	}
	body, err := r.call(c, http.MethodPost, "/$remove-package?"+q.Encode(), "", nil)
	if err != nil {
		return err
	}
	return printAnswer(c, body, func(answer []answerParameter) {
		printResources(c, answer)
		verb := "removed"
		if find(answer, "dryRun").ValueBoolean {
			verb = "would remove"
		}
		fmt.Fprintf(c.OutOrStdout(), "%s %s@%s: %s deleted, %s kept\n", verb, find(answer, "name").ValueString, find(answer, "version").ValueString,
			find(answer, "delete").ValueInteger, find(answer, "keep").ValueInteger)
	})
}

// answerParameter is a parameter of the answer of an operation on packages.
type answerParameter struct {
	Name           string
	ValueString    string
	ValueBoolean   bool
	ValueCode      string
	ValueURI       string
	ValueInteger   json.Number
	ValueDateTime  string
	ValueReference struct{ Reference string }
	Part           []answerParameter
}

// part returns the part of a name, the zero value where there is none.
func (p answerParameter) part(name string) answerParameter { return find(p.Part, name) }

// find returns the first parameter of a name, the zero value where there is none.
func find(list []answerParameter, name string) answerParameter {
	for _, p := range list {
		if p.Name == name {
			return p
		}
	}
	return answerParameter{}
}

// printAnswer prints a Parameters resource: as it is where JSON is asked for, else by
// write.
func printAnswer(c *cobra.Command, body []byte, write func([]answerParameter)) error {
	if wantsJSON(c) {
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s\n", body)
		return err
	}
	var answer struct{ Parameter []answerParameter }
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("the answer is no Parameters resource: %w", err)
	}
	write(answer.Parameter)
	return nil
}

// printInstalled prints the answer of $install-package: defects and conflicts to the
// standard error, resources and counts to the standard output.
func printInstalled(c *cobra.Command, body []byte) error {
	return printAnswer(c, body, func(answer []answerParameter) {
		for _, p := range answer {
			switch p.Name {
			case "issue":
				printDefect(c, p.part("file").ValueString, p.part("severity").ValueCode, p.part("expression").ValueString, p.part("diagnostics").ValueString)
			case "conflict":
				printCodeConflict(c, p.part("code").ValueString, p.part("used").ValueURI, p.part("hidden").ValueURI)
			}
		}
		printResources(c, answer)
		verb := "installed"
		if find(answer, "dryRun").ValueBoolean {
			verb = "would install"
		}
		fmt.Fprintf(c.OutOrStdout(), "%s %s@%s", verb, find(answer, "name").ValueString, find(answer, "version").ValueString)
		sep := ": "
		for _, action := range []string{"create", "update", "unchanged", "refused"} {
			if n := find(answer, action).ValueInteger; n != "" {
				fmt.Fprintf(c.OutOrStdout(), "%s%s %s", sep, n, action)
				sep = ", "
			}
		}
		if n := find(answer, "existing").ValueInteger; n != "" && n != "0" {
			fmt.Fprintf(c.OutOrStdout(), "%s%s already part of R4", sep, n)
		}
		fmt.Fprintln(c.OutOrStdout())
	})
}

// printResources prints the action on each resource of an answer.
func printResources(c *cobra.Command, answer []answerParameter) {
	for _, p := range answer {
		if p.Name != "resource" {
			continue
		}
		line := fmt.Sprintf("%-9s  %s  %s", p.part("action").ValueCode, p.part("reference").ValueReference.Reference, p.part("url").ValueURI)
		if reason := p.part("reason").ValueString; reason != "" {
			line = strings.TrimRight(line, " ") + ": " + reason
		}
		fmt.Fprintln(c.OutOrStdout(), strings.TrimRight(line, " "))
	}
}

// printDefect prints a defect of a file of a package.
func printDefect(c *cobra.Command, file, severity, expression, diagnostics string) {
	if expression != "" {
		diagnostics = expression + ": " + diagnostics
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s: %s: %s\n", file, severity, diagnostics)
}

// printCodeConflict prints a code of a type that two search parameters have.
func printCodeConflict(c *cobra.Command, code, used, hidden string) {
	fmt.Fprintf(c.ErrOrStderr(), "%s: the search parameter %s is used, %s is not\n", code, used, hidden)
}
